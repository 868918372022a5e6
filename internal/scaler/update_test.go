package scaler_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// tagged returns a VM with other tags.
func tagged(vm fleet.VM, tags ...string) fleet.VM {
	vm.Tags = tags
	return vm
}

// changed waits until no VM of the writer has a pending update in place; if failed is set,
// until an update has failed or waits for approval. It returns the VMs.
func changed(t *testing.T, writer *scaler.Writer, failed bool) []scaler.VMState {
	t.Helper()
	return await(t, writer, func(states []scaler.VMState) bool {
		if failed {
			return slices.ContainsFunc(states, func(state scaler.VMState) bool { return state.ChangeErr != nil })
		}
		return !slices.ContainsFunc(states, func(state scaler.VMState) bool { return state.Changing })
	})
}

// await waits until holds is true for the VMs of the writer, and returns them.
func await(t *testing.T, writer *scaler.Writer, holds func([]scaler.VMState) bool) []scaler.VMState {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		states := writer.VMs()
		if holds(states) {
			return states
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("the VMs are %+v", states)
		}
	}
}

// TestWriterChangesInPlace changes the tags and security groups of running VMs. It checks
// that no VM is cloned, restarted or replaced, and that repeating the request does nothing.
func TestWriterChangesInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	firewalled := on(first)
	firewalled.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
	vms := ensure(t, writer, firewalled, on(second), on(second))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	w.sim.ResetCalls()

	grouped := tagged(vms[0], "blue")
	grouped.SecurityGroups = []string{"k8s"}
	writer.Update(grouped, tagged(vms[1], "blue", "green"), vms[2])
	changed(t, writer, false)
	writer.Update(grouped, tagged(vms[1], "blue", "green"), vms[2])
	w.exist(t, int(vms[0].VMID), int(vms[1].VMID), int(vms[2].VMID))
	w.hasTags(t, vms[0], "blue")
	w.hasTags(t, vms[1], "blue", "green")
	w.hasTags(t, vms[2])
	for _, call := range w.sim.Calls() {
		if call.Method == http.MethodPost && (strings.Contains(call.Path, "/clone") || strings.Contains(call.Path, "/status/")) {
			t.Errorf("a change in place called %s %s", call.Method, call.Path)
		}
	}
	if !w.called("POST", "/firewall/rules") {
		t.Error("no security group was set")
	}

	// A host whose creates ended later is updated later, by a change of its own.
	before := w.kinds(t)
	if len(before) > 3 || !slices.Equal(slices.Compact(slices.Clone(before)), []audit.Kind{audit.KindScaleUp, audit.KindUpdate}) {
		t.Errorf("history %v, want a scale-up and one update, or one for each host", before)
	}
	// The groups are removed again, with one change only.
	grouped.SecurityGroups = nil
	writer.Update(grouped)
	changed(t, writer, false)
	if !w.called("DELETE", "/firewall/rules/0") {
		t.Error("no security group was taken away")
	}
	w.underWay(t)
	if diff := cmp.Diff(append(before, audit.KindUpdate), w.kinds(t)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// hasTags checks that a VM runs with those tags in addition to numaform's own.
func (w *world) hasTags(t *testing.T, vm fleet.VM, want ...string) {
	t.Helper()
	guest, _ := w.sim.Guest(int(vm.VMID))
	all := strings.Join(append(append([]string{}, want...), "numaform", "numaform-"+clusterID), ";")
	if got := guest.Config["tags"]; got != all || !guest.Running {
		t.Errorf("VM %d runs: %t, with tags %q, want %q", vm.VMID, guest.Running, got, all)
	}
}

// called reports whether Proxmox received a request with the method and the path.
func (w *world) called(method, path string) bool {
	for _, call := range w.sim.Calls() {
		if call.Method == method && strings.HasSuffix(call.Path, path) {
			return true
		}
	}
	return false
}

// kinds returns the kinds of the changes in the history.
func (w *world) kinds(t *testing.T) []audit.Kind {
	t.Helper()
	history, err := w.History(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []audit.Kind
	for i := range history {
		kinds = append(kinds, history[i].Change.Kind)
	}
	return kinds
}

// TestWriterFinishesChangesInPlace stops a writer after an update in place failed: the next
// writer completes it, and a request for the old tags restores them.
func TestWriterFinishesChangesInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, stop := w.runUntil(t, nil)
	vm := ensure(t, dying, on(first))[0]
	phases(t, dying, scaler.PhaseMade)
	w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Times: 1, Status: 500, Reason: "no"})
	dying.Update(tagged(vm, "blue"))
	changed(t, dying, true)
	stop()
	w.underWay(t, first)

	after := w.run(t, nil)
	phases(t, after, scaler.PhaseMade)
	states := changed(t, after, false)
	w.hasTags(t, vm, "blue")
	if diff := cmp.Diff([]string{"blue"}, states[0].VM.Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	after.Update(vm)
	changed(t, after, false)
	w.hasTags(t, vm)
	w.underWay(t)
}

// TestRetriedUpdatesOfWholeHosts makes an update in place fail, which leaves the VM in the
// state as updated. The retry plans the whole host, for another reason, and updates the VM
// nevertheless.
func TestRetriedUpdatesOfWholeHosts(t *testing.T) {
	t.Parallel()
	for name, cause := range wholeHostCauses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			failing, stop := w.runUntil(t, nil)
			vms := ensure(t, failing, on(first), on(first))
			phases(t, failing, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
			failing.Update(tagged(vms[0], "blue"))
			changed(t, failing, true)
			stop()
			remove()
			w.underWay(t, first)

			cause(t, w, vms[1])
			before := len(w.kinds(t))
			writer := w.run(t, nil)
			phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
			changed(t, writer, false)
			w.underWay(t)
			if after := w.kinds(t); len(after) > before+2 {
				t.Errorf("the history is %v, want at most 2 changes after the first %d", after, before)
			}
			w.hasTags(t, vms[0], "blue")
			w.exist(t, int(vms[0].VMID), int(vms[1].VMID))
		})
	}
}

// TestChangesInPlaceCanBeTakenBack makes an update in place fail permanently, even for
// the next writer. A request for the old tags then leaves no unfinished work.
func TestChangesInPlaceCanBeTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dying, stop := w.runUntil(t, nil)
	vm := ensure(t, dying, on(first))[0]
	phases(t, dying, scaler.PhaseMade)
	w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: 500, Reason: "no"})
	dying.Update(tagged(vm, "blue"))
	changed(t, dying, true)
	stop()
	after := w.run(t, nil)
	phases(t, after, scaler.PhaseMade)
	after.Update(vm)
	changed(t, after, false)
	w.hasTags(t, vm)
	w.underWay(t)
}

// TestRevertedUpdateCorrectsTheState makes an update in place fail, and reverts it. The
// state then no longer has the update, so a later plan of the whole host changes nothing
// about the VM.
func TestRevertedUpdateCorrectsTheState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writer := w.run(t, nil)
	vms := ensure(t, writer, on(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
	writer.Update(tagged(vms[0], "blue"))
	changed(t, writer, true)
	remove()
	writer.Update(vms[0])
	changed(t, writer, false)
	w.underWay(t)

	w.sim.RemoveGuest(int(vms[1].VMID))
	next := w.run(t, nil)
	phases(t, next, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t)
	w.hasTags(t, vms[0])
	w.exist(t, int(vms[0].VMID), int(vms[1].VMID))
}

// TestUnfinishedUpdateOfAMovedVM makes an update in place fail, and moves the VM to another
// host. The old host takes other VMs, and the update is made once the VM is back.
func TestUnfinishedUpdateOfAMovedVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failing, stop := w.runUntil(t, nil)
	vm := ensure(t, failing, on(first))[0]
	phases(t, failing, scaler.PhaseMade)
	remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
	failing.Update(tagged(vm, "blue"))
	changed(t, failing, true)
	stop()
	remove()
	w.move(t, vm, second)

	writer, stop := w.runUntil(t, nil)
	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	w.underWay(t, first)
	stop()
	w.move(t, vm, first)
	last := w.run(t, nil)
	changed(t, last, false)
	w.underWay(t)
	w.hasTags(t, vm, "blue")
}

// TestOtherRequestsDoNotWaitForUpdates makes an update in place fail permanently, also in its
// retry: a new VM of the host does not wait for the next retry.
func TestOtherRequestsDoNotWaitForUpdates(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorldWith(t, func(config *scaler.Config) { config.Clock = clock })
	writer := w.run(t, nil)
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	w.sim.AddFault(pvesim.Fault{
		Method: http.MethodPut, Path: fmt.Sprintf("/qemu/%d/config$", vm.VMID), Status: http.StatusInternalServerError, Reason: "no",
	})
	writer.Update(tagged(vm, "blue"))
	changed(t, writer, true)
	clock.Step(time.Minute)
	await(t, writer, func([]scaler.VMState) bool { return slices.Contains(w.kinds(t), audit.KindRecovery) && !writer.Busy() })

	ensure(t, writer, on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	clock.Step(time.Minute)
	tries := len(w.kinds(t))
	await(t, writer, func([]scaler.VMState) bool { return len(w.kinds(t)) > tries }) // it is still retried
}

// TestApprovedRetryCompletesTheUpdate makes an update in place fail whose policy requires
// approval. Its approved retry leaves no unfinished work.
func TestApprovedRetryCompletesTheUpdate(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(config *scaler.Config) {
		rules := append(guard.DefaultPolicy(), "\n- name: updates\n  when: change.updates > 0\n  decision: approve\n  message: it updates VMs\n"...)
		policy, err := guard.ParsePolicy("policy.yaml", rules)
		must(t, err)
		config.Rules.Policy = policy
	})
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

	needed := false
	results, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), func(plans []scaler.RootPlan) (string, error) {
		needed = len(plans) == 1 && plans[0].Verdict.Decision == guard.NeedsApproval
		return "alice", nil
	})
	if err != nil || !needed || len(results) != 1 || len(results[0].Updated) != 1 || len(results[0].Later) > 0 {
		t.Errorf("needs approval: %t, results %v, %v", needed, results, err)
	}
	w.hasTags(t, vm, "blue")
	w.underWay(t)
}

// TestUnfinishedUpdatesOfOtherVMs makes the updates in place of two VMs of a host fail. One VM
// can then not be updated: the other one is nevertheless.
func TestUnfinishedUpdatesOfOtherVMs(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, w *world, vm fleet.VM){
		"moved": func(t *testing.T, w *world, vm fleet.VM) {
			t.Helper()
			w.move(t, vm, second)
		},
		"stopped": func(t *testing.T, w *world, vm fleet.VM) {
			t.Helper()
			guest, _ := w.sim.Guest(int(vm.VMID))
			must(t, w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Config: guest.Config}))
		},
		"edited": func(t *testing.T, w *world, vm fleet.VM) {
			t.Helper()
			guest, _ := w.sim.Guest(int(vm.VMID))
			guest.Config["memory"] = "2048"
			must(t, w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Config: guest.Config, Running: true}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			failing, stop := w.runUntil(t, nil)
			vms := ensure(t, failing, on(first), on(first))
			phases(t, failing, scaler.PhaseMade, scaler.PhaseMade)
			w.underWay(t)
			remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
			failing.Update(tagged(vms[0], "blue"), tagged(vms[1], "blue"))
			changed(t, failing, true)
			stop()
			remove()
			spoil(t, w, vms[0])

			writer := w.run(t, nil)
			await(t, writer, func(states []scaler.VMState) bool {
				return len(states) == 2 && !states[1].Changing && states[0].ChangeErr != nil
			})
			w.hasTags(t, vms[1], "blue")
			if diff := cmp.Diff(audit.Open{Host: first, Updated: []fleet.Key{vms[0].Key}}, w.Open(t)[first]); diff != "" {
				t.Errorf("unfinished work (-want +got):\n%s", diff)
			}
		})
	}
}

// move moves a running VM to another host.
func (w *world) move(t *testing.T, vm fleet.VM, to topology.HostID) {
	t.Helper()
	guest, _ := w.sim.Guest(int(vm.VMID))
	must(t, w.sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: string(to.Host), Config: guest.Config, Running: true}))
}

// TestStuckUpdateDoesNotFillTheHistory makes an update in place fail, and moves the VM, so that
// the update cannot be repeated. A guest with our marker and without a file makes numaform plan
// the whole host as well: neither attempt is recorded.
func TestStuckUpdateDoesNotFillTheHistory(t *testing.T) {
	t.Parallel()
	clock, seen := clocktesting.NewFakeClock(time.Now()), &plansOf{}
	w := newWorldWith(t, func(config *scaler.Config) { config.Clock, config.Progress = clock, seen.progress })
	failing, stop := w.runUntil(t, nil)
	vm := ensure(t, failing, on(first))[0]
	phases(t, failing, scaler.PhaseMade)
	remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/qemu/[0-9]+/config$", Status: http.StatusInternalServerError, Reason: "no"})
	failing.Update(tagged(vm, "blue"))
	changed(t, failing, true)
	stop()
	remove()
	w.move(t, vm, second)
	w.addStray(t, first)

	before := len(w.kinds(t))
	writer := w.run(t, nil)
	for range 8 {
		planned := seen.count()
		clock.Step(3 * time.Minute)
		await(t, writer, func([]scaler.VMState) bool { return seen.count() > planned })
	}
	if after := w.kinds(t); len(after) != before {
		t.Errorf("the history is %v, want no change after the first %d", after, before)
	}
	w.underWay(t, first)
}

// TestUnfinishedCreateIsRefreshed makes the rules of a new VM's security group fail, and
// again in the retry, which leaves them in the state. The next attempt adds them.
func TestUnfinishedCreateIsRefreshed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	remove := w.sim.AddFault(pvesim.Fault{Method: http.MethodPost, Path: "/firewall/rules$", Status: http.StatusInternalServerError, Reason: "no"})
	grouped := on(first)
	grouped.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", Firewall: true}}
	grouped.Spec.SecurityGroups = []string{"k8s"}
	for i := range 2 {
		w.sim.ResetCalls()
		failing, stop := w.runUntil(t, nil)
		if i == 0 {
			ensure(t, failing, grouped)
		}
		phases(t, failing, scaler.PhaseMade)
		await(t, failing, func([]scaler.VMState) bool { return w.called(http.MethodPost, "/firewall/rules") })
		stop()
		w.underWay(t, first)
	}
	remove()
	w.sim.ResetCalls()
	last := w.run(t, nil)
	phases(t, last, scaler.PhaseMade)
	w.underWay(t)
	if !w.called(http.MethodPost, "/firewall/rules") {
		t.Error("the VM has no security group")
	}
}

// TestChangesInPlaceWaitForAPerson uses a gate that requires approval for updates in place
// that the guard allows: an update waits until it is approved.
func TestChangesInPlaceWaitForAPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	door := &gate{manual: true}
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gate = door })
	vm := ensure(t, writer, on(first))[0]
	phases(t, writer, scaler.PhaseMade)
	writer.Update(tagged(vm, "blue"))
	held := changed(t, writer, true)
	if !as[*scaler.PendingApprovalError](held[0].ChangeErr) || held[0].Phase != scaler.PhaseMade {
		t.Errorf("it is %+v", held[0])
	}
	w.hasTags(t, vm)
	w.underWay(t)

	door.mu.Lock()
	door.by = "alice"
	door.mu.Unlock()
	writer.Update(tagged(vm, "green")) // a new request is handled at once
	changed(t, writer, false)
	w.hasTags(t, vm, "green")
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 2 || history[1].Change.Hosts[0].Approver != "alice" {
		t.Errorf("history %+v (%v)", history, err)
	}
}

// TestWriterMovesBetweenPools changes the Proxmox pool of a VM that runs.
func TestWriterMovesBetweenPools(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, func(config *pvesim.Config) {
		config.Pools = []string{"old", "new"}
		config.Roles = append(config.Roles, pvesim.Role{Name: "NumaformPool", Privileges: []string{"Pool.Audit", "Pool.Allocate"}})
	})
	writer := w.run(t, nil)
	pooled := on(first)
	pooled.Spec.ResourcePool = "old"
	vm := ensure(t, writer, pooled)[0]
	phases(t, writer, scaler.PhaseMade)
	vm.ResourcePool = "new"
	writer.Update(vm)
	changed(t, writer, false)
	if guest, _ := w.sim.Guest(int(vm.VMID)); guest.Pool != "new" || !guest.Running {
		t.Errorf("it is in pool %q and runs: %t", guest.Pool, guest.Running)
	}
	w.underWay(t)
}
