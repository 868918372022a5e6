package scaler_test

import (
	"context"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tfjson "github.com/hashicorp/terraform-json"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// forge adds a record as anyone with write access to the fleet's store can, with an
// outcome if ended is set.
func forge(t *testing.T, s *scaler.Scaler, change audit.Change, ended ...audit.Ended) {
	t.Helper()
	kept := s.Store().Directory
	files, revision, err := kept.Read(t.Context())
	if err == nil {
		err = kept.Begin(t.Context(), revision, files, change)
	}
	if err == nil && ended != nil {
		err = kept.End(t.Context(), audit.Outcome{ID: change.ID, Time: change.Time, Hosts: ended})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lastRecorded returns the ID of the last change that this installation recorded.
func lastRecorded(t *testing.T, s *scaler.Scaler) string {
	t.Helper()
	entries, err := s.History(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, func(e audit.Entry) bool { return !e.Verified })
	return entries[len(entries)-1].Change.ID
}

// forged returns a record that mentions everything that decisions depend on.
func forged(at time.Time, victim fleet.VM) audit.Change {
	return audit.Change{
		ID: at.UTC().Format("20060102T150405Z") + "-ffff", Time: at.UTC(), ClusterID: clusterID, Kind: audit.KindScaleUp,
		Added: []fleet.VM{victim}, Removed: []fleet.VM{victim}, MAC: strings.Repeat("ab", 32),
		Hosts:     []audit.HostPlan{{Host: pve1, Create: make([]guard.Target, 50), Delete: make([]guard.Target, 50)}},
		Rotations: map[topology.RegionName]fleet.Rotation{"lab": {Last: 2008, Round: 7}},
		Open: []audit.Open{{
			Host: pve1, Removed: []fleet.VM{victim}, Made: []guard.Target{{Address: "module.a", Key: victim.Key}}, Updated: []fleet.Key{victim.Key},
		}},
	}
}

// TestForgedRecords checks that no decision depends on other clients' records: they only
// cause every host to be planned, until this installation has recorded its next change.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name string
		at   time.Time
		// want are the hosts to plan.
		want []topology.HostID
	}{
		{"a moment ago", now.Add(-time.Second), []topology.HostID{pve1, pve2}},
		{"a little ahead", now.Add(4 * time.Minute), []topology.HostID{pve1, pve2}},
		{"older than the last change", now.Add(-2 * time.Hour), nil},
		{"tomorrow", now.Add(24 * time.Hour), nil},
		{"in the year 9999", time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), nil},
		{"before 1970", time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			victim := vm(pve1, 2000)
			clock, notices := clocktesting.NewFakeClock(now.Add(-time.Hour)), []string{}
			s := newScaler(t, func(config *scaler.Config) {
				config.Clock, config.Notice = clock, func(message string) { notices = append(notices, message) }
			}, victim, vm(pve2, 2001))
			begin(t, s, propose(t, s, snapshot(), request(pve1)), nil) // VMID 2002
			clock.SetTime(now)
			forge(t, s, forged(tt.at, victim), audit.Ended{Host: pve1, Error: "no room"})
			open := s.Open(t)
			if diff := cmp.Diff(tt.want, slices.SortedFunc(maps.Keys(open), topology.HostID.Compare)); diff != "" {
				t.Errorf("hosts to plan (-want +got):\n%s", diff)
			}
			for host := range open {
				if diff := cmp.Diff(audit.Open{Host: host}, open[host]); diff != "" {
					t.Errorf("what is in progress (-want +got):\n%s", diff)
				}
			}
			if got := s.Events(t); len(got) > 0 {
				t.Errorf("the limits count %+v", got)
			}
			change := propose(t, s, snapshot(), request(pve1))
			record := s.Record(change, nil)
			if diff := cmp.Diff([]fleet.VMID{2003}, ids(change.Added)); diff != "" || record.Rotations["lab"] != (fleet.Rotation{Last: 2003}) {
				t.Errorf("rotations %v, VMIDs (-want +got):\n%s", record.Rotations, diff)
			}
			if !record.Time.Equal(now) {
				t.Errorf("the record is of %s, want %s", record.Time, now)
			}
			if once := len(notices) == 1 && strings.Contains(notices[0], "history.key_file"); once != (tt.want != nil) {
				t.Errorf("notices %q", notices)
			}
			clock.SetTime(now.Add(5 * time.Minute))
			begin(t, s, propose(t, s, snapshot()), nil)
			last := lastRecorded(t, s)
			if diff := cmp.Diff(tt.want, slices.SortedFunc(maps.Keys(s.Open(t)), topology.HostID.Compare)); diff != "" {
				t.Errorf("while they are planned (-want +got):\n%s", diff)
			}
			if err := s.Store().End(t.Context(), audit.Outcome{ID: last, Time: clock.Now(), Hosts: []audit.Ended{{Host: pve1}, {Host: pve2}}}); err != nil {
				t.Fatal(err)
			}
			if open := s.Open(t); len(open) > 0 {
				t.Errorf("after they were planned: %v", open)
			}
		})
	}
}

// TestAnotherInstallation checks a VM in Proxmox and in the files but not in the state,
// with a record that this installation cannot verify: the VM is imported, and exists
// once.
func TestAnotherInstallation(t *testing.T) {
	t.Parallel()
	var config scaler.Config
	w := newWorldWith(t, func(c *scaler.Config) { config = *c })
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	wanted := request(host)
	wanted.Spec.Template = testenv.Template
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), wanted), approveAll); err != nil {
		t.Fatal(err)
	}
	before, _ := w.sim.Guest(2000)
	if err := os.Remove(filepath.Join(config.StateDir, "states", string(host.Region), string(host.Host), "terraform.tfstate")); err != nil {
		t.Fatal(err)
	}
	config.Store = sealed(t, w.Store().Path())
	other := scaler.New(config)
	if _, planned := other.Open(t)[host]; !planned {
		t.Fatal("the host is not planned")
	}
	results, err := other.Apply(t.Context(), propose(t, other, w.snapshot(t)), approveAll)
	if err != nil || len(results) != 1 || len(results[0].Imported) != 1 {
		t.Fatalf("results %v, %v", results, err)
	}
	w.exist(t, 2000)
	if after, _ := w.sim.Guest(2000); after.Raw != before.Raw || !after.Running {
		t.Errorf("the VM was changed:\n%s\nbefore:\n%s", after.Raw, before.Raw)
	}
	if open := other.Open(t); len(open) > 0 {
		t.Errorf("left over: %v", open)
	}
}

// TestForgedRecordBesideAnUnfinishedUpdate adds another client's record after an update in place
// that failed: its host is planned completely, like every host, until that succeeded. The update
// follows.
func TestForgedRecordBesideAnUnfinishedUpdate(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorldWith(t, func(config *scaler.Config) { config.Clock = clock })
	change := propose(t, w.Scaler, w.snapshot(t), on(first))
	_, err := w.Apply(t.Context(), change, approveAll)
	must(t, err)
	vm := change.Added[0]
	change = propose(t, w.Scaler, w.snapshot(t))
	must(t, w.UpdateVMs(change, []fleet.VM{tagged(vm, "blue")}))
	remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
	if _, err := w.Apply(t.Context(), change, approveAll); err == nil {
		t.Fatal("the update did not fail")
	}
	remove()
	clock.Step(time.Minute)
	forge(t, w.Scaler, forged(clock.Now(), vm))
	clock.Step(time.Minute)

	apply := func() (targeted bool) {
		t.Helper()
		_, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), func(plans []scaler.RootPlan) (string, error) {
			targeted = len(plans) != 1 || plans[0].Intent.Targeted
			return "", nil
		})
		must(t, err)
		return targeted
	}
	if apply() {
		t.Error("only the update is planned while the changes of another client are unknown")
	}
	if diff := cmp.Diff(audit.Open{Host: first, Updated: []fleet.Key{vm.Key}}, w.Open(t)[first]); diff != "" {
		t.Errorf("unfinished work (-want +got):\n%s", diff)
	}
	if !apply() {
		t.Error("the whole host is planned although nothing is unknown")
	}
	w.underWay(t)
	w.hasTags(t, vm, "blue")
}

// TestForgedRecordIsNotForgotten checks that a host with an unfinished update is planned
// completely until a change has succeeded there, not only until this installation has recorded
// one.
func TestForgedRecordIsNotForgotten(t *testing.T) {
	t.Parallel()
	updated := vm(pve1, 2000)
	clock := clocktesting.NewFakeClock(time.Now())
	s := newScaler(t, func(config *scaler.Config) { config.Clock = clock }, updated, vm(pve2, 2001))
	record := func(plans ...scaler.RootPlan) string {
		t.Helper()
		change := propose(t, s, snapshot(guestOf(updated)))
		files, revision, err := s.Store().Read(t.Context())
		must(t, err)
		record := s.Record(change, plans)
		must(t, s.Store().Begin(t.Context(), revision, files, record))
		return record.ID
	}
	end := func(id string, host audit.Ended) {
		t.Helper()
		must(t, s.Store().End(t.Context(), audit.Outcome{ID: id, Time: clock.Now(), Hosts: []audit.Ended{host}}))
	}
	id := record(scaler.RootPlan{Host: pve1, Intent: guard.Intent{Update: []guard.Target{{Key: updated.Key}}}})
	end(id, audit.Ended{Host: pve1, Error: "no"})
	clock.Step(time.Minute)
	forge(t, s, forged(clock.Now(), updated))
	clock.Step(time.Minute)

	id = record(scaler.RootPlan{Host: pve1})
	end(id, audit.Ended{Host: pve1, Error: "no"})
	if open := s.Open(t)[pve1]; open.OnlyUpdates() || !slices.Equal(open.Updated, []fleet.Key{updated.Key}) {
		t.Errorf("after a failure, the unfinished work is %+v", open)
	}
	id = record(scaler.RootPlan{Host: pve1})
	end(id, audit.Ended{Host: pve1})
	if open := s.Open(t)[pve1]; !open.OnlyUpdates() {
		t.Errorf("after a success, the unfinished work is %+v", open)
	}
}

// TestUndoOfForgedRecords checks that an undo does not restore a VM whose spec is only in
// another client's record.
func TestUndoOfForgedRecords(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	gone := vm(pve2, 2005)
	gone.VCPUs = 0 // a person deleted its file: the history has its spec
	undone := s.Record(propose(t, s, snapshot()), nil)
	undone.Removed = []fleet.VM{gone}
	forgedMaking := forged(time.Now().Add(-time.Minute), vm(pve2, 2005))
	forge(t, s, forgedMaking)
	_, err := s.ProposeUndo(context.Background(), snapshot(), &undone, nil)
	if err == nil || !strings.Contains(err.Error(), "the history does not contain the spec of workers-2005") {
		t.Errorf("got %v", err)
	}
}

// TestTakesInNothingForged checks that a stray VM that only other clients' records contain
// is not adopted, and that the VM is adopted once this installation has a record of it.
func TestTakesInNothingForged(t *testing.T) {
	t.Parallel()
	stray := vm(pve1, 2003)
	s := newScaler(t, nil, vm(pve1, 2000))
	forge(t, s, forged(time.Now().Add(-time.Minute), stray))
	change := propose(t, s, snapshot(guestOf(vm(pve1, 2000)), guestOf(stray)))
	w, err := s.Look(t.Context(), change, pve1)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := s.Adopt(t.Context(), change, w, &tfjson.Plan{})
	if taken || err != nil || len(change.Adopted) > 0 {
		t.Errorf("took in %v, %v", change.Adopted, err)
	}
	s.Made(t, stray)
	if taken, err = s.Adopt(t.Context(), change, w, &tfjson.Plan{}); !taken || err != nil {
		t.Errorf("with a record of this installation: %t, %v", taken, err)
	}
}
