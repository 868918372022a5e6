package links_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCompatibility checks that docs/compatibility.md names the versions that numaform is
// built and tested with, and that it requires.
func TestCompatibility(t *testing.T) {
	t.Parallel()
	rows := map[string][]string{}
	for line := range strings.Lines(read(t, filepath.Join(root, "docs", "compatibility.md"))) {
		if cells := strings.Split(line, "|"); len(cells) > 4 {
			rows[strings.TrimSpace(cells[1])] = cells
		}
	}
	const supported, tested = 2, 3
	for _, check := range []struct {
		program       string
		column        int
		file, version string
	}{
		{"Kubernetes", supported, "charts/numaform/Chart.yaml", `kubeVersion: ">=(\d+\.\d+)\.0-0"`},
		{"Kubernetes", tested, "tools/controlplane/go.mod", `k8s.io/kubernetes v(\S+)`},
		{"OpenTofu", supported, "state/engine.go", `DefaultVersion = ">= (\S+)"`},
		{"OpenTofu", tested, "tools/tofu/go.mod", `github.com/opentofu/opentofu v(\S+)`},
		{"Terraform", supported, "state/engine.go", `DefaultVersion = ">= (\S+)"`},
		{"provider `bpg/proxmox`", supported, "tools/provider/go.mod", `github.com/bpg/terraform-provider-proxmox v(\S+)`},
		{"provider `bpg/proxmox`", tested, "tools/provider/go.mod", `github.com/bpg/terraform-provider-proxmox v(\S+)`},
		{"Karpenter", supported, "go.mod", `sigs.k8s.io/karpenter v(\S+)`},
		{"Karpenter", tested, "go.mod", `sigs.k8s.io/karpenter v(\S+)`},
		{"Helm", tested, "tools/helm/go.mod", `helm.sh/helm/v3 v(\S+)`},
		{"Go", supported, "go.mod", `(?m)^go (\S+)$`},
	} {
		match := regexp.MustCompile(check.version).FindStringSubmatch(read(t, filepath.Join(root, filepath.FromSlash(check.file))))
		if match == nil {
			t.Fatalf("%s does not contain %s", check.file, check.version)
		}
		cells := rows[check.program]
		if cells == nil {
			t.Errorf("docs/compatibility.md has no row %s", check.program)
			continue
		}
		words := strings.Fields(cells[check.column])
		if len(words) == 0 || words[0] != match[1] {
			t.Errorf("docs/compatibility.md: %s is %q, but %s has %s", check.program, strings.TrimSpace(cells[check.column]), check.file, match[1])
		}
	}
}
