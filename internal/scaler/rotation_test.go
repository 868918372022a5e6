package scaler_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// begin records a change and writes its files, or the given files.
func begin(t *testing.T, s *scaler.Scaler, change *scaler.Change, files generator.Files) {
	t.Helper()
	_, revision, err := s.Store().Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if files == nil {
		files = change.AfterFiles
	}
	if err := s.Store().Begin(t.Context(), revision, files, s.Record(change, nil)); err != nil {
		t.Fatal(err)
	}
}

// TestNumbersDoNotComeBack reverts the files of a scale-up: the same decision gets other
// VMIDs and keys.
func TestNumbersDoNotComeBack(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	old := propose(t, s, snapshot(), request(pve1), request(pve2))
	begin(t, s, old, nil)
	if err := s.Store().Write(old.BeforeFiles); err != nil {
		t.Fatal(err)
	}
	next := propose(t, s, snapshot(), request(pve1), request(pve2))
	if diff := cmp.Diff([]fleet.VMID{2003, 2004}, ids(next.Added)); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	for i := range next.Added {
		if next.Added[i].Key == old.Added[i].Key {
			t.Errorf("key %s came back", next.Added[i].Key)
		}
	}
	// A change that adds nothing keeps the rotation.
	removal, err := s.ProposeRemoval(t.Context(), snapshot(), []string{"workers-2000"})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, removal, nil)
	want := map[topology.RegionName]fleet.Rotation{"lab": {Last: 2002}}
	if diff := cmp.Diff(want, s.Record(propose(t, s, snapshot()), nil).Rotations); diff != "" {
		t.Errorf("rotations (-want +got):\n%s", diff)
	}
}

// TestNumbersWithoutHistory continues after the VMs in the files if there is no history.
func TestNumbersWithoutHistory(t *testing.T) {
	t.Parallel()
	far := vm(pve1, 3000)
	s := newScaler(t, nil, vm(pve1, 2006), vm(pve2, 2003), far)
	change := propose(t, s, snapshot(), request(pve1))
	if diff := cmp.Diff([]fleet.VMID{2007}, ids(change.Added)); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	// VMs that people add to the files later count too.
	plans := []scaler.RootPlan{{Host: pve1, Made: []fleet.VM{vm(pve1, 2008), far}}}
	if got := s.Record(change, plans).Rotations["lab"]; got != (fleet.Rotation{Last: 2008}) {
		t.Errorf("rotation %+v, want up to 2008", got)
	}
}

// TestApplyAfterAChangeThatWasTakenBack checks that an apply is refused if another change
// assigned VMIDs meanwhile, although the files are unchanged.
func TestApplyAfterAChangeThatWasTakenBack(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	stale, other := propose(t, s, snapshot(), request(pve1)), propose(t, s, snapshot(), request(pve1))
	begin(t, s, other, other.BeforeFiles)
	_, err := s.Apply(t.Context(), stale, func([]scaler.RootPlan) (string, error) { return "", nil })
	if !errors.Is(err, scaler.ErrFleetChanged) {
		t.Errorf("got %v", err)
	}
}

// TestFirstChangeReverted reads a fleet without the files that the revert of its first
// change deletes in addition to VMs: the next change restores them.
func TestFirstChangeReverted(t *testing.T) {
	t.Parallel()
	kept := vm(pve1, 2000)
	s := newScaler(t, nil, kept)
	before, err := s.Store().Files()
	if err != nil {
		t.Fatal(err)
	}
	node := generator.NodeFile(&kept)
	if err := s.Store().Write(generator.Files{node: before[node]}); err != nil {
		t.Fatal(err)
	}
	change := propose(t, s, snapshot(guestOf(kept)))
	if diff := cmp.Diff([]fleet.VMID{2000}, ids(change.Before.VMs)); diff != "" {
		t.Errorf("VMs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, change.AfterFiles); diff != "" {
		t.Errorf("files that come back (-want +got):\n%s", diff)
	}
	// The engine never gets modules that this version does not contain.
	older := maps.Clone(before)
	older[node] = []byte(strings.ReplaceAll(string(older[node]), modules.Hash(), "0123456789abcdef"))
	if err := s.Store().Write(older); err != nil {
		t.Fatal(err)
	}
	_, err = s.Propose(t.Context(), snapshot(), nil, nil)
	if want := node + ":9: calls modules 0123456789abcdef, which this numaform does not contain"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestRotationsOfHistory checks that the most advanced rotation is used, regardless of
// the order of the records.
func TestRotationsOfHistory(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000))
	record := s.Record(propose(t, s, snapshot(), request(pve1)), nil)
	for i, rotation := range []fleet.Rotation{{Last: 2003, Round: 1}, {Last: 2008}} {
		one := audit.Change{Format: record.Format, Time: record.Time, ClusterID: clusterID, Kind: record.Kind, ID: record.ID[:len(record.ID)-1] + string(rune('0'+i))}
		one.Rotations = map[topology.RegionName]fleet.Rotation{"lab": rotation}
		files, revision, err := s.Store().Read(t.Context())
		if err == nil {
			err = s.Store().Begin(t.Context(), revision, files, one)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]fleet.VMID{2004}, ids(propose(t, s, snapshot(), request(pve1)).Added)); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
}
