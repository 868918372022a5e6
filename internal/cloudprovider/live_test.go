package cloudprovider_test

import (
	"testing"
	"time"

	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
)

// put creates the guest of a VM in the simulated Proxmox.
func put(t *testing.T, sim *pvesim.Server, vm fleet.VM, id string) {
	t.Helper()
	marker := fleet.Marker{ClusterID: id, Key: vm.Key}
	err := sim.PutGuest(pvesim.Guest{VMID: int(vm.VMID), Host: string(vm.Host.Host), Running: true, Config: map[string]string{
		"name": vm.Name, "cores": "4", "memory": "8192", "description": "a node\n" + marker.String(),
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestListFollowsProxmox checks that the list follows Proxmox: guests created and deleted
// manually, a host that goes down, and the markers that identify a guest's owner.
func TestListFollowsProxmox(t *testing.T) {
	t.Parallel()
	sim, err := pvesim.New(pvesim.Config{Name: "lab", Hosts: lab().Hosts})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Error(err)
		}
	})
	live, err := proxmox.New(proxmox.Config{
		Region: "lab", URL: sim.URL(), CA: sim.CertPEM(), TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, class, pool)
	w.config.Snapshot = live.Snapshot
	w.CloudProvider = cloudprovider.New(w.config)
	first, second, orphan, foreign := vm(pve1, 2000), vm(pve2, 2001), vm(pve2, 2002), vm(pve1, 2003)
	w.fleet.states = []scaler.VMState{state(first, scaler.PhaseMade), state(second, scaler.PhaseMade)}
	for _, own := range []fleet.VM{first, second, orphan} {
		put(t, sim, own, clusterID)
	}
	put(t, sim, foreign, "other")
	w.clock.Step(time.Hour)
	check := func(when, want string) {
		t.Helper()
		if got := w.listed(t); got != want {
			t.Errorf("%s, listed %q, want %q", when, got, want)
		}
	}
	check("at first", "2000 2001 2002")
	sim.SetHostOnline("pve-2", false)
	check("with pve-2 down", "2000 2001")
	for id, unsure := range map[string]bool{"proxmox://lab/2002": true, "proxmox://lab/2004": false} {
		if _, err := w.Get(t.Context(), id); err == nil || karpenter.IsNodeClaimNotFoundError(err) == unsure {
			t.Errorf("with pve-2 down, %s: %v", id, err)
		}
	}
	if err := w.Delete(t.Context(), claimOf(orphan)); err == nil || karpenter.IsNodeClaimNotFoundError(err) {
		t.Errorf("with pve-2 down, deleting a VM there: %v", err)
	}
	sim.SetHostOnline("pve-2", true)
	sim.RemoveGuest(2001)
	check("with a VM deleted by hand", "2000 2002")
	sim.RemoveGuest(2002)
	if err := w.Delete(t.Context(), claimOf(orphan)); !karpenter.IsNodeClaimNotFoundError(err) {
		t.Errorf("deleting what is gone: %v", err)
	}
}
