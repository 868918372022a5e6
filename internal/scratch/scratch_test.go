package scratch_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/numaform/numaform/internal/scratch"
)

// TestMain can also run as a process that creates a directory and waits to be killed.
func TestMain(m *testing.M) {
	if os.Getenv("SCRATCH_WAITS") == "" {
		os.Exit(m.Run())
	}
	dir, err := scratch.New("killed")
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dir.Path(), "secret"), []byte("s"), 0o600); err != nil {
		panic(err)
	}
	fmt.Println(dir.Path())
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// TestSwept checks that the directory of a killed process, and no other directory, is removed
// when the next directory is created.
func TestSwept(t *testing.T) {
	all := t.TempDir()
	t.Setenv("TMPDIR", all)
	for _, other := range []string{"numaform-2026", "numaform-plan-1", "elsewhere"} {
		if err := os.MkdirAll(filepath.Join(all, other, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mine := dir(t, "plan")
	killed, kill := process(t)
	if next := dir(t, ""); !exists(killed) || !exists(mine.Path()) || filepath.Dir(next.Path()) != all {
		t.Fatal("the directory of a living process was removed")
	}
	kill()
	next := dir(t, "drift")
	if exists(killed) {
		t.Error("the directory of the killed process still exists")
	}
	if !exists(mine.Path()) || !exists(filepath.Join(all, "numaform-2026", "x")) || !exists(filepath.Join(all, "numaform-plan-1", "x")) {
		t.Error("another directory was removed")
	}
	if err := next.Remove(); err != nil || exists(next.Path()) {
		t.Errorf("error %v, want the directory removed", err)
	}
}

// TestNotOurs checks that directories that other users could have written to are not
// removed.
func TestNotOurs(t *testing.T) {
	all := t.TempDir()
	t.Setenv("TMPDIR", all)
	theirs := filepath.Join(t.TempDir(), "data")
	open := filepath.Join(all, "numaform-open")
	for _, name := range []string{theirs, open} {
		if err := os.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(name, ".held"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(theirs, filepath.Join(all, "numaform-link")); err != nil {
		t.Fatal(err)
	}
	dir(t, "plan")
	if left, err := filepath.Glob(filepath.Join(all, "numaform-[lo]*")); err != nil || len(left) != 2 || !exists(filepath.Join(theirs, ".held")) {
		t.Errorf("error %v, left %v", err, left)
	}
}

func dir(t *testing.T, purpose string) *scratch.Dir {
	t.Helper()
	made, err := scratch.New(purpose)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = made.Remove() })
	return made
}

// process starts a process that creates a directory. It returns the directory's path, and a
// function that kills the process.
func process(t *testing.T) (path string, kill func()) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = slices.Concat(os.Environ(), []string{"SCRATCH_WAITS=1"})
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return line[:len(line)-1], func() {
		if err := command.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = command.Wait()
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
