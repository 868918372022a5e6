// Package cli is numaform's command line: it parses flags, runs one command, such as a change
// from pods to apply, and prints the result. Results go to stdout, messages to stderr. Start
// at Run.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
)

// Exit codes of Run. With --detailed-exitcode, plan exits with ExitChanges if there are
// changes, as in Terraform, drift exits with it if drift remains, and wrong usage is
// ExitFailed. ExitInterrupted is the exit code of a shell for Ctrl-C.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitChanges     = 2
	ExitInterrupted = 130
)

// Process is the environment of a command.
type Process struct {
	// Program is the name by which the program was called, such as kubectl-numaform if
	// kubectl runs it as a plugin; empty means numaform.
	Program string
	// Version is the program's version.
	Version        string
	Args           []string
	Environ        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// color is the value of --color; nil means never.
	color *string
	// screen shows progress on Stderr.
	screen *term.Screen
	// asking is true while a question waits for its answer, and remains true after Ctrl-C
	// at the question.
	asking *atomic.Bool
}

// usageError is an error in the command line.
type usageError struct{ error }

// exitError sets the exit code without printing an error.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// errInterrupted reports that the user pressed Ctrl-C at a question.
var errInterrupted = errors.New("interrupted")

// stopping is the message after the first Ctrl-C. After a second one, the engines and
// providers end with this process, and the next run recovers as after any crash.
const stopping = "stopping: waiting until running steps finish and the state is saved, which can take as long as cloning a VM. " +
	"Press Ctrl-C again to exit immediately; to finish the change later, run numaform apply."

// Run runs one command and returns its exit code.
func Run(ctx context.Context, process Process) int {
	process.screen = term.NewScreen(process.Stderr, term.Of(process.Stderr, process.Environ, "never"), clock.RealClock{})
	process.Stderr = process.screen
	process.asking = new(atomic.Bool)
	root := newRoot(process)
	root.SetArgs(process.Args)
	root.SetIn(process.Stdin)
	root.SetOut(process.Stdout)
	root.SetErr(process.Stderr)
	// Find changes the flags of the commands, so it must not run concurrently with the
	// command.
	selected, _, unknown := root.Find(process.Args)
	silent := context.AfterFunc(ctx, func() {
		if process.asking.Load() {
			return // the command ends immediately
		}
		if unknown == nil && selected.Flags().Lookup("auto-approve") != nil {
			fmt.Fprintf(process.Stderr, "\nnumaform: %s\n", stopping)
		}
	})
	command, err := root.ExecuteContextC(ctx)
	silent() // print nothing if the caller cancels ctx after the command has ended
	var exit exitError
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, errInterrupted):
		// The terminal shows ^C after the question.
		fmt.Fprintf(process.Stderr, "\nnumaform: %s\n", term.Printable(err.Error()))
		return ExitInterrupted
	case errors.As(err, &usage):
		fmt.Fprintf(process.Stderr, "numaform: %s\nSee %s --help.\n", term.Printable(err.Error()), command.CommandPath())
		if detailedExitCode(command, process) {
			return ExitFailed
		}
		return ExitUsage
	}
	if ctx.Err() != nil {
		hint := ""
		switch name := command.Name(); {
		case name == "undo": // another undo without an ID would revert this one if all its hosts were finished
			hint = ": to finish a started change, run numaform apply"
		case name == "conformance":
			hint = ": the VMs, tokens and volumes of this run were removed, except any that the next line names"
		case command.Flags().Lookup("auto-approve") != nil:
			hint = ": run the same command again: it finishes the started change and creates nothing twice"
		case slices.Contains([]string{"explain", "history", "hosts", "plan", "plans", "status", "vms"}, name):
			hint = ": this command changes nothing"
		}
		fmt.Fprintf(process.Stderr, "numaform: interrupted%s\n", hint)
	}
	fmt.Fprintf(process.Stderr, "numaform: %s\n", term.Printable(err.Error()))
	return ExitFailed
}

// detailedExitCode reports whether --detailed-exitcode is set. After a wrong flag, neither the
// next flags nor the environment have been read.
func detailedExitCode(command *cobra.Command, process Process) bool {
	const name = "detailed-exitcode"
	if slices.ContainsFunc(process.Args, func(arg string) bool { return arg == "--"+name || arg == "--"+name+"=true" }) {
		return true
	}
	flag := command.Flags().Lookup(name)
	_ = flagsFromEnvironment(command.Flags(), process.Environ) // its errors are about other flags
	return flag != nil && flag.Value.String() == "true"
}

func newRoot(process Process) *cobra.Command {
	process.color = new(string)
	root := &cobra.Command{
		Use:           "numaform",
		Short:         "Autoscale Kubernetes nodes on Proxmox VE; every change is a readable diff",
		Version:       process.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			return flagsFromEnvironment(command.Flags(), process.Environ)
		},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	if strings.HasPrefix(process.Program, "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl numaform"}
	}
	root.PersistentFlags().Var(choose(process.color, "auto", "always", "never"), "color", "use colors: auto, always or never; auto uses them in a terminal, unless NO_COLOR is set")
	root.SetVersionTemplate("numaform {{.Version}}\n")
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return usageError{withSuggestion(command, process.Args, err)}
	})
	root.AddCommand(newInit(process), newDoctor(process), newStatus(process), newGet(process), newPlan(process), newDrift(process), newExplain(process), newHistory(process))
	root.AddCommand(newPolicy(process), newTopology(process), newController(process), newEvacuate(process), newAdopt(process), newConformance(process), newSupportBundle(process), newBackup(process), newRestore(process), newUnlock(process), newMan(process), newConvert(process), newInstanceTypes(process), newNotify(process))
	root.AddCommand(newChanges(process)...)
	root.AddCommand(newPlans(process)...)
	root.AddCommand(newSwitches(process)...)
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the versions of numaform, its fleet format, module and provider",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(process.Stdout, "numaform %s %s/%s\nfleet format %d\nmodule proxmox-node %s\nprovider %s %s\n",
				process.Version, runtime.GOOS, runtime.GOARCH, generator.FormatVersion, modules.Hash(),
				guard.Provider, generator.ProviderVersion)
			return err
		},
	})
	finish(root, examples())
	registerCompletions(root, process)
	return root
}

// finish adds the examples and completions to a command and its subcommands, and makes a
// wrong number of arguments or an unknown command a usage error.
func finish(command *cobra.Command, examples map[string]string) {
	if command.Example == "" {
		command.Example = examples[command.Name()]
	}
	if name := command.Root().DisplayName(); name != "numaform" {
		command.Example = strings.ReplaceAll("\n"+command.Example, "\n  numaform ", "\n  "+name+" ")[1:]
	}
	completeChoices(command)
	if command.HasSubCommands() && !command.Runnable() {
		command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() } // without RunE, cobra does not check arguments
	}
	check := command.Args
	if check == nil {
		check = arguments(0, 0)
	}
	command.Args = func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, subcommand := range command.Commands() {
		finish(subcommand, examples)
	}
}

// arguments requires between least and most arguments. The errors name them as in Use,
// such as NODE.
func arguments(least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		name := command.Root().DisplayName()
		path := strings.TrimPrefix(command.CommandPath(), name+" ")
		_, operands, _ := strings.Cut(command.Use, " ")
		usage := strings.TrimSpace(name + " " + path + " " + operands)
		switch {
		case command.HasSubCommands() && len(args) > 0:
			return unknownCommand(command, args[0])
		case command.HasSubCommands():
			return nil
		case len(args) < least:
			return fmt.Errorf("%s: missing argument: run %s", path, usage)
		case most >= least && len(args) > most && command.Flags().Lookup("filename") != nil:
			return fmt.Errorf("%s: unexpected argument %q: to pass a manifest, use -f %s", path, args[most], args[most])
		case most >= least && len(args) > most:
			return fmt.Errorf("%s: unexpected argument %q: run %s", path, args[most], usage)
		}
		return nil
	}
}

// anyNumber as most means no limit.
const anyNumber = -1

// loadConfig reads numaform.yaml and its overrides from the environment.
func loadConfig(process Process, path string) (*operator.Config, error) {
	return operator.Load(path, process.Environ, flagVariables(newRoot(Process{}))...)
}

// variableOf returns the environment variable of a flag, or "".
func variableOf(flag *pflag.Flag) string {
	if flag.Name == "help" || flag.Name == "version" {
		return ""
	}
	return "NUMAFORM_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// flagVariables returns the environment variables of all flags of a command and its
// subcommands.
func flagVariables(command *cobra.Command) []string {
	var variables []string
	add := func(flag *pflag.Flag) { variables = append(variables, variableOf(flag)) }
	command.Flags().VisitAll(add)
	command.PersistentFlags().VisitAll(add)
	for _, subcommand := range command.Commands() {
		variables = append(variables, flagVariables(subcommand)...)
	}
	return variables
}

// flagsFromEnvironment sets each flag that is missing on the command line from its
// environment variable. The variable of a repeatable flag contains comma-separated values.
func flagsFromEnvironment(flags *pflag.FlagSet, environ []string) error {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			values[name] = value
		}
	}
	var mistakes []error
	flags.VisitAll(func(flag *pflag.Flag) {
		variable := variableOf(flag)
		value, ok := values[variable]
		if !ok || variable == "" || flag.Changed {
			return
		}
		parts := []string{value}
		if flag.Value.Type() == "stringArray" {
			parts = strings.Split(value, ",")
			for i := range parts {
				parts[i] = strings.TrimSpace(parts[i])
			}
		}
		for _, part := range parts {
			if err := flags.Set(flag.Name, part); err != nil {
				mistakes = append(mistakes, usageError{fmt.Errorf("environment variable %s: %w", variable, err)})
			}
		}
	})
	return errors.Join(mistakes...)
}
