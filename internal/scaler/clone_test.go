package scaler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// cloneOf returns a running clone that a user made of a VM: it has the VM's marker.
func cloneOf(vm fleet.VM) topology.Guest {
	clone := guestOf(vm)
	clone.VMID, clone.Name = int(vm.VMID)+500, "copy"
	return clone
}

// cloned returns a writer of a fleet with the VMs, whose Proxmox has the guests of pve-1 in
// seen. before is called before the writer reads the fleet for the first time.
func cloned(t *testing.T, seen *topology.Snapshot, before func(*scaler.Scaler, scaler.Config), vms ...fleet.VM) (*scaler.Writer, *clocktesting.FakeClock) {
	t.Helper()
	now := clocktesting.NewFakeClock(time.Now())
	var config scaler.Config
	s := newScaler(t, func(c *scaler.Config) {
		c.Clock, c.Regions[0].Live = now, live{seen}
		config = *c
	}, vms...)
	if before != nil {
		before(s, config)
	}
	writer := scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return seen, nil }, Gather: time.Nanosecond,
	})
	return writer, now
}

// TestCloneIsNotWoken makes the wake of a VM fail, which stays stopped, while a clone of it
// runs: the wake has failed.
func TestCloneIsNotWoken(t *testing.T) {
	t.Parallel()
	waits := vm(pve1, 2000)
	waits.Standby = true
	writer, _ := cloned(t, snapshot(stopped(guestOf(waits)), cloneOf(waits)), nil, waits)
	writer.NextBatch(t)
	if _, err := writer.Wake(t.Context(), waits.Key); err != nil {
		t.Fatal(err)
	}
	batch := writer.NextBatch(t)
	if len(batch.Wakes()) != 1 {
		t.Fatalf("wakes %v, want the VM", batch.Wakes())
	}
	writer.Start(batch)
	writer.Finish(t.Context(), batch, pve1, errors.New("the start failed"))
	phases(t, writer, scaler.PhaseFailed)
}

// TestCloneDoesNotBeginWakes checks that a VM that is stopped after an interrupted wake is
// removed before other VMs of its host are woken, although a clone of it runs: a plan of the
// whole host would start it.
func TestCloneDoesNotBeginWakes(t *testing.T) {
	t.Parallel()
	leaves, waits := vm(pve1, 2000), vm(pve1, 2001)
	waits.Standby = true
	var config scaler.Config
	writer, now := cloned(t, snapshot(stopped(guestOf(leaves)), cloneOf(leaves), stopped(guestOf(waits))),
		func(_ *scaler.Scaler, c scaler.Config) { config = c }, leaves, waits)
	writer.NextBatch(t)
	if _, err := writer.Wake(t.Context(), waits.Key); err != nil {
		t.Fatal(err)
	}
	began := time.Now().UTC()
	files, revision, err := config.Store.Read(t.Context())
	if err == nil {
		err = config.Store.Begin(t.Context(), revision, files, audit.Change{
			Format: audit.FormatVersion, ID: began.Format("20060102T150405Z") + "-0000000000", Time: began, ClusterID: clusterID, Kind: audit.KindWake,
			Open: []audit.Open{{Host: pve1, Woken: []fleet.Key{leaves.Key}}},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	writer.Remove(leaves.Key)
	now.Step(time.Second)
	batch := writer.NextBatch(t)
	if _, removes, _ := batch.Keys(); len(batch.Wakes()) > 0 || len(removes) != 1 {
		t.Errorf("wakes %v, removes %v: want only the removal", batch.Wakes(), removes)
	}
}

// TestCloneIsNotMade starts a writer of a fleet with a VM that does not exist, but has a
// clone: the VM is not made.
func TestCloneIsNotMade(t *testing.T) {
	t.Parallel()
	absent := vm(pve1, 2000)
	writer, _ := cloned(t, snapshot(cloneOf(absent)), nil, absent)
	writer.NextBatch(t)
	phases(t, writer, scaler.PhaseMaking)
}

// TestCloneOfAVanishedVM removes a VM in Proxmox, but not its clone: the VM is given up, as
// without a clone, instead of being created again by the next change of its host.
func TestCloneOfAVanishedVM(t *testing.T) {
	t.Parallel()
	made := vm(pve1, 2000)
	seen := snapshot(guestOf(made), cloneOf(made))
	writer, now := cloned(t, seen, nil, made)
	writer.NextBatch(t)
	phases(t, writer, scaler.PhaseMade)
	seen.Hosts[0].Guests = seen.Hosts[0].Guests[1:]
	now.Step(time.Minute)
	_, removes, _ := writer.NextBatch(t).Keys()
	if states := writer.VMs(); len(removes) != 1 || len(states) != 1 || !as[*scaler.VanishedError](states[0].Err) {
		t.Errorf("removes %v, VMs %+v: want that the VM has vanished", removes, states)
	}
}

// TestCloneOfADeletedVM deletes the file of a VM that does not exist, but has a clone:
// nothing is left to remove.
func TestCloneOfADeletedVM(t *testing.T) {
	t.Parallel()
	gone, stays := vm(pve1, 2000), vm(pve1, 2001)
	seen := snapshot(guestOf(gone), cloneOf(gone), guestOf(stays))
	var config scaler.Config
	writer, _ := cloned(t, seen, func(_ *scaler.Scaler, c scaler.Config) { config = c }, gone, stays)
	writer.NextBatch(t)
	seen.Hosts[0].Guests = seen.Hosts[0].Guests[1:]
	writeFleet(t, config, stays)
	writer.NextBatch(t)
	if state, known := writer.Find(gone.Name); known {
		t.Errorf("the VM is %+v", state)
	}
}

// TestCloneOfARemovedVM starts a writer after the removal of a VM that has a clone ended
// without an outcome: the removal is not believed to be unfinished.
func TestCloneOfARemovedVM(t *testing.T) {
	t.Parallel()
	removed, stays := vm(pve1, 2000), vm(pve1, 2001)
	writer, _ := cloned(t, snapshot(cloneOf(removed), guestOf(stays)), func(s *scaler.Scaler, _ scaler.Config) { s.Begin(t, pve1, removed) }, stays)
	writer.NextBatch(t)
	if state, known := writer.Find(removed.Name); known {
		t.Errorf("the VM is %+v", state)
	}
}
