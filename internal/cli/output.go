package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-isatty"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/term"
)

// choice is the value of a flag that accepts only some values.
type choice struct {
	value   *string
	choices []string
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return "string" }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.choices, value) {
		last := len(c.choices) - 1
		return fmt.Errorf("must be %s or %s", strings.Join(c.choices[:last], ", "), c.choices[last])
	}
	*c.value = value
	return nil
}

// choose returns a flag value that accepts the choices. The first one is the default.
func choose(value *string, choices ...string) *choice {
	*value = choices[0]
	return &choice{value: value, choices: choices}
}

// registerOutput adds the flag for the output format.
func registerOutput(flags *pflag.FlagSet, output *string) {
	flags.VarP(choose(output, "text", "json", "yaml"), "output", "o", "output format: text, json or yaml")
}

// outputWide is the output format of a table with all columns.
const outputWide = "wide"

// registerTable adds the flag for the output format of a table.
func registerTable(flags *pflag.FlagSet, output *string) {
	flags.VarP(choose(output, "text", outputWide, "json", "yaml"), "output", "o", "output format: text, wide, json or yaml")
}

// registerConfig adds the flag for the path of numaform.yaml.
func registerConfig(flags *pflag.FlagSet, path *string) {
	flags.StringVar(path, "config", operator.DefaultFile, "configuration file")
}

// registerKubeconfig adds the flags for a Kubernetes cluster.
func registerKubeconfig(flags *pflag.FlagSet, cluster *operator.Kubeconfig, usage string) {
	flags.StringVar(&cluster.Path, "kubeconfig", "", usage)
	flags.StringVar(&cluster.Context, "context", "", "context in the kubeconfig")
}

// printData prints a value to stdout as JSON or YAML.
func printData(process Process, output string, value any) error {
	if output == "yaml" {
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = process.Stdout.Write(text)
		return err
	}
	encoder := json.NewEncoder(process.Stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // commands contain && and >
	return encoder.Encode(value)
}

// printer writes a report for a terminal. It stops writing after the first error, which it
// stores so that callers check for an error only once.
type printer struct {
	term.Terminal
	w   io.Writer
	err error
}

// newPrinter returns a printer for stdout.
func newPrinter(process Process) *printer {
	return &printer{Terminal: process.terminal(process.Stdout), w: process.Stdout}
}

// terminal describes the terminal or other destination of w, with the width and colors that
// the environment and --color select.
func (p *Process) terminal(w io.Writer) term.Terminal {
	color := "never"
	if p.color != nil {
		color = *p.color
	}
	return term.Of(w, p.Environ, color)
}

// raw writes text without wrapping it, such as a diff or a map. It removes control characters
// other than its own colors.
func (w *printer) raw(text string) {
	if w.err == nil {
		_, w.err = io.WriteString(w.w, w.Printable(text))
	}
}

// printf writes whole lines, wrapped at words to the width of the terminal.
func (w *printer) printf(format string, args ...any) {
	w.raw(w.Fill(fmt.Sprintf(format, args...), 2))
}

func (w *printer) heading(text string) {
	w.printf("\n%s\n%s\n", w.Bold(text), strings.Repeat("─", ansi.StringWidth(text)))
}

// table aligns the tab-separated columns of the rows that fill writes. The indentation of
// the first row applies to all rows.
func (w *printer) table(fill func(table io.Writer)) {
	var text strings.Builder
	fill(&text)
	indent := len(text.String()) - len(strings.TrimLeft(text.String(), " "))
	var rows [][]string
	for line := range strings.Lines(text.String()) {
		rows = append(rows, strings.Split(strings.TrimLeft(strings.TrimSuffix(line, "\n"), " "), "\t"))
	}
	w.raw(w.Table(indent, rows))
}

// atTerminal reports whether stdin is a terminal, so that a user can answer questions.
func atTerminal(process Process) bool { return isTerminal(process.Stdin) }

// isTerminal reports whether stdin, stdout or stderr is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(interface{ Fd() uintptr })
	return ok && isatty.IsTerminal(file.Fd())
}

// confirmed asks a question and reports whether the answer is yes.
func confirmed(ctx context.Context, process Process, question string) (bool, error) {
	answer, err := process.ask(ctx, bufio.NewReader(process.Stdin), question+" Enter yes to continue", "the answer")
	return strings.TrimSpace(answer) == "yes", err
}

// ask asks a question and reads a line from stdin. It returns errInterrupted when ctx is
// canceled. The read itself cannot be interrupted; it ends with the process. what names the
// input in errors.
func (p *Process) ask(ctx context.Context, stdin *bufio.Reader, question, what string) (string, error) {
	type read struct {
		line string
		err  error
	}
	p.asking.Store(true) // before a user can read the question and press Ctrl-C
	fmt.Fprintf(p.Stderr, "%s: ", question)
	done := make(chan read, 1)
	go func() {
		line, err := stdin.ReadString('\n')
		done <- read{line: line, err: err}
	}()
	select {
	case r := <-done:
		p.asking.Store(false)
		if errors.Is(r.err, io.EOF) {
			fmt.Fprintln(p.Stderr) // end the line of the question
			return "", fmt.Errorf("%s is missing, because the input ended", what)
		}
		if r.err != nil {
			return "", fmt.Errorf("reading %s: %w", what, r.err)
		}
		return r.line, nil
	case <-ctx.Done():
		return "", errInterrupted
	}
}
