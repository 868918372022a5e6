package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// report is the output of plan and apply. The text format omits some fields.
type report struct {
	Pods *podsReport `json:"pods,omitempty"`
	// Woken are the standby VMs that pods fit on. The controller wakes them.
	Woken   []wokenReport `json:"woken,omitempty"`
	VMs     []vmReport    `json:"vms"`
	Removed []string      `json:"removed,omitempty"`
	// Actions lists what the change does to each VM, including new VMs.
	Actions []actionReport `json:"actions"`
	Files   []fileReport   `json:"files"`
	Hosts   []hostReport   `json:"shards,omitempty"`
	// Providers are the providers that the plans use.
	Providers []state.Provider `json:"providers,omitempty"`
	// Digest is the argument for --approve, if the guard requires approval.
	Digest string `json:"digest,omitempty"`
	// Warnings need the operator's attention.
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

type wokenReport struct {
	Name string          `json:"name"`
	Host topology.HostID `json:"host"`
	Pool string          `json:"pool"`
	Pods int             `json:"pods"`
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

type hostReport struct {
	Host    topology.HostID `json:"host"`
	Summary string          `json:"summary,omitempty"`
	SHA256  string          `json:"plan_sha256,omitempty"`
	// Digest is the same for the same changes; SHA256 identifies one saved plan.
	Digest  string `json:"plan_digest,omitempty"`
	Verdict string `json:"verdict,omitempty"`
	// Repinned lists the running VMs that the host agent will pin to other CPUs.
	Repinned []string `json:"repinned,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func (p *proposal) report() report {
	r := report{VMs: []vmReport{}, Actions: p.actions(), Files: []fileReport{}, Warnings: p.change.Warnings()}
	if p.unjoined != nil {
		r.Warnings = append(r.Warnings, "numaform apply refuses these nodes: "+p.unjoined.reason())
	}
	if d := p.decision; d != nil {
		r.Pods = &podsReport{Asked: d.Asked, Placed: d.Placed, Refused: len(d.Refused)}
		for _, refusal := range d.Refused {
			r.Pods.Refusals = append(r.Pods.Refusals, refusalReport{Pod: refusal.Pod.String(), Reason: refusal.Reason})
		}
		for i := range d.Woken {
			vm := &d.Woken[i].VM
			r.Woken = append(r.Woken, wokenReport{Name: vm.Name, Host: vm.Host, Pool: vm.Pool, Pods: len(d.Woken[i].Pods)})
		}
	}
	for i := range p.change.Added {
		vm := &p.change.Added[i]
		line := vmReport{
			Name:         vm.Name,
			VMID:         vm.VMID,
			Host:         vm.Host,
			Pool:         vm.Pool,
			InstanceType: vm.InstanceType,
			VCPUs:        vm.VCPUs,
			MemoryMiB:    vm.MemoryMiB,
			Policy:       vm.Policy,
			CPUs:         vm.CPUs,
			Pods:         vm.Demand.Pods,
			Reason:       vm.Reason,
		}
		for _, cell := range vm.Cells {
			line.NUMANodes = line.NUMANodes.Union(cell.HostNodes)
		}
		r.VMs = append(r.VMs, line)
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
		r.Files = append(r.Files, fileReport{Path: d.Path, Change: change, Diff: string(d.Unified)})
	}
	r.Hosts = hostReports(p.plans)
	for i := range p.plans {
		plan := p.plans[i].Plan
		if plan == nil || plan.Provider == nil {
			continue
		}
		// All hosts use the same providers, but only the first plan reports a first use.
		provider := *plan.Provider
		known := slices.IndexFunc(r.Providers, func(p state.Provider) bool {
			return p.Address == provider.Address && p.Version == provider.Version && p.Hash == provider.Hash
		})
		if known < 0 {
			r.Providers = append(r.Providers, provider)
		} else if provider.First {
			r.Providers[known] = provider
		}
	}
	if needsApproval(p.plans) {
		r.Digest = digest(p.plans)
	}
	return r
}

// hostReports describes the plans of hosts.
func hostReports(plans []scaler.RootPlan) []hostReport {
	var reports []hostReport
	for i := range plans {
		plan := &plans[i]
		if plan.Err != nil {
			reports = append(reports, hostReport{Host: plan.Host, Error: plan.Err.Error()})
			continue
		}
		line := hostReport{Host: plan.Host, Verdict: plan.Verdict.String(), SHA256: plan.Plan.SHA256, Digest: plan.Plan.Digest, Summary: "the engine printed no summary"}
		for _, r := range plan.Repinned {
			line.Repinned = append(line.Repinned, r.String())
		}
		for text := range strings.Lines(plan.Plan.Text) {
			if text = strings.TrimSpace(text); strings.HasPrefix(text, "Plan: ") || strings.HasPrefix(text, "No changes.") {
				line.Summary = text
				break
			}
		}
		reports = append(reports, line)
	}
	return reports
}

// print prints the report.
func (p *proposal) print(process Process, o *options) error {
	r := p.report()
	if o.output != "text" {
		return printData(process, o.output, r)
	}

	w := newPrinter(process)
	w.pods(r.Pods)
	w.woken(r.Woken)
	w.vms(r.VMs, o.verbose)
	w.actions(r.Actions)
	if o.verbose && !p.change.Empty() {
		w.maps(p, w.Width)
	}
	w.files(r.Files, o)
	w.plans(r.Hosts)
	for i := range r.Providers {
		w.printf("\nProvider %s\n", &r.Providers[i])
	}
	if r.Digest != "" {
		w.printf("\nThe change requires approval: apply it in a terminal, or with --approve %s\n", r.Digest)
	}
	for _, warning := range r.Warnings {
		w.printf("\nWarning: %s\n", warning)
	}
	return w.err
}

func (w *printer) pods(pods *podsReport) {
	if pods == nil {
		return
	}
	w.heading("Pods")
	w.printf("  %d pending, %d placed, %d refused\n", pods.Asked, pods.Placed, pods.Refused)

	// Group the refused pods by reason, in order of first occurrence.
	var reasons []string
	refused := map[string][]string{}
	for _, refusal := range pods.Refusals {
		if refused[refusal.Reason] == nil {
			reasons = append(reasons, refusal.Reason)
		}
		refused[refusal.Reason] = append(refused[refusal.Reason], refusal.Pod)
	}
	for _, reason := range reasons {
		names := refused[reason]
		who := names[0]
		switch n := len(names); {
		case n > mostNames:
			who = fmt.Sprintf("%d pods (%s and %d more)", n, strings.Join(names[:mostNames-1], ", "), n-mostNames+1)
		case n > 1:
			who = fmt.Sprintf("%d pods (%s)", n, strings.Join(names, ", "))
		}
		w.printf("  %s: %s\n", who, strings.ReplaceAll(reason, "\n", "\n      "))
	}
}

// woken prints the standby VMs that pods fit on.
func (w *printer) woken(woken []wokenReport) {
	if len(woken) == 0 {
		return
	}
	w.heading("Standby VMs to wake")
	w.printf("  wake %s: the controller starts them, numaform apply does not\n", counted(len(woken), "standby VM"))
	w.table(func(table io.Writer) {
		fmt.Fprint(table, "  HOST\tVM\tPOOL\tPODS\n")
		for _, vm := range woken {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%d\n", vm.Host, vm.Name, vm.Pool, vm.Pods)
		}
	})
}

// mostNames is the maximum number of pods named in one line.
const mostNames = 3

func (w *printer) vms(vms []vmReport, reasons bool) {
	w.heading("New VMs by host")
	if len(vms) == 0 {
		w.printf("  none\n")
		return
	}
	hosts := map[topology.HostID]bool{}
	cpus, memory := 0, int64(0)
	for i := range vms {
		hosts[vms[i].Host] = true
		cpus += vms[i].VCPUs
		memory += vms[i].MemoryMiB
	}
	w.printf("  %s on %s: %d vCPUs, %s in total\n", counted(len(vms), "VM"), counted(len(hosts), "host"), cpus, gib(memory))
	w.table(func(table io.Writer) {
		fmt.Fprint(table, "  HOST\tVM\tPOOL\tTYPE\tCPUS\tMEMORY\tPODS\tPOLICY\tPLACE\n")
		for i := range vms {
			vm := &vms[i]
			host := ""
			if i == 0 || vm.Host != vms[i-1].Host {
				host = vm.Host.String()
			}
			place := "shared CPUs"
			if !vm.CPUs.IsEmpty() {
				place = "CPUs " + vm.CPUs.String()
			}
			if !vm.NUMANodes.IsEmpty() {
				place += ", NUMA " + vm.NUMANodes.String()
			}
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", host, vm.Name, vm.Pool, vm.InstanceType, vm.VCPUs, gib(vm.MemoryMiB), vm.Pods, vm.Policy, place)
		}
	})
	for i := range vms {
		if reasons {
			w.printf("  %s: %s\n", vms[i].Name, vms[i].Reason)
		}
	}
}

// gib formats memory in GiB, or in MiB if it is not a multiple of 1 GiB.
func gib(mib int64) string {
	if mib%1024 == 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%d MiB", mib)
}

// maps draws the CPU owners of the affected hosts before and after the change.
func (w *printer) maps(p *proposal, columns int) {
	for _, id := range p.change.Hosts() {
		host := p.session.snapshot.Host(id)
		if host == nil {
			continue
		}
		// The host without the VMs to remove.
		remaining := *host
		remaining.Guests = slices.DeleteFunc(slices.Clone(host.Guests), func(guest topology.Guest) bool {
			return slices.ContainsFunc(p.change.Removed, func(vm fleet.VM) bool {
				return vm.Host == id && fleet.VMID(guest.VMID) == vm.VMID && fleet.Key(guest.Key) == vm.Key
			})
		})
		before := cpumap.Owners(host, vmsOn(&p.change.Before, id))
		after := cpumap.Owners(&remaining, vmsOn(&p.change.After, id))
		draw := func(heading string, owners cpumap.Ownership) {
			w.heading(fmt.Sprintf(heading, id))
			w.raw(cpumap.Text(host, owners, cpumap.Options{Width: columns}))
		}
		if maps.Equal(before.CPUs, after.CPUs) && maps.Equal(before.BoundMiB, after.BoundMiB) {
			draw("CPUs of %s (unchanged)", after)
			continue
		}
		draw("CPUs of %s before", before)
		draw("CPUs of %s after", after)
	}
}

// mostFiles is the number of files listed by default.
const mostFiles = 20

func (w *printer) files(files []fileReport, o *options) {
	w.heading("Fleet files")
	if len(files) == 0 {
		w.printf("  no change\n")
		return
	}
	signs := map[string]string{"added": "+", "removed": "-", "changed": "~"}
	for i, file := range files {
		if i == mostFiles && !o.verbose {
			w.printf("  … and %d more\n", len(files)-mostFiles)
			break
		}
		w.printf("  %s %s\n", signs[file.Change], file.Path)
	}
	nodes := slices.DeleteFunc(slices.Clone(files), func(f fileReport) bool { return !strings.Contains(f.Path, "/node-") })
	switch {
	case o.verbose || o.diff:
		for _, file := range nodes {
			w.raw("\n" + file.Diff)
		}
	case len(nodes) > 0:
		w.printf("  --diff shows the diff of the node files; --verbose also shows the reason for each placement and the owner of each CPU\n")
	}
}

func (w *printer) plans(hosts []hostReport) {
	if len(hosts) == 0 {
		return
	}
	w.heading("Plans")
	printed := map[string]bool{}
	for _, host := range hosts {
		// Many hosts with the same result, such as no changes, get one line.
		who := host.Host.String()
		if same := likeHost(hosts, &host); len(same) > mostNames {
			key := host.Summary + host.Error + host.Verdict + host.Digest
			if printed[key] {
				continue
			}
			printed[key] = true
			who = fmt.Sprintf("%d hosts (%s and %d more)", len(same), strings.Join(same[:mostNames-1], ", "), len(same)-mostNames+1)
		}
		if host.Error != "" {
			w.printf("  %s: %s\n", who, host.Error)
			continue
		}
		w.printf("  %s: %s (plan %.12s)\n    %s\n", who, host.Summary, host.Digest,
			strings.ReplaceAll(host.Verdict, "\n", "\n    "))
		for _, repinned := range host.Repinned {
			w.printf("    repinned while the VM runs: %s\n", repinned)
		}
	}
}

// likeHost returns the hosts with the same result as host. A host with repinned VMs is
// like no other.
func likeHost(hosts []hostReport, host *hostReport) []string {
	var same []string
	if len(host.Repinned) > 0 {
		return nil
	}
	for i := range hosts {
		h := &hosts[i]
		if len(h.Repinned) == 0 && h.Summary == host.Summary && h.Error == host.Error && h.Verdict == host.Verdict && h.Digest == host.Digest {
			same = append(same, h.Host.String())
		}
	}
	return same
}
