package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// registerOutput adds the flag for the form of the output, which checkOutput checks.
func registerOutput(command *cobra.Command, output *string) {
	command.Flags().StringVarP(output, "output", "o", "text", "text or json")
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return usageError{fmt.Errorf("--output %q: want text or json", output)}
	}
	return nil
}

// printJSON prints a value to stdout, indented.
func printJSON(process Process, value any) error {
	encoder := json.NewEncoder(process.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// printer keeps the first error, so that a report can be written without checking each
// call.
type printer struct {
	w   io.Writer
	err error
}

// Write writes to the printer's writer, unless an earlier write failed.
func (w *printer) Write(text []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	var n int
	n, w.err = w.w.Write(text)
	return n, w.err
}

func (w *printer) printf(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func (w *printer) heading(text string) {
	w.printf("\n%s\n%s\n", text, strings.Repeat("─", len([]rune(text))))
}

// table aligns the columns of the rows that fill writes, which are separated by tabs.
func (w *printer) table(fill func(table io.Writer)) {
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fill(table)
	_ = table.Flush() // the printer keeps the error
}

// counted returns a count with its noun.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

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

// atTerminal reports whether a person can be asked.
func atTerminal(process Process) bool {
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	return ok && isatty.IsTerminal(file.Fd())
}

// confirmed asks for a yes. It returns when ctx ends: the read cannot be interrupted, so it
// then continues until the process ends.
func confirmed(ctx context.Context, process Process, question string) (bool, error) {
	fmt.Fprintf(process.Stderr, "%s Only yes is taken for yes: ", question)
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		line, err := bufio.NewReader(process.Stdin).ReadString('\n')
		done <- read{line: line, err: err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return false, fmt.Errorf("reading the answer: %w", r.err)
		}
		return strings.TrimSpace(r.line) == "yes", nil
	case <-ctx.Done():
		return false, fmt.Errorf("reading the answer: %w", context.Cause(ctx))
	}
}
