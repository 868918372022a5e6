package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
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
	// Cost is what the change adds to the resources of VMs, and to their price.
	Cost  scheduling.Cost `json:"cost,omitzero"`
	Files []fileReport    `json:"files"`
	Hosts []hostReport    `json:"shards,omitempty"`
	// Providers are the providers that the plans use.
	Providers []state.Provider `json:"providers,omitempty"`
	// Digest is the argument for --approve, if the guard requires approval.
	Digest string `json:"digest,omitempty"`
	// Warnings need the operator's attention.
	Warnings []string `json:"warnings,omitempty"`
	// unjoined is set if a warning says that an apply refuses the change.
	unjoined bool
	// decides is set if the summary follows, which has the totals that a user decides on.
	decides bool
	// undoes describes the change that this one reverts, if any.
	undoes string
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
	// Decision and Findings are the parts of Verdict.
	Decision string          `json:"decision,omitempty"`
	Findings []guard.Finding `json:"findings,omitempty"`
	// Repinned lists the running VMs that the host agent will pin to other CPUs.
	Repinned []string `json:"repinned,omitempty"`
	Error    string   `json:"error,omitempty"`
	// text is the engine's description of the plan.
	text string
	// changes is set if the plan changes anything.
	changes bool
}

func (p *proposal) report() report {
	r := report{VMs: []vmReport{}, Actions: p.actions(), Cost: p.cost, Files: []fileReport{}, Warnings: p.change.Warnings()}
	if p.unjoined != nil {
		r.unjoined = true
		r.Warnings = append(r.Warnings, "numaform apply refuses these nodes: "+p.unjoined.reason())
	}
	switch id := p.change.Undoes; {
	case id != "" && len(p.change.Added) > 0:
		r.undoes = "the removal " + id + ": it creates VMs again"
	case id != "":
		r.undoes = "the change " + id
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
	r.Providers = providersOf(p.plans)
	if needsApproval(p.plans) {
		r.Digest = digest(p.plans)
	}
	return r
}

// providersOf returns the providers of plans. All hosts use the same providers, but only
// the first plan reports a first use.
func providersOf(plans []scaler.RootPlan) []state.Provider {
	var providers []state.Provider
	for i := range plans {
		plan := plans[i].Plan
		if plan == nil || plan.Provider == nil {
			continue
		}
		provider := *plan.Provider
		known := slices.IndexFunc(providers, func(p state.Provider) bool {
			return p.Address == provider.Address && p.Version == provider.Version && p.Hash == provider.Hash
		})
		if known < 0 {
			providers = append(providers, provider)
		} else if provider.First {
			providers[known] = provider
		}
	}
	return providers
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
		line := hostReport{Host: plan.Host, Verdict: plan.Verdict.String(), Decision: plan.Verdict.Decision.String(), Findings: plan.Verdict.Findings, text: plan.Plan.Text, SHA256: plan.Plan.SHA256, Digest: plan.Plan.Digest, Summary: "the engine printed no summary", changes: plan.Changes()}
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

// print prints the report. decides is set if the summary follows.
func (p *proposal) print(process Process, o *options, decides bool) error {
	r := p.report()
	r.decides = decides
	if o.output != "text" {
		return printData(process, o.output, r)
	}
	w := newPrinter(process)
	w.report(&r, o)
	if o.verbose && !p.change.Empty() {
		w.maps(p, w.Width)
	}
	return w.err
}

// report prints a change: the totals, the refused pods, the standby VMs to wake, each VM,
// the files, and the plans.
func (w *printer) report(r *report, o *options) {
	w.totals(r)
	w.refusals(r.Pods)
	w.woken(r.Woken)
	if o.quiet {
		destroyed := report{Actions: slices.DeleteFunc(slices.Clone(r.Actions), func(a actionReport) bool {
			return a.Action != actionDestroy && a.Action != actionRecreate
		})}
		w.actions(&destroyed, false)
		w.plans(slices.DeleteFunc(slices.Clone(r.Hosts), func(h hostReport) bool { return h.Decision == guard.Allow.String() && len(h.Repinned) == 0 }))
	} else {
		w.actions(r, o.verbose)
		w.files(r.Files, o)
		w.plans(r.Hosts)
	}
	if o.verbose {
		for i := range r.Hosts {
			w.raw(fmt.Sprintf("\n# Host %s, plan digest %.12s\n%s\n", r.Hosts[i].Host, r.Hosts[i].Digest, strings.TrimSpace(r.Hosts[i].text)))
		}
	}
	for i := range r.Providers {
		if r.Providers[i].First || o.verbose {
			w.printf("\nProvider %s\n", &r.Providers[i])
		}
	}
	for _, warning := range r.Warnings {
		w.printf("\nWarning: %s\n", warning)
	}
}

// totals prints the whole change in a few lines, without the ones in a summary that follows.
func (w *printer) totals(r *report) {
	change := totals(r.Actions)
	hosts := map[topology.HostID]bool{}
	for i := range r.Actions {
		hosts[r.Actions[i].Host] = true
	}
	switch {
	case change != "":
		change += " on " + topology.Count(len(hosts), "host")
	case len(r.Files) > 0:
		change = "update " + topology.Count(len(r.Files), "fleet file")
	default:
		change = "no change"
	}
	var rows [][]string
	if !r.decides {
		rows = append(rows, []string{w.Bold("Change"), w.Bold(change)})
	}
	if r.undoes != "" && !r.decides {
		rows = append(rows, []string{"Undoes", r.undoes})
	}
	if r.Pods != nil {
		rows = append(rows, []string{"Pods", fmt.Sprintf("%d pending, %d placed, %d refused", r.Pods.Asked, r.Pods.Placed, r.Pods.Refused)})
	}
	if len(r.VMs) > 0 {
		pools := map[string]int{}
		for i := range r.VMs {
			pools[r.VMs[i].Pool]++
		}
		var names []string
		for _, pool := range slices.Sorted(maps.Keys(pools)) {
			names = append(names, fmt.Sprintf("%s %d", pool, pools[pool]))
		}
		rows = append(rows, []string{"New", "NodePools: " + strings.Join(names, ", ")})
	}
	// Without prices, a summary has the same line.
	if cost := r.Cost.String(); cost != "" && (!r.decides || cost != r.Cost.Short()) {
		rows = append(rows, []string{"Cost", cost})
	}
	if verdicts := w.verdicts(r.Hosts); verdicts != "" && !r.decides {
		rows = append(rows, []string{"Guard", verdicts})
	}
	w.raw(w.Table(0, rows))
}

// verdicts counts the hosts of each decision of the guard, strictest first.
func (w *printer) verdicts(hosts []hostReport) string {
	var parts []string
	for _, decision := range []struct {
		name  string
		color term.Color
	}{
		{guard.Deny.String(), term.Red},
		{guard.NeedsApproval.String(), term.Yellow},
		{guard.Allow.String(), term.Green},
		{"", term.Red},
	} {
		n := 0
		for i := range hosts {
			if hosts[i].Decision == decision.name {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, w.Paint(decision.color, cmp.Or(decision.name, "not planned"))+" on "+topology.Count(n, "host"))
		}
	}
	return strings.Join(parts, ", ")
}

// refusals prints the reasons why pods are refused, each once.
func (w *printer) refusals(pods *podsReport) {
	if pods == nil || len(pods.Refusals) == 0 {
		return
	}
	w.heading("Refused pods")
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
		if len(names) > 1 {
			who = fmt.Sprintf("%d pods (%s)", len(names), topology.Named(names))
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
	w.printf("  wake %s: only the controller does so, not numaform apply\n", topology.Count(len(woken), "standby VM"))
	rows := [][]string{{"HOST", "VM", "POOL", "PODS"}}
	for _, vm := range woken {
		rows = append(rows, []string{vm.Host.String(), vm.Name, vm.Pool, fmt.Sprint(vm.Pods)})
	}
	w.raw(w.Table(2, rows))
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
		// remaining is the host without the VMs to remove.
		remaining := *host
		remaining.Guests = slices.DeleteFunc(slices.Clone(host.Guests), func(guest topology.Guest) bool {
			return slices.ContainsFunc(p.change.Removed, func(vm fleet.VM) bool {
				return vm.Host == id && fleet.VMID(guest.VMID) == vm.VMID && fleet.Key(guest.Key) == vm.Key
			})
		})
		before := cpumap.Owners(host, p.change.Before.On(id))
		after := cpumap.Owners(&remaining, p.change.After.On(id))
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

// mostFiles is the maximum number of files that are listed individually by default.
const mostFiles = 10

func (w *printer) files(files []fileReport, o *options) {
	if len(files) == 0 {
		return
	}
	w.heading("Fleet files")
	kinds := map[string]string{"added": actionCreate, "removed": actionDestroy, "changed": actionUpdate}
	counts := map[string]int{}
	for _, file := range files {
		counts[file.Change]++
	}
	if len(files) > mostFiles && !o.verbose {
		var parts []string
		for _, kind := range []string{"added", "changed", "removed"} {
			if counts[kind] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
			}
		}
		w.printf("  %s: %s\n", topology.Count(len(files), "file"), strings.Join(parts, ", "))
	} else {
		others, modules := 0, 0
		for _, file := range files {
			if !o.verbose && file.Change == "added" && !strings.Contains(file.Path, "/node-") {
				if strings.HasSuffix(file.Path, "/") {
					modules++
				} else {
					others++
				}
				continue
			}
			sign := signs[kinds[file.Change]]
			w.printf("  %s %s\n", w.Paint(sign.color, sign.sign), file.Path)
		}
		var added []string
		if others > 0 {
			added = append(added, topology.Count(others, "other file"))
		}
		if modules > 0 {
			added = append(added, topology.Count(modules, "module"))
		}
		if len(added) > 0 {
			sign := signs[actionCreate]
			w.printf("  %s %s\n", w.Paint(sign.color, sign.sign), strings.Join(added, " and "))
		}
	}
	nodes := slices.DeleteFunc(slices.Clone(files), func(f fileReport) bool { return !strings.Contains(f.Path, "/node-") })
	switch {
	case o.verbose || o.diff:
		for _, file := range nodes {
			w.raw("\n" + w.colored(file.Diff))
		}
	case slices.ContainsFunc(nodes, func(f fileReport) bool { return f.Change == "added" }):
		w.printf("  --diff shows the node files; --verbose also shows the reason and the CPUs of each placement, and the engine's plans\n")
	case len(nodes) > 0:
		w.printf("  --diff shows the node files; --verbose also shows the CPUs before and after, and the engine's plans\n")
	}
}

// colored colors the lines of a unified diff.
func (w *printer) colored(diff string) string {
	if !w.Color {
		return diff
	}
	var out strings.Builder
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "+"):
			line = w.Paint(term.Green, line)
		case strings.HasPrefix(line, "-"):
			line = w.Paint(term.Red, line)
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}

// plans prints the results of planning: hosts with the same verdict are listed together, and
// each finding and error once.
func (w *printer) plans(hosts []hostReport) {
	if len(hosts) == 0 {
		return
	}
	w.heading("Plans")
	var errs []topology.HostFact
	for _, decision := range []string{guard.Deny.String(), guard.NeedsApproval.String(), guard.Allow.String()} {
		w.decided(hosts, decision)
	}
	for i := range hosts {
		h := &hosts[i]
		for _, repinned := range h.Repinned {
			w.printf("  %s: repinned while the VM runs: %s\n", h.Host, repinned)
		}
		if h.Error != "" {
			errs = append(errs, topology.HostFact{Host: h.Host, Text: h.Host.String() + ": " + h.Error})
		}
	}
	for _, text := range topology.OverHosts(errs) {
		w.printf("  %s\n", text)
	}
}

// mostDigests is the number of hosts with the same summary whose plan digests are listed by
// default.
const mostDigests = 8

// decided prints the hosts with a decision of the guard, grouped by the engine's summary of
// their plans, and then the findings.
func (w *printer) decided(hosts []hostReport, decision string) {
	var summaries, texts []string
	named, digests := map[string][]string{}, map[string][]string{}
	where := map[string][]string{}
	for i := range hosts {
		h := &hosts[i]
		if h.Decision != decision {
			continue
		}
		if named[h.Summary] == nil {
			summaries = append(summaries, h.Summary)
		}
		named[h.Summary] = append(named[h.Summary], h.Host.String())
		if h.changes {
			digests[h.Summary] = append(digests[h.Summary], fmt.Sprintf("%s %.12s", h.Host, h.Digest))
		}
		for _, f := range h.Findings {
			text := fmt.Sprintf("%s [%s] %s", f.Decision, f.Rule, f.Message)
			if where[text] == nil {
				texts = append(texts, text)
			}
			if place := cmp.Or(f.Address, h.Host.String()); !slices.Contains(where[text], place) {
				where[text] = append(where[text], place)
			}
		}
	}
	if len(summaries) == 0 {
		return
	}
	color := map[string]term.Color{guard.Deny.String(): term.Red, guard.NeedsApproval.String(): term.Yellow, guard.Allow.String(): term.Green}[decision]
	w.printf("  guard: %s\n", w.Paint(color, decision))
	for _, summary := range summaries {
		hosts, found := named[summary], digests[summary]
		switch {
		case len(found) == 0 && len(hosts) == 1:
			w.printf("    %s: %s\n", hosts[0], summary)
		case len(found) == 0:
			w.printf("    %d hosts (%s): %s\n", len(hosts), topology.Named(hosts), summary)
		case len(hosts) == 1:
			w.printf("    %s: %s (plan digest %s)\n", hosts[0], summary, strings.TrimPrefix(found[0], hosts[0]+" "))
		case len(found) == len(hosts) && len(hosts) <= mostDigests:
			w.printf("    %d hosts: %s (plan digests: %s)\n", len(hosts), summary, strings.Join(found, ", "))
		default:
			w.printf("    %d hosts (%s): %s (--verbose shows the plan digests)\n", len(hosts), topology.Named(hosts), summary)
		}
	}
	for _, text := range texts {
		w.printf("    %s (%s)\n", text, topology.Named(where[text]))
	}
}
