package scaler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// stuck is a writer with a VM that cannot be deleted, for example because it is protected.
type stuck struct {
	*scaler.Writer
	clock *testclock.FakeClock
	// fails is the result of each attempt.
	fails scaler.Result
}

// removeStuck requests the removal of a VM, which fails.
func removeStuck(t *testing.T, seen *topology.Snapshot, vm fleet.VM, others ...fleet.VM) *stuck {
	t.Helper()
	var s *scaler.Scaler
	writer, clock := cloned(t, seen, func(made *scaler.Scaler, _ scaler.Config) { s = made }, append([]fleet.VM{vm}, others...)...)
	deleted := []guard.Target{{Address: generator.Address(&vm), Key: vm.Key, VMID: vm.VMID}}
	w := &stuck{writer, clock, scaler.Result{
		Host: vm.Host, PlanSHA256: "00", Deleted: deleted, Err: errors.New("can't remove VM 2000 - protection mode enabled"),
	}}
	if b := w.NextBatch(t); b != nil { // the guests differ from the files
		w.Start(b)
		w.FinishWith(t.Context(), b, scaler.Result{Host: vm.Host})
	}
	w.Remove(vm.Key)
	clock.Step(time.Second)
	b := w.NextBatch(t)
	if _, removes, _ := b.Keys(); len(removes) != 1 {
		t.Fatalf("removes %v", removes)
	}
	_, base, err := s.Store().Read(t.Context())
	if err == nil {
		plans := []scaler.RootPlan{{Host: vm.Host, Touched: true, Intent: guard.Intent{Delete: deleted}}}
		err = s.Store().Begin(t.Context(), base, b.Change().AfterFiles, s.Record(b.Change(), plans))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.Start(b)
	w.FinishWith(t.Context(), b, w.fails)
	return w
}

// attempts lets time pass, and returns how often the removal is tried, which fails.
func (w *stuck) attempts(t *testing.T, period time.Duration) (n int) {
	t.Helper()
	for until := w.clock.Now().Add(period); w.clock.Now().Before(until); w.clock.Step(10 * time.Second) {
		if b := w.NextBatch(t); b != nil {
			w.Start(b)
			w.FinishWith(t.Context(), b, w.fails)
			n++
		}
	}
	return n
}

// TestRetriedRemovalsAreRare counts the attempts to delete a VM that cannot be deleted, for
// example because it is protected. Each is a record of the history. Other requests for the host
// do not wait, and if one of them fails, it is retried as usual.
func TestRetriedRemovalsAreRare(t *testing.T) {
	t.Parallel()
	stays, other := vm(pve1, 2000), vm(pve1, 2001)
	writer := removeStuck(t, snapshot(guestOf(stays), guestOf(other)), stays, other)
	if n := writer.attempts(t, time.Hour); n < 5 || n > 12 {
		t.Errorf("%d attempts in the first hour, want 5 to 12", n)
	}
	if n := writer.attempts(t, 4*time.Hour); n < 7 || n > 9 {
		t.Errorf("%d attempts in 4 hours, want one every half an hour", n)
	}
	if busy, _ := writer.BusyHosts(); len(busy) > 0 {
		t.Errorf("hosts %v are busy: new VMs need not wait", busy)
	}

	// Other work of the host does not wait.
	if b := writer.NextBatch(t); b != nil {
		t.Fatal("the removal is due too early")
	}
	writer.Remove(other.Key)
	writer.clock.Step(time.Second)
	b := writer.NextBatch(t)
	if _, removes, _ := b.Keys(); len(removes) == 0 {
		t.Fatal("the other VM is not removed")
	}
	writer.Start(b)
	writer.fails.Deleted = append(writer.fails.Deleted, guard.Target{Address: generator.Address(&other), Key: other.Key, VMID: other.VMID})
	writer.FinishWith(t.Context(), b, writer.fails)
	if n := writer.attempts(t, 30*time.Second); n == 0 {
		t.Error("after another failure, the host is not tried again")
	}
}

// TestWaitingRemovalDuringOtherChanges checks that a removal that waits for its next attempt is
// completed, although another host is changed meanwhile.
func TestWaitingRemovalDuringOtherChanges(t *testing.T) {
	t.Parallel()
	stays := vm(pve1, 2000)
	seen := snapshot(guestOf(stays))
	writer := removeStuck(t, seen, stays)
	writer.attempts(t, time.Hour)
	if b := writer.NextBatch(t); b != nil {
		t.Fatal("the removal is due too early")
	}
	ensure(t, writer.Writer, request(pve2))
	b := writer.NextBatch(t)
	writer.Start(b)
	writer.FinishWith(t.Context(), b, scaler.Result{Host: pve2})

	writer.clock.Step(time.Hour)
	if b = writer.NextBatch(t); b == nil {
		t.Fatal("the removal is not tried again")
	}
	writer.Start(b)
	seen.Hosts[0].Guests = nil
	deleted := writer.fails
	deleted.Err = nil
	writer.FinishWith(t.Context(), b, deleted)
	if state, exists := writer.VM(stays.Key); exists {
		t.Errorf("the deleted VM is still %s: %v", state.Phase, state.Err)
	}
}

// TestRemovalBesideAStray checks that a VM that cannot be deleted is not tried all the time on a
// host that differs from the files for another reason.
func TestRemovalBesideAStray(t *testing.T) {
	t.Parallel()
	stays := vm(pve1, 2000)
	writer := removeStuck(t, snapshot(guestOf(stays), guestOf(vm(pve1, 2009))), stays)
	if n := writer.attempts(t, time.Hour); n == 0 || n > 35 {
		t.Errorf("%d attempts in an hour, want one every two minutes", n)
	}
}

// TestRefusedRemovalBlocksNoHost checks that other requests need not wait if the plan of a removal is
// refused, for example because the VM was renamed.
func TestRefusedRemovalBlocksNoHost(t *testing.T) {
	t.Parallel()
	stays := vm(pve1, 2000)
	writer := removeStuck(t, snapshot(guestOf(stays)), stays)
	writer.clock.Step(time.Minute)
	b := writer.NextBatch(t)
	if b == nil || !writer.Refuse(t.Context(), b, scaler.RootPlan{Host: pve1, Err: &scaler.DisagreeError{VM: stays.Name, Key: stays.Key, Host: pve1}}) {
		t.Fatal("the removal is not tried again, or not postponed")
	}
	if busy, _ := writer.BusyHosts(); len(busy) > 0 {
		t.Errorf("hosts %v are busy", busy)
	}
	if b := writer.NextBatch(t); b != nil {
		t.Error("the removal is tried again at once")
	}
}

// TestRenamedVMIsRecordedOnce renames a VM in Proxmox before it is removed. The refused removal is
// recorded once; its retries are not recorded until the VM has its name again.
func TestRenamedVMIsRecordedOnce(t *testing.T) {
	t.Parallel()
	seen := &plansOf{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Progress = seen.progress })
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	rename := func(name string) {
		t.Helper()
		if _, err := w.sim.Pvesh("set", fmt.Sprintf("/nodes/pve-1/qemu/%d/config", vm.VMID), "--name", name); err != nil {
			t.Fatal(err)
		}
	}
	recorded := func(want int) {
		t.Helper()
		if history, err := w.History(t.Context(), time.Time{}); err != nil || len(history) != want {
			t.Fatalf("%d changes (%v), want %d", len(history), err, want)
		}
	}

	rename("accounting")
	before := seen.count()
	writer.Remove(vm.Key)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for began := time.Now(); seen.count() < before+3 && time.Since(began) < time.Minute; <-ticker.C {
		continue
	}
	recorded(2)
	if states := writer.VMs(); len(states) != 1 || !as[*scaler.DisagreeError](states[0].Err) {
		t.Errorf("states %+v, want the reason", states)
	}
	rename(vm.Name)
	phases(t, writer)
	w.exist(t)
	w.underWay(t)
	recorded(3)
}
