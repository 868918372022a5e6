package demo_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

// TestRun runs the demo once and checks the output of each scene.
func TestRun(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	err := demo.Run(t.Context(), demo.Config{
		Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart"},
		Dir: t.TempDir(), PluginDir: testenv.PluginDir(t), Environ: append(testenv.CleanEnv(), "NUMAFORM_ENGINE_BINARY="+testenv.Engine(t)),
		Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	scenes := strings.Split(stdout.String(), "\n━━━ ")[1:]
	want := []struct {
		title string
		shows []string
	}{
		{"Three hosts", []string{"$ numaform topology", "homelab/pve-1", "homelab/pve-2", "homelab/pve-3", "NUMA node 7"}},
		{"40 pods are pending", []string{"--detailed-exitcode", "40 pending, 40 placed, 0 refused", "Dedicated", "+ homelab/pve-", "allowed"}},
		{"An operator's rule denies the change", []string{"freeze-pinned", "denied", "pool pinned is frozen"}},
		{"The rule is removed", []string{"$ numaform apply", "CPUs of homelab/pve-", "allowed"}},
		{"The VMs in Proxmox", []string{"workers-2", "pinned-2", "hostnodes="}},
		{"The pins that numaform-agent set", []string{"pinned-2", "vCPUs 0-"}},
		{"The records", []string{"commit ", "Numaform-Plan: ", "Numaform-Verdict: ", "Notes (numaform)", "node-pinned-2", "state /numaform-quickstart-homelab-pve-1-"}},
		{"The same plan again", []string{"40 pending, 40 placed, 0 refused", "none", "no change"}},
		{"A user deletes node-workers-2", []string{"denied", "still runs pods"}},
		{"Node pinned-2", []string{"$ numaform remove pinned-2", "1 to destroy", "- homelab/pve-", "1 to destroy"}},
		{"Revert the removal", []string{"$ numaform undo", "+ homelab/pve-", "1 to add"}},
		{"The history shows", []string{"scale-up", "scale-down", "undo", "allowed", "done in"}},
		{"The end", nil},
	}
	if len(scenes) != len(want) {
		t.Fatalf("%d scenes, want %d:\n%s", len(scenes), len(want), stdout.String())
	}
	for i, scene := range scenes {
		if !strings.HasPrefix(scene, want[i].title) {
			t.Errorf("scene %d is %.60q, want %q", i, scene, want[i].title)
		}
		for _, text := range want[i].shows {
			if !strings.Contains(scene, text) {
				t.Errorf("scene %q does not show %q:\n%s", want[i].title, text, scene)
			}
		}
	}
	if said := stderr.String(); !strings.Contains(said, "created") || !strings.Contains(said, "1 deleted") {
		t.Errorf("stderr:\n%s", said)
	}
}
