package testenv

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// Shared is one control plane for all tests of a package, started by the first call of
// Cluster. The zero value is ready to use: call Main from TestMain.
type Shared struct {
	// Full starts a control plane that schedules pods and runs the controllers.
	Full bool
	// Prepare runs once, after the CRDs are installed.
	Prepare func(*Cluster) error

	once    sync.Once
	cluster *Cluster
	err     error
}

// Main runs the tests, stops the control plane and returns the exit code.
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	if s.cluster == nil {
		return code
	}
	if err := s.cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Cluster returns the control plane, with the CRDs of Karpenter and numaform.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	tools := toolsDir(t)
	s.once.Do(func() {
		if s.cluster, s.err = startCluster(tools, Cluster{full: s.Full}); s.err != nil {
			return
		}
		if s.err = s.cluster.InstallCRDs(CRDs(t)...); s.err == nil && s.Prepare != nil {
			s.err = s.Prepare(s.cluster)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.cluster
}
