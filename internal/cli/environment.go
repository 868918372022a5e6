package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/operator"
)

// loadConfig reads numaform.yaml and overrides from the environment.
func loadConfig(process Process, path string) (*operator.Config, error) {
	return operator.Load(path, process.Environ, flagTwins(newRoot(Process{}))...)
}

// twinOf returns the environment variable of a flag.
func twinOf(flag *pflag.Flag) string {
	return "NUMAFORM_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// hasTwin reports whether a flag has an environment variable.
func hasTwin(flag *pflag.Flag) bool { return flag.Name != "help" && flag.Name != "version" }

// setFlag sets a flag from its environment variable.
func setFlag(flags *pflag.FlagSet, flag *pflag.Flag, value string) error {
	if flag.Value.Type() != "stringArray" {
		return flags.Set(flag.Name, value)
	}
	for part := range strings.SplitSeq(value, ",") {
		if err := flags.Set(flag.Name, strings.TrimSpace(part)); err != nil {
			return err
		}
	}
	return nil
}

// flagTwins returns the environment variables of all flags of a command and its
// subcommands.
func flagTwins(command *cobra.Command) []string {
	var twins []string
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if hasTwin(flag) {
			twins = append(twins, twinOf(flag))
		}
	})
	for _, below := range command.Commands() {
		twins = append(twins, flagTwins(below)...)
	}
	return twins
}
