package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// report is what plan and apply print, and with -o json the whole of it.
type report struct {
	Pods    *podsReport   `json:"pods,omitempty"`
	VMs     []vmReport    `json:"vms"`
	Removed []string      `json:"removed,omitempty"`
	Files   []fileReport  `json:"files"`
	Shards  []shardReport `json:"shards,omitempty"`
	// Digest is what --approve wants, if the guard wants a person to approve.
	Digest string `json:"digest,omitempty"`
	// Warnings are what a person should look at.
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
	InstanceType string          `json:"instance_type"`
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
	Error   string          `json:"error,omitempty"`
}

func (p *proposal) report() report {
	r := report{VMs: []vmReport{}, Files: []fileReport{}, Warnings: p.change.Warnings()}
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
	}
	if needsApproval(p.shards) {
		r.Digest = digest(p.shards)
	}
	return r
}

func vmLine(vm *fleet.VM) vmReport {
	line := vmReport{
		Name: vm.Name, VMID: vm.VMID, Host: vm.Host, InstanceType: vm.InstanceType, Policy: vm.Policy,
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
	w.pods(r.Pods)
	w.vms(r.VMs)
	if len(r.Removed) > 0 {
		w.heading("Nodes to remove")
		w.printf("  %s\n", strings.Join(r.Removed, ", "))
	}
	if !p.change.Empty() {
		w.maps(p, width(process))
	}
	w.files(r.Files)
	w.shards(r.Shards)
	if r.Digest != "" {
		w.printf("\nA person must approve: at a terminal, or by apply with --approve %s\n", r.Digest)
	}
	for _, warning := range r.Warnings {
		w.printf("\nWarning: %s\n", warning)
	}
	return w.err
}

// printer remembers the first error, so that a report can be written straight down.
type printer struct {
	w   io.Writer
	err error
}

func (w *printer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

func (w *printer) heading(text string) {
	w.printf("\n%s\n%s\n", text, strings.Repeat("─", len([]rune(text))))
}

func (w *printer) pods(pods *podsReport) {
	if pods == nil {
		return
	}
	w.heading("Pods")
	w.printf("  %d asked, %d placed, %d refused\n", pods.Asked, pods.Placed, pods.Refused)
	for _, refusal := range pods.Refusals {
		w.printf("  %s: %s\n", refusal.Pod, strings.ReplaceAll(refusal.Reason, "\n", "\n      "))
	}
}

func (w *printer) vms(vms []vmReport) {
	w.heading("New VMs by host")
	if len(vms) == 0 {
		w.printf("  none\n")
		return
	}
	table := tabwriter.NewWriter(w.w, 2, 8, 2, ' ', 0)
	host := topology.HostID{}
	for _, vm := range vms {
		if vm.Host != host {
			host = vm.Host
			fmt.Fprintf(table, "  %s\n", host)
		}
		place := "shares what is not pinned"
		if !vm.CPUs.IsEmpty() {
			place = "CPUs " + vm.CPUs.String()
		}
		if !vm.NUMANodes.IsEmpty() {
			place += ", NUMA " + vm.NUMANodes.String()
		}
		fmt.Fprintf(table, "    %s\t%s\t%s\t%d pods\t%s\n", vm.Name, vm.InstanceType, vm.Policy, vm.Pods, place)
		fmt.Fprintf(table, "    \t%s\n", vm.Reason)
	}
	if err := table.Flush(); w.err == nil {
		w.err = err
	}
}

// maps draws the touched hosts before and after the change, where it changes who
// owns a CPU.
func (w *printer) maps(p *proposal, columns int) {
	for _, shard := range p.change.Shards() {
		host := p.session.snapshot.Host(shard)
		if host == nil {
			continue
		}
		before := cpumap.Owners(host, vmsOn(&p.change.Before, shard))
		after := cpumap.Owners(withoutGuests(host, p.change.Removed), vmsOn(&p.change.After, shard))
		if maps.Equal(before.CPUs, after.CPUs) && maps.Equal(before.BoundMiB, after.BoundMiB) {
			w.heading(fmt.Sprintf("CPUs of %s, which stay as they are", shard))
			w.printf("%s", cpumap.Text(host, after, cpumap.Options{Width: columns}))
			continue
		}
		w.heading(fmt.Sprintf("CPUs of %s before", shard))
		w.printf("%s", cpumap.Text(host, before, cpumap.Options{Width: columns}))
		w.heading(fmt.Sprintf("CPUs of %s after", shard))
		w.printf("%s", cpumap.Text(host, after, cpumap.Options{Width: columns}))
	}
}

// withoutGuests returns the host as it will be once the VMs are gone.
func withoutGuests(host *topology.Host, removed []fleet.VM) *topology.Host {
	left := *host
	left.Guests = slices.DeleteFunc(slices.Clone(host.Guests), func(guest topology.Guest) bool {
		return slices.ContainsFunc(removed, func(vm fleet.VM) bool {
			return vm.Host == host.ID() && fleet.VMID(guest.VMID) == vm.VMID && fleet.Key(guest.Key) == vm.Key
		})
	})
	return &left
}

func (w *printer) files(files []fileReport) {
	w.heading("Fleet files")
	if len(files) == 0 {
		w.printf("  no change\n")
	}
	signs := map[string]string{"added": "+", "removed": "-", "changed": "~"}
	for _, file := range files {
		w.printf("  %s %s\n", signs[file.Change], file.Path)
	}
	for _, file := range files {
		if strings.Contains(file.Path, "/node-") {
			w.printf("\n%s", file.Diff)
		}
	}
}

func (w *printer) shards(shards []shardReport) {
	if len(shards) == 0 {
		return
	}
	w.heading("Plans")
	for _, shard := range shards {
		if shard.Error != "" {
			w.printf("  %s: %s\n", shard.Host, shard.Error)
			continue
		}
		w.printf("  %s: %s (plan %.12s)\n    %s\n", shard.Host, shard.Summary, shard.SHA256,
			strings.ReplaceAll(shard.Verdict, "\n", "\n    "))
	}
}

func shardLine(shard *scaler.ShardPlan) shardReport {
	line := shardReport{Host: shard.Shard}
	if shard.Err != nil {
		line.Error = shard.Err.Error()
		return line
	}
	line.Verdict = shard.Verdict.String()
	line.SHA256 = shard.Plan.SHA256
	line.Summary = engineSummary(shard.Plan.Text)
	return line
}

// engineSummary returns the line in which the engine sums its plan up.
func engineSummary(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Plan: ") || strings.HasPrefix(line, "No changes.") {
			return line
		}
	}
	return "the engine gave no summary"
}
