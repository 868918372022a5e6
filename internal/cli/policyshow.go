package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/state/guard"
)

func newPolicyShow(process Process) *cobra.Command {
	var path string
	var shipped bool
	command := &cobra.Command{
		Use:   "show",
		Short: "Print the rules and limits in force: the shipped ones and those of numaform.yaml",
		RunE: func(command *cobra.Command, _ []string) error {
			if shipped {
				return showPolicy(process.Stdout, nil)
			}
			config, err := loadConfig(process, path)
			if errors.Is(err, fs.ErrNotExist) && !command.Flags().Changed("config") {
				fmt.Fprintf(process.Stderr, "There is no %s here: these are the shipped rules and limits.\n", path)
				config, err = nil, nil
			}
			if err != nil {
				return err
			}
			return showPolicy(process.Stdout, config)
		},
	}
	command.Flags().StringVar(&path, "config", "numaform.yaml", "configuration file")
	command.Flags().BoolVar(&shipped, "shipped", false, "only what numaform ships, whatever numaform.yaml says")
	return command
}

// showPolicy prints the effective rules, as files that can be edited, with the limits as
// a comment; without a configuration it prints the defaults.
func showPolicy(out io.Writer, config *operator.Config) error {
	limits, text := guard.DefaultLimits(), string(guard.DefaultPolicy())
	if config != nil {
		rules, err := config.Rules()
		if err != nil {
			return err
		}
		limits = rules.Limits
		if text, err = policyTexts(config); err != nil {
			return err
		}
	}
	printed, err := yaml.Marshal(limits)
	if err != nil {
		return fmt.Errorf("printing limits: %w", err)
	}
	comment := strings.ReplaceAll(strings.TrimSpace(string(printed)), "\n", "\n#   ")
	_, err = fmt.Fprintf(out, "%s\n# Limits:\n#   %s\n", text, comment)
	return err
}

// policyTexts returns the concatenated files of the effective policy.
func policyTexts(config *operator.Config) (string, error) {
	var parts []string
	if !config.Policy.ReplaceDefault {
		parts = append(parts, string(guard.DefaultPolicy()))
	}
	for _, file := range config.Policy.Files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading policy.files: %w: correct the path", err)
		}
		parts = append(parts, fmt.Sprintf("# From %s:\n%s", file, text))
	}
	return strings.Join(parts, "\n---\n"), nil
}
