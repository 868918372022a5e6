package scaler_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// TestRetriedRemovalsAreRare counts the attempts to delete a VM that cannot be deleted, for
// example because it is protected. Each is a record of the history. Other requests for the host
// do not wait, and if one of them fails, it is retried as usual.
func TestRetriedRemovalsAreRare(t *testing.T) {
	t.Parallel()
	stays, other := vm(pve1, 2000), vm(pve1, 2001)
	var s *scaler.Scaler
	writer, clock := cloned(t, snapshot(guestOf(stays), guestOf(other)), func(made *scaler.Scaler, _ scaler.Config) { s = made }, stays, other)
	deleted := []guard.Target{{Address: generator.Address(&stays), Key: stays.Key, VMID: stays.VMID}}
	fails := scaler.Result{Host: pve1, PlanSHA256: "00", Deleted: deleted, Err: errors.New("can't remove VM 2000 - protection mode enabled")}
	// attempts lets time pass, and returns how often the removal is tried, which fails.
	attempts := func(period time.Duration) (n int) {
		for until := clock.Now().Add(period); clock.Now().Before(until); clock.Step(10 * time.Second) {
			if b := writer.NextBatch(t); b != nil {
				writer.Start(b)
				writer.FinishWith(t.Context(), b, fails)
				n++
			}
		}
		return n
	}

	writer.NextBatch(t)
	writer.Remove(stays.Key)
	clock.Step(time.Second)
	b := writer.NextBatch(t)
	_, removes, _ := b.Keys()
	if len(removes) != 1 {
		t.Fatalf("removes %v", removes)
	}
	_, base, err := s.Store().Read(t.Context())
	if err == nil {
		plans := []scaler.RootPlan{{Host: pve1, Touched: true, Intent: guard.Intent{Delete: deleted}}}
		err = s.Store().Begin(t.Context(), base, b.Change().AfterFiles, s.Record(b.Change(), plans))
	}
	if err != nil {
		t.Fatal(err)
	}
	writer.Start(b)
	writer.FinishWith(t.Context(), b, fails)

	if n := attempts(time.Hour); n < 5 || n > 12 {
		t.Errorf("%d attempts in the first hour, want 5 to 12", n)
	}
	if n := attempts(4 * time.Hour); n < 7 || n > 9 {
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
	clock.Step(time.Second)
	b = writer.NextBatch(t)
	if _, removes, _ := b.Keys(); len(removes) == 0 {
		t.Fatal("the other VM is not removed")
	}
	writer.Start(b)
	fails.Deleted = append(fails.Deleted, guard.Target{Address: generator.Address(&other), Key: other.Key, VMID: other.VMID})
	writer.FinishWith(t.Context(), b, fails)
	if n := attempts(30 * time.Second); n == 0 {
		t.Error("after another failure, the host is not tried again")
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
