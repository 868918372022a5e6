package scaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/workdir"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// Templates have roots of their own, one per host, next to the roots of the nodes: the
// download of an image can take an hour, and does not block the nodes of the host. A change
// of templates is planned, checked, recorded and applied as a change of nodes, but one host
// at a time, and it is level-based: the Writer compares what is desired with the files and
// with Proxmox, and plans a root if they differ.

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
	// Deleted is set if the ProxmoxTemplate is being deleted.
	Deleted bool
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
			if state.Err == nil && (!state.Ready || !state.Desired) {
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

// readTemplates reads the fleet and Proxmox, or returns nil if there is nothing to do.
func (w *Writer) readTemplates(ctx context.Context) (*templateReading, error) {
	w.mu.Lock()
	r := &templateReading{requests: maps.Clone(w.templates)}
	w.mu.Unlock()
	if len(r.requests) == 0 || w.config.Paused() {
		return nil, nil //nolint:nilnil // nothing is requested
	}
	var err error
	if r.snapshot, err = w.config.Snapshot(ctx); err != nil {
		return nil, err
	}
	if r.from, err = w.scaler.read(ctx); err != nil {
		return nil, err
	}
	r.filed, err = w.scaler.config.Release.ParseTemplates(w.scaler.config.ClusterID, r.from.files)
	return r, err
}

// hosts returns the hosts that have templates or are to have some, sorted.
func (r *templateReading) hosts() []topology.HostID {
	hosts := slices.Collect(maps.Keys(r.filed))
	for _, request := range r.requests {
		for i := range request.Templates {
			hosts = append(hosts, request.Templates[i].Host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	return slices.Compact(hosts)
}

// wanted returns the desired templates of a host by ProxmoxTemplate.
func (r *templateReading) wanted(host topology.HostID) map[string]fleet.Template {
	wanted := map[string]fleet.Template{}
	for name, request := range r.requests {
		for i := range request.Templates {
			if request.Templates[i].Host == host && !request.Deleted {
				wanted[name] = request.Templates[i]
			}
		}
	}
	return wanted
}

// stepTemplates begins at most one change of templates, and returns the time until the next
// attempt; 0 means at the next poll.
func (w *Writer) stepTemplates(ctx context.Context) (again time.Duration, err error) {
	r, err := w.readTemplates(ctx)
	if err != nil {
		return soon, err
	}
	if r == nil {
		return 0, nil
	}
	next, again := w.nextTemplates(r)
	if next == nil {
		return again, nil
	}
	if w.unlock == nil {
		if w.unlock, err = w.scaler.config.Store.Lock(ctx); err != nil {
			return soon, err
		}
	}
	if err := w.beginTemplates(ctx, next); err != nil {
		w.templatesEnded(ctx, next.host, err)
	}
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
	for _, host := range r.hosts() {
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
	switch {
	case live == nil:
		return nil, &TemplateHostError{Reason: fmt.Sprintf("host %s is not in Proxmox: its templates wait until it is back", host)}
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
	var err error
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
		waits := desired && !hasReady(live, &want, clusterID) // nodes need it until its successor is ready
		switch {
		case desired && want.Name == t.Name:
			state.Desired = true
			state.Err = c.desire(&t, &want, ready)
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

// desire updates a template in the files to the desired one, and returns why it cannot be
// created now, or nil.
func (c *templateChange) desire(t, want *fleet.Template, ready bool) error {
	was := *t
	t.Tags, t.Pool = want.Tags, want.Pool
	if newest := newestSerial(c.filed[c.host], t.Of); t.Serial < newest {
		t.Serial = newest + 1 // an earlier image is desired again
	}
	reason := c.requests[t.Of].Blocked[c.host]
	switch {
	case !ready && reason != "":
		return &TemplateHostError{Reason: reason}
	case !ready:
		t.Image = want.Image
		c.add("create", t)
	case !sameTemplate(t, &was):
		c.add("update", t)
	}
	return nil
}

// newTemplates adds the desired templates that have no file.
func (w *Writer) newTemplates(c *templateChange, root *templateRoot) {
	wanted := c.wanted(c.host)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		t := wanted[name]
		if slices.ContainsFunc(c.after, func(other fleet.Template) bool { return other.Of == t.Of && other.Name == t.Name }) {
			continue
		}
		t.Serial = newestSerial(c.filed[c.host], t.Of) + 1
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

// newestSerial returns the highest serial of the templates of a ProxmoxTemplate, or 0.
func newestSerial(templates []fleet.Template, of string) int {
	newest := 0
	for i := range templates {
		if templates[i].Of == of {
			newest = max(newest, templates[i].Serial)
		}
	}
	return newest
}

// sameTemplate reports whether the files of two templates are equal.
func sameTemplate(a, b *fleet.Template) bool {
	return a.Serial == b.Serial && a.Pool == b.Pool && slices.Equal(a.Tags, b.Tags) && a.Image == b.Image
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

// hasReady reports whether a desired template is ready, whatever its VMID.
func hasReady(host *topology.Host, t *fleet.Template, clusterID string) bool {
	if host == nil {
		return false
	}
	return slices.ContainsFunc(host.Guests, func(g topology.Guest) bool {
		one := *t
		one.VMID = fleet.VMID(g.VMID)
		return g.Name == t.Name && liveTemplate(host, &one, clusterID)
	})
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

// beginTemplates plans a change of templates, checks it, records it, and applies it in the
// background. The caller has locked the fleet.
func (w *Writer) beginTemplates(ctx context.Context, change *templateChange) (err error) {
	s := w.scaler
	_, revision, err := s.config.Store.Read(ctx)
	if err != nil {
		return err
	}
	newest, err := s.config.Store.History(ctx, s.config.Clock.Now())
	if err != nil {
		return err
	}
	if revision != change.from.revision || lastOf(newest) != change.from.last {
		return ErrFleetChanged
	}
	at, err := s.permanentPlaces()
	if err != nil {
		return err
	}
	workspace, err := s.templateWorkspace(at, change)
	if err != nil {
		return err
	}
	closing := true
	defer func() {
		if closing {
			err = errors.Join(err, workspace.Close())
		}
	}()

	release := s.engines.plan(ctx)
	started := s.config.Clock.Now()
	recovery, err := workspace.Recover(ctx)
	var plan *state.Plan
	if err == nil {
		plan, err = workspace.Plan(ctx, state.PlanOptions{Refresh: true})
	}
	release()
	s.config.Observe.PlanDone(change.host, s.config.Clock.Since(started), err)
	if err != nil {
		return fmt.Errorf("planning the templates of %s: %w", change.host, err)
	}
	files := change.allFiles(s)
	if !plan.Changes && len(recovery.Outside) == 0 && sameFiles(files, change.from.files) {
		return &TemplateHostError{Reason: fmt.Sprintf("waits until Proxmox lists the templates of %s, which its state already contains", change.host)}
	}
	verdict := guard.CheckTemplates(plan.JSON, change.intent, s.config.Rules)
	approver, err := change.allow(plan, verdict)
	if err != nil {
		return err
	}

	w.mu.Lock()
	for i := range change.intent.Delete {
		if users := w.usersOf(&change.intent.Delete[i], change.from); len(users) > 0 {
			err = fmt.Errorf("template %d on %s: meanwhile, %s is to be cloned from it: %w", change.intent.Delete[i].VMID, change.host, users[0], ErrFleetChanged)
		}
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	record := s.record(&Change{Kind: audit.KindTemplates, Why: strings.Join(change.why, "; "), from: change.from, open: change.from.open, rotations: change.from.rotations}, nil, "")
	record.Kind = audit.KindTemplates
	record.Outside = append(record.Outside, recovery.Outside...)
	record.Templates = []audit.TemplatePlan{{
		Host: change.host, PlanSHA256: plan.SHA256, PlanDigest: plan.Digest, Verdict: verdict, Approver: approver,
		Create: refs(slices.Concat(change.intent.Create, change.intent.Unfinished)), Delete: refs(change.intent.Delete),
	}}
	if err := s.config.Store.Begin(ctx, change.from.revision, files, record); err != nil {
		return err
	}

	closing = false
	w.mu.Lock()
	w.applying++
	w.templateRoots[change.host].applying = true
	w.mu.Unlock()
	log.FromContext(ctx).Info("began a change of templates", logkey.Host, change.host.String(), logkey.Reason, record.Why, logkey.PlanSHA256, plan.SHA256)
	w.group.Go(func() {
		began := s.config.Clock.Now()
		err := s.applyTemplates(ctx, workspace, plan, change)
		err = errors.Join(err, workspace.Close())
		ended := audit.Ended{Host: change.host, Duration: s.config.Clock.Since(began)}
		if err != nil {
			ended.Error = err.Error()
		}
		outcome := s.outcome(record.ID, began, nil)
		outcome.Templates = []audit.Ended{ended}
		err = errors.Join(err, s.config.Store.End(context.WithoutCancel(ctx), outcome))
		w.templatesEnded(ctx, change.host, err)
		w.mu.Lock()
		w.applying--
		w.templateRoots[change.host].applying = false
		w.mu.Unlock()
		w.config.Changed() // the templates in the snapshot are outdated
		w.nudge()
	})
	return nil
}

// allow returns who approved a plan, or an error if it must not be applied.
func (c *templateChange) allow(plan *state.Plan, verdict guard.Verdict) (approver string, err error) {
	switch {
	case verdict.Decision == guard.Deny:
		return "", &DeniedError{Host: c.host, Verdict: verdict}
	case verdict.Decision == guard.Allow && !slices.ContainsFunc(c.of, func(name string) bool { return c.requests[name].Manual }):
		return "", nil
	}
	for _, name := range c.of {
		if slices.Contains(c.requests[name].Approved, plan.Digest) {
			return c.requests[name].Approver, nil
		}
	}
	return "", &TemplatePendingError{Host: c.host, Digest: plan.Digest, Why: strings.Join(c.why, "; "), Verdict: verdict}
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

// allFiles returns the fleet's files after the change. The first change of a fleet also
// writes the files that are not about a host.
func (c *templateChange) allFiles(s *Scaler) generator.Files {
	files := generator.Files{}
	if whole, err := s.config.Release.Render(c.from.fleet); err == nil && len(c.from.files) == 0 {
		maps.Copy(files, whole)
	}
	dir := generator.TemplateRootDir(c.host)
	for name, content := range c.from.files {
		if path.Dir(name) != dir {
			files[name] = content
		}
	}
	maps.Copy(files, c.root)
	return files
}

func refs(templates []fleet.Template) []audit.TemplateRef {
	var list []audit.TemplateRef
	for i := range templates {
		list = append(list, audit.TemplateRef{Name: templates[i].Name, VMID: templates[i].VMID})
	}
	return list
}

// templateWorkspace returns the workspace of a host's templates.
func (s *Scaler) templateWorkspace(at places, change *templateChange) (*state.Workspace, error) {
	root := generator.TemplateRootDir(change.host)
	home := filepath.Join(at.states, filepath.FromSlash(root))
	if err := workdir.Private(home); err != nil {
		return nil, err
	}
	var backend map[string]string
	if s.keepsStates() {
		backend = map[string]string{"path": filepath.Join(home, stateFile)}
	}
	config, err := s.workspaceConfig(at, change.host)
	if err != nil {
		return nil, err
	}
	config.Dir = filepath.Join(at.work, filepath.FromSlash(root))
	config.Files = change.root
	config.Errored = filepath.Join(home, erroredFile)
	config.BackendConfig = backend
	config.Parallelism = 2
	return state.New(config)
}

// applyTemplates reads Proxmox again, and applies a plan of templates if it is still valid.
func (s *Scaler) applyTemplates(ctx context.Context, workspace *state.Workspace, plan *state.Plan, change *templateChange) error {
	if !plan.Changes {
		return nil
	}
	live := s.region(change.host.Region).Live
	var vmids []fleet.VMID
	for _, t := range slices.Concat(change.intent.Create, change.intent.Unfinished, change.intent.Delete) {
		vmids = append(vmids, t.VMID)
	}
	if live != nil {
		now, err := live.Refresh(ctx, change.snapshot, []topology.HostName{change.host.Host}, vmids...)
		if err != nil {
			return fmt.Errorf("reading %s again before its templates change: %w", change.host, err)
		}
		for _, t := range slices.Concat(change.intent.Create, change.intent.Unfinished, change.intent.Delete) {
			if err := otherOwner(now, &t, s.config.ClusterID); err != nil {
				return err
			}
		}
	}
	watched, stop := s.watch(ctx, change.host)
	_, err := workspace.Apply(watched, plan)
	return stop(err)
}

// templatesEnded records how an attempt to change the templates of a host ended.
func (w *Writer) templatesEnded(ctx context.Context, host topology.HostID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	root := w.templateRoots[host]
	root.err, root.digest = err, ""
	if pending, ok := errors.AsType[*TemplatePendingError](err); ok {
		root.digest = pending.Digest
	}
	now := w.scaler.config.Clock.Now()
	switch {
	case errors.Is(err, ErrFleetChanged):
		root.err, root.requested = nil, ""
		return
	case err == nil:
		// The snapshot can still be outdated.
		root.retry = delay{until: now.Add(soon)}
		log.FromContext(ctx).Info("changed templates", logkey.Host, host.String())
		return
	}
	root.retry.tries++
	root.retry.until = now.Add(min(longestTemplateDelay, shortestDelay<<min(root.retry.tries-1, 10)))
	log.FromContext(ctx).Info("postponed a change of templates", logkey.Host, host.String(), logkey.Reason, cmp.Or(err.Error(), "unknown"))
}
