package scaler_test

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
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
	lock(t, server.URL+"/"+generator.StateName(clusterID, pve1), "7f3a")
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

// TestUnlock checks that Unlock releases a lock only after an agreement, and only the lock
// that was agreed to, of nodes and of templates, and the errors for states that the fleet does
// not have.
func TestUnlock(t *testing.T) {
	t.Parallel()
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	server := testenv.HTTPState(t)
	var config scaler.Config
	s := newScaler(t, func(c *scaler.Config) {
		c.Engine, c.PluginDir = engine, testenv.PluginDir(t)
		c.Backend = fleet.Backend{Type: "http", Config: map[string]string{"address": server.URL}}
		config = *c
	}, vm(pve1, 2000))
	address := server.URL + "/" + generator.StateName(clusterID, pve1)
	var seen []string
	unlock := func(u scaler.Unlocking, agree func() error) error {
		seen = nil
		u.Agree = func(held *state.LockedError, _ []int, _ bool) error {
			seen = append(seen, held.Error())
			return agree()
		}
		return s.Unlock(t.Context(), u)
	}
	yes := func() error { return nil }

	if err := unlock(scaler.Unlocking{Host: pve1}, yes); !errors.Is(err, scaler.ErrNotLocked) || len(seen) > 0 {
		t.Errorf("a free lock: %v, seen %q", err, seen)
	}
	lock(t, address, "7f3a")
	no := errors.New("no")
	if err := unlock(scaler.Unlocking{Host: pve1}, func() error { return no }); !errors.Is(err, no) || len(server.Locks()) != 1 {
		t.Errorf("without agreement: %v, locks %q", err, server.Locks())
	}
	if len(seen) != 1 || !strings.Contains(seen[0], "locked by anna@laptop") || !strings.Contains(seen[0], "run `numaform unlock "+pve1.String()+" 7f3a`") {
		t.Errorf("the lock is %q", seen)
	}
	for _, newer := range []string{
		`{"ID":"7f3a","Operation":"OperationTypeApply","Who":"anna@laptop","Created":"2026-01-01T00:00:01Z"}`,
		`{"ID":"7f3a","Operation":"OperationTypeApply","Who":"numaform@pod","Created":"2026-01-01T00:00:01Z"}`,
		`{"ID":"8b00","Operation":"OperationTypeApply","Who":"numaform@pod","Created":"2026-01-01T00:00:01Z"}`,
	} {
		var changed *scaler.LockChangedError
		err := unlock(scaler.Unlocking{Host: pve1}, func() error {
			send(t, "UNLOCK", address, "")
			send(t, "LOCK", address, newer)
			return nil
		})
		if !errors.As(err, &changed) || len(server.Locks()) != 1 {
			t.Errorf("the lock became %s: %v, locks %q", newer, err, server.Locks())
		}
	}
	if err := unlock(scaler.Unlocking{Host: pve1}, yes); err != nil || len(server.Locks()) > 0 {
		t.Errorf("with agreement: %v, locks %q", err, server.Locks())
	}

	// A host whose last template was removed still has a state of templates.
	regions := []fleet.Region{{Name: pve2.Region, Endpoint: config.Regions[0].Endpoint}}
	root, err := generator.Current().RenderTemplates(fleet.Fleet{ClusterID: clusterID, Backend: config.Backend, Regions: regions}, pve2, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, _, err := config.Store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(files, root)
	if err := store.NewDirectory(config.Dir).Write(files); err != nil {
		t.Fatal(err)
	}
	lock(t, server.URL+"/"+generator.TemplateStateName(clusterID, pve2), "9c11")
	if err := unlock(scaler.Unlocking{Host: pve2, Templates: true}, yes); err != nil || len(seen) != 1 || len(server.Locks()) > 0 {
		t.Errorf("the lock of templates: %v, seen %q, locks %q", err, seen, server.Locks())
	}

	for _, unknown := range []scaler.Unlocking{{Host: pve2}, {Host: pve1, Templates: true}} {
		if err := unlock(unknown, yes); err == nil || !strings.Contains(err.Error(), "the fleet has no ") {
			t.Errorf("%+v: %v, want that the fleet has no such state", unknown, err)
		}
	}
}

// lock acquires a state's lock as another engine would.
func lock(t *testing.T, address, id string) {
	t.Helper()
	send(t, "LOCK", address, `{"ID":"`+id+`","Operation":"OperationTypeApply","Who":"anna@laptop","Created":"2026-01-01T00:00:00Z"}`)
}

func send(t *testing.T, method, address, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", method, address, answer.Status)
	}
}
