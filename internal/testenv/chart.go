package testenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/enginetest"
)

// Chart is a release of charts/numaform that is rendered but not installed by helm.
type Chart struct {
	// Dir is the chart's directory; empty means charts/numaform.
	Dir string
	// Release and Namespace default to numaform.
	Release, Namespace string
	// Values override values.yaml.
	Values map[string]any
	// Underived omits the addresses that helm cannot derive without a cluster. The chart
	// then rejects most values.
	Underived bool
}

// addresses are the NetworkPolicy addresses that helm cannot query without a cluster.
const addresses = `networkPolicy:
  apiServerCIDRs: [192.0.2.1/32]
  proxmoxCIDRs: [192.0.2.16/28]
  gitCIDRs: [192.0.2.80/32]
`

// RefuseChart returns helm's error from rendering a release, and fails the test if helm
// renders it.
func RefuseChart(t testing.TB, chart Chart) string {
	t.Helper()
	_, err := chart.render(enginetest.ModuleRoot(t), t.TempDir())
	if err == nil {
		t.Fatal("helm rendered the chart, expected an error")
	}
	return err.Error()
}

// RenderChart returns the objects of a release as rendered by helm, in creation order: the
// namespace, the CRDs, the rest.
func RenderChart(t testing.TB, chart Chart) []*unstructured.Unstructured {
	t.Helper()
	objects, err := chart.render(enginetest.ModuleRoot(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func (c Chart) render(root, dir string) ([]*unstructured.Unstructured, error) {
	text, err := yaml.Marshal(c.Values)
	if err != nil {
		return nil, fmt.Errorf("writing values of the chart: %w", err)
	}
	values := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(values, text, 0o600); err != nil {
		return nil, fmt.Errorf("writing values of the chart: %w", err)
	}
	known, text := filepath.Join(dir, "addresses.yaml"), []byte(addresses)
	if c.Underived || c.Dir != "" { // another version may not have these values
		text = nil
	}
	if err := os.WriteFile(known, text, 0o600); err != nil {
		return nil, fmt.Errorf("writing values of the chart: %w", err)
	}
	namespace := cmp.Or(c.Namespace, "numaform")
	out, err := Helm(root, "template", cmp.Or(c.Release, "numaform"), cmp.Or(c.Dir, "charts/numaform"),
		"--namespace", namespace, "--include-crds", "--values", known, "--values", values)
	if err != nil {
		return nil, err
	}
	objects, err := Decode(out)
	if err != nil {
		return nil, fmt.Errorf("reading the output of helm: %w", err)
	}
	made := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
	}}
	objects = append([]*unstructured.Unstructured{made}, objects...)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return cmp.Compare(rank(a), rank(b)) })
	return objects, nil
}

// rank returns an object's place in the creation order.
func rank(object *unstructured.Unstructured) int {
	return slices.Index([]string{"CustomResourceDefinition", "Namespace"}, object.GetKind()) * -1
}

// Helm runs the pinned helm in the module's root and returns its output.
func Helm(root string, args ...string) ([]byte, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("running helm: %w", err)
	}
	home, err := os.MkdirTemp("", "numaform-helm-")
	if err != nil {
		return nil, fmt.Errorf("running helm: %w", err)
	}
	defer os.RemoveAll(home) //nolint:errcheck // a temporary directory
	var out, talk bytes.Buffer
	cmd := exec.CommandContext(context.Background(), filepath.Join(root, ".tools", "bin", "helm"), args...) //nolint:gosec // the pinned tool
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = root, []string{"HOME=" + home}, &out, &talk
	if err := cmd.Run(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("running helm: %w: build it with make tools", err)
		}
		return nil, fmt.Errorf("running helm %s: %w: %s%s", args[0], err, out.Bytes(), talk.Bytes())
	}
	return out.Bytes(), nil
}

// Decode returns the objects of a stream of YAML documents.
func Decode(stream []byte) ([]*unstructured.Unstructured, error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(slices.Collect(maps.Keys(object.Object))) > 0 {
			objects = append(objects, object)
		}
	}
}
