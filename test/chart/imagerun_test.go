package chart_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

// imageUser is the user ID of numaform in its image.
const imageUser = 65532

// TestImageRuns checks that the real programs of this machine's architecture run with the
// tree of the image as root directory, as the image's user.
func TestImageRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programs := filepath.Join(dir, runtime.GOARCH)
	version := realPrograms(t, programs)
	write(t, filepath.Join(dir, "licenses", "numaform", "LICENSE"), "Apache\n")
	if _, err := packImage(dir, runtime.GOARCH, version); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(programs, "rootfs")
	work := filepath.Join(tree, "var", "lib", "numaform")
	write(t, filepath.Join(work, "main.tf"), `terraform {
  required_providers {
    proxmox = { source = "registry.opentofu.org/bpg/proxmox", version = "`+version+`" }
  }
}
resource "proxmox_virtual_environment_pool" "a" { pool_id = "a" }
`)
	giveAway(t, work)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"/usr/local/bin/numaform", "version"}, "numaform"},
		{[]string{"/usr/local/bin/tofu", "version"}, "OpenTofu v"},
		{[]string{"/usr/local/bin/tofu", "init", "-input=false", "-plugin-dir=/usr/share/terraform/plugins"}, "successfully initialized"},
		// validate starts the provider.
		{[]string{"/usr/local/bin/tofu", "validate"}, "The configuration is valid"},
	} {
		out, err := inside(tree, tt.args)
		if err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("%s: %v, want output with %q:\n%s", strings.Join(tt.args, " "), err, tt.want, out)
		}
	}
}

// realPrograms copies the programs built by make to dir, builds numaform, and returns the
// provider's version.
func realPrograms(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(testenv.PluginDir(t), "registry.opentofu.org", "bpg", "proxmox", "*",
		runtime.GOOS+"_"+runtime.GOARCH, "terraform-provider-proxmox_v*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no provider for this machine (%v): run make provider", err)
	}
	provider := found[len(found)-1]
	copyFile(t, provider, filepath.Join(dir, "terraform-provider-proxmox"))
	copyFile(t, filepath.Join(root, ".tools", "bin", "tofu"), filepath.Join(dir, "tofu"))
	numaform, err := filepath.Abs(filepath.Join(dir, "numaform"))
	if err != nil {
		t.Fatal(err)
	}
	if err := goBuild(root, numaform, runtime.GOARCH, "./cmd/numaform"); err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(filepath.Base(provider), "_v")
	return version
}

// copyFile copies a program. With a link, the packer could change the mode of the original.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// giveAway makes the image's user the owner of a directory, as Kubernetes does with the
// volume. Without root privileges, it does nothing, because inside maps this process's user to
// the image's user.
func giveAway(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	for _, path := range []string{dir, filepath.Join(dir, "main.tf")} {
		if err := os.Chown(path, imageUser, imageUser); err != nil {
			t.Fatal(err)
		}
	}
}

// inside runs a program with the tree as its root directory. Without root privileges, it
// uses a user namespace.
func inside(tree string, args []string) (string, error) {
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	cmd.Dir = "/var/lib/numaform"
	cmd.Env = []string{"HOME=/var/lib/numaform", "PATH=/usr/local/bin", "TMPDIR=/tmp", "CHECKPOINT_DISABLE=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: tree, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser, NoSetGroups: os.Geteuid() != 0},
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: imageUser, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: imageUser, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
