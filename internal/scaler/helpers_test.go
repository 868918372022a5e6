package scaler_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

const (
	clusterID = "test"
	template  = "debian"
)

// The two hosts of most tests.
var (
	pve1 = topology.HostID{Region: "lab", Host: "pve-1"}
	pve2 = topology.HostID{Region: "lab", Host: "pve-2"}
)

// spec returns the Spec of a simple VM.
func spec() fleet.Spec {
	return fleet.Spec{
		Pool: "workers", NodeClass: "shared", InstanceType: "s1.2VCPU-4GB", CapacityType: "on-demand",
		VCPUs: 2, MemoryMiB: 4096, Policy: fleet.PolicyShared, Overcommit: 1, Template: template, Clone: fleet.CloneLinked, CPUType: "host",
	}
}

func request(host topology.HostID) scaler.Request {
	return scaler.Request{Spec: spec(), Placement: fleet.Placement{Host: host, Reason: "a test"}}
}

// vm returns a VM of the fleet.
func vm(host topology.HostID, id fleet.VMID) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", int(id))), VMID: id, Name: fleet.NodeName("workers", id), Spec: spec(),
		Placement: fleet.Placement{Host: host, Reason: "a test"},
		Source:    fleet.Source{VMID: 9001, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm"},
		Module:    modules.Hash(),
	}
}

// guestOf returns a fleet's VM as a guest in Proxmox.
func guestOf(vm fleet.VM) topology.Guest {
	return topology.Guest{
		VMID: int(vm.VMID), Name: vm.Name, Kind: topology.GuestVM, Running: true,
		VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, ClusterID: clusterID, Key: string(vm.Key),
	}
}

// stranger returns an unmanaged VM.
func stranger(id fleet.VMID) topology.Guest {
	return topology.Guest{VMID: int(id), Name: "accounting", Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: 1024}
}

// snapshot returns a Proxmox cluster of pve-1, with the guests, and pve-2.
func snapshot(guests ...topology.Guest) *topology.Snapshot {
	s := &topology.Snapshot{Regions: []topology.Region{{Name: "lab", Quorate: true, Clustered: true}}}
	for i, id := range []topology.HostID{pve1, pve2} {
		s.Hosts = append(s.Hosts, topology.Host{
			Region: id.Region, Name: id.Host, Online: true,
			Templates: []topology.Template{{VMID: 9001 + i, Name: template, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm"}},
		})
	}
	s.Hosts[0].Guests = guests
	return s
}

// down returns the snapshot with pve-1 down: of its guests, only the VMIDs are known.
func down(s *topology.Snapshot) *topology.Snapshot {
	host := &s.Hosts[0]
	host.Online, host.Problem = false, "is offline: start it"
	for i := range host.Guests {
		host.Guests[i].ClusterID, host.Guests[i].Key = "", ""
	}
	return s
}

// newScaler returns a scaler of a fleet with the VMs.
func newScaler(t *testing.T, edit func(*scaler.Config), vms ...fleet.VM) *scaler.Scaler {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fleet")
	config := scaler.Config{
		ClusterID: clusterID, Store: sealed(t, dir), Dir: dir, StateDir: dir + "-state", Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{Name: "lab", Endpoint: "https://pve-1.example:8006/", VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2009}}},
	}
	if edit != nil {
		edit(&config)
	}
	if len(vms) > 0 {
		writeFleet(t, config, vms...)
	}
	return scaler.New(config)
}

// sealed returns the store of a fleet in a directory, with a key of its own for the
// history.
func sealed(t *testing.T, dir string) *store.Sealed {
	t.Helper()
	return store.NewSealed(store.NewDirectory(dir), store.FileVault(filepath.Join(t.TempDir(), "key")), clusterID)
}

func writeFleet(t *testing.T, config scaler.Config, vms ...fleet.VM) {
	t.Helper()
	f := fleet.Fleet{
		ClusterID: config.ClusterID, Backend: config.Backend, VMs: vms,
		Regions: []fleet.Region{{Name: "lab", Endpoint: config.Regions[0].Endpoint}},
	}
	f.Hosts = f.AllHosts()
	f.Sort()
	files, err := generator.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.NewDirectory(config.Dir).Write(files); err != nil {
		t.Fatal(err)
	}
}

func propose(t *testing.T, s *scaler.Scaler, snapshot *topology.Snapshot, requests ...scaler.Request) *scaler.Change {
	t.Helper()
	change, err := s.Propose(t.Context(), snapshot, requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

func ids(vms []fleet.VM) []fleet.VMID {
	var found []fleet.VMID
	for _, vm := range vms {
		found = append(found, vm.VMID)
	}
	return found
}

// as reports whether an error is of the type.
func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

// live is a Proxmox with prepared responses.
type live struct{ snapshot *topology.Snapshot }

func (l live) Refresh(context.Context, *topology.Snapshot, []topology.HostName, ...fleet.VMID) (*topology.Snapshot, error) {
	return l.snapshot, nil
}

func (live) Busy(context.Context, topology.HostName) (bool, error) { return false, nil }

func (live) Online(context.Context, topology.HostName) (bool, error) { return true, nil }

func (live) Images(context.Context, topology.HostName, string) ([]string, error) { return nil, nil }

func (live) CanSetAffinity() (may bool, why string) {
	return false, "numaform@pve!scaler is a token"
}

func (live) CanSetHugePages() (may bool, why string) {
	return false, "numaform@pve!scaler is a token"
}

func (live) ProviderEnv() map[string]string { return nil }
