package cli //nolint:testpackage // reports have no exported form

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// recorded returns the report of a plan on a number of hosts: a new VM on most hosts, VMs
// to delete and to re-create, and refused pods. With more than 3 hosts, one is down and the
// guard denies the change on another.
func recorded(hosts int) *report {
	host := func(i int) topology.HostID {
		return topology.HostID{Region: "homelab", Host: topology.HostName(fmt.Sprintf("pve-%d", i))}
	}
	r := &report{
		Pods:     &podsReport{Asked: 4*hosts + 3, Placed: 4 * hosts, Refused: 3},
		Warnings: []string{"guest 2999 (workers-2999) on homelab/pve-1 carries this fleet's marker but has no file: restore its file from version control, or destroy it by hand"},
		Digest:   strings.Repeat("0123456789abcdef", 4),
	}
	var full []topology.HostFact
	for i := 1; i <= hosts; i++ {
		full = append(full, topology.HostFact{Host: host(i), Text: fmt.Sprintf(
			"c1.32VCPU-64GB: %s has 16 floating vCPUs and room for 0 more of 32: add memory to the host or reduce the size of the pods", host(i),
		)})
	}
	for i := range 3 {
		r.Pods.Refusals = append(r.Pods.Refusals, refusalReport{
			Pod:    fmt.Sprintf("default/render-%d", i),
			Reason: "NodePool workers: no host has room: " + strings.Join(topology.OverHosts(full), "; "),
		})
	}
	for i := 1; i <= hosts; i++ {
		name := fmt.Sprintf("workers-%d", 2000+i)
		summary, verdict := "Plan: 1 to add, 0 to change, 0 to destroy.", guard.Verdict{Decision: guard.Allow}
		switch {
		case i == 1:
			summary = "Plan: 1 to add, 0 to change, 1 to destroy."
			verdict = guard.Verdict{Decision: guard.NeedsApproval, Findings: []guard.Finding{
				{Rule: "limit", Decision: guard.NeedsApproval, Message: "the change deletes 2 VMs of NodePool pinned, and the limit is 1 per hour: wait, or approve the change"},
			}}
		case i == 2 && hosts > 3:
			verdict = guard.Verdict{Decision: guard.Deny, Findings: []guard.Finding{
				{Rule: "rule:freeze-pinned", Decision: guard.Deny, Address: "module.workers-2002", Message: "pool pinned is frozen until its hosts have new memory"},
			}}
		case i == hosts && hosts > 3:
			r.Hosts = append(r.Hosts, hostReport{Host: host(i), Error: fmt.Sprintf("host %s cannot be used: it is offline: start it, or remove its VMs with numaform evacuate", host(i))})
			continue
		}
		r.VMs = append(r.VMs, vmReport{
			Name: name, VMID: fleet.VMID(2000 + i), Host: host(i), Pool: "workers", InstanceType: "c1.4VCPU-8GB", VCPUs: 4, MemoryMiB: 8192,
			Policy: fleet.PolicyDedicated, CPUs: topology.CPUs(0, 1, 2, 3, 40, 41, 42, 43), NUMANodes: topology.CPUs(0),
			Pods: 4, Reason: "the fullest host that has room",
		})
		r.Actions = append(r.Actions, actionReport{Action: actionCreate, Name: name, VMID: fleet.VMID(2000 + i), Host: host(i), Reason: "the fullest host that has room"})
		r.Files = append(r.Files, fileReport{Path: fmt.Sprintf("homelab/pve-%d/node-%s.tf", i, name), Change: "added", Diff: "+resource {}\n"})
		r.Hosts = append(r.Hosts, hostReport{
			Host: host(i), Summary: summary, Digest: strings.Repeat(fmt.Sprintf("%02x", i), 32),
			Verdict: verdict.String(), Decision: verdict.Decision.String(), Findings: verdict.Findings,
			changes: true,
		})
	}
	r.Actions = append(
		r.Actions,
		actionReport{Action: actionDestroy, Name: "pinned-2500", VMID: 2500, Host: host(1), Reason: reasonTakenOut},
		actionReport{Action: actionDestroy, Name: "pinned-2501", VMID: 2501, Host: host(1), Reason: reasonTakenOut},
		actionReport{Action: actionRecreate, Name: "pinned-2502", VMID: 2502, Host: host(2), Reason: reasonMissing},
		actionReport{Action: actionUpdate, Name: "pinned-2503", VMID: 2503, Host: host(2), Reason: reasonUpdate},
	)
	r.Cost = scheduling.Cost{VCPUs: 4 * len(r.VMs), MemoryMiB: 8192 * int64(len(r.VMs)), DiskGiB: 30*int64(len(r.VMs)) - 30}
	return r
}

// TestPlanOutput checks the output of plan on 3 and on 40 hosts, at 4 widths, against
// golden files. No line may be wider than the terminal, and no sentence may appear twice.
func TestPlanOutput(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{3, 40} {
		for _, columns := range []int{60, 80, 120, 200} {
			name := fmt.Sprintf("plan-%d-hosts-%d.txt", hosts, columns)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out := planText(recorded(hosts), columns, "never")
				checkWidth(t, out, columns)
				checkRepeats(t, out)
				compareGolden(t, name, out)
			})
		}
	}
}

// TestPlanColors checks that colors change neither the text nor its layout.
func TestPlanColors(t *testing.T) {
	t.Parallel()
	plain, colored := planText(recorded(40), 80, "never"), planText(recorded(40), 80, "always")
	if diff := gocmp.Diff(plain, ansi.Strip(colored)); diff != "" {
		t.Errorf("text (-without +with colors):\n%s", diff)
	}
	for _, want := range []string{"\x1b[32m+\x1b[m", "\x1b[31m-\x1b[m", "\x1b[35m-/+\x1b[m", "\x1b[33m~\x1b[m", "\x1b[31mdenied\x1b[m"} {
		if !strings.Contains(colored, want) {
			t.Errorf("the output lacks %q:\n%q", want, colored)
		}
	}
}

// TestQuiet checks that --quiet omits the lines of allowed VMs, files and plans, but not of what
// is refused, destroyed or not allowed.
func TestQuiet(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := newPrinter(Process{Stdout: &out})
	w.report(recorded(3), &options{quiet: true})
	for _, want := range []string{"create 3 VMs", "default/render-0", "pinned-2500", "pinned-2502", "needs approval [limit]", "Warning: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	for _, omitted := range []string{"workers-2001", "pinned-2503", ".tf", "guard: allowed"} {
		if strings.Contains(out.String(), omitted) {
			t.Errorf("the output has %q:\n%s", omitted, &out)
		}
	}
	for _, o := range []options{{quiet: true, verbose: true}, {quiet: true, diff: true}} {
		if err := o.check(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestSummaryCutsOnce checks that a hash beside the widest label is cut once, at its end.
func TestSummaryCutsOnce(t *testing.T) {
	t.Parallel()
	for columns := 60; columns < 76; columns++ {
		var out bytes.Buffer
		w := &printer{Terminal: term.Terminal{Width: columns, Wrap: true}, w: &out}
		w.summary([][]string{{"Change", "create 1 VM"}, {"Hash", strings.Repeat("0123456789abcdef", 4)}, {"Expires", "tomorrow"}})
		checkWidth(t, out.String(), columns)
		if cut := strings.Count(out.String(), "…"); cut > 1 || (cut == 1 && !strings.Contains(out.String(), "…\n")) {
			t.Errorf("%d columns: the hash is not cut once at its end:\n%s", columns, &out)
		}
	}
}

// TestSummary checks that the summary above a question has at most 10 lines.
func TestSummary(t *testing.T) {
	t.Parallel()
	priced := recorded(40)
	priced.Cost.PerHour, priced.Cost.Currency = 2.4512, "EUR"
	undo := recorded(40)
	undo.Actions = slices.DeleteFunc(undo.Actions, func(a actionReport) bool { return a.Action != actionDestroy })
	undo.undoes = "the change 20261128T044907Z-07264232a7"
	for _, test := range []struct {
		report *report
		wants  []string
	}{
		{recorded(40), []string{"destroy 2 VMs", "re-create 1 VM", "+156 vCPUs, +312 GiB memory, +1140 GiB disk\n", "the disks of pinned-2500", "0123456789abcdef"}},
		{priced, []string{"re-create 1 VM", "+2.45 EUR/h (about +1789 EUR/month)\n", "the disks of pinned-2500"}},
		{undo, []string{"destroy 2 VMs", "20261128T044907Z-07264232a7", "+156 vCPUs"}},
	} {
		var out bytes.Buffer
		process := Process{Stdout: &out, Environ: []string{"COLUMNS=60"}}
		w := newPrinter(process)
		w.summary(test.report.summary(test.report.Digest))
		text := strings.TrimSpace(out.String())
		if lines := strings.Count(text, "\n") + 1; lines > 10 {
			t.Errorf("%d lines:\n%s", lines, text)
		}
		checkWidth(t, text, 60)
		for _, want := range test.wants {
			if !strings.Contains(text, want) {
				t.Errorf("the summary lacks %q:\n%s", want, text)
			}
		}
	}
}

// TestSizes checks which VMs of a plan count towards its cost: a VM whose size in Proxmox
// differs from its file changes, a woken one was stopped, and an imported one stays.
func TestSizes(t *testing.T) {
	t.Parallel()
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	vm := func(key fleet.Key, vcpus int, standby bool) fleet.VM {
		vm := fleet.VM{Key: key, VMID: 2000, Standby: standby, Spec: fleet.Spec{VCPUs: vcpus, MemoryMiB: 1024}}
		vm.Host = host
		return vm
	}
	target := func(key fleet.Key) []guard.Target { return []guard.Target{{Key: key}} }
	p := &proposal{change: &scaler.Change{
		Before:   fleet.Fleet{VMs: []fleet.VM{vm("gone", 1, false), vm("grown", 4, false), vm("woken", 2, true), vm("found", 2, false)}},
		After:    fleet.Fleet{VMs: []fleet.VM{vm("new", 8, false), vm("grown", 4, false), vm("woken", 2, false), vm("found", 2, false)}},
		Added:    []fleet.VM{vm("new", 8, false)},
		Removed:  []fleet.VM{vm("gone", 1, false)},
		Snapshot: &topology.Snapshot{Hosts: []topology.Host{{Region: "lab", Name: "pve-1", Guests: []topology.Guest{{VMID: 2000, Key: "grown", VCPUs: 6, MemoryMiB: 2048}}}}},
	}}
	wants := func(wantBefore, wantAfter []fleet.VM) {
		t.Helper()
		before, after := p.sizes()
		if diff := gocmp.Diff(wantBefore, before); diff != "" {
			t.Errorf("before (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(wantAfter, after); diff != "" {
			t.Errorf("after (-want +got):\n%s", diff)
		}
	}
	wants(p.change.Removed, p.change.Added)
	p.plans = []scaler.RootPlan{{Host: host, Intent: guard.Intent{
		Create: target("new"), Delete: target("gone"), Update: target("grown"), Wake: target("woken"), Import: target("found"),
	}}}
	grown := vm("grown", 6, false)
	grown.MemoryMiB = 2048
	wants(
		[]fleet.VM{vm("gone", 1, false), grown, vm("woken", 2, true)},
		[]fleet.VM{vm("new", 8, false), vm("grown", 4, false), vm("woken", 2, false)},
	)
}

// TestUnapplied checks that the error of a denied change names the hosts whose other changes
// were not applied either.
func TestUnapplied(t *testing.T) {
	t.Parallel()
	on := func(host topology.HostName, decision guard.Decision, targets ...guard.Target) scaler.RootPlan {
		return scaler.RootPlan{
			Host: topology.HostID{Region: "lab", Host: host}, Intent: guard.Intent{Create: targets}, Verdict: guard.Verdict{Decision: decision},
		}
	}
	denied := on("pve-1", guard.Deny, guard.Target{})
	p := &proposal{plans: []scaler.RootPlan{denied, on("pve-2", guard.Allow, guard.Target{}), on("pve-3", guard.Allow)}}
	failure := &scaler.DeniedError{Host: denied.Host, Verdict: denied.Verdict}
	err := p.unapplied(failure)
	if want := "nothing was changed on any host, including 1 host whose plans the guard does not deny (lab/pve-2)"; !strings.Contains(err.Error(), want) {
		t.Errorf("error %q, want %q in it", err, want)
	}
	if !errors.Is(err, failure) {
		t.Errorf("%v does not wrap the denial", err)
	}
	p.plans = p.plans[:1]
	if err := p.unapplied(failure); !strings.HasSuffix(err.Error(), "\nnothing was changed") {
		t.Errorf("one host: %q", err)
	}
}

// TestNextCommand checks that the command after a plan reads the same fleet, cluster and
// hosts.
func TestNextCommand(t *testing.T) {
	t.Parallel()
	cluster := operator.Kubeconfig{Path: "admin conf", Context: "lab"}
	refused := &report{Pods: &podsReport{Refusals: []refusalReport{{Pod: "default/web"}}}}
	for want, tt := range map[string]struct {
		report  *report
		changes bool
		o       options
	}{
		"numaform apply -f m": {&report{}, true, options{files: []string{"m"}}},
		"numaform apply --kubeconfig 'admin conf' --context lab": {&report{}, true, options{kubeconfig: cluster}},
		"numaform status": {&report{}, false, options{files: []string{"m"}}},
		"numaform status --config x.yaml --kubeconfig 'admin conf' --context lab":  {&report{}, false, options{config: "x.yaml", kubeconfig: cluster}},
		"numaform explain pod default/web --config x.yaml -f m --snapshot s.json":  {refused, false, options{config: "x.yaml", files: []string{"m"}, snapshot: "s.json"}},
		"numaform explain pod default/web --kubeconfig 'admin conf' --context lab": {refused, false, options{kubeconfig: cluster}},
	} {
		tt.o.config = cmp.Or(tt.o.config, "numaform.yaml")
		var out bytes.Buffer
		newPrinter(Process{Stdout: &out}).next(tt.report, tt.changes, &tt.o, "numaform apply")
		if !strings.HasSuffix(out.String(), ": "+want+"\n") {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}

// planText returns the output of plan in a terminal.
func planText(r *report, columns int, color string) string {
	var out bytes.Buffer
	w := newPrinter(Process{Stdout: &out, Environ: []string{fmt.Sprintf("COLUMNS=%d", columns)}, color: &color})
	o := &options{config: "numaform.yaml", files: []string{"manifests/"}}
	r.decides = len(r.Hosts) <= 3
	w.report(r, o)
	if r.decides { // otherwise, the plan ends with an error
		w.next(r, true, o, "numaform apply")
	}
	return out.String()
}

func checkWidth(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if got := ansi.StringWidth(strings.TrimSuffix(line, "\n")); got > columns {
			t.Errorf("%d columns, terminal has %d: %s", got, columns, line)
		}
	}
}

// clause matches the end of a sentence or clause, and lineStart the start of a line that does
// not continue another.
var (
	clause    = regexp.MustCompile(`[.:;()]\s`)
	lineStart = regexp.MustCompile(`\n {0,2}(\S)`)
)

// checkRepeats reports sentences of at least 5 words that appear twice.
func checkRepeats(t *testing.T, text string) {
	t.Helper()
	seen := map[string]bool{}
	for _, sentence := range clause.Split(lineStart.ReplaceAllString(text, ".\n$1"), -1) {
		words := strings.Fields(sentence)
		sentence = strings.Join(words, " ")
		row := strings.Contains(sentence, "c1.4VCPU-8GB") || strings.Contains(sentence, "to add, 0 to change") || strings.Contains(sentence, "GiB memory")
		if len(words) < 5 || row {
			continue
		}
		if seen[sentence] {
			t.Errorf("printed twice: %s", sentence)
		}
		seen[sentence] = true
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" { // a flag of the external tests
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got): run go test ./internal/cli -run PlanOutput -update\n%s", name, diff)
	}
}

// TestAsAbove checks that "as above" refers to the row above.
func TestAsAbove(t *testing.T) {
	t.Parallel()
	r := &report{VMs: []vmReport{{Name: "b"}}}
	for _, name := range []string{"a", "b", "c"} {
		action := actionReport{Action: actionCreate, Name: name, Reason: reasonMade}
		if name == "b" {
			action.Reason = "the fullest host that has room"
		}
		r.Actions = append(r.Actions, action)
	}
	var out bytes.Buffer
	w := newPrinter(Process{Stdout: &out})
	w.actions(r, false)
	var rows []string
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "+ ") {
			rows = append(rows, line)
		}
	}
	if len(rows) != 3 || !strings.Contains(rows[1], reasonMade) || !strings.Contains(rows[2], "as above") {
		t.Errorf("want b, then a with its reason, then c as above:\n%s", out.String())
	}
}

// TestSource checks that the flags of a printed command are single words for a shell.
func TestSource(t *testing.T) {
	t.Parallel()
	o := options{config: "my config.yaml", files: []string{"manifests", "it's"}}
	o.kubeconfig.Context = "admin@lab"
	if got, want := o.source(), ` --config 'my config.yaml' -f manifests -f 'it'\''s' --context admin@lab`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestLockLines checks that status lists the holders of locks, each with its places and the
// earliest time, and once that the locks of states are unknown.
func TestLockLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 13, 45, 1, 0, time.UTC)
	const apply = "OperationTypeApply"
	r := &status.Report{Locks: []status.Lock{
		{Where: status.FleetLock, Holder: "process 7 on a"},
		{Where: "state of lab/pve-1", Holder: "root@a", Since: at.Add(time.Second), Operation: apply},
		{Where: "state of lab/pve-2", Holder: "root@a", Since: at, Operation: apply},
		{Where: "state of lab/pve-3", Holder: "root@b", Since: at, Operation: apply},
		{Where: "state of lab/pve-4", Holder: "an unknown process"},
	}}
	want := []string{
		"fleet: held by process 7 on a",
		"state of lab/pve-1, state of lab/pve-2: held by root@a since 2026-11-21T13:45:01Z or later for " + apply,
		"state of lab/pve-3: held by root@b since 2026-11-21T13:45:01Z for " + apply,
		"state of lab/pve-4: held by an unknown process",
		"if the holder of a state is dead: numaform unlock HOST",
	}
	if diff := gocmp.Diff(want, lockLines(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o := &options{config: "numaform.yaml"}
	if got := nextAfter(r, 0, o, podSource{known: true}); got != "numaform status --watch" {
		t.Errorf("while a process holds the lock of the fleet: %s", got)
	}
	r.Locks = r.Locks[1:]
	if got := nextAfter(r, 0, o, podSource{known: true}); got != "numaform doctor" {
		t.Errorf("while only states are locked: %s", got)
	}
	r = &status.Report{UnknownLocks: "only the engine can read locks of the backend pg"}
	if got := lockLines(r); len(got) != 1 || !strings.HasSuffix(got[0], "the backend pg: to check them, run numaform doctor") {
		t.Errorf("unknown locks: %q", got)
	}
}
