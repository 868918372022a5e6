package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
)

// printer keeps the first error, so that a report can be written without checking each
// call.
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

// summary prints a change as briefly as possible, and more on request.
func (w *printer) summary(p *proposal, r *report, o *options, columns int) {
	w.pods(r.Pods)
	w.vms(r.VMs, o.verbose)
	if len(r.Removed) > 0 {
		w.heading("Nodes to remove")
		w.printf("  %s\n", strings.Join(r.Removed, ", "))
	}
	if o.verbose && !p.change.Empty() {
		w.maps(p, columns)
	}
	w.files(r.Files, o)
	w.shards(r.Shards)
	for i := range r.Providers {
		w.printf("\nProvider %s\n", &r.Providers[i])
	}
	if r.Digest != "" {
		w.printf("\nA person must approve: at a terminal, or by apply with --approve %s\n", r.Digest)
	}
	for _, warning := range r.Warnings {
		w.printf("\nWarning: %s\n", warning)
	}
}

func (w *printer) pods(pods *podsReport) {
	if pods == nil {
		return
	}
	w.heading("Pods")
	w.printf("  %d asked, %d placed, %d refused\n", pods.Asked, pods.Placed, pods.Refused)
	for _, group := range grouped(pods.Refusals) {
		w.printf("  %s: %s\n", namesOf(group.pods), strings.ReplaceAll(group.reason, "\n", "\n      "))
	}
}

// refusedFor are pods refused for the same reason.
type refusedFor struct {
	reason string
	pods   []string
}

// grouped groups equal refusals, in the order of their first pods.
func grouped(refusals []refusalReport) []refusedFor {
	var groups []refusedFor
	at := map[string]int{}
	for _, refusal := range refusals {
		i, ok := at[refusal.Reason]
		if !ok {
			i = len(groups)
			at[refusal.Reason] = i
			groups = append(groups, refusedFor{reason: refusal.Reason})
		}
		groups[i].pods = append(groups[i].pods, refusal.Pod)
	}
	return groups
}

// mostNames is the maximum number of names in a line.
const mostNames = 3

// namesOf returns the name of a single pod, or some names and the total.
func namesOf(pods []string) string {
	switch n := len(pods); {
	case n == 1:
		return pods[0]
	case n <= mostNames:
		return fmt.Sprintf("%d pods (%s)", n, strings.Join(pods, ", "))
	default:
		return fmt.Sprintf("%d pods (%s and %d more)", n, strings.Join(pods[:mostNames-1], ", "), n-mostNames+1)
	}
}

func (w *printer) vms(vms []vmReport, reasons bool) {
	w.heading("New VMs by host")
	if len(vms) == 0 {
		w.printf("  none\n")
		return
	}
	w.printf("  %s\n", total(vms))
	table := tabwriter.NewWriter(w.w, 2, 8, 2, ' ', 0)
	fmt.Fprint(table, "  HOST\tVM\tPOOL\tTYPE\tCPUS\tMEMORY\tPODS\tPOLICY\tPLACE\n")
	host := ""
	for i := range vms {
		vm := &vms[i]
		shown := vm.Host.String()
		if shown == host {
			shown = ""
		} else {
			host = shown
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", shown, vm.Name, vm.Pool, vm.InstanceType, vm.VCPUs, gib(vm.MemoryMiB), vm.Pods, vm.Policy, placeOf(vm))
	}
	if err := table.Flush(); w.err == nil {
		w.err = err
	}
	for i := range vms {
		if reasons {
			w.printf("  %s: %s\n", vms[i].Name, vms[i].Reason)
		}
	}
}

// total returns the sum over VMs.
func total(vms []vmReport) string {
	hosts, cpus, memory := map[topology.HostID]bool{}, 0, int64(0)
	for i := range vms {
		hosts[vms[i].Host] = true
		cpus, memory = cpus+vms[i].VCPUs, memory+vms[i].MemoryMiB
	}
	return fmt.Sprintf("%s on %s: together %d vCPUs, %s", counted(len(vms), "VM"), counted(len(hosts), "host"), cpus, gib(memory))
}

// counted returns a count with its noun.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// placeOf returns a VM's place on its host.
func placeOf(vm *vmReport) string {
	place := "shares what is not pinned"
	if !vm.CPUs.IsEmpty() {
		place = "CPUs " + vm.CPUs.String()
	}
	if !vm.NUMANodes.IsEmpty() {
		place += ", NUMA " + vm.NUMANodes.String()
	}
	return place
}

// gib formats memory in GiB, or in MiB if it is not a multiple.
func gib(mib int64) string {
	if mib%1024 == 0 {
		return fmt.Sprintf("%d GiB", mib/1024)
	}
	return fmt.Sprintf("%d MiB", mib)
}

// maps draws the affected hosts before and after the change, if it changes who owns a
// CPU.
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

// withoutGuests returns the host as it will be after the VMs are removed.
func withoutGuests(host *topology.Host, removed []fleet.VM) *topology.Host {
	left := *host
	left.Guests = slices.DeleteFunc(slices.Clone(host.Guests), func(guest topology.Guest) bool {
		return slices.ContainsFunc(removed, func(vm fleet.VM) bool {
			return vm.Host == host.ID() && fleet.VMID(guest.VMID) == vm.VMID && fleet.Key(guest.Key) == vm.Key
		})
	})
	return &left
}

// mostFiles is how many files are listed by default.
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
	nodes := slices.ContainsFunc(files, func(f fileReport) bool { return strings.Contains(f.Path, "/node-") })
	if !nodes {
		return
	}
	if !o.verbose && !o.diff {
		w.printf("  --diff shows what is in the node files, --verbose also why each VM stands where it does and who owns which CPU\n")
		return
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
		for _, repinned := range shard.Repinned {
			w.printf("    in place, VM runs on: %s\n", repinned)
		}
	}
}
