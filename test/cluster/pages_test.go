package cluster_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/enginetest"
)

// page is how the commands of one page of the documentation are run.
type pageCommands struct {
	// prepare is a shell script that runs before the page's commands, in the same shell.
	prepare string
	// words are the placeholders of the page and what they stand for here.
	words map[string]string
	// before are scripts that run before the commands with these beginnings, for what the
	// page's reader does elsewhere or what has happened meanwhile.
	before map[string]string
	// after is a script that runs after the page's commands, and checks their effects.
	after string
}

// elsewhere are commands that do not run here, by their beginning on a page; "" is all of
// the page. Another test checks them, or they run only on machines that no test has.
type elsewhere struct {
	page, command string
	// by is the test that runs or checks the command, as file:name.
	by  string
	why string
}

// command is a command on a page.
type command struct {
	line int
	text string
}

// commandsOf returns the commands in the sh and console blocks of a page, except blocks that are
// marked as run by another test. A block without a language is an error, because the test
// cannot know whether it contains commands.
func commandsOf(name, text string) (commands []command, err error) {
	language, inside, marked := "", false, false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if fence, ok := strings.CutPrefix(line, "```"); ok {
			if inside = !inside; inside {
				if marked {
					language, marked = "", false
					continue
				}
				if language = fence; language == "" {
					return nil, fmt.Errorf("%s:%d: the block has no language: use sh for commands, console for commands with their output, and text for output", name, number)
				}
			}
			continue
		}
		marked = strings.HasPrefix(line, "<!-- ") && strings.HasSuffix(line, ": run by test/e2e -->")
		isCommand := inside && language == "sh" && line != "" && !strings.HasPrefix(line, "#")
		if inside && language == "console" {
			line, isCommand = strings.CutPrefix(line, "$ ")
		}
		if isCommand {
			commands = append(commands, command{number, line})
		}
	}
	return commands, nil
}

// userPages returns the names of all pages for users, except references that are generated
// from the code.
func userPages(t *testing.T, root string) []string {
	t.Helper()
	contributors := []string{"docs/commands.md", "docs/architecture.md", "docs/test-coverage.md", "docs/placement.md"}
	pages := []string{"README.md", "charts/numaform/README.md"}
	for _, dir := range []string{"docs", "examples", "modules"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			switch name = filepath.ToSlash(name); {
			case entry.IsDir() && name == "docs/adr":
				return filepath.SkipDir
			case filepath.Ext(name) == ".md" && !slices.Contains(contributors, name):
				pages = append(pages, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

// TestCommandsOfPages checks that each command on a page for users is run by TestPages, or by
// the test that elsewhere names.
func TestCommandsOfPages(t *testing.T) {
	t.Parallel()
	root := enginetest.ModuleRoot(t)
	run, used := 0, map[elsewhere]bool{}
	for _, name := range userPages(t, root) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		commands, err := commandsOf(name, string(text))
		if err != nil {
			t.Error(err)
		}
		for _, c := range commands {
			if e, ok := runElsewhere(name, c.text); ok {
				used[e] = true
				continue
			}
			run++
			if !slices.ContainsFunc(pageGroups(), func(group map[string]pageCommands) bool { _, ok := group[name]; return ok }) {
				t.Errorf("%s:%d: no test runs %s: add the page to the pages of this test, or the command to elsewhere", name, c.line, c.text)
			}
		}
	}
	if run < 100 {
		t.Errorf("only %d commands are run", run)
	}
	for _, e := range others {
		if !used[e] {
			t.Errorf("no page has the command of %+v", e)
		}
		if e.by == "" {
			continue
		}
		file, test, _ := strings.Cut(e.by, ":")
		if source, err := os.ReadFile(filepath.Join(root, file)); err != nil || !strings.Contains(string(source), test) {
			t.Errorf("%+v: there is no such test: %v", e, err)
		}
	}
}

func runElsewhere(name, text string) (elsewhere, bool) {
	i := slices.IndexFunc(others, func(e elsewhere) bool { return e.page == name && strings.HasPrefix(text, e.command) })
	if i < 0 {
		return elsewhere{}, false
	}
	return others[i], true
}

// word matches a placeholder as a whole word.
func word(placeholder string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(placeholder)
	if regexp.MustCompile(`^\w+$`).MatchString(placeholder) {
		quoted = `\b` + quoted + `\b`
	}
	return regexp.MustCompile(quoted)
}

// script returns the shell script that runs the commands of a page.
func (p *pageCommands) script(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	commands, err := commandsOf(name, string(text))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString(shims + p.prepare + "\n")
	placeholders := slices.SortedFunc(maps.Keys(p.words), func(a, b string) int { // NODECLAIM before NODE
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
	used := map[string]bool{}
	for _, c := range commands {
		if _, ok := runElsewhere(name, c.text); ok {
			continue
		}
		for beginning, before := range p.before {
			if strings.HasPrefix(c.text, beginning) {
				used[beginning] = true
				script.WriteString(before + "\n")
			}
		}
		line := c.text
		for _, placeholder := range placeholders {
			line = word(placeholder).ReplaceAllLiteralString(line, p.words[placeholder])
		}
		fmt.Fprintf(&script, "printf '\\n%%s\\n' '%s:%d$ %s' >&2\n%s\n", name, c.line, strings.ReplaceAll(c.text, "'", `'\''`), line)
	}
	for beginning := range p.before {
		if !used[beginning] {
			t.Errorf("%s has no command %s", name, beginning)
		}
	}
	return script.String() + p.after + "\n"
}

// shims are functions for what differs on this machine: there is no terminal to answer
// questions, a pod is a process, and what needs a network is replaced.
const shims = `
set -eu
numaform() {
	case "$1 $*" in
	*" --dry-run"* | *" --approve"*) command numaform "$@" ;;
	apply* | undo* | remove* | adopt*) command numaform "$@" --auto-approve ;;
	*) command numaform "$@" ;;
	esac
}
kubectl() {
	case "$*" in
	*" exec deploy/numaform -- "*)
		shift 5
		"$@"
		;;
	*" exec -it deploy/numaform -- "*)
		shift 6
		"$@"
		;;
	*) command kubectl "$@" ;;
	esac
}
# The host's shell; words with spaces are quoted.
ssh() { shift; sh -c "$*"; }
make() { grep -q "^$1:" Makefile; }
# until_ok waits until a command succeeds.
until_ok() { end=$((SECONDS + 180)); until "$@" >/dev/null 2>&1; do [ "$SECONDS" -lt "$end" ] || { "$@"; exit 1; }; sleep 0.3; done; }
`

// hostPrograms are programs of a Proxmox host that the simulator runs.
var hostPrograms = []string{"pveum", "pvenode", "qm", "pvesh"}

// shellOf serves the shell of a simulated Proxmox to hostProgram.
func shellOf(t *testing.T, run func(line string) (string, error)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var words []string
		if err := json.NewDecoder(r.Body).Decode(&words); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for i, word := range words {
			if strings.ContainsAny(word, " \n") {
				words[i] = `"` + word + `"`
			}
		}
		out, err := run(strings.Join(words, " "))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, out+"\n")
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// hostProgram runs this process as a program of a Proxmox host, and returns its exit code.
func hostProgram(name, shell string, args []string) int {
	words, err := json.Marshal(append([]string{name}, args...))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	response, err := http.Post(shell, "application/json", strings.NewReader(string(words))) //nolint:noctx // the test's own server
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if response.StatusCode != http.StatusOK {
		_, _ = io.Copy(os.Stderr, response.Body)
		return 1
	}
	_, _ = io.Copy(os.Stdout, response.Body)
	return 0
}

// machine is a user's machine: a directory with a checkout, programs, and an environment.
type machine struct {
	root, home string
	env        []string
}

// newMachine returns a machine whose programs are numaform, kubectl, helm and tofu, and those
// of a Proxmox host.
func newMachine(t *testing.T, shell string, env ...string) *machine {
	t.Helper()
	m := &machine{root: enginetest.ModuleRoot(t), home: t.TempDir()}
	bin := filepath.Join(m.home, "bin")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"numaform": binary}
	for _, name := range []string{"kubectl", "helm", "tofu"} {
		links[name] = filepath.Join(m.root, ".tools", "bin", name)
	}
	for _, name := range hostPrograms {
		links[name] = self
	}
	if err := os.MkdirAll(filepath.Join(m.home, ".kube"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "KUBE") || strings.HasPrefix(entry, "NUMAFORM_") || strings.HasPrefix(entry, "GIT_")
	}), append([]string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + m.home, "ROOT=" + m.root, "HOST_SHELL=" + shell,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com",
	}, env...)...)
	return m
}

// runPages runs the commands of each page of a group, by name, in a directory of its own.
func (m *machine) runPages(t *testing.T, group map[string]pageCommands, order ...string) {
	t.Helper()
	names := order
	for _, name := range slices.Sorted(maps.Keys(group)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		p := group[name]
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// The limit only ends commands that hang, and shows their output.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			shell := exec.CommandContext(ctx, "bash", "-c", p.script(t, m.root, name))
			shell.Dir, shell.Env, shell.WaitDelay = dir, m.env, time.Second
			out, err := shell.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			} else {
				t.Logf("%s", out)
			}
		})
	}
}

// must runs a script that prepares pages.
func (m *machine) must(t *testing.T, script string) {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "-euc", script)
	shell.Dir, shell.Env = m.home, m.env
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
