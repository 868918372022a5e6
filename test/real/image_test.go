package real_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// scripted runs a script of this repository with only these programs: programs of this
// machine, and stubs by name, which are shell commands. It returns the script's exit code and
// error output.
func scripted(t *testing.T, programs []string, stubs map[string]string, env []string, script string, args ...string) (code int, said string) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, command := range stubs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+command+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "sh", append([]string{filepath.Join(enginetest.ModuleRoot(t), script)}, args...)...)
	command.Env = append([]string{"PATH=" + bin}, env...)
	var output strings.Builder
	command.Stderr = &output
	err := command.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), output.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, output.String()
}

// TestImageWithoutTools checks that the build of the guests' image ends before it writes
// anything where programs are missing. TestMissingProgramsAreNamed checks what it prints.
func TestImageWithoutTools(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stubs map[string]string
		want  string
	}{
		{"a user", map[string]string{"id": "echo 1000", "apt-get": "exit 1"}, "Or run all other tests: make test WITHOUT="},
		{"root without apt-get", map[string]string{"id": "echo 0"}, "Or run all other tests: make test WITHOUT="},
		{"root without network", map[string]string{"id": "echo 0", "apt-get": "echo 'E: Unable to locate package' >&2; exit 100"}, "E: Unable to locate package"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "guest")
			code, said := scripted(t, []string{"sh", "dirname", "cut", "tr"}, tt.stubs, nil, "tools/guest-image.sh", t.TempDir(), dir)
			if code != 1 || !strings.Contains(said, tt.want) {
				t.Errorf("exit code %d, output %q, want 1 and %q", code, said, tt.want)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("the script created %s", dir)
			}
		})
	}
}

// TestMakeImageFails checks that make-image.sh names what it lacks, and leaves no files.
func TestMakeImageFails(t *testing.T) {
	t.Parallel()
	tools := map[string]string{}
	for _, name := range []string{"mmdebstrap", "mke2fs", "sfdisk", "qemu-img", "curl", "gpg", "fakeroot"} {
		tools[name] = "exit 1"
	}
	without := func(names ...string) map[string]string {
		stubs := map[string]string{}
		for name, command := range tools {
			if !slices.Contains(names, name) {
				stubs[name] = command
			}
		}
		return stubs
	}
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(kubelet, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		stubs map[string]string
		env   []string
		want  string
	}{
		{"no mmdebstrap", without("mmdebstrap"), nil, "make-image: mmdebstrap not found: apt-get install mmdebstrap e2fsprogs fdisk qemu-utils curl gpg fakeroot"},
		{"no curl", without("curl"), nil, "make-image: curl not found: apt-get install mmdebstrap e2fsprogs fdisk qemu-utils curl gpg fakeroot"},
		{"no kubelet", tools, []string{"KUBELET=/nothing"}, "make-image: KUBELET is /nothing, which is not an executable file"},
		{
			"no repository", tools,
			[]string{"KUBERNETES=v1.36"},
			"make-image: cannot read https://pkgs.k8s.io/core:/stable:/v1.36/deb/: set KUBELET=PATH to use a kubelet from this machine",
		},
		{"no mirror", tools, []string{"KUBELET=" + kubelet}, "make-image: mmdebstrap failed: it needs Debian's packages of trixie from a mirror"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			programs := []string{"dirname", "id", "mktemp", "chmod", "cat", "rm"}
			code, said := scripted(t, programs, tt.stubs, tt.env, "examples/template/make-image.sh", filepath.Join(dir, "image.qcow2"))
			if code != 1 || strings.TrimSpace(said) != tt.want {
				t.Errorf("exit code %d, output %q, want 1 and %q", code, said, tt.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("the script left %v, error %v", left, err)
			}
		})
	}
}

// TestGuestsWithoutImage checks that tests with guests fail with a sentence that says what to
// do if the image, or QEMU, is missing.
func TestGuestsWithoutImage(t *testing.T) {
	start := func() error {
		server, err := pvesim.New(pvesim.Config{
			Hosts: testenv.Hosts(t), QEMU: &pvesim.QEMU{Image: filepath.Join(t.TempDir(), "image.qcow2"), Dir: t.TempDir()},
		})
		if err == nil {
			err = fmt.Errorf("Proxmox started: %w", server.Close())
		}
		return err
	}
	bin := t.TempDir()
	for _, name := range []string{"qemu-system-x86_64", "qemu-img"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	const noImage = "no such file or directory: build it with make guest-image"
	if err := start(); !strings.Contains(err.Error(), noImage) {
		t.Errorf("error %v, want %q", err, noImage)
	}
	t.Setenv("PATH", t.TempDir()) // the program has been built
	const noQEMU = "no qemu-system-x86_64: install QEMU (Debian: apt-get install qemu-system-x86 qemu-utils)"
	if err := start(); !strings.Contains(err.Error(), noQEMU) {
		t.Errorf("error %v, want %q", err, noQEMU)
	}
}
