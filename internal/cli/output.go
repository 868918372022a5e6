package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/operator"
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
	return encoder.Encode(value)
}

// printer writes a report. It stops at the first error and stores it, so that callers check
// for an error only once.
type printer struct {
	w   io.Writer
	err error
}

// Write does nothing if an earlier write failed.
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

// table aligns tab-separated columns of the rows that fill writes.
func (w *printer) table(fill func(table io.Writer)) {
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fill(table)
	_ = table.Flush() // the printer stores the error
}

// counted returns a count with its noun in the singular or plural.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// pipeWidth is the width of maps if stdout is not a terminal.
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

// atTerminal reports whether stdin is a terminal, so that a user can answer questions.
func atTerminal(process Process) bool {
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	return ok && isatty.IsTerminal(file.Fd())
}

// confirmed asks a question and reports whether the answer is yes. It returns when ctx is
// canceled. The read itself cannot be interrupted; it ends with the process.
func confirmed(ctx context.Context, process Process, question string) (bool, error) {
	fmt.Fprintf(process.Stderr, "%s Enter yes to continue: ", question)
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
