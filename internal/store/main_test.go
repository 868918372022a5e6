package store_test

import (
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/testenv"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

func cluster(t *testing.T) *testenv.Cluster {
	t.Helper()
	return plane.Cluster(t)
}

func client(t *testing.T) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cluster(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
