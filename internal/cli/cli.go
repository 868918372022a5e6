// Package cli is numaform's command line: it parses flags, runs one change from pods to
// apply, and prints what happened. Results go to stdout, messages to stderr. Start at
// Run.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes of Run. With --detailed-exitcode, plan exits with ExitChanges as
// Terraform does.
const (
	ExitOK      = 0
	ExitFailed  = 1
	ExitUsage   = 2
	ExitChanges = 2
)

// Process is the environment of a command.
type Process struct {
	// Version is the program's version.
	Version        string
	Args           []string
	Environ        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// usageError is an error in the command line.
type usageError struct{ error }

// exitError carries an exit code that is not a failure.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// Run runs one command and returns its exit code.
func Run(ctx context.Context, process Process) int {
	root := newRoot(process)
	root.SetArgs(process.Args)
	root.SetIn(process.Stdin)
	root.SetOut(process.Stdout)
	root.SetErr(process.Stderr)
	command, err := root.ExecuteContextC(ctx)
	var exit exitError
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		fmt.Fprintf(process.Stderr, "numaform: %v\nSee numaform --help.\n", err)
		return ExitUsage
	}
	if ctx.Err() != nil {
		fmt.Fprintf(process.Stderr, "numaform: interrupted: %s\n", afterInterrupt(command))
	}
	fmt.Fprintf(process.Stderr, "numaform: %v\n", err)
	return ExitFailed
}

// afterInterrupt returns a hint about the state after a command was interrupted.
func afterInterrupt(command *cobra.Command) string {
	if command.Name() == "conformance" {
		return "what the run made was removed, unless the next line names something that was not"
	}
	if flag := command.Flags().Lookup("auto-approve"); flag == nil {
		return "this command changes nothing"
	}
	return "run the same command again: what was begun is finished, and nothing is made twice"
}

func newRoot(process Process) *cobra.Command {
	root := &cobra.Command{
		Use:           "numaform",
		Short:         "Kubernetes nodes on Proxmox VE, each change a diff you can read",
		Version:       process.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			return flagsFromEnvironment(command.Flags(), process.Environ)
		},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetVersionTemplate("numaform {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newInit(process), newDoctor(process), newPlan(process), newApply(process), newRemove(process), newDrift(process), newUndo(process),
		newExplain(process), newHistory(process), newPolicy(process), newTopology(process), newController(process), newVersion(process),
		newPlans(process), newApprove(process), newReject(process), newPause(process), newResume(process), newEvacuate(process),
		newConformance(process),
	)
	withExamples(root, examples())
	asUsage(root)
	for _, command := range root.Commands() {
		asUsage(command)
	}
	return root
}

// asUsage marks a wrong number of arguments, or an unknown command, as a usage
// error.
func asUsage(command *cobra.Command) {
	check := command.Args
	if check == nil {
		check = noArgs
	}
	command.Args = func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// noArgs refuses arguments, with a hint about manifests.
func noArgs(command *cobra.Command, args []string) error {
	if len(args) == 0 || command.HasSubCommands() {
		return cobra.NoArgs(command, args)
	}
	name := strings.TrimPrefix(command.CommandPath(), command.Root().Name()+" ")
	if command.Flags().Lookup("filename") != nil {
		return fmt.Errorf("%s takes no argument %q: manifests are named by -f %s", name, args[0], args[0])
	}
	return fmt.Errorf("%s takes no argument %q", name, args[0])
}

// arguments requires between least and most of the arguments in Use, such as NODE.
func arguments(least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		path := strings.TrimPrefix(command.CommandPath(), command.Root().Name()+" ")
		_, want, _ := strings.Cut(command.Use, " ")
		switch {
		case len(args) < least:
			return fmt.Errorf("%s: something is not named: want numaform %s %s", path, path, want)
		case most >= least && len(args) > most:
			return fmt.Errorf("%s: %q is one too many: want numaform %s %s", path, args[most], path, want)
		}
		return nil
	}
}

// anyNumber as most means no limit.
const anyNumber = -1

// flagsFromEnvironment sets each flag that was not given from its environment variable:
// NUMAFORM_ and the flag's name in upper case, with _ for -. The variable of a repeatable
// flag contains comma-separated values.
func flagsFromEnvironment(flags *pflag.FlagSet, environ []string) error {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			values[name] = value
		}
	}
	var mistakes []error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := twinOf(flag)
		value, ok := values[name]
		if !ok || flag.Changed || !hasTwin(flag) {
			return
		}
		if err := setFlag(flags, flag, value); err != nil {
			mistakes = append(mistakes, usageError{fmt.Errorf("environment variable %s: %w", name, err)})
		}
	})
	return errors.Join(mistakes...)
}
