package demo_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

// TestRunCluster runs the demo of the controller once and checks the output of each scene.
func TestRunCluster(t *testing.T) {
	var stdout, stderr bytes.Buffer
	err := demo.RunCluster(t.Context(), demo.ClusterConfig{
		Config: demo.Config{
			Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart"},
			Dir: t.TempDir(), PluginDir: testenv.PluginDir(t), Environ: append(testenv.CleanEnv(), "NUMAFORM_ENGINE_BINARY="+testenv.Engine(t)),
			Stdout: &stdout, Stderr: &stderr,
		},
		Tools: filepath.Join("..", "..", ".tools", "bin"), Manifests: examples.Manifests(),
	})
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	scenes := strings.Split(stdout.String(), "\n━━━ ")[1:]
	want := []struct {
		title string
		shows []string
	}{
		{"A Kubernetes control plane", []string{"pve-1", "pve-2", "pve-3"}},
		{"A class with exclusive cores", []string{"kind: ProxmoxNodeClass", "scale-down: manual", "Ready, with hosts homelab/pve-1"}},
		{"15 pods are pending", []string{"Pending"}},
		{"VMs are placed", []string{"pinned-2000", "Ready", "pins every vCPU", "pve-1", "pve-2", "pve-3"}},
		{"The pods are deleted", []string{"$ numaform plans", "pinned-down-", "Pending", "to delete on homelab/pve-"}},
		{"The exact change", []string{"scale-down of NodePool pinned is manual", "Plan: 0 to add, 0 to change, 1 to destroy", "Not shown without --verbose"}},
		{"bob can view", []string{"$ numaform approve pinned-down-"}},
		{"alice approves", []string{"is approved by alice"}},
		{"Nodes are drained", []string{"no VM of this fleet remains"}},
		{"The history shows", []string{"scale-up", "scale-down", "15 pods need pinned-2000"}},
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
	if said := stderr.String(); !strings.Contains(said, `User "bob" cannot`) {
		t.Errorf("stderr:\n%s", said)
	}
}
