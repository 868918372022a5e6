package page

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// pageSize is the number of rows of a table on one page.
const pageSize = 100

// mostLines is the number of lines up to which the overview lists problems.
const mostLines = 40

// view is a kind of page.
type view struct {
	// template is the name of the template, and tab the entry of the navigation.
	template, tab string
	// show returns the title and the content of the template, or what does not exist and
	// an error.
	show func(p *Page, data *Data, r *http.Request) (title string, body any, err error)
}

// views are the views by their path below Root. Paths have one element, so that links work
// behind a proxy that serves the page below another path.
var views = map[string]view{
	"":        {"overview", "overview", showOverview},
	"vms":     {"vms", "vms", showVMs},
	"hosts":   {"hosts", "hosts", showHosts},
	"host":    {"host", "hosts", showHost},
	"plans":   {"plans", "plans", showPlans},
	"plan":    {"plan", "plans", showPlan},
	"history": {"history", "history", showHistory},
	"change":  {"change", "history", showChange},
}

// lines are the first lines of a list, and the number of the others.
type lines struct {
	First []string
	More  int
}

func firstOf(list []string) lines {
	n := min(len(list), mostLines)
	return lines{First: list[:n], More: len(list) - n}
}

// count is a number with its name.
type count struct {
	Name string
	N    int
}

// overview is the content of the first page.
type overview struct {
	*status.Report
	States    []count
	Online    int
	Waits     []Wait
	Paused    bool
	PausedBy  string
	Evacuated []string
	Regions   []regionRow
	Failures  lines
	Drifted   lines
	Trouble   lines
}

// regionRow has the sums of the hosts of a region. Only online hosts have free resources.
type regionRow struct {
	Region                                 topology.RegionName
	Hosts, Online, CPUs, Free, VMs, Others int
	MemoryMiB, FreeMiB                     int64
}

func showOverview(_ *Page, data *Data, _ *http.Request) (string, any, error) {
	r := data.Status
	o := &overview{Report: r, Waits: data.Waits, Paused: data.Paused, PausedBy: data.PausedBy, Trouble: firstOf(r.Problems)}
	states := map[string]int{}
	for i := range r.VMs {
		states[r.VMs[i].State]++
	}
	for _, state := range vmStates {
		if states[state] > 0 {
			o.States = append(o.States, count{Name: state, N: states[state]})
		}
	}
	for _, host := range data.Evacuated {
		o.Evacuated = append(o.Evacuated, host.String())
	}
	regions := map[topology.RegionName]*regionRow{}
	for i := range r.Hosts {
		host := &r.Hosts[i]
		row := regions[host.Host.Region]
		if row == nil {
			row = &regionRow{Region: host.Host.Region}
			regions[host.Host.Region] = row
		}
		row.Hosts++
		row.CPUs += host.CPUs
		row.VMs += host.VMs
		row.Others += host.Others
		row.MemoryMiB += host.MemoryMiB
		if host.State == status.HostOnline {
			o.Online++
			row.Online++
			row.Free += host.FreeCPUs
			row.FreeMiB += host.FreeMemoryMiB
		}
	}
	for _, row := range regions {
		o.Regions = append(o.Regions, *row)
	}
	slices.SortFunc(o.Regions, func(a, b regionRow) int { return cmp.Compare(a.Region, b.Region) })

	var failed, drifted doctor.Report
	for _, f := range r.Failed {
		text, _, _ := strings.Cut(f.Error, "\n")
		failed = append(failed, doctor.Finding{Where: f.Host.String(), What: strings.TrimPrefix(text, "host "+f.Host.String()+": ")})
	}
	for _, d := range r.Drift {
		drifted = append(drifted, doctor.Finding{Where: d.VM, What: d.What})
	}
	o.Failures, o.Drifted = firstOf(failed.Lines()), firstOf(drifted.Lines())
	return "Overview", o, nil
}

// vmStates are the states of VMs in the order of the overview.
var vmStates = []string{status.VMRunning, status.VMStandby, status.VMStopped, status.VMLocked, status.VMMissing, status.VMUnknown}

// pager links the pages of a table.
type pager struct {
	From, To, Total int
	// Previous and Next are the links to the other pages, or empty.
	Previous, Next string
}

// slice returns the rows of the page that a request selects.
func slice[T any](rows []T, query url.Values) ([]T, pager) {
	number, err := strconv.Atoi(query.Get("page"))
	last := max(1, (len(rows)+pageSize-1)/pageSize)
	if err != nil || number < 1 {
		number = 1
	}
	number = min(number, last)
	from, to := (number-1)*pageSize, min(number*pageSize, len(rows))
	other := func(n int) string {
		if n < 1 || n > last {
			return ""
		}
		selected := url.Values{}
		for key, values := range query {
			if values[0] != "" {
				selected.Set(key, values[0])
			}
		}
		selected.Set("page", strconv.Itoa(n))
		return "?" + selected.Encode()
	}
	return rows[from:to], pager{From: min(from+1, to), To: to, Total: len(rows), Previous: other(number - 1), Next: other(number + 1)}
}

// choice is an option of a filter.
type choice struct {
	Value    string
	Selected bool
}

func choices(values []string, selected string) []choice {
	list := make([]choice, len(values))
	for i, value := range values {
		list[i] = choice{Value: value, Selected: value == selected}
	}
	return list
}

type vmsView struct {
	Query         string
	Pools, States []choice
	VMs           []*status.VM
	Pager         pager
}

func showVMs(_ *Page, data *Data, r *http.Request) (string, any, error) {
	query := r.URL.Query()
	text, pool, state := strings.ToLower(strings.TrimSpace(query.Get("q"))), query.Get("pool"), query.Get("state")
	var found []*status.VM
	for i := range data.Status.VMs {
		vm := &data.Status.VMs[i]
		if pool != "" && vm.Pool != pool || state != "" && vm.State != state {
			continue
		}
		if text == "" || contains(vm.Name, text) || contains(vm.Host.String(), text) || contains(vm.InstanceType, text) || fmt.Sprint(vm.VMID) == text {
			found = append(found, vm)
		}
	}
	v := &vmsView{Query: query.Get("q"), States: choices(vmStates, state)}
	var pools []string
	for i := range data.Status.Pools {
		pools = append(pools, data.Status.Pools[i].Name)
	}
	v.Pools = choices(pools, pool)
	v.VMs, v.Pager = slice(found, query)
	return "VMs", v, nil
}

type hostsView struct {
	Query string
	Hosts []*status.Host
	Pager pager
}

func showHosts(_ *Page, data *Data, r *http.Request) (string, any, error) {
	query := r.URL.Query()
	text := strings.ToLower(strings.TrimSpace(query.Get("q")))
	var found []*status.Host
	for i := range data.Status.Hosts {
		host := &data.Status.Hosts[i]
		if text == "" || contains(host.Host.String(), text) || contains(host.State, text) {
			found = append(found, host)
		}
	}
	v := &hostsView{Query: query.Get("q")}
	v.Hosts, v.Pager = slice(found, query)
	return "Hosts", v, nil
}

type hostView struct {
	*status.Host
	Model   string
	Problem string
	// Map is the CPU map as text.
	Map   string
	VMs   []*status.VM
	Notes []string
}

func showHost(p *Page, data *Data, r *http.Request) (string, any, error) {
	host, ok := hostOf(data, r)
	if !ok {
		return "This host", nil, errNotFound
	}
	drawn, owners := p.drawable(data, host)
	return host.ID().String(), &hostView{
		Host: data.hosts[host.ID()], Model: host.Model, Problem: host.Problem,
		Map: cpumap.Text(&drawn, owners, cpumap.Options{Width: 100}), VMs: data.vms[host.ID()],
	}, nil
}

type planRow struct {
	Name, Phase, Direction, Verdict, Summary, Created, Expires string
}

type plansView struct {
	Plans []planRow
	Waits []Wait
	Pager pager
}

func showPlans(_ *Page, data *Data, r *http.Request) (string, any, error) {
	rows := make([]planRow, 0, len(data.Plans))
	for i := range slices.Backward(data.Plans) { // the newest one first
		plan := &data.Plans[i]
		rows = append(rows, planRow{
			Name: plan.Name, Phase: string(status.Phase(plan)), Direction: string(plan.Spec.Direction), Verdict: string(plan.Spec.Verdict.Decision),
			Summary: plan.Spec.Summary, Created: at(plan.CreationTimestamp.Time), Expires: at(plan.Spec.ExpiresAt.Time),
		})
	}
	// What waits comes first.
	slices.SortStableFunc(rows, func(a, b planRow) int { return rank(a.Phase) - rank(b.Phase) })
	v := &plansView{Waits: data.Waits}
	v.Plans, v.Pager = slice(rows, r.URL.Query())
	return "Changes for approval", v, nil
}

func rank(phase string) int {
	if phase == string(v1alpha1.ScalePlanPending) {
		return 0
	}
	return 1
}

// fact is a line of a list of facts.
type fact struct{ Name, Value string }

// diffLine is a line of a plan's diff.
type diffLine struct {
	// Class is the CSS class of a line that adds, removes or changes something.
	Class, Text string
}

type planView struct {
	Facts   []fact
	Reasons []string
	VMs     []v1alpha1.ScalePlanVM
	Diff    []diffLine
	Pending bool
	Name    string
	Hash    string
}

func showPlan(p *Page, _ *Data, r *http.Request) (string, any, error) {
	plan, err := p.config.Plan(r.Context(), r.URL.Query().Get("name"))
	if err != nil {
		return "This change", nil, err
	}
	spec := &plan.Spec
	v := &planView{
		Name: plan.Name, Hash: spec.PlanHash, Reasons: spec.Reasons, VMs: spec.VMs, Diff: diffLines(p.clean(spec.Diff)),
		Pending: status.Phase(plan) == v1alpha1.ScalePlanPending && spec.Approve == "",
	}
	v.Facts = facts(
		"Phase", strings.TrimSuffix(string(status.Phase(plan))+": "+plan.Status.Result, ": "),
		"Change", spec.Summary,
		"NodePools", strings.Join(spec.NodePools, ", "),
		"Requested by", strings.TrimSuffix(spec.RequestedBy+": "+spec.Why, ": "),
		"Guard", string(spec.Verdict.Decision),
		"Cost", spec.Cost,
		"Created", at(plan.CreationTimestamp.Time),
		"Expires", at(spec.ExpiresAt.Time),
		"Approved by", cmp.Or(plan.Status.Approver, spec.ApprovedBy),
		"Rejected by", strings.TrimSuffix(spec.RejectedBy+": "+spec.Reject, ": "),
		"Waits for", status.WaitsFor(plan),
		"Break-glass", status.BreakGlass(spec),
		"Hash", spec.PlanHash,
	)
	return plan.Name, v, nil
}

// facts returns the facts of names and values, without those that have no value.
func facts(pairs ...string) []fact {
	var list []fact
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			list = append(list, fact{Name: pair[0], Value: pair[1]})
		}
	}
	return list
}

// diffLines marks the lines of a diff that add, remove or change something, and the headings
// of hosts.
func diffLines(diff string) []diffLine {
	var list []diffLine
	for line := range strings.Lines(diff) {
		line = strings.TrimRight(line, "\r\n")
		class := ""
		switch text := strings.TrimLeft(line, " "); {
		case strings.HasPrefix(line, "# Host "):
			class = "head"
		case strings.HasPrefix(text, "-/+ "), strings.HasPrefix(text, "+/- "), strings.HasPrefix(text, "~ "):
			class = "chg"
		case strings.HasPrefix(text, "+ "):
			class = "add"
		case strings.HasPrefix(text, "- "):
			class = "del"
		}
		list = append(list, diffLine{Class: class, Text: line})
	}
	return list
}

type historyRow struct {
	ID, Time, Kind, Verdict, Result, By, Why string
	Bad                                      bool
}

type historyView struct {
	Query   string
	Days    int
	Changes []historyRow
	Pager   pager
}

func showHistory(_ *Page, data *Data, r *http.Request) (string, any, error) {
	query := r.URL.Query()
	text := strings.ToLower(strings.TrimSpace(query.Get("q")))
	var rows []historyRow
	for i := range slices.Backward(data.History) { // the newest one first
		entry := &data.History[i]
		row := historyRow{
			ID: entry.Change.ID, Time: at(entry.Change.Time), Kind: string(entry.Change.Kind), Verdict: status.Decision(&entry.Change).String(),
			Result: status.Result(entry), By: status.By(&entry.Change), Why: entry.Change.Why, Bad: bad(entry),
		}
		if text == "" || entry.Change.Names(query.Get("q")) || slices.ContainsFunc([]string{row.ID, row.Kind, row.Result, row.By, row.Why}, func(s string) bool { return contains(s, text) }) {
			rows = append(rows, row)
		}
	}
	v := &historyView{Query: query.Get("q"), Days: HistoryDays}
	v.Changes, v.Pager = slice(rows, query)
	return "History", v, nil
}

// bad reports whether a change failed, or its records cannot be relied on.
func bad(entry *audit.Entry) bool {
	if !entry.Verified || entry.Unreadable != "" {
		return true
	}
	return entry.Outcome != nil && (!entry.OutcomeVerified || slices.ContainsFunc(entry.Outcome.Hosts, func(h audit.Ended) bool { return h.Error != "" }))
}

// vmChange is a VM of a change.
type vmChange struct{ Action, Name, Host, Reason string }

// hostChange is the part of a change on one host.
type hostChange struct {
	Host, Counts, Verdict string
	PlanDigest, Plan      string
	Errors                []string
}

type changeView struct {
	Facts []fact
	VMs   []vmChange
	Hosts []hostChange
	// Plans are the names of the ScalePlans that approved the change.
	Plans   []string
	Outside []string
}

func showChange(_ *Page, data *Data, r *http.Request) (string, any, error) {
	id := r.URL.Query().Get("id")
	i := slices.IndexFunc(data.History, func(e audit.Entry) bool { return e.Change.ID == id })
	if i < 0 {
		return "This change", nil, errNotFound
	}
	entry := &data.History[i]
	change := &entry.Change
	v := &changeView{Outside: change.Outside}
	v.Facts = facts(
		"Kind", string(change.Kind),
		"Why", change.Why,
		"When", at(change.Time),
		"By", strings.TrimSuffix(status.By(change)+", numaform "+change.Version, ", numaform "),
		"Result", status.Result(entry),
		"Problem", entry.Unreadable,
		"Undoes", change.Undoes,
		"Commit", entry.Commit,
	)
	for _, approval := range change.Approvals() {
		text := approval.By + ", digest " + approval.Digest
		if approval.BreakGlass != "" {
			text += ", BREAK-GLASS: " + approval.BreakGlass
		}
		v.Facts = append(v.Facts, fact{Name: "Approval", Value: text})
		known := func(plan v1alpha1.ScalePlan) bool { return plan.Name == approval.ScalePlan }
		if approval.ScalePlan != "" && slices.ContainsFunc(data.Plans, known) && !slices.Contains(v.Plans, approval.ScalePlan) {
			v.Plans = append(v.Plans, approval.ScalePlan)
		}
	}
	for _, group := range []struct {
		action string
		vms    []fleet.VM
	}{
		{"added", change.Added},
		{"removed", change.Removed},
		{"woken", change.Woken},
		{"standby again", change.Rested},
		{"adopted", change.Adopted},
		{"VMID changed", change.Renumbered},
	} {
		for i := range group.vms {
			vm := &group.vms[i]
			one := vmChange{Action: group.action, Name: vm.Name, Host: vm.Host.String()}
			if group.action == "added" {
				one.Reason = vm.Reason // of the placement
			}
			v.VMs = append(v.VMs, one)
		}
	}
	for i := range change.Hosts {
		v.Hosts = append(v.Hosts, hostChangeOf(&change.Hosts[i], entry.Outcome))
	}
	return id, v, nil
}

func hostChangeOf(plan *audit.HostPlan, outcome *audit.Outcome) hostChange {
	one := hostChange{Host: plan.Host.String(), Verdict: plan.Verdict.String(), PlanDigest: plan.PlanDigest, Plan: plan.PlanSHA256}
	var counts []string
	for _, group := range []struct {
		action  string
		targets []guard.Target
	}{
		{"create", plan.Create},
		{"delete", plan.Delete},
		{"import", plan.Import},
		{"update", plan.Update},
		{"wake", plan.Wake},
	} {
		if len(group.targets) > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", group.action, len(group.targets)))
		}
	}
	one.Counts = cmp.Or(strings.Join(counts, ", "), "no changes")
	if plan.Error != "" {
		one.Errors = append(one.Errors, "not planned: "+plan.Error)
	}
	if outcome == nil {
		return one
	}
	for _, host := range outcome.Hosts {
		if host.Host == plan.Host && host.Error != "" {
			one.Errors = append(one.Errors, fmt.Sprintf("failed after %s: %s", host.Duration.Round(time.Millisecond), host.Error))
		}
	}
	return one
}
