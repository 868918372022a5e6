// Package claim decides which guests of a host get the CPUs that their descriptions
// declare. It applies the rules of the host's administrator to text written with an API
// token: if in doubt, a guest keeps its current pins. It reads nothing and pins nothing:
// start at Decide.
package claim

import (
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Rules limit the pins that guests may declare. The administrator of a host sets them.
type Rules struct {
	// Clusters are the IDs of the clusters whose markers are accepted; if empty, no guest
	// is pinned.
	Clusters []string
	// MaxPercent is the maximum share of the online CPUs that may be pinned, in percent.
	// Siblings of pinned CPUs count as pinned.
	MaxPercent int
	// Reserved are CPUs that no guest may be pinned to.
	Reserved topology.CPUSet
	// Emulator is the default for declarations that do not specify one.
	Emulator fleet.Emulator
}

// Pins are CPUs that a guest has or requests.
type Pins struct {
	ClusterID string    `json:"cluster_id"`
	Key       fleet.Key `json:"key"`
	// CPUs is the host CPU of vCPU 0, 1, 2, …
	CPUs     []int          `json:"cpus"`
	Emulator fleet.Emulator `json:"emulator"`
}

// Set returns the CPUs as a set.
func (p *Pins) Set() topology.CPUSet {
	if p == nil {
		return topology.CPUSet{}
	}
	return topology.CPUs(p.CPUs...)
}

// Equal reports whether both are equal, or both are nil.
func (p *Pins) Equal(other *Pins) bool {
	if p == nil || other == nil {
		return p == other
	}
	return p.ClusterID == other.ClusterID && p.Key == other.Key && p.Emulator == other.Emulator &&
		slices.Equal(p.CPUs, other.CPUs)
}

// Guest is a running VM or container.
type Guest struct {
	VMID        int
	Description string
	// Unread is the reason why the guest's configuration cannot be read, or empty.
	Unread string
	// VCPUs is the number of running vCPUs, or 0 if unknown.
	VCPUs int
	// Affinity is the affinity that root set for the guest in Proxmox, or empty.
	Affinity topology.CPUSet
	// Current are the guest's current pins, or nil.
	Current *Pins
}

// Reason is a one-word reason why a declaration does not take effect.
type Reason string

// The reasons.
const (
	ReasonUnread    Reason = "unread"
	ReasonMalformed Reason = "malformed"
	ReasonForeign   Reason = "foreign_cluster"
	ReasonNoCPU     Reason = "no_such_cpu"
	ReasonReserved  Reason = "reserved_cpu"
	ReasonVCPUs     Reason = "vcpus_differ"
	ReasonAffinity  Reason = "affinity"
	ReasonOverlap   Reason = "overlap"
	ReasonKey       Reason = "key_twice"
	ReasonCeiling   Reason = "ceiling"
	// ReasonFailed means that the kernel refused to apply the pins.
	ReasonFailed Reason = "failed"
)

// Reasons returns all reasons, sorted.
func Reasons() []Reason {
	return []Reason{
		ReasonAffinity, ReasonCeiling, ReasonFailed, ReasonForeign, ReasonKey, ReasonMalformed, ReasonNoCPU,
		ReasonOverlap, ReasonReserved, ReasonUnread, ReasonVCPUs,
	}
}

// Refusal explains why a declaration does not take effect.
type Refusal struct {
	Reason Reason `json:"reason"`
	// Text is a sentence for the journal: what is wrong and how to fix it.
	Text string `json:"text"`
}

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// Decision is the decision about a guest.
type Decision struct {
	VMID int
	// Pins are the guest's pins from now on; nil means that the guest has none.
	Pins *Pins
	// Refused explains why Pins differ from the declaration, or is nil.
	Refused *Refusal
}

// Host is the part of a host's topology that is relevant to pins.
type Host struct {
	online topology.CPUSet
	// whole maps each CPU to the online CPUs of its core.
	whole map[int]topology.CPUSet
}

// NewHost returns a host with these CPUs. A CPU with unknown siblings is a core of its own.
func NewHost(cpus []topology.CPU) Host {
	cores := map[int][]int{}
	var online []int
	for _, cpu := range cpus {
		if cpu.Online {
			online = append(online, cpu.ID)
			cores[cpu.Core] = append(cores[cpu.Core], cpu.ID)
		}
	}
	h := Host{online: topology.CPUs(online...), whole: map[int]topology.CPUSet{}}
	for core, ids := range cores {
		siblings := topology.CPUs(ids...)
		for _, id := range ids {
			h.whole[id] = siblings
			if core == topology.Unknown {
				h.whole[id] = topology.CPUs(id)
			}
		}
	}
	return h
}

// Online returns the CPUs that are online.
func (h Host) Online() topology.CPUSet { return h.online }

// Whole returns the CPUs with their siblings: guests without pins must not use these.
func (h Host) Whole(cpus topology.CPUSet) topology.CPUSet {
	var ids []int
	for _, cpu := range cpus.List() {
		ids = append(ids, h.whole[cpu].List()...)
	}
	return topology.CPUs(ids...)
}

// Shared returns the CPUs available to guests without pins if these CPUs are pinned.
func (h Host) Shared(pinned topology.CPUSet) topology.CPUSet {
	return h.online.Difference(h.Whole(pinned))
}
