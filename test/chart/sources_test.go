package chart_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite examples/manifests/numaform.yaml")

// manifestHead is the namespace, which helm creates with --create-namespace.
const manifestHead = `# Rendered from charts/numaform with values.yaml by make chart. DO NOT EDIT.
apiVersion: v1
kind: Namespace
metadata:
  name: numaform
  labels:
    pod-security.kubernetes.io/enforce: restricted
`

// TestManifestsAreTheChart checks that the plain manifests in examples are the output of helm.
func TestManifestsAreTheChart(t *testing.T) {
	t.Parallel()
	want, err := testenv.Helm(root, "template", "numaform", "charts/numaform", "--namespace", "numaform",
		"--include-crds", "--values", "examples/manifests/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want = append([]byte(manifestHead), want...)
	path := filepath.Join(root, "examples", "manifests", "numaform.yaml")
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from the output of helm: run make chart", path)
	}
}

// TestCRDsOfKarpenter checks that the chart's CRDs of Karpenter are the CRDs of the Karpenter
// version in go.mod.
func TestCRDsOfKarpenter(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", "sigs.k8s.io/karpenter").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, version, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	for _, name := range []string{"autoscaling.x-k8s.io_capacitybuffers.yaml", "karpenter.sh_nodeclaims.yaml", "karpenter.sh_nodeoverlays.yaml", "karpenter.sh_nodepools.yaml"} {
		want, err := os.ReadFile(filepath.Join(dir, "pkg", "apis", "crds", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(chartDir, "crds", name))
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(string(got), "\n")
		if !strings.Contains(head, version+" (Apache License 2.0)") || rest != string(want) {
			t.Errorf("%s differs from Karpenter %s: run make generate", name, version)
		}
	}
}

// TestCRDsOfThisRepository checks that the chart contains the CRDs of numaform, Karpenter and
// CapacityBuffers. make verify compares the content of numaform's CRDs with the types.
func TestCRDsOfThisRepository(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	for _, object := range ofKind(t, testenv.RenderChart(t, testenv.Chart{}), "CustomResourceDefinition") {
		got[object.GetName()] = true
	}
	for _, want := range []string{
		"capacitybuffers.autoscaling.x-k8s.io", "nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh", "nodepools.karpenter.sh",
		"proxmoxnodeclasses.numaform.dev", "scaleplans.numaform.dev",
	} {
		if !got[want] {
			t.Errorf("the chart has no CRD %s", want)
		}
	}
}
