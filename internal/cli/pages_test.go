package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/cli"
)

var (
	fencedBlock = regexp.MustCompile("(?ms)^ *```[^\n]*\n(.*?)^ *```$")
	inlineCode  = regexp.MustCompile("`(?:kubectl )?(numaform [a-z][^`\n]*)`")
	comment     = regexp.MustCompile(`(^|\s)#.*$`)
	typed       = regexp.MustCompile(`^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:kubectl )?(numaform [a-z].*)$`)
	shellWord   = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	// commandEnd is where a redirection or another command begins.
	commandEnd = regexp.MustCompile(`^(?:[0-9]?>|<|\||&&|;|\().*`)
	optional   = regexp.MustCompile(`\[[^\]]*\]`)
)

// TestPagesShowValidCommands checks each numaform command on the pages for users, in blocks
// and in sentences: the command and its flags exist, and a block passes the right number of
// arguments.
func TestPagesShowValidCommands(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	checked := 0
	check := func(path, line string, block bool) {
		checked++
		if err := validCommand(line, block); err != nil {
			t.Errorf("%s: %s: %v", path, line, err)
		}
	}
	for _, dir := range []string{"README.md", "docs", "examples", filepath.Join("charts", "numaform", "README.md")} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.IsDir() && entry.Name() == "adr" {
				return filepath.SkipDir
			}
			if filepath.Ext(path) != ".md" {
				return nil
			}
			page, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, block := range fencedBlock.FindAllSubmatch(page, -1) {
				for line := range bytes.Lines(block[1]) {
					if match := typed.FindStringSubmatch(comment.ReplaceAllString(strings.TrimSpace(string(line)), "")); match != nil {
						check(path, match[1], true)
					}
				}
			}
			for _, match := range inlineCode.FindAllSubmatch(fencedBlock.ReplaceAll(page, nil), -1) {
				check(path, string(match[1]), false)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 200 {
		t.Errorf("only %d commands were checked", checked)
	}
}

// validCommand returns the error that numaform would print for the words of a command.
// Optional words in brackets, an ellipsis for words, and the words after a comma are not part
// of it. In a sentence, arguments can be missing.
func validCommand(line string, block bool) error {
	var words []string
	previous := ""
	for _, word := range shellWord.FindAllString(optional.ReplaceAllString(line, ""), -1)[1:] {
		if commandEnd.MatchString(word) {
			break
		}
		text := strings.TrimRight(strings.Trim(word, `'"`), ",:")
		if text != "…" || strings.HasPrefix(previous, "-") {
			words = append(words, text)
		}
		if strings.HasSuffix(word, ",") {
			break
		}
		previous = text
	}
	root := cli.NewRoot(cli.Process{Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader(""), Args: words})
	command, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	err = command.ParseFlags(rest)
	var missing *pflag.ValueRequiredError
	switch {
	case errors.Is(err, pflag.ErrHelp), !block && errors.As(err, &missing):
		return nil
	case err != nil:
		return err
	case !block:
		return nil
	}
	if err := command.ValidateArgs(command.Flags().Args()); err != nil {
		return err
	}
	return command.ValidateRequiredFlags()
}

// TestCommandReference checks that docs/commands.md lists each command with its usage and
// flags, as --help prints them.
func TestCommandReference(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString("# Commands\n\nThis page lists each command with its flags, as `--help` prints them. [Command line](cli.md) describes how to use them. Each flag has an environment variable: `NUMAFORM_` and its name in upper case, with `_` for `-`.\n" +
		"`go test ./internal/cli -run TestCommandReference -update` generates the page.\n")
	root := cli.NewRoot(cli.Process{Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader("")})
	writeCommand(&page, root)
	path := filepath.Join("..", "..", "docs", "commands.md")
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	existing, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(existing)); diff != "" {
		t.Errorf("%s is not up to date: run go test ./internal/cli -run TestCommandReference -update (-want +got):\n%s", path, diff)
	}
}

// writeCommand writes the sections of a command and its subcommands.
func writeCommand(page *strings.Builder, command *cobra.Command) {
	if command.Hidden {
		return
	}
	text := func(text string) string {
		return strings.TrimSpace(strings.NewReplacer("<", "&lt;", ">", "&gt;", "|", "\\|").Replace(text))
	}
	fmt.Fprintf(page, "\n## %s\n\n%s.\n", command.CommandPath(), text(strings.TrimSuffix(command.Short, ".")))
	if command.Long != "" {
		fmt.Fprintf(page, "\n%s\n", text(command.Long))
	}
	fmt.Fprintf(page, "\n```\n%s\n", command.UseLine())
	if command.Example != "" {
		fmt.Fprintf(page, "\n%s\n", strings.Trim(command.Example, "\n"))
	}
	page.WriteString("```\n")
	flags := command.LocalFlags()
	rows := 0
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			page.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		}
		name := "--" + flag.Name
		if flag.Shorthand != "" {
			name = "-" + flag.Shorthand + ", " + name
		}
		standard := flag.DefValue
		if standard == "[]" || standard == "" {
			standard = "–"
		} else {
			standard = "`" + standard + "`"
		}
		variable, usage := pflag.UnquoteUsage(flag)
		fmt.Fprintf(page, "| `%s` | %s | %s |\n", strings.TrimSpace(name+" "+variable), standard, text(usage))
	})
	for _, subcommand := range command.Commands() {
		writeCommand(page, subcommand)
	}
}
