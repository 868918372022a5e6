package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan returns the command that writes the man pages of a release.
func newMan(process Process) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write a man page for each command to a directory",
		Long:   "Write a man page for each command to the directory DIR, which is created if it does not exist. The environment variable SOURCE_DATE_EPOCH sets the date of the pages.",
		Hidden: true,
		Args:   arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			date := time.Now()
			if text := variable(process.Environ, "SOURCE_DATE_EPOCH"); text != "" {
				seconds, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return fmt.Errorf("environment variable SOURCE_DATE_EPOCH: %q: must be a number of seconds since 1970-01-01", text)
				}
				date = time.Unix(seconds, 0)
			}
			date = date.UTC()
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("writing man pages: %w", err)
			}
			root := newRoot(Process{})
			root.InitDefaultHelpCmd()
			untagged(root)
			header := &doc.GenManHeader{Section: "1", Date: &date, Source: "numaform", Manual: "numaform"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("writing man pages: %w", err)
			}
			return nil
		},
	}
}

// untagged omits the date of generation from the pages of a command and its subcommands.
func untagged(command *cobra.Command) {
	command.DisableAutoGenTag = true
	for _, subcommand := range command.Commands() {
		untagged(subcommand)
	}
}

// variable returns the value of an environment variable, or "".
func variable(environ []string, name string) string {
	for _, entry := range environ {
		if value, found := strings.CutPrefix(entry, name+"="); found {
			return value
		}
	}
	return ""
}
