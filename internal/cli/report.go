package cli

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// report is the output of plan and apply, complete with -o json.
type report struct {
	Pods    *podsReport   `json:"pods,omitempty"`
	VMs     []vmReport    `json:"vms"`
	Removed []string      `json:"removed,omitempty"`
	Files   []fileReport  `json:"files"`
	Shards  []shardReport `json:"shards,omitempty"`
	// Providers are the providers that made the plans.
	Providers []state.Provider `json:"providers,omitempty"`
	// Digest is the argument of --approve, if the guard requires approval.
	Digest string `json:"digest,omitempty"`
	// Warnings need a person's attention.
	Warnings []string `json:"warnings,omitempty"`
}

type podsReport struct {
	Asked    int             `json:"asked"`
	Placed   int             `json:"placed"`
	Refused  int             `json:"refused"`
	Refusals []refusalReport `json:"refusals,omitempty"`
}

type refusalReport struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
}

type vmReport struct {
	Name         string          `json:"name"`
	VMID         fleet.VMID      `json:"vmid"`
	Host         topology.HostID `json:"host"`
	Pool         string          `json:"pool"`
	InstanceType string          `json:"instance_type"`
	VCPUs        int             `json:"vcpus"`
	MemoryMiB    int64           `json:"memory_mib"`
	Policy       fleet.Policy    `json:"policy"`
	CPUs         topology.CPUSet `json:"cpus,omitzero"`
	NUMANodes    topology.CPUSet `json:"numa_nodes,omitzero"`
	Pods         int             `json:"pods"`
	Reason       string          `json:"reason"`
}

type fileReport struct {
	Path   string `json:"path"`
	Change string `json:"change"`
	Diff   string `json:"diff,omitempty"`
}

type shardReport struct {
	Host    topology.HostID `json:"host"`
	Summary string          `json:"summary,omitempty"`
	SHA256  string          `json:"plan_sha256,omitempty"`
	Verdict string          `json:"verdict,omitempty"`
	// Repinned are running VMs that the host agent is to pin to other CPUs.
	Repinned []string `json:"repinned,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func (p *proposal) report() report {
	r := report{VMs: []vmReport{}, Files: []fileReport{}, Warnings: p.change.Warnings()}
	if p.unjoined != nil {
		r.Warnings = append(r.Warnings, "numaform controller makes these nodes, and numaform apply refuses to: "+p.unjoined.reason())
	}
	if d := p.decision; d != nil {
		r.Pods = &podsReport{Asked: d.Asked, Placed: d.Placed, Refused: len(d.Refused)}
		for _, refusal := range d.Refused {
			r.Pods.Refusals = append(r.Pods.Refusals, refusalReport{refusal.Pod.String(), refusal.Reason})
		}
	}
	for i := range p.change.Added {
		r.VMs = append(r.VMs, vmLine(&p.change.Added[i]))
	}
	for _, vm := range p.change.Removed {
		r.Removed = append(r.Removed, vm.Name)
	}
	for _, d := range p.change.Differences() {
		change := "changed"
		switch {
		case d.Added:
			change = "added"
		case d.Removed:
			change = "removed"
		}
		r.Files = append(r.Files, fileReport{d.Path, change, string(d.Unified)})
	}
	for i := range p.shards {
		r.Shards = append(r.Shards, shardLine(&p.shards[i]))
		if plan := p.shards[i].Plan; plan != nil && plan.Provider != nil {
			r.addProvider(*plan.Provider)
		}
	}
	if needsApproval(p.shards) {
		r.Digest = digest(p.shards)
	}
	return r
}

// addProvider adds a provider once. Hosts are planned concurrently, so one of them sees
// its first use, and the others see it as known: the report shows the first use.
func (r *report) addProvider(provider state.Provider) {
	i := slices.IndexFunc(r.Providers, func(p state.Provider) bool {
		return p.Address == provider.Address && p.Version == provider.Version && p.Hash == provider.Hash
	})
	switch {
	case i < 0:
		r.Providers = append(r.Providers, provider)
	case provider.First:
		r.Providers[i] = provider
	}
}

func vmLine(vm *fleet.VM) vmReport {
	line := vmReport{
		Name: vm.Name, VMID: vm.VMID, Host: vm.Host, Pool: vm.Pool, InstanceType: vm.InstanceType,
		VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, Policy: vm.Policy,
		CPUs: vm.CPUs, Pods: vm.Demand.Pods, Reason: vm.Reason,
	}
	for _, cell := range vm.Cells {
		line.NUMANodes = line.NUMANodes.Union(cell.HostNodes)
	}
	return line
}

// print writes the report to stdout.
func (p *proposal) print(process Process, o *options) error {
	r := p.report()
	if o.output == "json" {
		encoder := json.NewEncoder(process.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	w := &printer{w: process.Stdout}
	w.summary(p, &r, o, width(process))
	return w.err
}

func shardLine(shard *scaler.ShardPlan) shardReport {
	line := shardReport{Host: shard.Shard}
	if shard.Err != nil {
		line.Error = shard.Err.Error()
		return line
	}
	line.Verdict = shard.Verdict.String()
	line.SHA256 = shard.Plan.SHA256
	for _, r := range shard.Repinned {
		line.Repinned = append(line.Repinned, r.String())
	}
	line.Summary = engineSummary(shard.Plan.Text)
	return line
}

// engineSummary returns the summary line of the engine's plan.
func engineSummary(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Plan: ") || strings.HasPrefix(line, "No changes.") {
			return line
		}
	}
	return "the engine gave no summary"
}
