package cli

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/mattn/go-isatty"
)

// asker asks a person at the terminal.
type asker struct {
	in  *bufio.Reader
	out io.Writer
}

// newAsker returns an asker, and whether there is a terminal.
func newAsker(process Process) (*asker, bool) {
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	if !ok || !isatty.IsTerminal(file.Fd()) {
		return nil, false
	}
	return &asker{in: bufio.NewReader(process.Stdin), out: process.Stderr}, true
}

// ask returns the answer, or proposed if the answer is empty.
func (a *asker) ask(question, proposed string) (string, error) {
	if proposed != "" {
		question += " [" + proposed + "]"
	}
	if _, err := fmt.Fprintf(a.out, "%s: ", question); err != nil {
		return "", err
	}
	line, err := a.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	if answer := strings.TrimSpace(line); answer != "" {
		return answer, nil
	}
	return proposed, nil
}
