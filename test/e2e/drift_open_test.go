package e2e_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// onHosts returns the fleet's VMs by host.
func onHosts(t *testing.T, stage *demo.Stage) map[topology.HostID][]fleet.VM {
	t.Helper()
	desired, _ := readFleet(t, stage.Fleet())
	vms := map[topology.HostID][]fleet.VM{}
	for _, vm := range desired.VMs {
		vms[vm.Host] = append(vms[vm.Host], vm)
	}
	if len(vms) != 3 {
		t.Fatalf("VMs on %d hosts, want 3", len(vms))
	}
	return vms
}

// tags returns the tags of a guest.
func tags(t *testing.T, stage *demo.Stage, vm fleet.VM) string {
	t.Helper()
	guest, exists := stage.Sim.Guest(int(vm.VMID))
	if !exists {
		t.Fatalf("vm %s does not exist", vm.Name)
	}
	return guest.Config["tags"]
}

// TestRepairLeavesTheUnfinished checks that a repair neither completes nor loses the
// unfinished removal of a VM, repairs the VMs of other hosts, and does not create a missing
// VM.
func TestRepairLeavesTheUnfinished(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := quickstart(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	all := onHosts(t, stage)
	begun := all[topology.HostID{Region: "homelab", Host: "pve-2"}]
	repaired := all[topology.HostID{Region: "homelab", Host: "pve-1"}][0]
	vanished := all[topology.HostID{Region: "homelab", Host: "pve-3"}][0]
	leaving, mate := begun[0], begun[1]
	mend := stage.Sim.AddFault(pvesim.Fault{Method: "DELETE", Path: `/qemu/\d+/?$`, Status: 500, Reason: "can't lock file"})
	run(t, stage, cli.ExitFailed, "remove", leaving.Name, "-f", stage.Manifests(), "--auto-approve")
	mend()
	stage.Sim.RemoveGuest(int(vanished.VMID))
	for _, vm := range []fleet.VM{mate, repaired} {
		byHand(t, stage, int(vm.VMID), map[string]string{"tags": "mine"})
	}
	var stderr bytes.Buffer
	stage.Stderr = io.MultiWriter(stage.Stderr, &stderr)
	run(t, stage, cli.ExitFailed, "drift", "-f", stage.Manifests(), "--repair", "--auto-approve")
	if !strings.Contains(stderr.String(), "host homelab/pve-2: an earlier change is unfinished there") || !strings.Contains(stderr.String(), "run `numaform apply` first") {
		t.Errorf("drift does not report the unfinished change:\n%s", &stderr)
	}
	if got := tags(t, stage, mate); got != "mine" {
		t.Errorf("%s was repaired despite an unfinished change on its host: %q", mate.Name, got)
	}
	if got := tags(t, stage, repaired); got != "numaform;numaform-quickstart" {
		t.Errorf("%s was not repaired: %q", repaired.Name, got)
	}
	if _, exists := stage.Sim.Guest(int(leaving.VMID)); !exists {
		t.Errorf("a repair removed %s", leaving.Name)
	}
	if _, exists := stage.Sim.Guest(int(vanished.VMID)); exists {
		t.Errorf("a repair created %s", vanished.Name)
	}

	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	if _, exists := stage.Sim.Guest(int(leaving.VMID)); exists {
		t.Errorf("the removal of %s was lost", leaving.Name)
	}
	run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests(), "--repair", "--auto-approve", "--detailed-exitcode")
	if got := tags(t, stage, mate); got != "numaform;numaform-quickstart" {
		t.Errorf("%s was not repaired after the apply: %q", mate.Name, got)
	}
}

// untilSaid is a writer that calls a function whenever a text is written.
type untilSaid struct {
	text string
	then func()
}

func (w untilSaid) Write(text []byte) (int, error) {
	if strings.Contains(string(text), w.text) {
		w.then()
	}
	return len(text), nil
}

// TestDriftEvery checks the report and the exit code of drift --every if it is interrupted
// after its first round.
func TestDriftEvery(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	stage.Sim.RemoveGuest(2000)
	for _, tt := range []struct {
		want int
		args []string
	}{
		{cli.ExitOK, nil},
		{cli.ExitChanges, []string{"--detailed-exitcode"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		stage.Stdout = untilSaid{"1 vanished", cancel}
		out, code := stage.Numaform(ctx, append([]string{"drift", "-f", stage.Manifests(), "--every", "1h"}, tt.args...)...)
		cancel()
		if code != tt.want || strings.Count(out, "1 vanished") != 1 {
			t.Errorf("%v: exit code %d, want %d\n%s", tt.args, code, tt.want, out)
		}
	}
}
