package links_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissingProgramsAreNamed checks that a user who is not root is told of all missing
// programs at once, with their packages, and how to run the other tests.
func TestMissingProgramsAreNamed(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, name := range []string{"cut", "tr"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"id": "echo 1000", "apt-get": "echo installed >&2; exit 1", "gcc": "exit 0"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(shell, filepath.Join(root, "tools", "system.sh"), "node", "chromium", "gcc", "qemu")
	command.Env = []string{"PATH=" + bin}
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	var exit *exec.ExitError
	if err := command.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("system.sh ended with %v, want code 1", err)
	}
	if !strings.HasPrefix(out.String(), "gcc: ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("system.sh found\n%s", out.String())
	}
	for _, want := range []string{
		"  Node.js 18 or later with npm\n  Chromium\n  QEMU for x86-64\n", "apt-get install --no-install-recommends nodejs npm chromium fonts-dejavu-core qemu-system-x86",
		"dnf install nodejs-npm chromium", "brew install node ", "make test WITHOUT='node chromium qemu'",
	} {
		if !strings.Contains(problems.String(), want) {
			t.Errorf("the message lacks %q:\n%s", want, problems.String())
		}
	}
	if strings.Contains(problems.String(), "installed") {
		t.Error("system.sh ran apt-get without being root")
	}
}
