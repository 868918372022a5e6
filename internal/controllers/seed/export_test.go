package seed

// JoinShell returns the program that reads a join command.
func JoinShell() []string { return joinShell() }
