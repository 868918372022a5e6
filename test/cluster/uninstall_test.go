package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/enginetest"
)

// TestUninstall runs the commands of docs/install.md that remove numaform with its nodes and
// VMs, and checks that they also remove a standby VM and the templates of a ProxmoxTemplate,
// and that the CRDs can then be deleted without a controller.
func TestUninstall(t *testing.T) {
	enginetest.Nightly(t)
	w := newTemplateWorld(t, worldConfig{
		hosts: largeHosts(t), args: []string{"--feature-gates", "CapacityBuffer=true"},
		values: map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}},
	})
	w.start()
	w.template("debian", oldImage, sumOf(oldImage), "")
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "900m", "1Gi")
	w.running("web", 1, 3*time.Minute)
	w.standbyBuffer("workers", "3", 1)
	w.eventually(3*time.Minute, func(context.Context) string {
		if stopped, running := w.stopped(); len(stopped) != 1 || len(running) != 1 {
			return fmt.Sprintf("VMs %v are stopped and %v run, want one each", stopped, running)
		}
		return ""
	})
	w.templateUntil("debian", 3*time.Minute, templateReady)

	m := newMachine(t, shellOf(t, w.proxmox.Shell), "NUMAFORM_CONFIG="+filepath.Join(w.dir, "numaform.yaml"),
		"NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "other-state"), "NUMAFORM_KUBECONFIG="+w.plane.Kubeconfig)
	m.login(t, w.plane)
	m.must(t, removalCommands(t, m.root))
	if left := w.ours(); len(left) > 0 {
		t.Errorf("VMs remain in Proxmox: %v", left)
	}
	for _, guest := range w.proxmox.Guests() {
		if guest.VMID >= 9100 && guest.VMID <= 9199 {
			t.Errorf("template %d remains in Proxmox", guest.VMID)
		}
	}
	w.stop(syscall.SIGTERM)
	m.must(t, `kubectl delete -f "$ROOT/charts/numaform/crds" --timeout=60s`)
}

// removalCommands returns the commands of docs/install.md before the controller is removed,
// as a script.
func removalCommands(t *testing.T, root string) string {
	t.Helper()
	const page = "docs/install.md"
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### Remove numaform with its nodes and VMs\n")
	section, _, _ = strings.Cut(section, "helm uninstall")
	commands, err := commandsOf(page, section)
	if err != nil {
		t.Fatal(err)
	}
	script := shims
	for _, c := range commands {
		line, _, _ := strings.Cut(strings.ReplaceAll(c.text, " --config /etc/numaform/numaform.yaml", ""), "#")
		if strings.Contains(line, "get vms") { // the page says to repeat it
			line = fmt.Sprintf("removed() { %s | grep 'The fleet has no VMs.'; }; until_ok removed", line)
		}
		script += line + "\n"
	}
	if !strings.Contains(script, "delete nodepools") {
		t.Fatalf("%s has no commands that remove numaform with its VMs", page)
	}
	return script
}
