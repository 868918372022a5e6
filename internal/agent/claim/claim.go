// Package claim decides which guests of a host get the CPUs that their descriptions
// declare. It is where text that an API token wrote meets the rules of the host's
// administrator: on any doubt a guest keeps what it has. It reads nothing and pins
// nothing: start at Judge.
package claim

import (
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Rules are what the administrator of a host lets declarations have.
type Rules struct {
	// Clusters are the cluster ids whose markers count; none means that no guest is
	// pinned.
	Clusters []string
	// MaxPercent is the largest share of the online CPUs that may be pinned, with the
	// siblings of pinned CPUs counted.
	MaxPercent int
	// Reserved are CPUs that no declaration may have.
	Reserved topology.CPUSet
	// Emulator is for declarations that do not say.
	Emulator fleet.Emulator
}

// Pins are CPUs that a guest has or wants.
type Pins struct {
	ClusterID string    `json:"cluster_id"`
	Key       fleet.Key `json:"key"`
	// CPUs is the host CPU of vCPU 0, 1, 2, …
	CPUs     []int          `json:"cpus"`
	Emulator fleet.Emulator `json:"emulator"`
}

// Set returns the CPUs without their order.
func (p *Pins) Set() topology.CPUSet {
	if p == nil {
		return topology.CPUSet{}
	}
	return topology.CPUs(p.CPUs...)
}

// Equal reports whether both are the same, or both nil.
func (p *Pins) Equal(other *Pins) bool {
	if p == nil || other == nil {
		return p == other
	}
	return p.ClusterID == other.ClusterID && p.Key == other.Key && p.Emulator == other.Emulator &&
		slices.Equal(p.CPUs, other.CPUs)
}

// Guest is a VM or container that runs.
type Guest struct {
	VMID        int
	Description string
	// Unread says why the guest's configuration cannot be read, or is empty.
	Unread string
	// VCPUs is how many vCPUs run; 0 while nobody can tell.
	VCPUs int
	// Affinity is the set that root gave the guest in Proxmox, or empty.
	Affinity topology.CPUSet
	// Held is what the guest has, or nil.
	Held *Pins
}

// Reason is one word for why a declaration does not take effect.
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
	// ReasonFailed is given by who pins: the kernel refused.
	ReasonFailed Reason = "failed"
)

// Reasons returns all reasons, sorted.
func Reasons() []Reason {
	return []Reason{
		ReasonAffinity, ReasonCeiling, ReasonFailed, ReasonForeign, ReasonKey, ReasonMalformed, ReasonNoCPU,
		ReasonOverlap, ReasonReserved, ReasonUnread, ReasonVCPUs,
	}
}

// Refusal says why a declaration does not take effect.
type Refusal struct {
	Reason Reason `json:"reason"`
	// Text is a sentence for the journal: what is wrong and how to mend it.
	Text string `json:"text"`
}

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// Verdict is what becomes of a guest.
type Verdict struct {
	VMID int
	// Pins are what the guest is to have from now on; nil means that it floats.
	Pins *Pins
	// Refused says why Pins are not what the description declares, or is nil.
	Refused *Refusal
}

// Host is what of a host's topology matters to pins.
type Host struct {
	online topology.CPUSet
	// whole are the online CPUs of each CPU's core.
	whole map[int]topology.CPUSet
}

// NewHost returns the host that has these CPUs. A CPU whose siblings are not known
// counts as a core of its own.
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

// Whole returns the CPUs with their siblings: what nobody else may use.
func (h Host) Whole(cpus topology.CPUSet) topology.CPUSet {
	var ids []int
	for _, cpu := range cpus.List() {
		ids = append(ids, h.whole[cpu].List()...)
	}
	return topology.CPUs(ids...)
}

// Shared returns the CPUs that are left to guests without pins.
func (h Host) Shared(verdicts []Verdict) topology.CPUSet {
	var pinned []int
	for _, v := range verdicts {
		pinned = append(pinned, v.Pins.Set().List()...)
	}
	return h.online.Difference(h.Whole(topology.CPUs(pinned...)))
}
