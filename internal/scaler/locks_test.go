package scaler_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/statesim"
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

// lockable returns a scaler of a fleet with a VM on pve1, with its configuration, and the server
// of its states.
func lockable(t *testing.T) (s *scaler.Scaler, config scaler.Config, server *statesim.Server) {
	t.Helper()
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	server = testenv.HTTPState(t)
	s = newScaler(t, func(c *scaler.Config) {
		c.Engine, c.PluginDir, c.Actor = engine, testenv.PluginDir(t), "root@pve-9"
		c.Backend = fleet.Backend{Type: "http", Config: map[string]string{"address": server.URL}}
		config = *c
	}, vm(pve1, 2000))
	return s, config, server
}

// TestUnlock checks that Unlock releases a lock only after an agreement, and only the lock
// that was agreed to, of nodes and of templates, and the errors for states that the fleet does
// not have.
func TestUnlock(t *testing.T) {
	t.Parallel()
	s, config, server := lockable(t)
	address := server.URL + "/" + generator.StateName(clusterID, pve1)
	var seen []string
	unlock := func(u scaler.Unlocking, agree func() error) error {
		seen = nil
		u.Agree = func(held *state.LockedError, _ []int, _ bool) (string, error) {
			seen = append(seen, held.Error())
			return "It has ended", agree()
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

// unwritable is a store with a history that cannot be written.
type unwritable struct {
	*store.Sealed
	err error
}

func (u unwritable) Begin(context.Context, store.Revision, generator.Files, audit.Change) error {
	return u.err
}

// TestUnlockRecorded checks that the history records each release of a lock before it happens,
// with its failure, that a release finishes no work of the host, and that a history that
// cannot be written prevents no release.
func TestUnlockRecorded(t *testing.T) {
	t.Parallel()
	s, config, server := lockable(t)
	address := server.URL + "/" + generator.StateName(clusterID, pve1)
	sealed := config.Store.(*store.Sealed)
	files, revision, err := sealed.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	crashed := audit.Change{
		Format: audit.FormatVersion, ID: "20260101T000000Z-000000abcd", Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), ClusterID: clusterID,
		Kind: audit.KindScaleUp, Open: []audit.Open{{Host: pve1}},
	}
	if err := sealed.Begin(t.Context(), revision, files, crashed); err != nil {
		t.Fatal(err)
	}
	history := func() []audit.Entry {
		t.Helper()
		list, err := sealed.History(t.Context(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	u := scaler.Unlocking{Host: pve1, Reason: "the machine burned", Agree: func(*state.LockedError, []int, bool) (string, error) {
		if list := history(); len(list) != 1 {
			t.Errorf("before the agreement, the history has %d changes", len(list))
		}
		return "The holder has ended", nil
	}}

	lock(t, address, "7f3a")
	if err := s.Unlock(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	list := history()
	if len(list) != 2 {
		t.Fatalf("after the release, the history has %d changes, want 2", len(list))
	}
	entry := list[1]
	want := "release of lock 7f3a of the state of " + pve1.String() + ": anna@laptop acquired the lock at 2026-01-01T00:00:00Z for OperationTypeApply. The holder has ended"
	if change := entry.Change; change.Kind != audit.KindRecovery || change.Actor != "root@pve-9" || !slices.Equal(change.Outside, []string{want}) ||
		change.Why != "release the lock of the state of "+pve1.String()+": the machine burned" {
		t.Errorf("the record is %+v", change)
	}
	if !entry.Verified || !entry.OutcomeVerified || len(entry.Outcome.Hosts) > 0 {
		t.Errorf("the outcome is %+v", entry.Outcome)
	}
	if left := entry.Unfinished(); len(left) != 1 || left[0].Host != pve1 {
		t.Errorf("after the release, the unfinished work is %+v, want the host of the change that crashed", left)
	}
	if found, err := sealed.Audit(t.Context()); err != nil || len(found.Findings) > 0 {
		t.Errorf("verifying the history: %+v, %v", found, err)
	}

	// A release that fails is recorded, too.
	lock(t, address, "7f3a")
	u.Agree = func(*state.LockedError, []int, bool) (string, error) {
		send(t, "UNLOCK", address, "")
		lock(t, address, "8b00")
		return "The holder has ended", nil
	}
	var changed *scaler.LockChangedError
	if err := s.Unlock(t.Context(), u); !errors.As(err, &changed) {
		t.Errorf("the lock changed: %v", err)
	}
	list = history()
	if last := list[len(list)-1]; len(list) != 3 || len(last.Outcome.Hosts) != 1 || !strings.Contains(last.Outcome.Hosts[0].Error, "now lock 8b00") {
		t.Errorf("the record of a release that failed is %+v", last)
	}

	broken := errors.New("no space left")
	config.Store = unwritable{Sealed: sealed, err: broken}
	u.Agree = func(*state.LockedError, []int, bool) (string, error) { return "The holder has ended", nil }
	var unrecorded *scaler.UnrecordedError
	if err := scaler.New(config).Unlock(t.Context(), u); !errors.As(err, &unrecorded) || !errors.Is(err, broken) || len(server.Locks()) > 0 {
		t.Errorf("with a history that cannot be written: %v, locks %q", err, server.Locks())
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
