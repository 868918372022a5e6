package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/operator"
)

// withSuggestion adds the flag or subcommand that the user probably meant to an error of a
// command's flags. Cobra parses the flags after an unknown subcommand as its parent's, so
// the unknown subcommand is the mistake, not the flag.
func withSuggestion(command *cobra.Command, args []string, err error) error {
	depth := 0
	for c := command; c.HasParent(); c = c.Parent() {
		depth++
	}
	if command.HasAvailableSubCommands() && len(args) > depth && !strings.HasPrefix(args[depth], "-") {
		return unknownCommand(command, args[depth])
	}
	if valueless := (*pflag.ValueRequiredError)(nil); errors.As(err, &valueless) {
		return fmt.Errorf("%w: add the value after the flag", err)
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration" {
		return fmt.Errorf("%w: use a duration such as 90s, 10m or 24h", err)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var flags []string
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			flags = append(flags, flag.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	if (unknown.GetSpecifiedShortnames() == "f" || name == "filename") && command.Flags().Lookup("filename") == nil {
		return fmt.Errorf("%w: %s reads no manifests", err, command.CommandPath())
	}
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=") // a long flag with a single dash
		if len(name) < 3 {
			return err
		}
	}
	if flag := operator.Nearest(name, flags); flag != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, flag)
	}
	return err
}

// unknownCommand returns an error for an unknown subcommand, with the one that the user
// probably meant.
func unknownCommand(command *cobra.Command, name string) error {
	var names []string
	for _, subcommand := range command.Commands() {
		if subcommand.IsAvailableCommand() {
			names = append(names, subcommand.Name())
		}
	}
	err := fmt.Errorf("unknown command %q for %q", name, command.CommandPath())
	if nearest := operator.Nearest(name, names); nearest != "" {
		return fmt.Errorf("%w: did you mean %s?", err, nearest)
	}
	if command.HasParent() { // the list of all commands is long
		return fmt.Errorf("%w: use one of: %s", err, strings.Join(names, ", "))
	}
	return err
}

// completeChoices registers completions for the flags that accept only certain values.
func completeChoices(command *cobra.Command) {
	complete := func(flag *pflag.Flag) {
		if choice, ok := flag.Value.(*choice); ok {
			// The call fails only for a flag that does not exist or already has
			// completions.
			_ = command.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(choice.choices, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	command.Flags().VisitAll(complete)
	command.PersistentFlags().VisitAll(complete)
}
