package scaler_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// TestLocks reads the lock of each host's state: two free locks, then one held lock. It
// also checks fleets without hosts, without an engine and with local states.
func TestLocks(t *testing.T) {
	t.Parallel()
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.HTTPState(t)
	remote := func(config *scaler.Config) {
		config.Engine, config.PluginDir = engine, testenv.PluginDir(t)
		config.Backend = fleet.Backend{Type: "http", Config: map[string]string{"address": server.URL}}
	}
	s := newScaler(t, remote, vm(pve1, 2000), vm(pve2, 2001))
	free, err := s.Locks(t.Context())
	if err != nil || len(free) != 2 || free[0].Err != nil || free[1].Err != nil || s.LocalStates() {
		t.Fatalf("locks that are free: %v, %v", free, err)
	}
	lock(t, server.URL+"/"+generator.StateName(clusterID, pve1))
	held, err := s.Locks(t.Context())
	var locked *state.LockedError
	if err != nil || len(held) != 2 || held[0].Host != pve1 || !errors.As(held[0].Err, &locked) || held[1].Err != nil {
		t.Fatalf("locks, the first of which is held: %v, %v", held, err)
	}

	none := newScaler(t, remote)
	if locks, err := none.Locks(t.Context()); err != nil || len(locks) > 0 {
		t.Errorf("a fleet without hosts has locks %v, %v", locks, err)
	}
	blind := newScaler(t, func(c *scaler.Config) { remote(c); c.Engine = nil }, vm(pve1, 2000))
	if _, err := blind.Locks(t.Context()); !errors.Is(err, scaler.ErrNoEngine) {
		t.Errorf("without an engine: %v", err)
	}
	local := newScaler(t, func(*scaler.Config) {}, vm(pve1, 2000))
	if locks, err := local.Locks(t.Context()); err != nil || len(locks) > 0 || !local.LocalStates() {
		t.Errorf("states in files have locks %v, %v", locks, err)
	}
}

// lock acquires a state's lock as another engine would.
func lock(t *testing.T, address string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "LOCK", address, strings.NewReader(
		`{"ID":"7f3a","Operation":"OperationTypeApply","Who":"anna@laptop","Created":"2026-01-01T00:00:00Z"}`,
	))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("taking the lock: %s", answer.Status)
	}
}
