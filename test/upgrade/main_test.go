package upgrade_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

// binary is the path of this numaform.
var binary string

// servers contains the backend servers that take seconds to start. All tests share them.
var servers struct {
	cluster  func() (*testenv.Cluster, error)
	database func() (*testenv.Database, error)
}

func TestMain(m *testing.M) {
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "numaform-upgrade-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	binary = filepath.Join(dir, "numaform")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, "github.com/numaform/numaform/cmd/numaform")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building numaform: %v\n%s", err, out)
		return 1
	}
	end := openServers()
	code = m.Run()
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// openServers prepares the servers, which start when a test first needs them. It returns a
// function that stops the started servers.
func openServers() (end func() error) {
	// mu guards closers.
	var mu sync.Mutex
	var closers []func() error
	closeLater := func(closer func() error) {
		mu.Lock()
		defer mu.Unlock()
		closers = append(closers, closer)
	}
	servers.cluster = sync.OnceValues(func() (*testenv.Cluster, error) {
		c, err := testenv.StartControlPlane(filepath.Join("..", "..", ".tools", "bin"))
		if err == nil {
			closeLater(c.Close)
		}
		return c, err
	})
	servers.database = sync.OnceValues(func() (*testenv.Database, error) {
		d, err := testenv.StartPostgres()
		if err == nil {
			closeLater(d.Close)
		}
		return d, err
	})
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		var errs []error
		for _, closer := range closers {
			errs = append(errs, closer())
		}
		return errors.Join(errs...)
	}
}
