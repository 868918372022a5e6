package testenv

import (
	"testing"

	"github.com/numaform/numaform/internal/statesim"
)

// HTTPState starts a state server that is stopped at the end of the test.
func HTTPState(t testing.TB) *statesim.Server {
	t.Helper()
	s, err := statesim.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.End(); err != nil {
			t.Error(err)
		}
	})
	return s
}
