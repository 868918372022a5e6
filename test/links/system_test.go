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

// TestMakeLeavesTheEnvironment checks that make sets no variable of numaform for the commands
// of the targets, because numaform refuses variables that it does not know.
func TestMakeLeavesTheEnvironment(t *testing.T) {
	t.Parallel()
	probe := filepath.Join(t.TempDir(), "probe.mk")
	if err := os.WriteFile(probe, []byte("probe:\n\t@env\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("make", "--no-print-directory", "-f", "Makefile", "-f", probe, "probe")
	command.Dir = root
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "NUMAFORM_") {
			command.Env = append(command.Env, variable)
		}
	}
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "PATH=") {
		t.Fatalf("the probe printed no environment:\n%s", out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "NUMAFORM_") {
			t.Errorf("make sets %s", line)
		}
	}
}

// TestMissingProgramsAreNamed checks that system.sh names all missing programs at once to a
// user who is not root, with their packages, and says how to run the other tests.
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
