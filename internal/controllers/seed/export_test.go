package seed

// JoinShell returns the program that reads a join command.
func JoinShell() []string { return []string{"/bin/sh", "-c", joinScript} }
