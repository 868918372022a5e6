package confine_test

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/confine"
)

// TestMain runs the helper if the process was started as one.
func TestMain(m *testing.M) {
	if err := confine.Main(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// run runs a script under rules and returns what it printed.
func run(t *testing.T, rules confine.Rules, script string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-c", script)
	name, value := rules.Env()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CANARY=in-the-environment", name + "=" + value}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// TestConfined checks that the rules allow and deny operations as declared, and, without
// rules, that the child does not inherit the helper's variable. If the kernel does not support
// Landlock, all operations succeed.
func TestConfined(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"read/file", "write/file", "other/file"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("canary"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../other/file", filepath.Join(dir, "read/link")); err != nil {
		t.Fatal(err)
	}
	system := []string{"/bin", "/lib", "/lib64", "/usr", "/etc/ld.so.cache"}
	rules := confine.Rules{
		Program: "/bin/sh", Read: append(system, filepath.Join(dir, "read"), filepath.Join(dir, "missing")),
		Write: []string{filepath.Join(dir, "write"), os.DevNull},
	}
	for name, tt := range map[string]struct {
		script string
		works  bool
	}{
		"read":                         {"cat read/file", true},
		"read a writable file":         {"cat write/file", true},
		"write":                        {"echo x > write/new && rm write/new", true},
		"write to /dev/null":           {"echo x > /dev/null", true},
		"read another":                 {"cat other/file", false},
		"read another, through a path": {"cat read/../other/file", false},
		"read another, by a link":      {"cat read/link", false},
		"link another":                 {"ln other/file write/linked", false},
		"write a read-only file":       {"echo x > read/file", false},
		"truncate a read-only file":    {"truncate -s 0 read/file", false},
		"remove a read-only file":      {"rm read/link", false},
		"list":                         {"ls other", false},
		"environment of the parent":    {"cat /proc/$PPID/environ", false},
		"environment of itself":        {"cat /proc/self/environ", false},
		"run a program elsewhere":      {"cp /bin/true write/program; cd write; cp program ../other/program", false},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, rules, "cd "+dir+" && "+tt.script)
			if works := err == nil; works != (tt.works || confine.Version() == 0) {
				t.Errorf("works: %t, want %t: %s", works, tt.works, out)
			}
			open := rules
			open.Open = true
			if out, err := run(t, open, "cd "+dir+" && ls other && cat /proc/self/environ"); err != nil || strings.Contains(out, "NUMAFORM_CONFINE") {
				t.Errorf("without rules: %s, %v", out, err)
			}
		})
	}
}

// TestImports checks that the package imports only packages that are initialized early:
// with runtime/debug, each helper initialized 250 instead of 120 packages, and took twice
// the CPU time.
func TestImports(t *testing.T) {
	t.Parallel()
	early := []string{
		"encoding/json", "errors", "fmt", "os", "runtime", "strconv", "strings", "syscall", "unsafe", "golang.org/x/sys/unix",
	}
	for _, name := range []string{"confine.go", "confine_linux.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range file.Imports {
			if path, err := strconv.Unquote(one.Path.Value); err != nil || !slices.Contains(early, path) {
				t.Errorf("%s imports %s: measure `numaform` with GODEBUG=inittrace=1 and the helper's variable, and add it here if it is initialized early", name, path)
			}
		}
	}
}

func TestBrokenRules(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"no JSON": "{", "no program": "{}", "a program that is not there": `{"program":"/nonexistent"}`} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-c", "true")
		cmd.Env = []string{"NUMAFORM_CONFINE=" + value}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s: the program ran: %s", name, out)
		}
	}
}
