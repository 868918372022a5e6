package guard

import (
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Target is one VM of an intent, and how to know it.
type Target struct {
	// Address is the resource's: module.<name>.proxmox_virtual_environment_vm.node.
	Address string            `json:"address"`
	VMID    fleet.VMID        `json:"vmid"`
	Key     fleet.Key         `json:"key"`
	Host    topology.HostName `json:"host"`
	// Pool is the name of the VM's NodePool.
	Pool string `json:"pool,omitempty"`
	// BootDisk is the slot of the disk that the template brings along, such as scsi0.
	BootDisk string `json:"boot_disk,omitempty"`
	// DataDisks are those that the VM is to get beside it.
	DataDisks []fleet.DataDisk `json:"data_disks,omitempty"`
	// PCIDevices are those of the host that the VM is to get, hostpci0 first.
	PCIDevices []fleet.PCIDevice `json:"pci_devices,omitempty"`
	// Module is the hash of the modules that the VM's file calls.
	Module string `json:"module,omitempty"`
	// Inputs are the arguments of the VM's file, as generator.Inputs returns them. What a
	// plan makes of the VM is compared with what its modules make of them.
	Inputs []byte `json:"-"`
	// Incomplete tells an import of a VM whose create was cut off before it ever
	// ran: it may be given any attribute that its file says.
	Incomplete bool `json:"incomplete,omitempty"`
	// Drained tells a delete whose Node is drained, never joined, or is gone. No
	// other VM is deleted.
	Drained bool `json:"drained,omitempty"`
	// Blocked says why the Node is not drained yet, if it is not.
	Blocked string `json:"blocked,omitempty"`
}

// ImportID returns what the provider imports the VM by: "<host>/<vmid>".
func (t Target) ImportID() string { return importID(t.Host, t.VMID) }

// Intent is the change that was asked for of one host. A plan must contain all of
// it and nothing besides.
type Intent struct {
	// ClusterID is the one in the markers of our VMs.
	ClusterID string   `json:"cluster_id"`
	Create    []Target `json:"create,omitempty"`
	Delete    []Target `json:"delete,omitempty"`
	Import    []Target `json:"import,omitempty"`
	Update    []Target `json:"update,omitempty"`
	// Targeted tells a plan that was restricted to the targets: it can change nothing
	// else, so that it does not show the rest is no fault.
	Targeted bool `json:"targeted,omitempty"`
	// VMIDs are the numbers that are numaform's. No other VM is written to.
	VMIDs fleet.VMIDRange `json:"-"`
	// Claims are the CPUs that guests hold, from a fresh look at the host. A guest's
	// own claims do not stand in its way.
	Claims []Claim `json:"claims,omitempty"`
}

// Claim is CPUs of a host that a guest holds, by its live affinity or its marker.
type Claim struct {
	Host topology.HostName `json:"host"`
	CPUs topology.CPUSet   `json:"cpus"`
	// Guest is the guest's name, for the reader.
	Guest string     `json:"guest,omitempty"`
	VMID  fleet.VMID `json:"vmid"`
}
