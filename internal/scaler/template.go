package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Templates have roots of their own, one per host, next to the roots of the nodes: the
// download of an image can take an hour, and does not block the nodes of the host. A change
// of templates is planned, checked, recorded and applied as a change of nodes, by the same
// functions, but one host at a time, and it is level-based: the Writer compares what is
// desired with the files and with Proxmox, and plans a root if they differ.

// maxTemplateApplies limits how many hosts create templates at the same time, because each
// download uses the network, and each apply is an engine.
const maxTemplateApplies = 4

// longestTemplateDelay limits the delay of a template that fails repeatedly, because each
// attempt may download the image again.
const longestTemplateDelay = 30 * time.Minute

// TemplateRequest is what a ProxmoxTemplate requests. VMIDs and serials of its templates are
// ignored: the Writer assigns them.
type TemplateRequest struct {
	// Templates are the desired templates, at most one per host.
	Templates []fleet.Template
	// Blocked are the reasons why hosts cannot create the template now.
	Blocked map[topology.HostID]string
	// Shared are the regions in which the template's disks are on shared storage: one host
	// has the template for all of its region.
	Shared map[topology.RegionName]bool
	// Deleted is set if the ProxmoxTemplate is being deleted.
	Deleted bool
	// Gone are the hosts that left the Proxmox cluster: their templates are forgotten.
	Gone []topology.HostID
	// Approved are the digests of the plans that a user approved, and Approver the source of
	// the approval.
	Approved []string
	Approver string
	// Manual requires an approval of each plan.
	Manual bool
}

// TemplateState is the state of one template in a Writer.
type TemplateState struct {
	Template fleet.Template
	// Desired is set if the ProxmoxTemplate desires the template, and not only its users.
	Desired bool
	// Ready is set once the template can be cloned, and Applying while its host's root is
	// applied.
	Ready, Applying bool
	// Err is why the template was not created, changed or deleted, or nil.
	Err error
	// Digest is the digest of the plan that is pending approval, or empty.
	Digest string
	// Users are the VMs that were cloned from the template.
	Users []string
	// updating is set if the template is ready, and changes in place.
	updating bool
}

// templateRoot is the writer's record of the root of a host's templates.
type templateRoot struct {
	states   []TemplateState
	applying bool
	retry    delay
	// requested identifies the request of the last attempt: another one is tried at once.
	requested string
	err       error
	digest    string
}

// SetTemplates sets the desired templates of a ProxmoxTemplate. It is idempotent.
func (w *Writer) SetTemplates(name string, request TemplateRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.templates[name] = request
	w.nudge()
}

// ForgetTemplates forgets a ProxmoxTemplate that no longer exists.
func (w *Writer) ForgetTemplates(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.templates, name)
}

// Templates returns the templates of a ProxmoxTemplate, sorted by host and VMID, and false if
// the Writer has not compared them yet with the files and with Proxmox.
func (w *Writer) Templates(name string) (states []TemplateState, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, host := range slices.SortedFunc(maps.Keys(w.templateRoots), topology.HostID.Compare) {
		root := w.templateRoots[host]
		for _, state := range root.states {
			if state.Template.Of != name {
				continue
			}
			state.Applying = root.applying && !state.Ready
			if state.Err == nil && (!state.Ready || !state.Desired || state.updating) {
				state.Err = root.err
				state.Digest = root.digest
			}
			states = append(states, state)
		}
	}
	return states, w.templatesKnown
}

// templateReading is what is desired, filed and real: the requests of ProxmoxTemplates by
// name, the templates in the files by host, and Proxmox.
type templateReading struct {
	requests map[string]TemplateRequest
	filed    map[topology.HostID][]fleet.Template
	from     *reading
	snapshot *topology.Snapshot
}

// wanted returns the desired templates of a host by ProxmoxTemplate, without templates that
// another host has for it.
func (r *templateReading) wanted(host topology.HostID) map[string]fleet.Template {
	wanted := map[string]fleet.Template{}
	for name, request := range r.requests {
		for i := range request.Templates {
			if request.Templates[i].Host == host && !request.Deleted && !r.elsewhere(&request, host) {
				wanted[name] = request.Templates[i]
			}
		}
	}
	return wanted
}

// stepTemplates begins at most one change of templates, and returns the time until the next
// attempt; 0 means at the next poll.
func (w *Writer) stepTemplates(ctx context.Context) (again time.Duration, err error) {
	s := w.scaler
	w.mu.Lock()
	r := &templateReading{requests: maps.Clone(w.templates)}
	w.mu.Unlock()
	if len(r.requests) == 0 || w.config.Paused() {
		return 0, nil
	}
	if r.snapshot, err = w.config.Snapshot(ctx); err != nil {
		return soon, err
	}
	if r.from, err = s.read(ctx); err != nil {
		return soon, err
	}
	if r.filed, err = s.config.Release.ParseTemplates(s.config.ClusterID, r.from.files); err != nil {
		return soon, err
	}
	next, again := w.nextTemplates(r)
	if next == nil {
		return again, nil
	}
	if w.unlock == nil {
		if w.unlock, err = s.config.Store.Lock(ctx); err != nil {
			return soon, err
		}
	}
	change := newChange(r.from, r.snapshot)
	change.Kind, change.Why = audit.KindTemplates, strings.Join(next.why, "; ")
	change.narrow, change.templates = true, next
	next.allFiles(s, change)
	begun, err := s.begin(ctx, change, func(plans []RootPlan) (string, error) { return w.approveTemplates(&plans[0], change) })
	if err != nil {
		w.templatesEnded(ctx, next.host, err)
		return time.Millisecond, nil
	}
	w.mu.Lock()
	w.applying++
	w.templateRoots[next.host].applying = true
	w.mu.Unlock()
	ctx = logBegun(ctx, begun)
	w.group.Go(func() {
		_, err := s.finish(ctx, begun, func(Result) {})
		logEnded(ctx, begun, s.config.Clock.Since(begun.started), err)
		w.templatesEnded(ctx, next.host, err)
		w.config.Changed(next.host.Region) // the templates in the snapshot are outdated
		w.nudge()
	})
	return time.Millisecond, nil
}

// nextTemplates updates the states of all templates, and returns the change of a host that
// can begin now, or nil and the time until the next attempt.
func (w *Writer) nextTemplates(r *templateReading) (next *templateChange, again time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	applying := 0
	for _, root := range w.templateRoots {
		if root.applying {
			applying++
		}
	}
	hosts := slices.Collect(maps.Keys(r.filed))
	for _, request := range r.requests {
		for i := range request.Templates {
			hosts = append(hosts, request.Templates[i].Host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	hosts = slices.Compact(hosts)
	maps.DeleteFunc(w.templateRoots, func(host topology.HostID, root *templateRoot) bool {
		return !root.applying && !slices.Contains(hosts, host)
	})
	for _, host := range hosts {
		root := w.templateRoots[host]
		if root == nil {
			root = &templateRoot{}
			w.templateRoots[host] = root
		}
		if root.applying {
			continue
		}
		change, err := w.changeTemplates(host, root, r)
		if err != nil {
			root.err = err
			continue
		}
		requested := change.fingerprint()
		switch left := root.retry.until.Sub(now); {
		case len(change.why) == 0:
			root.err, root.digest, root.retry = nil, "", delay{}
		case requested == root.requested && left > 0:
			if again == 0 || left < again {
				again = left
			}
		case next == nil && applying < maxTemplateApplies:
			if requested != root.requested {
				root.retry = delay{}
			}
			root.requested = requested
			next = change
		default:
			again = soon
		}
	}
	w.templatesKnown = true
	return next, again
}

// templateChange is a change of the templates of one host.
type templateChange struct {
	*templateReading
	host   topology.HostID
	intent guard.TemplateIntent
	after  []fleet.Template
	// root are the files of the root after the change, with the module.
	root generator.Files
	// why lists the operations; empty means that nothing has to change. of are the
	// ProxmoxTemplates that they are for.
	why, of []string
	// gone is set if the host left the Proxmox cluster: its templates are forgotten.
	gone bool
}

// add adds an operation to the change.
func (c *templateChange) add(operation string, t *fleet.Template) {
	c.why = append(c.why, operation+" "+t.Name)
	if !slices.Contains(c.of, t.Of) {
		c.of = append(c.of, t.Of)
	}
}

// fingerprint identifies what is requested of a host. Approvals are part of it.
func (c *templateChange) fingerprint() string {
	var parts []string
	for _, name := range c.of {
		parts = append(parts, name+" "+strings.Join(c.requests[name].Approved, ","))
	}
	for _, name := range slices.Sorted(maps.Keys(c.root)) {
		if generator.IsTemplate(name) {
			parts = append(parts, string(c.root[name]))
		}
	}
	return strings.Join(parts, "\n")
}

// changeTemplates compares the desired templates of a host with its files and with Proxmox,
// records their states, and returns the change that is necessary. The caller holds w.mu.
func (w *Writer) changeTemplates(host topology.HostID, root *templateRoot, r *templateReading) (*templateChange, error) {
	s := w.scaler
	live := r.snapshot.Host(host)
	change := &templateChange{
		templateReading: r, host: host,
		intent: guard.TemplateIntent{ClusterID: s.config.ClusterID, VMIDs: s.region(host.Region).TemplateVMIDs},
	}
	root.states = nil
	w.filedTemplates(change, root)
	w.newTemplates(change, root)
	var err error
	switch {
	case (live == nil || live.Absent) && len(change.why) > 0 && !slices.ContainsFunc(change.of, func(name string) bool { return !slices.Contains(r.requests[name].Gone, host) }):
		change.gone = true
		change.root, err = s.config.Release.RenderTemplates(r.from.fleet, host, change.after)
		return change, err
	case live == nil || live.Absent:
		return nil, &TemplateHostError{Reason: fmt.Sprintf("host %s is not part of the Proxmox cluster: its templates wait until it is back, or until the ProxmoxTemplate is deleted", host)}
	case !live.Online:
		return nil, &TemplateHostError{Reason: fmt.Sprintf("host %s is offline: its templates wait until it is back", host)}
	}

	// An unfinished template exists in Proxmox, but is not a template yet.
	fleet.SortTemplates(change.after)
	for i := range change.after {
		t := change.after[i]
		if err := otherOwner(r.snapshot, &t, s.config.ClusterID); err != nil {
			return nil, err
		}
		switch {
		case liveTemplate(live, &t, s.config.ClusterID):
			change.intent.Keep = append(change.intent.Keep, t)
		case guestAt(live, t.VMID) != nil:
			change.intent.Unfinished = append(change.intent.Unfinished, t)
		default:
			change.intent.Create = append(change.intent.Create, t)
		}
	}
	change.root, err = s.config.Release.RenderTemplates(r.from.fleet, host, change.after)
	return change, err
}

// filedTemplates decides about the templates in the files of a host: which of them stay, and
// which are removed.
func (w *Writer) filedTemplates(c *templateChange, root *templateRoot) {
	clusterID := w.scaler.config.ClusterID
	live := c.snapshot.Host(c.host)
	wanted := c.wanted(c.host)
	current := c.filed[c.host]
	for i := range current {
		t := current[i]
		request, known := c.requests[t.Of]
		want, desired := wanted[t.Of]
		ready := liveTemplate(live, &t, clusterID)
		state := TemplateState{Ready: ready, Users: w.usersOf(&t, c.from)}
		// Nodes need a template until its successor is ready, whatever the successor's VMID.
		waits := desired && !hasReady(live, &want, clusterID) || !desired && c.waitsForOther(t.Of, clusterID)
		switch {
		case desired && want.Name == t.Name:
			state.Desired = true
			was := t
			t.Tags, t.Pool = want.Tags, want.Pool
			if newest := c.newestSerial(&t); t.Serial < newest {
				t.Serial = newest + 1 // an earlier image is desired again
			}
			reason := request.Blocked[c.host]
			switch {
			case !ready && reason != "":
				state.Err = &TemplateHostError{Reason: reason}
			case !ready:
				t.Image = want.Image
				c.add("create", &t)
			case t.Serial != was.Serial || t.Pool != was.Pool || !slices.Equal(t.Tags, was.Tags):
				state.updating = true
				c.add("update", &t)
			}
			c.after = append(c.after, t)
		case !known, ready && (len(state.Users) > 0 || waits && !request.Deleted):
			// The ProxmoxTemplate was removed without numaform, or VMs need the template.
			c.after = append(c.after, t)
		case guestAt(live, t.VMID) == nil:
			c.add("remove", &t)
			c.intent.Absent = append(c.intent.Absent, t)
		default:
			c.add("remove", &t)
			c.intent.Delete = append(c.intent.Delete, t)
		}
		state.Template = t
		root.states = append(root.states, state)
	}
}

// newTemplates adds the desired templates that have no file.
func (w *Writer) newTemplates(c *templateChange, root *templateRoot) {
	wanted := c.wanted(c.host)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t := wanted[name]
		if slices.ContainsFunc(c.after, func(other fleet.Template) bool { return other.Of == t.Of && other.Name == t.Name }) {
			continue
		}
		t.Serial = c.newestSerial(&t) + 1
		var err error
		if reason := c.requests[name].Blocked[c.host]; reason != "" {
			err = &TemplateHostError{Reason: reason}
		} else if t.VMID, err = w.scaler.templateVMID(c); err == nil {
			c.add("create", &t)
			c.after = append(c.after, t)
		}
		root.states = append(root.states, TemplateState{Template: t, Desired: true, Err: err})
	}
}

// guestAt returns the guest with a VMID on a host, or nil.
func guestAt(host *topology.Host, vmid fleet.VMID) *topology.Guest {
	if host == nil {
		return nil
	}
	i := slices.IndexFunc(host.Guests, func(g topology.Guest) bool { return fleet.VMID(g.VMID) == vmid })
	if i < 0 {
		return nil
	}
	return &host.Guests[i]
}

// liveTemplate reports whether a template exists on its host and can be cloned.
func liveTemplate(host *topology.Host, t *fleet.Template, clusterID string) bool {
	guest := guestAt(host, t.VMID)
	return guest != nil && guest.Template && guest.Name == t.Name &&
		guest.MadeFor.ClusterID == clusterID && guest.MadeFor.Template == t.Of
}

// TemplateHostError reports that the templates of a host wait, because the host cannot create
// them now.
type TemplateHostError struct{ Reason string }

func (e *TemplateHostError) Error() string { return e.Reason }

// TemplateVMIDTakenError reports that another guest has the VMID of a template.
type TemplateVMIDTakenError struct {
	Template string
	VMID     fleet.VMID
	Guest    string
	Host     topology.HostID
}

func (e *TemplateVMIDTakenError) Error() string {
	return fmt.Sprintf("template %s: VMID %d belongs to guest %q on %s, which numaform did not create for it: give that guest another VMID, "+
		"or remove it; reserve template_vmid_range for numaform", e.Template, e.VMID, e.Guest, e.Host)
}

// otherOwner returns a TemplateVMIDTakenError if another guest of the region has a template's
// VMID.
func otherOwner(snapshot *topology.Snapshot, t *fleet.Template, clusterID string) error {
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Region != t.Host.Region {
			continue
		}
		guest := guestAt(host, t.VMID)
		if guest == nil {
			continue
		}
		if guest.MadeFor.ClusterID != clusterID || guest.MadeFor.Template != t.Of || guest.Name != t.Name || host.ID() != t.Host {
			return &TemplateVMIDTakenError{Template: t.Name, VMID: t.VMID, Guest: guest.Name, Host: host.ID()}
		}
	}
	return nil
}

// usersOf returns the names of the VMs that were or will be cloned from a template, sorted.
// The caller holds w.mu.
func (w *Writer) usersOf(t *fleet.Template, from *reading) []string {
	users := map[string]bool{}
	add := func(vm *fleet.VM) {
		if vm.Source.VMID == t.VMID && vm.Host.Region == t.Host.Region {
			users[vm.Name] = true
		}
	}
	for i := range from.fleet.VMs {
		add(&from.fleet.VMs[i])
	}
	for _, m := range w.members {
		add(&m.VM)
	}
	for _, open := range from.open {
		for i := range open.Removed {
			add(&open.Removed[i])
		}
	}
	return slices.Sorted(maps.Keys(users))
}

// NoTemplateVMIDError reports that a region has no free VMID for a template.
type NoTemplateVMIDError struct {
	Region topology.RegionName
	Range  fleet.VMIDRange
}

func (e *NoTemplateVMIDError) Error() string {
	if e.Range == (fleet.VMIDRange{}) {
		return fmt.Sprintf("region %s has no VMIDs for templates: set clusters[].template_vmid_range in numaform.yaml", e.Region)
	}
	return fmt.Sprintf("region %s: all VMIDs from %d to %d are in use: widen template_vmid_range in numaform.yaml, or remove templates",
		e.Region, e.Range.Lower, e.Range.Upper)
}

// templateVMID returns the lowest free VMID for another template of a change.
func (s *Scaler) templateVMID(c *templateChange) (fleet.VMID, error) {
	region := c.host.Region
	used := map[fleet.VMID]bool{}
	for host, templates := range c.filed {
		for i := range templates {
			used[templates[i].VMID] = used[templates[i].VMID] || host.Region == region
		}
	}
	for i := range c.after {
		used[c.after[i].VMID] = true
	}
	for i := range c.snapshot.Hosts {
		if c.snapshot.Hosts[i].Region != region {
			continue
		}
		for _, guest := range c.snapshot.Hosts[i].Guests {
			used[fleet.VMID(guest.VMID)] = true
		}
	}
	bounds := s.region(region).TemplateVMIDs
	for id := bounds.Lower; id != 0 && id <= bounds.Upper; id++ {
		if !used[id] {
			return id, nil
		}
	}
	return 0, &NoTemplateVMIDError{Region: region, Range: bounds}
}

// forgetTemplates removes the templates of a host from the state, because the host left the
// Proxmox cluster.
func forgetTemplates(ctx context.Context, t *templateChange, plan *RootPlan) error {
	resources, err := plan.workspace.Resources(ctx)
	if err != nil {
		return err
	}
	for i := range resources {
		if !slices.ContainsFunc(slices.Concat(t.intent.Absent, t.intent.Delete), func(one fleet.Template) bool {
			return strings.HasPrefix(resources[i].Address, generator.TemplateCall(&one)+".")
		}) {
			continue
		}
		if err := plan.workspace.Forget(ctx, resources[i].Address); err != nil {
			return err
		}
		plan.outside = append(plan.outside, fmt.Sprintf("removed %s from the state, because host %s left the Proxmox cluster", resources[i].Address, plan.Host))
	}
	return nil
}

// approveTemplates returns who approved a plan of templates, or an error if it must not be
// applied.
func (w *Writer) approveTemplates(plan *RootPlan, change *Change) (approver string, err error) {
	c := plan.templates
	switch {
	case plan.Err != nil:
		return "", plan.Err
	case !plan.Changes() && len(plan.outside) == 0 && sameFiles(change.AfterFiles, change.BeforeFiles):
		return "", &TemplateHostError{Reason: fmt.Sprintf("waits until Proxmox lists the templates of %s, which its state already contains", c.host)}
	case c.gone:
	case plan.Verdict.Decision == guard.Deny:
		return "", &DeniedError{Host: c.host, Verdict: plan.Verdict}
	case plan.Verdict.Decision == guard.NeedsApproval || slices.ContainsFunc(c.of, func(name string) bool { return c.requests[name].Manual }):
		approved := slices.IndexFunc(c.of, func(name string) bool { return slices.Contains(c.requests[name].Approved, plan.Plan.Digest) })
		if approved < 0 {
			return "", &TemplatePendingError{Host: c.host, Digest: plan.Plan.Digest, Why: change.Why, Verdict: plan.Verdict}
		}
		approver = c.requests[c.of[approved]].Approver
	}
	// A lost state is restored, and a template of a host that left is forgotten: neither
	// changes Proxmox.
	if w.config.Gate != nil && !c.gone && !c.intent.Targeted {
		removed := len(c.intent.Delete) + len(c.intent.Absent)
		if window := w.config.Gate.Freeze(len(c.why) > removed, removed > 0); window != "" {
			return "", &TemplateHostError{Reason: "waits for the end of " + window}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range c.intent.Delete {
		if users := w.usersOf(&c.intent.Delete[i], c.from); len(users) > 0 {
			return "", fmt.Errorf("template %d on %s: meanwhile, %s is to be cloned from it: %w", c.intent.Delete[i].VMID, c.host, users[0], ErrFleetChanged)
		}
	}
	return approver, nil
}

// TemplatePendingError reports that a change of templates is pending approval.
type TemplatePendingError struct {
	Host topology.HostID
	// Digest identifies the plan.
	Digest, Why string
	Verdict     guard.Verdict
}

func (e *TemplatePendingError) Error() string {
	text := fmt.Sprintf("pending approval on %s: %s", e.Host, e.Why)
	for _, finding := range e.Verdict.Findings {
		text += "; " + finding.String()
	}
	return text
}

// allFiles sets the fleet's files after the change. The first change of a fleet also writes
// the files that are not about a host.
func (c *templateChange) allFiles(s *Scaler, change *Change) {
	change.AfterFiles = generator.Files{}
	if whole, err := s.config.Release.Render(c.from.fleet); err == nil && len(c.from.files) == 0 {
		maps.Copy(change.AfterFiles, whole)
	}
	dir := generator.TemplateRootDir(c.host)
	for name, content := range c.from.files {
		if path.Dir(name) != dir {
			change.AfterFiles[name] = content
		}
	}
	if !c.gone || len(c.after) > 0 {
		maps.Copy(change.AfterFiles, c.root)
	}
}

func refs(templates []fleet.Template) []audit.TemplateRef {
	var list []audit.TemplateRef
	for i := range templates {
		list = append(list, audit.TemplateRef{Name: templates[i].Name, VMID: templates[i].VMID})
	}
	return list
}

// applyTemplates reads Proxmox again, and applies a plan of templates if it is still valid.
func (s *Scaler) applyTemplates(ctx context.Context, plan *RootPlan) error {
	c := plan.templates
	changing := slices.Concat(c.intent.Create, c.intent.Unfinished, c.intent.Import, c.intent.Incomplete, c.intent.Delete)
	var vmids []fleet.VMID
	for i := range changing {
		vmids = append(vmids, changing[i].VMID)
	}
	if live := s.region(c.host.Region).Live; live != nil {
		now, err := live.Refresh(ctx, c.snapshot, []topology.HostName{c.host.Host}, vmids...)
		if err != nil {
			return fmt.Errorf("reading %s again before its templates change: %w", c.host, err)
		}
		for i := range changing {
			if err := otherOwner(now, &changing[i], s.config.ClusterID); err != nil {
				return err
			}
		}
	}
	watched, stop := s.watch(ctx, c.host)
	watched, span := tracing.Start(watched, tracing.SpanEngineApply)
	_, err := plan.workspace.Apply(watched, plan.Plan)
	tracing.End(span, err)
	return stop(err)
}

// templatesEnded records how an attempt to change the templates of a host ended.
func (w *Writer) templatesEnded(ctx context.Context, host topology.HostID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	root := w.templateRoots[host]
	if root == nil {
		return
	}
	if root.applying {
		root.applying = false
		w.applying--
	}
	root.err, root.digest = err, ""
	if pending, ok := errors.AsType[*TemplatePendingError](err); ok {
		root.digest = pending.Digest
	}
	now := w.scaler.config.Clock.Now()
	switch {
	case errors.Is(err, ErrFleetChanged):
		root.err, root.requested = nil, ""
	case err == nil:
		root.retry = delay{until: now.Add(soon)} // the snapshot can still be outdated
	default:
		root.retry = root.retry.grown(now, longestTemplateDelay)
		log.FromContext(ctx).Info("postponed a change of templates", logkey.Host, host.String(), logkey.Reason, err.Error())
	}
}
