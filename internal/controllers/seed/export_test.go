package seed

import "time"

// JoinShell returns the program that reads and runs a join command.
func JoinShell() []string { return joinShell(joinLimit) }

// ShortJoinShell returns the program with another limit.
func ShortJoinShell(limit time.Duration) []string { return joinShell(limit) }
