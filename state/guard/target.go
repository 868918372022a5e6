package guard

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Target is one VM of an intent, and what identifies it.
type Target struct {
	// Address is the resource's: module.<name>.proxmox_virtual_environment_vm.node.
	Address string            `json:"address"`
	VMID    fleet.VMID        `json:"vmid"`
	Key     fleet.Key         `json:"key"`
	Host    topology.HostName `json:"host"`
	// Pool is the name of the VM's NodePool.
	Pool string `json:"pool,omitempty"`
	// BootDisk is the slot of the template's boot disk, such as scsi0.
	BootDisk string `json:"boot_disk,omitempty"`
	// DataDisks are the VM's requested disks in addition to the boot disk.
	DataDisks []fleet.DataDisk `json:"data_disks,omitempty"`
	// PCIDevices are the host's devices requested for the VM, hostpci0 first.
	PCIDevices []fleet.PCIDevice `json:"pci_devices,omitempty"`
	// Module is the hash of the modules that the VM's file calls.
	Module string `json:"module,omitempty"`
	// Inputs are the arguments of the VM's file, as returned by generator.Inputs. The
	// plan's values are compared with the values that the modules derive from them.
	Inputs []byte `json:"-"`
	// Incomplete marks an import of a VM whose create was interrupted before the VM ever
	// ran: the import may set any attribute in its file.
	Incomplete bool `json:"incomplete,omitempty"`
	// Drained marks a delete whose Node is drained, never joined, or no longer exists.
	// Other VMs must not be deleted.
	Drained bool `json:"drained,omitempty"`
	// Blocked says why the Node is not drained yet, or is empty.
	Blocked string `json:"blocked,omitempty"`
}

// ImportID returns the ID by which the provider imports the VM: "<host>/<vmid>".
func (t Target) ImportID() string { return importID(t.Host, t.VMID) }

// Intent is the requested change on one host. A plan must contain all of it and nothing
// else.
type Intent struct {
	// ClusterID is the cluster ID in our VMs' markers.
	ClusterID string   `json:"cluster_id"`
	Create    []Target `json:"create,omitempty"`
	Delete    []Target `json:"delete,omitempty"`
	Import    []Target `json:"import,omitempty"`
	Update    []Target `json:"update,omitempty"`
	// Targeted is set for a plan restricted to the targets: it cannot change anything
	// else, so it may lack the rest.
	Targeted bool `json:"targeted,omitempty"`
	// VMIDs is numaform's range. VMs outside of it are never written to.
	VMIDs fleet.VMIDRange `json:"-"`
	// Claims are the CPUs that belong to guests, from a fresh reading of the host. A
	// guest's own claims do not conflict with it.
	Claims []Claim `json:"claims,omitempty"`
}

// Claim is a set of host CPUs that belong to a guest, by its live affinity or its marker.
type Claim struct {
	Host topology.HostName `json:"host"`
	CPUs topology.CPUSet   `json:"cpus"`
	// Guest is the guest's name, for the reader.
	Guest string     `json:"guest,omitempty"`
	VMID  fleet.VMID `json:"vmid"`
}
