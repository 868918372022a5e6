package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/numaform/numaform/internal/enginetest"
)

// Client returns a client with the administrator's credentials.
func (c *Cluster) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// InstallCRDs installs the CRDs in the directories and waits until they are served.
func (c *Cluster) InstallCRDs(dirs ...string) error {
	_, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: dirs, ErrorIfPathMissing: true})
	if err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	return nil
}

// CRDs returns the directories of the CRDs of Karpenter and numaform.
func CRDs(t testing.TB) []string {
	t.Helper()
	dirs, err := CRDDirs(t.Context(), enginetest.ModuleRoot(t))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// CRDDirs returns the same directories as CRDs, for callers without a test. root is the
// module's root directory.
func CRDDirs(ctx context.Context, root string) ([]string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/karpenter")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("finding Karpenter's module: %w", err)
	}
	return []string{
		filepath.Join(strings.TrimSpace(string(out)), "pkg", "apis", "crds"),
		filepath.Join(root, "charts", "numaform", "crds"),
	}, nil
}
