package scaler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// resting returns a writer that has read a fleet with workers-2000 but is not running, the
// VM, and the writer's clock.
func resting(t *testing.T, guest func(fleet.VM) topology.Guest) (*scaler.Writer, fleet.VM, *clocktesting.FakeClock) {
	t.Helper()
	now := clocktesting.NewFakeClock(time.Now())
	made := vm(pve1, 2000)
	s := newScaler(t, func(c *scaler.Config) { c.Clock = now }, made)
	there := snapshot(guest(made))
	writer := scaler.NewWriter(s, scaler.WriterConfig{Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil }})
	writer.NextBatch(t)
	return writer, made, now
}

// TestWhatMovesIsLeftAlone requests a create, a removal or an update that is already
// being applied: the writer repeats it only after it failed.
func TestWhatMovesIsLeftAlone(t *testing.T) {
	t.Parallel()
	coming := func(m *scaler.Batch) []fleet.Key { keys, _, _ := m.Keys(); return keys }
	leaving := func(m *scaler.Batch) []fleet.Key { _, keys, _ := m.Keys(); return keys }
	changing := func(m *scaler.Batch) []fleet.Key { _, _, keys := m.Keys(); return keys }
	for _, test := range []struct {
		name string
		ask  func(*scaler.Writer, fleet.VM)
		keys func(*scaler.Batch) []fleet.Key
	}{
		{"goes", func(w *scaler.Writer, vm fleet.VM) { w.Remove(vm.Key) }, leaving},
		{"changes", func(w *scaler.Writer, vm fleet.VM) { vm.Tags = []string{"new"}; w.Update(vm) }, changing},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			writer, made, now := resting(t, guestOf)
			for range 2 {
				test.ask(writer, made)
				now.Step(time.Second) // removals wait that long for further removals
				m := writer.NextBatch(t)
				if diff := cmp.Diff([]fleet.Key{made.Key}, test.keys(m)); diff != "" {
					t.Fatalf("asked for (-want +got):\n%s", diff)
				}
				writer.Start(m)
				if again := test.keys(writer.NextBatch(t)); len(again) > 0 {
					t.Errorf("asked for %v while it moves", again)
				}
				writer.Finish(t.Context(), m, pve1, errors.New("the host went down"))
				now.Step(time.Hour)
				writer.NextBatch(t) // reads the files, which are unchanged
			}
		})
	}
	t.Run("comes", func(t *testing.T) {
		t.Parallel()
		writer, _, _ := resting(t, guestOf)
		fresh := ensure(t, writer, request(pve2))[0]
		m := writer.NextBatch(t)
		if diff := cmp.Diff([]fleet.Key{fresh.Key}, coming(m)); diff != "" {
			t.Fatalf("asked for (-want +got):\n%s", diff)
		}
		writer.Start(m)
		// The removal of the VM is requested before the writer has read the VM's file.
		writer.Remove(fresh.Key)
		writer.NextBatch(t)
		if state, known := writer.Find(fresh.Name); !known || state.Phase != scaler.PhaseRemoving {
			t.Errorf("known %v, %+v: want it to go once it is there", known, state)
		}
		writer.Finish(t.Context(), m, pve2, nil)
		writer.NextBatch(t)
		if state, known := writer.Find(fresh.Name); known {
			t.Errorf("%+v: it has neither file nor guest", state)
		}
	})
}

// TestHostEndsQuietly checks that the end of an apply on a host begins the next change only
// if a request waits for this host, or the apply failed: each step of the writer reads the
// whole fleet.
func TestHostEndsQuietly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// ask requests something while the change is being applied.
		ask  func(*testing.T, *scaler.Writer, fleet.VM)
		err  error
		want bool
	}{
		"nothing waits":       {func(*testing.T, *scaler.Writer, fleet.VM) {}, nil, false},
		"it failed":           {func(*testing.T, *scaler.Writer, fleet.VM) {}, errors.New("the host went down"), true},
		"a VM waits":          {func(t *testing.T, w *scaler.Writer, _ fleet.VM) { t.Helper(); ensure(t, w, request(pve2)) }, nil, true},
		"one of another host": {func(t *testing.T, w *scaler.Writer, _ fleet.VM) { t.Helper(); ensure(t, w, request(pve1)) }, nil, false},
		"a removal waits":     {func(_ *testing.T, w *scaler.Writer, vm fleet.VM) { w.Remove(vm.Key) }, nil, true},
		"an update waits":     {func(_ *testing.T, w *scaler.Writer, vm fleet.VM) { vm.Tags = []string{"new"}; w.Update(vm) }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writer, _, _ := resting(t, guestOf)
			fresh := ensure(t, writer, request(pve2))[0]
			batch := writer.NextBatch(t)
			writer.Start(batch)
			test.ask(t, writer, fresh)
			writer.Woken() // by the requests
			writer.Finish(t.Context(), batch, pve2, test.err)
			if got := writer.Woken(); got != test.want {
				t.Errorf("the writer takes its next step at once: %t, want %t", got, test.want)
			}
		})
	}
}

// TestGoesOnce removes a VM whose VMID now belongs to another guest: it is removed only
// once.
func TestGoesOnce(t *testing.T) {
	t.Parallel()
	writer, made, _ := resting(t, func(vm fleet.VM) topology.Guest { return stranger(vm.VMID) })
	writer.Remove(made.Key)
	if _, leaving, _ := writer.NextBatch(t).Keys(); len(leaving) != 1 {
		t.Errorf("%v leave, want one", leaving)
	}
}

// TestNamesTheGuestWithItsVMID gives up a VM whose VMID now belongs to a guest on another
// host: the error names that guest and its host.
func TestNamesTheGuestWithItsVMID(t *testing.T) {
	t.Parallel()
	made := vm(pve1, 2000)
	there := snapshot()
	there.Hosts[1].Guests = append(there.Hosts[1].Guests, stranger(2000))
	writer := scaler.NewWriter(newScaler(t, nil, made), scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil },
	})
	writer.NextBatch(t)
	state, _ := writer.VM(made.Key)
	var taken *scaler.VMIDTakenError
	if !errors.As(state.Err, &taken) || taken.Guest != "accounting" || taken.Host != pve2 {
		t.Errorf("error %v, want guest accounting on %s", state.Err, pve2)
	}
}

// silent is a Proxmox that does not respond for one host.
type silent struct {
	live
	down  topology.HostName
	asked *[][]topology.HostName
}

var errSilent = errors.New("no answer from pve-2")

func (s silent) Refresh(_ context.Context, old *topology.Snapshot, hosts []topology.HostName, _ ...fleet.VMID) (*topology.Snapshot, error) {
	*s.asked = append(*s.asked, hosts)
	for _, host := range hosts {
		if host == s.down {
			return nil, errSilent
		}
	}
	return old, nil
}

// TestYieldsOnlyByWhatProxmoxSays checks that VMs that conflict with another writer's VMs
// are not removed if Proxmox cannot be read again.
func TestYieldsOnlyByWhatProxmoxSays(t *testing.T) {
	t.Parallel()
	vms := []fleet.VM{vm(pve2, 2001), vm(pve1, 2000), vm(pve2, 2002)}
	var asked [][]topology.HostName
	now := silent{asked: &asked}
	s := newScaler(t, func(c *scaler.Config) { c.Regions[0].Live = &now }, vms...)
	before := snapshot(guestOf(vms[1]))
	if read, err := s.ReadAgain(t.Context(), before, vms...); err != nil || read != before {
		t.Errorf("read %p, want what Proxmox said (%v)", read, err)
	}
	if diff := cmp.Diff([][]topology.HostName{{"pve-1", "pve-2"}}, asked); diff != "" {
		t.Errorf("hosts that were asked (-want +got):\n%s", diff)
	}
	now.down = "pve-2"
	if read, err := s.ReadAgain(t.Context(), before, vms...); !errors.Is(err, errSilent) || read != nil {
		t.Errorf("read %v, %v", read, err)
	}
	if err := s.Yield(t.Context(), before, vms...); !errors.Is(err, errSilent) {
		t.Errorf("got %v, want why Proxmox does not answer", err)
	}
	if history, err := s.History(t.Context(), time.Time{}); err != nil || len(history) > 0 {
		t.Errorf("a change was begun: %+v (%v)", history, err)
	}
}

// TestDriftLooksAtEachHostOnce checks that a host with a VM and a stray is compared once.
func TestDriftLooksAtEachHostOnce(t *testing.T) {
	t.Parallel()
	first, second, stray := vm(pve1, 2000), vm(pve2, 2001), vm(pve1, 2002)
	s := newScaler(t, nil, first, second)
	change := propose(t, s, snapshot(guestOf(first), guestOf(stray)))
	if diff := cmp.Diff([]topology.HostID{pve1, pve2}, scaler.DriftHosts(change)); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}
