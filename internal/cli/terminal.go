package cli

import "golang.org/x/term"

// pipeWidth is the width of maps without a terminal.
const pipeWidth = 100

// width returns the number of columns of the terminal at stdout.
func width(process Process) int {
	file, ok := process.Stdout.(interface{ Fd() uintptr })
	if !ok {
		return pipeWidth
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil || columns <= 0 {
		return pipeWidth
	}
	return columns
}
