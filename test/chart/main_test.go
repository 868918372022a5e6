// Package chart_test tests the rendered Helm chart and its effect on a real API server.
package chart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/testenv"
)

// root is the module's root directory.
const root = "../.."

// chartDir is the chart's directory.
var chartDir = filepath.Join(root, "charts", "numaform")

// cluster is the control plane of all tests in this package, scratch a directory that they
// share.
var (
	cluster *testenv.Cluster
	scratch string
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "numaform-chart-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary directory
	if cluster, err = testenv.StartControlPlane(filepath.Join(root, ".tools", "bin")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// fullValues returns values that set every key, except the keys listed in
// TestFullValuesSetEverything.
func fullValues(t *testing.T) map[string]any {
	t.Helper()
	return readYAML(t, filepath.Join("testdata", "full.yaml"))
}

// leastValues returns the values that numaform requires to run.
func leastValues() map[string]any {
	return map[string]any{
		"config": map[string]any{
			"clusterID": "prod",
			"clusters": []any{map[string]any{
				"region": "region-1", "url": "https://pve-1.example:8006/api2/json",
				"token_id": "numaform@pve!scaler", "token_secret_file": "token",
			}},
		},
		"secret": map[string]any{"existing": "proxmox"},
	}
}

func readYAML(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return values
}

// release is a set of values with which to install the chart.
type release struct {
	name   string
	values map[string]any
}

// objects returns the name of the release's objects.
func (r release) objects() string {
	if name, ok := r.values["fullnameOverride"].(string); ok {
		return name
	}
	return "numaform"
}

func releases(t *testing.T) []release {
	t.Helper()
	return []release{
		{"default values", nil},
		{"least values", leastValues()},
		{"full values", fullValues(t)},
	}
}

// ofKind returns the objects of a kind, and fails the test if none exist.
func ofKind(t *testing.T, objects []*unstructured.Unstructured, kind string) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for _, object := range objects {
		if object.GetKind() == kind {
			found = append(found, object)
		}
	}
	if len(found) == 0 {
		t.Fatalf("the chart has no %s", kind)
	}
	return found
}
