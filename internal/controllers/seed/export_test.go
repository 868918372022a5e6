package seed

// JoinShell is the program that reads a join command.
func JoinShell() []string { return joinShell() }
