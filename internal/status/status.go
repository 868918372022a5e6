// Package status describes a fleet at one moment: its VMs, hosts and changes, and what waits,
// failed or differs from the fleet's files. The commands of the command line and the
// controller's web page show the same description. The package does no I/O. Start at New.
package status

import (
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Report is the output of numaform status.
type Report struct {
	ClusterID string `json:"cluster_id"`
	Pools     []Pool `json:"pools"`
	Hosts     []Host `json:"hosts"`
	VMs       []VM   `json:"vms"`
	// Paused is true if a user paused numaform in the cluster, and PausedBy is the user, if known.
	Paused   bool   `json:"paused,omitempty"`
	PausedBy string `json:"paused_by,omitempty"`
	// Evacuated lists the hosts that are being evacuated.
	Evacuated []topology.HostID `json:"evacuated,omitempty"`
	// Pending lists the changes that are pending approval.
	Pending []Pending `json:"pending,omitempty"`
	// Failed lists the hosts on which the last change failed.
	Failed []Failed `json:"failed,omitempty"`
	// Drift lists the differences of VMs in Proxmox from their files. numaform drift also
	// compares attributes that only the engine knows.
	Drift []Drift `json:"drift,omitempty"`
	// Locks contains the held locks of the fleet and of the states.
	Locks []Lock `json:"locks,omitempty"`
	// UnknownLocks is the reason why the locks of the states cannot be read.
	UnknownLocks string `json:"unknown_locks,omitempty"`
	// Unfinished lists the hosts on which the last change is incomplete.
	Unfinished []topology.HostID `json:"unfinished,omitempty"`
	LastChange *Change           `json:"last_change,omitempty"`
	// Checkpoints says which places outside the fleet's store have checkpoints of the history.
	Checkpoints string `json:"checkpoints,omitempty"`
	// Problems lists regions that cannot be read, hosts that are not online, VMs that are
	// missing or stopped, and an incomplete change.
	Problems []string `json:"problems,omitempty"`
	// Next is the command to run next.
	Next string `json:"next"`
}

// Pool is the part of the fleet that belongs to a NodePool.
type Pool struct {
	Name      string `json:"name"`
	VMs       int    `json:"vms"`
	Running   int    `json:"running"`
	VCPUs     int    `json:"vcpus"`
	MemoryMiB int64  `json:"memory_mib"`
}

// VM is the state of a VM of the fleet.
type VM struct {
	Name         string          `json:"name"`
	VMID         fleet.VMID      `json:"vmid"`
	Host         topology.HostID `json:"host"`
	Pool         string          `json:"pool"`
	NodeClass    string          `json:"node_class"`
	InstanceType string          `json:"instance_type"`
	Policy       fleet.Policy    `json:"policy"`
	VCPUs        int             `json:"vcpus"`
	MemoryMiB    int64           `json:"memory_mib"`
	// CPUs are the host CPUs that the VM is pinned to; a VM without them shares the CPUs
	// that are not pinned.
	CPUs topology.CPUSet `json:"cpus,omitzero"`
	// NUMANodes are the NUMA nodes that back the VM's memory.
	NUMANodes topology.CPUSet `json:"numa_nodes,omitzero"`
	// State is running, standby, stopped, locked while Proxmox works on the VM, missing, or
	// unknown if the host cannot be read.
	State string `json:"state"`
}

// Pending is a change that is pending approval.
type Pending struct {
	Name    string    `json:"name"`
	Summary string    `json:"summary"`
	Expires time.Time `json:"expires"`
}

// Failed is a host on which the last change failed.
type Failed struct {
	Host  topology.HostID `json:"host"`
	Error string          `json:"error"`
}

// Drift is a difference of a VM in Proxmox from its file.
type Drift struct {
	VM   string          `json:"vm"`
	Host topology.HostID `json:"host"`
	What string          `json:"what"`
}

// Lock is a held lock of the fleet or of a state.
type Lock struct {
	Where  string `json:"where"`
	Holder string `json:"holder"`
	// Since and Operation are known only for the lock of a state.
	Since     time.Time `json:"since,omitzero"`
	Operation string    `json:"operation,omitempty"`
}

// FleetLock is the value of Lock.Where for the fleet's lock, which a process holds from its
// plan to the end of its apply.
const FleetLock = "fleet"

// Change is a change in the history, in short.
type Change struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Why    string `json:"why"`
	Result string `json:"result"`
}

// States of VMs.
const (
	VMRunning = "running"
	VMStandby = "standby"
	VMStopped = "stopped"
	VMLocked  = "locked"
	VMMissing = "missing"
	VMUnknown = "unknown"
)
