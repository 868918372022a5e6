package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// installation is one of two installations of numaform with the same address pool on one
// Proxmox. It creates VMs on its own host.
type installation struct {
	*scaler.Scaler
	t    *testing.T
	live *proxmox.Client
	host topology.HostID
	pool topology.AddressPool
}

func newInstallation(t *testing.T, sim *pvesim.Server, id string, host topology.HostID, machines map[topology.HostName]topology.Machine, vmids fleet.VMIDRange) *installation {
	t.Helper()
	i := &installation{t: t, host: host}
	var err error
	// In this pool, the VMIDs 2000 and 3000 begin at the same address.
	if i.pool, err = ipam.Parse(ipam.Config{Name: "nodes", Subnet: "10.9.0.0/24", Ranges: []string{"10.9.0.10-10.9.0.17"}}); err != nil {
		t.Fatal(err)
	}
	if i.live, err = proxmox.New(proxmox.Config{
		Region: testenv.Region, URL: sim.URL(), CA: sim.CertPEM(), Machines: machines, TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret, Addresses: true,
	}); err != nil {
		t.Fatal(err)
	}
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := filepath.Join(dir, "fleet")
	i.Scaler = scaler.New(scaler.Config{
		ClusterID: id, Store: store.NewSealed(store.NewDirectory(files), store.FileVault(filepath.Join(dir, "key")), id),
		Dir: files, StateDir: filepath.Join(dir, "state"), Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{Name: testenv.Region, Endpoint: sim.URL(), CAFile: testenv.CertFile(t, sim), VMIDs: vmids, Live: i.live}},
		Engine:  engine, PluginDir: testenv.PluginDir(t), Rules: guard.DefaultRules(),
		Drained: func(context.Context, string) error { return nil },
	})
	return i
}

// propose plans VMs with an address each.
func (i *installation) propose(vms int) *scaler.Change {
	i.t.Helper()
	snapshot, err := i.live.Snapshot(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	snapshot.Regions[0].AddressPools = []topology.AddressPool{i.pool}
	p := planner.New(snapshot, nil)
	var requests []scaler.Request
	for range vms {
		spec := fleet.Spec{
			Pool: "workers", NodeClass: "shared", InstanceType: "s1.1VCPU-1GB", CapacityType: "on-demand", VCPUs: 1, MemoryMiB: 1024,
			Policy: fleet.PolicyShared, Overcommit: 4, Hosts: []topology.HostID{i.host}, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
			Networks: []fleet.Network{{Bridge: "vmbr0", MAC: "BC:24:11", Addresses: []fleet.Address{{Pool: i.pool.Name}}}},
		}
		placed, unplaced := p.Place([]fleet.Spec{spec})
		if len(unplaced) > 0 {
			i.t.Fatalf("placing: %v", unplaced)
		}
		requests = append(requests, scaler.Request{Spec: spec, Placement: placed[0].Placement})
	}
	change, err := i.Propose(i.t.Context(), snapshot, requests, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	return change
}

func (i *installation) apply(change *scaler.Change) error {
	_, err := i.Apply(context.Background(), change, func([]scaler.RootPlan) (string, error) { return "a test", nil })
	return err
}

// TestTwoClustersShareAddresses lets two installations of numaform with the same address pool
// create VMs at the same moment, on different hosts, with the same addresses. One of them
// removes its VMs, with an error that names the other's; then it creates them with other
// addresses.
func TestTwoClustersShareAddresses(t *testing.T) {
	t.Parallel()
	hosts := []topology.Host{testenv.Host(t, "pve-1", "xeon-6230-2s-snc2", 9001), testenv.Host(t, "pve-2", "xeon-6230-2s-snc2", 9002)}
	machines := map[topology.HostName]topology.Machine{"pve-1": hosts[0].Machine, "pve-2": hosts[1].Machine}
	sim := testenv.Proxmox(t, func(c *pvesim.Config) { c.Hosts = hosts })
	all := []*installation{
		newInstallation(t, sim, "one", hosts[0].ID(), machines, fleet.VMIDRange{Lower: 2000, Upper: 2999}),
		newInstallation(t, sim, "two", hosts[1].ID(), machines, fleet.VMIDRange{Lower: 3000, Upper: 3999}),
	}
	const vms = 2
	changes := make([]*scaler.Change, len(all))
	for n, i := range all {
		changes[n] = i.propose(vms)
	}
	if a, b := changes[0].Added[0].Addresses(), changes[1].Added[0].Addresses(); a[0] != b[0] {
		t.Fatalf("the addresses are %v and %v: choose other ranges of VMIDs", a, b)
	}
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for n, i := range all {
		group.Go(func() { errs[n] = i.apply(changes[n]) })
	}
	group.Wait()

	failed := 0
	for n, i := range all {
		if errs[n] == nil {
			continue
		}
		failed++
		var conflict *scaler.ConflictError
		other := changes[1-n].Added[0]
		text := errs[n].Error()
		if !errors.As(errs[n], &conflict) || !strings.Contains(text, other.Name) || !strings.Contains(text, other.Addresses()[0].String()) || !strings.Contains(text, string(other.Host.Host)) {
			t.Errorf("%s: %v, want a conflict with %s %s on %s", i.host, errs[n], other.Name, other.Addresses()[0], other.Host)
		}
		addressesAreUnique(t, sim, vms)
		if err := i.apply(i.propose(vms)); err != nil {
			t.Errorf("%s, again: %v", i.host, err)
		}
	}
	if failed != 1 {
		t.Errorf("%d installations removed their VMs, want 1: %v", failed, errs)
	}
	addressesAreUnique(t, sim, len(all)*vms)
}

// addressesAreUnique checks that there are so many VMs with static addresses, each with its own.
func addressesAreUnique(t *testing.T, sim *pvesim.Server, vms int) {
	t.Helper()
	users := map[netip.Addr]string{}
	for _, guest := range sim.Guests() {
		for _, ip := range fleet.ParseAddresses(guest.Config["description"]) {
			user := fmt.Sprintf("%s on %s", guest.Config["name"], guest.Host)
			if users[ip] != "" {
				t.Errorf("%s is the address of %s and of %s", ip, users[ip], user)
			}
			users[ip] = user
		}
	}
	if len(users) != vms {
		t.Errorf("%d VMs have addresses, want %d: %v", len(users), vms, users)
	}
}
