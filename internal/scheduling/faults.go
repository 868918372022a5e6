package scheduling

import (
	"maps"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/topology"
)

// Fault is what one host lacks for a class: Message completes a sentence that begins with
// the host's name, Mend says how to fix it.
type Fault struct {
	Host topology.HostID
	Finding
	Mend string
}

// Faults returns what the class's allowed hosts lack for it, sorted by host. It makes the
// same checks as Judge, and returns none for an invalid class.
func Faults(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, clusterID string, types []InstanceType) []Fault {
	c := newClass(nc, snapshot, clusterID, OfferedBy(nc, types))
	if c.invalid() {
		return nil
	}
	var faults []Fault
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if !Allows(nc, host.ID()) {
			continue
		}
		_, found := c.faultsOf(host, snapshot)
		for _, f := range found {
			faults = append(faults, Fault{Host: f.host, Finding: f.Finding, Mend: f.advice()})
		}
	}
	return faults
}

// Needs is what the VMs of a class need on a suitable host, beyond what a snapshot shows.
type Needs struct {
	// Disks are the storages of their disks, sorted.
	Disks []string
	// Seed is the storage of their seeds, or fleet.AnySeedStorage, or empty.
	Seed string
	// Template is the VMID of their template.
	Template int
}

// NeedsOf returns what VMs of a class need on a host, and false if the host cannot take
// any for a reason other than its host agent.
func NeedsOf(nc *v1alpha1.ProxmoxNodeClass, snapshot *topology.Snapshot, host topology.HostID) (Needs, bool) {
	c := newClass(nc, snapshot, "", nil)
	from, ok := c.templates[host]
	if !ok {
		return Needs{}, false
	}
	return Needs{Disks: slices.Sorted(maps.Keys(diskNeeds(&c.base, from.Storage, 0))), Seed: c.base.SeedStorage, Template: from.VMID}, true
}
