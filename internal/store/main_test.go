package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/testenv"
)

// shared is the control plane of the tests that need one.
type shared struct {
	once    sync.Once
	cluster *testenv.Cluster
	err     error
}

// control starts the control plane when the first test needs it.
var control shared

func TestMain(m *testing.M) {
	code := m.Run()
	if control.cluster != nil {
		if err := control.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func cluster(t *testing.T) *testenv.Cluster {
	t.Helper()
	control.once.Do(func() {
		control.cluster, control.err = testenv.StartControlPlane(filepath.Join("..", "..", ".tools", "bin"))
	})
	if control.err != nil {
		t.Fatal(control.err)
	}
	return control.cluster
}

func client(t *testing.T) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cluster(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
