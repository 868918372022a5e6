//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/agent/agenttest"
)

// kernel is the kernel that `make qemu` downloads.
const kernel = "../../.tools/kernel/vmlinuz"

// TestHost checks the agent on a machine with its own control groups, clock and CPUs: three
// cores with two threads each. It boots the machine, with this test binary as the first
// program, which runs the tests of inHost.
func TestHost(t *testing.T) {
	agenttest.NeedsQEMU(t)
	if _, err := os.Stat(kernel); err != nil {
		t.Fatalf("no kernel for the VM: run make qemu: %v", err)
	}
	initrd := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(initrd, image(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for range mostBoots {
		out, err := boot(t.Context(), initrd)
		switch {
		case out == "" && err != nil:
			t.Logf("the kernel did not start its first program, QEMU ended with %v: booting again", err)
			continue
		case err != nil || !strings.Contains(out, hostPassed):
			t.Fatalf("QEMU ended with %v:\n%s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	t.Fatalf("none of %d boots started the first program", mostBoots)
}

// The maximum number of boots, and the time until the first output of each one. Emulated
// CPUs on a busy machine sometimes hang while the kernel starts them.
const (
	mostBoots   = 3
	bootTimeout = 3 * time.Minute
)

// boot runs the VM until QEMU ends, and returns the console output and QEMU's errors. If
// there is no output within bootTimeout, it stops QEMU and returns an empty text and an
// error.
func boot(ctx context.Context, initrd string) (out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,vendor=GenuineIntel", "-m", "512",
		"-smp", "6,sockets=1,cores=3,threads=2", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1")
	var said journal
	cmd.Stdout, cmd.Stderr = &said, &said
	hung := time.AfterFunc(bootTimeout, func() {
		if said.String() == "" {
			cancel()
		}
	})
	defer hung.Stop()
	err = cmd.Run()
	return said.String(), err
}

// image returns an initial RAM file system with the test binary as /init and its shared
// libraries.
func image(t *testing.T) []byte {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"init": self}
	out, _ := exec.CommandContext(t.Context(), "ldd", self).Output() // ldd fails if there are no libraries
	for field := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(field, "/") {
			files[strings.TrimPrefix(field, "/")] = field
		}
	}
	var image archive
	for _, dir := range []string{"dev", "etc", "proc", "run", "sys", "tmp"} {
		image.add(dir, unix.S_IFDIR|0o755, nil)
	}
	made := map[string]bool{}
	for name, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		dir := ""
		for part := range strings.SplitSeq(filepath.Dir(name), "/") {
			if dir = filepath.Join(dir, part); dir != "." && !made[dir] {
				made[dir] = true
				image.add(dir, unix.S_IFDIR|0o755, nil)
			}
		}
		image.add(name, unix.S_IFREG|0o755, data)
	}
	image.add("TRAILER!!!", 0, nil)
	return image.Bytes()
}

// archive is a cpio archive in the newc format.
type archive struct {
	bytes.Buffer
	files int
}

func (a *archive) add(name string, mode int, data []byte) {
	a.files++
	fields := []int{a.files, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0}
	a.WriteString("070701")
	for _, field := range fields {
		fmt.Fprintf(a, "%08x", field)
	}
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}
