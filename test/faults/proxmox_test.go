package faults_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// clones returns the number of clone requests by VMID, except those that failed.
func (w *world) clones() map[string]int {
	counts := map[string]int{}
	for _, call := range w.sim.Calls() {
		if strings.HasSuffix(call.Path, "/clone") && call.Status < 500 {
			counts[call.Params["newid"]]++
		}
	}
	return counts
}

// eventually runs apply until it succeeds, at most three times.
func (w *world) eventually() {
	w.t.Helper()
	for range 2 {
		if w.start(w.applyArgs()...).wait() == cli.ExitOK {
			return
		}
	}
	w.apply(cli.ExitOK)
}

// TestRefusedBeforeAccepted checks that, if a call fails before Proxmox executes it, the
// provider or the next apply repeats the call, and no VM is created twice. `make nightly`
// makes a clone fail in every way; `make test` uses one way for clones and the other ways
// for other calls.
func TestRefusedBeforeAccepted(t *testing.T) {
	t.Parallel()
	faults := map[string]pvesim.Fault{
		"500 at a clone":      {Method: "POST", Path: `/clone$`, Status: 500, Reason: "got no worker upid - start worker failed"},
		"596 at a config":     {Method: "PUT", Path: `/qemu/2\d+/config$`, Status: 596, Reason: "Connection timed out"},
		"595 at a start":      {Method: "POST", Path: `/status/start$`, Status: 595, Reason: "Connection refused"},
		"500 while reading":   {Method: "GET", Path: `^/cluster/resources$`, Status: 500, Reason: "Internal Server Error"},
		"cut off while asked": {Method: "GET", Path: `/tasks/[^/]*qmclone[^/]*/status$`, Disconnect: true},
	}
	if enginetest.EveryCase() {
		maps.Copy(faults, map[string]pvesim.Fault{
			"595 at a clone":     {Method: "POST", Path: `/clone$`, Status: 595, Reason: "No route to host"},
			"596 at a clone":     {Method: "POST", Path: `/clone$`, Status: 596, Reason: "Connection timed out"},
			"cut off at a clone": {Method: "POST", Path: `/clone$`, Disconnect: true},
		})
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			fault.Times = 1
			w.sim.AddFault(fault)
			w.eventually()
			w.converge(scaledUp)
			if counts := w.clones(); len(counts) != scaledUp {
				t.Errorf("clones by VMID: %v, want %d VMs", counts, scaledUp)
			}
		})
	}
}

// TestAnswerLost checks that, if the response to an executed request is lost, numaform
// imports the created VM, which it finds by the marker, and no VM is cloned twice.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"of a clone":  {Method: "POST", Path: `/clone$`, Disconnect: true},
		"of a config": {Method: "PUT", Path: `/qemu/2\d+/config$`, Disconnect: true},
		"of a start":  {Method: "POST", Path: `/status/start$`, Status: 596, Reason: "Connection timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			fault.After, fault.Times = true, 1
			w.sim.AddFault(fault)
			w.eventually()
			w.converge(scaledUp)
			if counts := w.clones(); len(counts) != scaledUp || slices.Max(slices.Collect(maps.Values(counts))) > 1 {
				t.Errorf("clones by VMID: %v, want one each of %d", counts, scaledUp)
			}
		})
	}
}

// TestTaskFails checks that apply reports the error of a failed task, and that the next
// apply creates all missing VMs.
func TestTaskFails(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"no space for a clone": {Path: `/clone$`, TaskExit: "clone failed: no space left on device"},
		"no memory to start":   {Path: `/status/start$`, TaskExit: "start failed: QEMU exited with code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			fault.Method, fault.Times = "POST", 1
			w.sim.AddFault(fault)
			if out := w.apply(cli.ExitFailed); !strings.Contains(out, fault.TaskExit) {
				t.Errorf("the output does not contain %q:\n%s", fault.TaskExit, out)
			}
			w.converge(scaledUp)
		})
	}
}

// TestQuorumLost checks that numaform, if the quorum is lost before or during an apply,
// writes nothing without a quorum, and finishes the work once the quorum is back.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.sim.SetQuorate(false)
		w.numaform(cli.ExitOK, "plan", "-f", w.manifests(), "--no-engine")
		if out := w.apply(cli.ExitOK); !strings.Contains(out, "lost its quorum") {
			t.Errorf("apply does not report the lost quorum:\n%s", out)
		}
		if writes := w.writes(); len(writes) > 0 {
			t.Errorf("numaform wrote without a quorum: %v", writes)
		}
		w.sim.SetQuorate(true)
		w.converge(scaledUp)
	})
	t.Run("during", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.sim.AddFault(pvesim.Fault{Method: "POST", Path: `/clone$`, Skip: 1, Times: 1, Hit: func(context.Context, pvesim.Call) {
			w.sim.SetQuorate(false)
		}})
		w.apply(cli.ExitFailed)
		w.mark()
		w.apply(cli.ExitFailed)
		if writes := w.writes(); len(writes) > 0 {
			t.Errorf("numaform wrote without a quorum: %v", writes)
		}
		w.sim.SetQuorate(true)
		w.converge(scaledUp)
	})
}

// TestHostLost checks that, after the host went down during an apply, another apply writes
// nothing while the host is down, and an apply finishes the work once the host is back.
func TestHostLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: `/status/start$`, Skip: 1, Times: 1, Hit: func(context.Context, pvesim.Call) {
		w.sim.SetHostOnline(busyHost, false)
	}})
	w.apply(cli.ExitFailed)
	w.comesBack()
}

// comesBack applies while the host is down, which must change nothing, and again when it is
// back.
func (w *world) comesBack() {
	w.t.Helper()
	w.mark()
	w.start(w.applyArgs()...).wait()
	if writes := w.writes(); len(writes) > 0 {
		w.t.Errorf("numaform wrote to a host that is down: %v", writes)
	}
	if files := w.nodeFiles(); len(files) != scaledUp {
		w.t.Errorf("%d node files while the host is down, want %d", len(files), scaledUp)
	}
	w.sim.SetHostOnline(busyHost, true)
	w.converge(scaledUp)
}

// TestHostLostAfterClone checks that an apply is canceled gracefully, with all completed
// work in the state, if the host goes down while the provider polls the lock of a clone.
// The provider polls for half an hour, regardless of the response, and even if the engine
// asks it to stop.
func TestHostLostAfterClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.holdCall(pvesim.Fault{Method: "GET", Path: `/qemu/2\d+/status/current$`})
	r := w.start(w.applyArgs()...)
	r.await(g)
	w.until("the other VMs are created", func() bool { return strings.Count(r.said(), "Creation complete") == scaledUp-1 })
	family := below(r.cmd.Process.Pid)
	w.sim.SetHostOnline(busyHost, false)
	g.open(false)
	if code := r.wait(); code != cli.ExitFailed {
		t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
	}
	for _, text := range []string{"host homelab/" + busyHost + " went offline", "pvecm status"} {
		if !strings.Contains(r.said(), text) {
			t.Errorf("the output does not contain %q:\n%s", text, r.said())
		}
	}
	if left := alive(family); len(left) > 0 {
		t.Errorf("apply left processes behind: %v", left)
	}
	if locks, kept := w.backend.locked(), w.kept(); len(locks)+len(kept) > 0 {
		t.Errorf("apply left locks %v and states %v", locks, kept)
	}
	if vmids, _ := w.stateOf(busyHost); len(vmids) != scaledUp-1 {
		t.Errorf("the state has VMs %v, want the %d that were created", vmids, scaledUp-1)
	}
	w.comesBack()
}

// TestCertificate checks that, if Proxmox presents a certificate from an unknown authority,
// the error contains the fix, and numaform does not send its token.
func TestCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newWorld(t)
	w.write("pve-root-ca.pem", string(other.sim.CertPEM()))
	out := w.apply(cli.ExitFailed)
	if !strings.Contains(out, "certificate") || !strings.Contains(out, "ca_file") {
		t.Errorf("apply does not report the certificate and how to fix it:\n%s", out)
	}
	if calls := w.sim.Calls(); len(calls) > 0 {
		t.Errorf("numaform sent its token to an unverified server: %v", calls)
	}
	w.write("pve-root-ca.pem", string(w.sim.CertPEM()))
	w.converge(scaledUp)
}

// TestForeignPins checks that the fleet's VM gets other CPUs if an unmanaged VM is pinned
// to the planned CPUs before or during an apply.
func TestForeignPins(t *testing.T) {
	t.Parallel()
	const planned = "4,44,8,48"
	pinned := func(w *world) {
		w.must(w.sim.PutGuest(pvesim.Guest{VMID: 151, Host: busyHost, Running: true, Config: map[string]string{
			"name": "latency", "cores": "4", "memory": "4096", "affinity": planned,
		}}))
		guest, _ := w.sim.Guest(151)
		w.foreign[151] = guest.Raw
	}
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		pinned(w)
		w.converge(scaledUp)
	})
	t.Run("between plan and apply", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		g := w.doorman.hold("plan", false)
		r := w.start(w.applyArgs()...)
		r.await(g)
		pinned(w)
		g.open(false)
		r.wait()
		w.converge(scaledUp)
	})
}

// TestCloneLeftLocked checks that, if a clone task dies and leaves a locked guest without a
// name and a marker, numaform treats the guest as unmanaged: it creates the VM with another
// VMID, and its output names the guest to destroy.
func TestCloneLeftLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sim.AddFault(pvesim.Fault{Method: "POST", Path: `/clone$`, Times: 1, TaskExit: "unexpected status", LeaveLock: true})
	if out := w.apply(cli.ExitFailed); !strings.Contains(out, "unexpected status") {
		t.Errorf("apply does not report the task's exit status:\n%s", out)
	}
	out := w.apply(cli.ExitOK)
	left := 0
	for _, guest := range w.sim.Guests() {
		if guest.Config["lock"] == "clone" {
			left++
			if !strings.Contains(out, fmt.Sprintf("qm destroy %d", guest.VMID)) {
				t.Errorf("apply does not report how to destroy guest %d:\n%s", guest.VMID, out)
			}
			w.sim.RemoveGuest(guest.VMID)
		}
	}
	if left != 1 {
		t.Errorf("%d guests are left locked, want 1", left)
	}
	w.converge(scaledUp)
}
