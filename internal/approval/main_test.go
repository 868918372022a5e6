package approval_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

// cluster is the control plane of all tests.
var cluster *testenv.Cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	root := filepath.Join("..", "..")
	if cluster, err = testenv.StartControlPlane(filepath.Join(root, ".tools", "bin")); err != nil {
		return 1, err
	}
	defer func() {
		if closing := cluster.Close(); closing != nil {
			code, err = 1, closing
		}
	}()
	dirs, err := testenv.CRDDirs(context.Background(), root)
	if err != nil {
		return 1, err
	}
	if err := cluster.InstallCRDs(dirs...); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
