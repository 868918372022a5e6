package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tools returns stand-ins for the programs of a Proxmox host. Each call except qm config
// appends a line to $LOG. qm stores the configurations that qm config prints, and fails if
// its command is $FAIL.
func tools() map[string]string {
	return map[string]string{
		"curl":           `while [ "$1" != -o ]; do shift; done; echo image >"$2"`,
		"virt-customize": `cp "$4" "$LOG.install"`,
		"qm": `
[ "$1" != "$FAIL" ] || exit 1
conf=$LOG.$2
case $1 in
config) cat "$conf" 2>/dev/null ;;
create) printf 'name: %s\ntags: %s\n' "$4" "$6" >"$conf" ;;
set) if [ "$3" = --delete ]; then sed -i "/^$4:/d" "$conf"; else echo "${3#--}: $4" >>"$conf"; fi ;;
template) echo 'template: 1' >>"$conf" ;;
destroy) rm "$conf" ;;
esac`,
	}
}

// host simulates a Proxmox host: dir contains the stand-ins for its programs.
type host struct{ dir, log string }

func newHost(t *testing.T) host {
	t.Helper()
	h := host{dir: t.TempDir()}
	h.log = filepath.Join(h.dir, "log")
	for name, body := range tools() {
		script := "#!/bin/sh\n[ \"$1\" = config ] || echo \"" + name + " $*\" >>\"$LOG\"\n" + body + "\n"
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// make runs the script, fails the test unless it exits with code want, and returns the
// recorded calls and the script's output.
func (h host) make(t *testing.T, want int, env ...string) (calls, output string) {
	t.Helper()
	_ = os.Remove(h.log)
	cmd := exec.CommandContext(t.Context(), "sh", "template/make-template.sh", "9001", "debian-13-k8s", "local-lvm")
	cmd.Env = append(os.Environ(), "PATH="+h.dir+":"+os.Getenv("PATH"), "LOG="+h.log, "IMAGES="+filepath.Join(h.dir, "images"))
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != want {
		t.Fatalf("%v, want exit code %d: %s", err, want, out)
	}
	log, _ := os.ReadFile(h.log)
	return string(log), string(out)
}

// config returns the output of qm config for the VM.
func (h host) config(t *testing.T) string {
	t.Helper()
	config, err := os.ReadFile(h.log + ".9001")
	if err != nil {
		t.Fatal(err)
	}
	return string(config)
}

// TestMakeTemplate checks the template that the script creates, with stand-ins for qm and the
// image tools, and that the script can be run again after an interruption and after it
// finished.
func TestMakeTemplate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// After an interruption, the script starts over with the existing image.
	if calls, _ := h.make(t, 1, "FAIL=template"); !strings.Contains(calls, "virt-customize") {
		t.Errorf("made no image:\n%s", calls)
	}
	calls, output := h.make(t, 0)
	for _, part := range []string{"qm destroy 9001 --purge 1\n", "--agent enabled=1 ", "qm template 9001\nqm set 9001 --delete tags\n"} {
		if !strings.Contains(calls, part) {
			t.Errorf("no %q:\n%s", part, calls)
		}
	}
	for _, part := range []string{"virt-customize", "hookscript", "affinity", "cloudinit", "ide2"} {
		if strings.Contains(calls, part) {
			t.Errorf("has %q:\n%s", part, calls)
		}
	}
	config := h.config(t)
	for _, part := range []string{"scsi0: local-lvm:0,import-from=", "boot: order=scsi0\n", "template: 1\n"} {
		if !strings.Contains(config, part) || strings.Contains(config, "tags:") {
			t.Errorf("lacks %q, or has tags:\n%s", part, config)
		}
	}
	if !strings.Contains(output, "template debian-13-k8s (VMID 9001) is ready") {
		t.Errorf("says %s", output)
	}
	// A finished template is not built again, and another VM is left alone.
	if calls, _ := h.make(t, 0); calls != "" || h.config(t) != config {
		t.Errorf("a second run did\n%s", calls)
	}
	for _, other := range []string{"name: db\n", "name: debian-13-k8s\n"} {
		if err := os.WriteFile(h.log+".9001", []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if calls, output := h.make(t, 1); calls != "" || !strings.Contains(output, "choose") {
			t.Errorf("of a foreign VM: %s\n%s", output, calls)
		}
	}
}

// TestTemplateForWhom checks the script that prepares the image, for kubeadm and for k3s.
func TestTemplateForWhom(t *testing.T) {
	t.Parallel()
	for node, parts := range map[string][]string{
		"kubeadm": {"qemu-guest-agent", "/stable:/v1.36/deb/", "containerd kubelet kubeadm", "SystemdCgroup = true", "[NoCloud, None]"},
		"k3s":     {"qemu-guest-agent", "INSTALL_K3S_EXEC=agent INSTALL_K3S_SKIP_ENABLE=true", "[NoCloud, None]"},
	} {
		h := newHost(t)
		h.make(t, 0, "NODE="+node, "DISTRO=ubuntu-24.04")
		install, err := os.ReadFile(h.log + ".install")
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(install), part) {
				t.Errorf("%s: no %q in\n%s", node, part, install)
			}
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", h.log+".install").CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", node, err, out)
		}
	}
}
