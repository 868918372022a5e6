// Package template maintains ProxmoxTemplates: it requests their templates from the writer
// of the fleet, and reports in the status which of them are ready, and if not, how to fix
// it. It does not plan or apply. Start at New.
package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

const (
	// period is the interval between checks while templates change.
	period = 5 * time.Second
	// rest is the interval between checks while all templates are ready, or the definition of
	// ProxmoxTemplates is not installed.
	rest = time.Minute
	// pause is the interval from a change of a ProxmoxTemplate to the next check.
	pause = time.Second
	// maxMessage limits the message of a template in the status.
	maxMessage = 1024
	// maxUsers limits the number of VMs that a message names.
	maxUsers = 5
)

// The reasons of events.
const (
	ReasonTemplateReady  = "TemplateReady"
	ReasonTemplateFailed = "TemplateFailed"
	// ReasonTemplateForgotten means that a host with a template left the Proxmox cluster, so
	// that numaform cannot delete the template.
	ReasonTemplateForgotten = "TemplateForgotten"
)

// Fleet creates and deletes templates.
type Fleet interface {
	SetTemplates(name string, request scaler.TemplateRequest)
	ForgetTemplates(name string)
	Templates(name string) (states []scaler.TemplateState, known bool)
}

// Config configures a Controller.
type Config struct {
	// Client reads and writes without a cache, which would require the definition of
	// ProxmoxTemplates when the controller starts.
	Client   client.WithWatch
	Recorder events.Recorder
	Fleet    Fleet
	// Snapshot returns the current snapshot of Proxmox. Do not modify it.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	Clock    clock.Clock
}

// Controller reconciles all ProxmoxTemplates.
type Controller struct {
	config Config
	// known are the names of the existing ProxmoxTemplates.
	known map[string]bool
}

// New returns the controller. It does no I/O.
func New(config Config) *Controller { return &Controller{config: config, known: map[string]bool{}} }

// Name returns the controller's name in logs and metrics.
func (c *Controller) Name() string { return "template" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
}

// Reconcile requests the templates of each ProxmoxTemplate, and writes its status.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	var list v1alpha1.ProxmoxTemplateList
	err := c.config.Client.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return reconciler.Result{RequeueAfter: rest}, nil
	}
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("listing %ss: %w", v1alpha1.KindProxmoxTemplate, err)
	}
	if len(list.Items)+len(c.known) == 0 {
		return c.wait(ctx, list.ResourceVersion), nil
	}
	snapshot, err := c.config.Snapshot(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	exists := map[string]bool{}
	settled := true
	var errs []error
	for i := range list.Items {
		exists[list.Items[i].Name] = true
		settled = settled && isReady(&list.Items[i])
		err := c.reconcile(ctx, &list.Items[i], snapshot)
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	for name := range c.known {
		if !exists[name] {
			c.config.Fleet.ForgetTemplates(name)
		}
	}
	c.known = exists
	err = errors.Join(errs...)
	for i := range list.Items {
		settled = settled && isReady(&list.Items[i])
	}
	if err != nil || !settled {
		return reconciler.Result{RequeueAfter: period}, err
	}
	return c.wait(ctx, list.ResourceVersion), nil
}

// isReady reports whether the templates of a ProxmoxTemplate are ready, by its status.
func isReady(pt *v1alpha1.ProxmoxTemplate) bool {
	return pt.DeletionTimestamp.IsZero() && pt.StatusConditions().Root().IsTrue()
}

// wait waits until a ProxmoxTemplate changes after a version of the list, or for rest. After
// a change it waits briefly for further ones.
func (c *Controller) wait(ctx context.Context, version string) reconciler.Result {
	later := reconciler.Result{RequeueAfter: period}
	timer := c.config.Clock.NewTimer(rest)
	defer timer.Stop()
	changes, err := c.config.Client.Watch(ctx, &v1alpha1.ProxmoxTemplateList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		return later // the role of an earlier version does not allow it
	}
	defer changes.Stop()
	select {
	case change, open := <-changes.ResultChan():
		if !open || change.Type == watch.Error {
			return later
		}
	case <-timer.C():
	case <-ctx.Done():
	}
	return reconciler.Result{RequeueAfter: pause}
}

// reconcile requests the templates of one ProxmoxTemplate, and writes its status.
func (c *Controller) reconcile(ctx context.Context, pt *v1alpha1.ProxmoxTemplate, snapshot *topology.Snapshot) error {
	stored := pt.DeepCopy()
	deleted := !pt.DeletionTimestamp.IsZero()
	if deleted && !controllerutil.ContainsFinalizer(pt, v1alpha1.FinalizerTemplate) {
		return nil
	}
	if !deleted && controllerutil.AddFinalizer(pt, v1alpha1.FinalizerTemplate) {
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.config.Client.Patch(ctx, pt, patch); err != nil {
			return fmt.Errorf("writing the finalizer of %s %s: %w", v1alpha1.KindProxmoxTemplate, pt.Name, err)
		}
		stored = pt.DeepCopy()
	}

	states, _ := c.config.Fleet.Templates(pt.Name)
	request, current, err := request(pt, snapshot, states)
	if err != nil {
		return err
	}
	for _, host := range request.Gone {
		c.config.Recorder.Publish(event.New(pt, corev1.EventTypeWarning, ReasonTemplateForgotten, fmt.Sprintf("host %s left the Proxmox cluster: "+
			"numaform forgets its templates without deleting them: if the disks of the host are still used, delete the templates by hand", host), host.String()))
	}
	c.config.Fleet.SetTemplates(pt.Name, request)
	states, known := c.config.Fleet.Templates(pt.Name)
	if deleted && known && len(states) == 0 {
		controllerutil.RemoveFinalizer(pt, v1alpha1.FinalizerTemplate)
		patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
		if err := c.config.Client.Patch(ctx, pt, patch); err != nil {
			return fmt.Errorf("removing the finalizer of %s %s: %w", v1alpha1.KindProxmoxTemplate, pt.Name, err)
		}
		return nil
	}
	if !known {
		return nil
	}

	setStatus(pt, current, &request, states, snapshot, status.WithClock(c.config.Clock))
	if equality.Semantic.DeepEqual(stored.Status, pt.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})
	if err := c.config.Client.Status().Patch(ctx, pt, patch); err != nil {
		return fmt.Errorf("writing the status of %s %s: %w", v1alpha1.KindProxmoxTemplate, pt.Name, err)
	}
	c.config.Recorder.Publish(changes(stored, pt)...)
	return nil
}

// request returns what a ProxmoxTemplate requests, and the name of the templates. states are
// its templates.
func request(pt *v1alpha1.ProxmoxTemplate, snapshot *topology.Snapshot, states []scaler.TemplateState) (scaler.TemplateRequest, string, error) {
	spec := &pt.Spec
	want := fleet.Template{
		Of: pt.Name,
		Image: fleet.TemplateImage{
			URL: spec.Image.URL, Checksum: strings.ToLower(spec.Image.Checksum), Algorithm: cmp.Or(spec.Image.ChecksumAlgorithm, "sha256"),
			Format: cmp.Or(spec.Image.Format, "qcow2"), Storage: spec.Image.Storage, Insecure: spec.Image.Insecure,
		},
		Hardware: fleet.TemplateHardware{
			Storage: spec.Disk.Storage, DiskGiB: int64(spec.Disk.SizeGiB), Cache: spec.Disk.Cache,
			NoDiscard: spec.Disk.Discard != nil && !*spec.Disk.Discard, SSD: spec.Disk.SSD,
			Machine: spec.Machine, BIOS: spec.BIOS, SecureBoot: spec.SecureBoot, TPM: spec.TPM,
			CPUType: string(spec.CPU.Type), CPUFlags: spec.CPU.Flags, AgentType: spec.Agent.Type, Trim: spec.Agent.FSTrimClonedDisks,
			VGA: spec.VGA.Type, VGAMiB: int64(spec.VGA.MemoryMiB),
		},
		Tags: slices.Sorted(slices.Values(spec.Tags)), Pool: spec.Pool,
	}
	for _, n := range spec.Networks {
		want.Hardware.Networks = append(want.Hardware.Networks, fleet.Network{
			Bridge: n.Bridge, Model: n.Model, VLAN: int(n.VLAN), MTU: int(n.MTU), Firewall: n.Firewall,
		})
	}
	var err error
	if want.Name, err = fleet.TemplateName(pt.Name, want.Image, &want.Hardware); err != nil {
		return scaler.TemplateRequest{}, "", err
	}

	request := scaler.TemplateRequest{
		Deleted: !pt.DeletionTimestamp.IsZero(), Manual: spec.Approval == v1alpha1.ApprovalManual,
		Approved: strings.FieldsFunc(pt.Annotations[v1alpha1.AnnotationApproveTemplates], func(r rune) bool { return r == ',' || r == ' ' }), Approver: "annotation of " + v1alpha1.KindProxmoxTemplate + " " + pt.Name,
		Blocked: map[topology.HostID]string{},
		Shared:  map[topology.RegionName]bool{},
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if storage := host.Storage(want.Hardware.Storage); storage != nil && storage.Shared {
			request.Shared[host.Region] = true // also for hosts that are down: a storage has one definition
		}
		if !scheduling.Selects(spec.Region, spec.Hosts, host.ID()) {
			continue
		}
		want.Host = host.ID()
		request.Templates = append(request.Templates, want)
		if problem := hostProblem(host, &want); problem != "" {
			request.Blocked[host.ID()] = problem
		}
	}
	// Proxmox also lists hosts that are down. If the snapshot has no host of the region, the
	// region was not read.
	for i := range states {
		at := states[i].Template.Host
		inRegion := func(host topology.Host) bool { return host.Region == at.Region }
		if host := snapshot.Host(at); (host == nil || host.Absent) && slices.ContainsFunc(snapshot.Hosts, inRegion) && !slices.Contains(request.Gone, at) {
			request.Gone = append(request.Gone, at)
		}
	}
	return request, want.Name, nil
}

// hostProblem returns why a template cannot be created on a host now, or "".
func hostProblem(host *topology.Host, want *fleet.Template) string {
	if !host.Online {
		return "the host is offline: its template is created when it is back"
	}
	if host.Problem != "" {
		return "the host " + host.Problem
	}
	return cmp.Or(
		storageProblem(host, want.Image.Storage, "import", fmt.Sprintf("add it with pvesm set %s --content, together with its current content types", want.Image.Storage)),
		diskProblem(host, want),
	)
}

// diskProblem returns why the host cannot use the storage of a template's disks, or "".
func diskProblem(host *topology.Host, want *fleet.Template) string {
	return storageProblem(host, want.Hardware.Storage, "images", "set spec.disk.storage to a storage for disks")
}

// storageProblem returns why a storage of the host does not accept the content, or "".
func storageProblem(host *topology.Host, name, content, fix string) string {
	switch storage := host.Storage(name); {
	case storage == nil:
		return fmt.Sprintf("the host has no storage %q: correct the storage, or exclude the host in spec.hosts", name)
	case !storage.Active:
		return fmt.Sprintf("storage %q is not active on the host: activate it", name)
	case len(storage.Content) > 0 && !slices.Contains(storage.Content, content):
		return fmt.Sprintf("storage %q does not have the content type %s: %s", name, content, fix)
	}
	return ""
}

// setStatus sets the status of a ProxmoxTemplate.
func setStatus(pt *v1alpha1.ProxmoxTemplate, current string, request *scaler.TemplateRequest, states []scaler.TemplateState, snapshot *topology.Snapshot, clock status.ForOption) {
	pt.Status.Current = current
	pt.Status.HostCount = int32(len(request.Templates)) //nolint:gosec // there are few hosts
	pt.Status.ReadyCount = 0
	pt.Status.Templates = nil
	problems := map[string][]string{} // by reason
	for i := range request.Templates {
		if request.Deleted {
			break
		}
		host := request.Templates[i].Host
		at := slices.IndexFunc(states, func(s scaler.TemplateState) bool {
			return s.Desired && s.Template.Host == host && s.Template.Name == current
		})
		line := v1alpha1.TemplateStatus{
			Host: host.String(), Name: current, State: v1alpha1.TemplatePending, Message: cmp.Or(request.Blocked[host], "waits for its turn"),
		}
		if at >= 0 {
			line = desired(pt, &states[at], line)
		} else if request.Shared[host.Region] {
			line = served(&request.Templates[i], states, snapshot.Host(host), line)
		}
		switch {
		case line.State == v1alpha1.TemplateReady:
			pt.Status.ReadyCount++
		case line.State == v1alpha1.TemplateFailed:
			problems[v1alpha1.ReasonTemplatesFailed] = append(problems[v1alpha1.ReasonTemplatesFailed], line.Host+": "+line.Message)
		case line.Digest != "":
			problems[v1alpha1.ReasonPendingApproval] = append(problems[v1alpha1.ReasonPendingApproval], line.Host+": "+line.Message)
		default:
			problems[v1alpha1.ReasonTemplatesPending] = append(problems[v1alpha1.ReasonTemplatesPending], line.Host+": "+line.Message)
		}
		pt.Status.Templates = append(pt.Status.Templates, line)
	}
	for i := range states {
		if states[i].Desired && !request.Deleted {
			continue
		}
		line := superseded(&states[i])
		if request.Deleted && line.Message != "" {
			problems[v1alpha1.ReasonTemplateInUse] = append(problems[v1alpha1.ReasonTemplateInUse], fmt.Sprintf("template %d on %s %s", line.VMID, line.Host, line.Message))
		}
		pt.Status.Templates = append(pt.Status.Templates, line)
	}
	switch {
	case request.Deleted && len(problems) == 0:
		problems[v1alpha1.ReasonTemplatesPending] = []string{"the templates are being deleted"}
	case !request.Deleted && len(request.Templates) == 0:
		problems[v1alpha1.ReasonNoHosts] = []string{"no Proxmox host matches spec.region and spec.hosts: correct them"}
	}
	setCondition(pt, problems, clock)
}

// setCondition sets the condition of a ProxmoxTemplate from its problems by reason.
func setCondition(pt *v1alpha1.ProxmoxTemplate, problems map[string][]string, clock status.ForOption) {
	set := pt.StatusConditions(clock)
	because := ""
	for _, reason := range []string{
		v1alpha1.ReasonTemplatesPending, v1alpha1.ReasonPendingApproval, v1alpha1.ReasonTemplatesFailed, v1alpha1.ReasonTemplateInUse, v1alpha1.ReasonNoHosts,
	} {
		if len(problems[reason]) > 0 {
			because = reason // the last one is the most important
		}
	}
	if because == "" {
		set.SetTrue(v1alpha1.ConditionTemplatesReady)
	} else {
		set.SetFalse(v1alpha1.ConditionTemplatesReady, because, event.Cut(strings.Join(problems[because], "; "), maxMessage))
	}
	// kubectl's table shows only the condition Ready.
	for i := range pt.Status.Conditions {
		if ready := &pt.Status.Conditions[i]; ready.Type == status.ConditionReady && ready.IsFalse() {
			ready.Message = set.Get(v1alpha1.ConditionTemplatesReady).Message
		}
	}
}

// desired returns the status of a desired template, from the status before it began.
func desired(pt *v1alpha1.ProxmoxTemplate, one *scaler.TemplateState, line v1alpha1.TemplateStatus) v1alpha1.TemplateStatus {
	line.VMID = int32(one.Template.VMID) //nolint:gosec // a VMID has at most nine digits
	line.Digest = one.Digest
	switch {
	case one.Ready:
		line.State, line.Message = v1alpha1.TemplateReady, explain(one.Err, &one.Template)
	case one.Applying:
		line.State, line.Message = v1alpha1.TemplateDownloading, "the image is being downloaded, or its disk created"
	case one.Digest != "":
		line.Message = fmt.Sprintf("%s: to approve, run kubectl annotate proxmoxtemplate %s --overwrite %s=%s",
			explain(one.Err, &one.Template), pt.Name, v1alpha1.AnnotationApproveTemplates, one.Digest)
	case one.Err != nil:
		line.Message = explain(one.Err, &one.Template)
		if !waits(one.Err) {
			line.State = v1alpha1.TemplateFailed
		}
	}
	return line
}

// usesTemplateOn begins the message of a host that uses the template of another host.
const usesTemplateOn = "uses the template on "

// served returns the status of a host that uses the template of another host, from the status
// before that host was selected.
func served(want *fleet.Template, states []scaler.TemplateState, host *topology.Host, line v1alpha1.TemplateStatus) v1alpha1.TemplateStatus {
	i := slices.IndexFunc(states, func(s scaler.TemplateState) bool {
		return s.Desired && s.Template.Host.Region == want.Host.Region && s.Template.Name == line.Name
	})
	if i < 0 || host == nil || !host.Online || host.Problem != "" {
		return line
	}
	from := &states[i]
	switch problem := diskProblem(host, want); {
	case problem != "":
		line.Message = problem
	case from.Ready:
		line.VMID = int32(from.Template.VMID) //nolint:gosec // as above
		line.State, line.Message = v1alpha1.TemplateReady, fmt.Sprintf("%s%s, because storage %s is shared", usesTemplateOn, from.Template.Host.Host, want.Hardware.Storage)
	default:
		line.Message = fmt.Sprintf("waits for the template on %s", from.Template.Host.Host)
	}
	return line
}

// superseded returns the status of a template that is not desired any more. Its message is
// the reason why it still exists, if any is known.
func superseded(one *scaler.TemplateState) v1alpha1.TemplateStatus {
	line := v1alpha1.TemplateStatus{
		Host: one.Template.Host.String(), Name: one.Template.Name, VMID: int32(one.Template.VMID), //nolint:gosec // as above
		State: v1alpha1.TemplateSuperseded, Digest: one.Digest, Message: explain(one.Err, &one.Template),
	}
	if len(one.Users) > 0 {
		line.Message = "is used by " + strings.Join(one.Users[:min(len(one.Users), maxUsers)], ", ")
		if more := len(one.Users) - maxUsers; more > 0 {
			line.Message += fmt.Sprintf(" and %d more", more)
		}
	}
	return line
}

// waits reports whether an error ends without a fix by an operator.
func waits(err error) bool {
	_, pending := errors.AsType[*scaler.TemplatePendingError](err)
	_, offline := errors.AsType[*scaler.TemplateHostError](err)
	return pending || offline
}

// explain returns the message for an error, in one line, with the fix.
func explain(err error, t *fleet.Template) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if failed, ok := errors.AsType[*state.CommandError](err); ok {
		text = failed.Text
	}
	text = strings.Join(strings.Fields(strings.NewReplacer("│", " ", "╷", " ", "╵", " ").Replace(text)), " ")
	for _, one := range []struct{ contains, explained string }{
		{"checksum mismatch", fmt.Sprintf("the image at %s does not have the checksum %s: correct spec.image.checksum or spec.image.url", t.Image.URL, t.Image.Checksum)},
		{"No space left", fmt.Sprintf("a storage is full (the image is stored on %s, the disk on %s): free space", t.Image.Storage, t.Hardware.Storage)},
		{"not enough free space", fmt.Sprintf("storage %s is full: free space", t.Hardware.Storage)},
		{"download failed", fmt.Sprintf("the host cannot download %s: check the URL, and the network of the host", t.Image.URL)},
		{"is still in use by linked clone", "a linked clone that numaform did not create still uses the template: delete the clone"},
	} {
		if strings.Contains(text, one.contains) {
			text = one.explained + ": " + text
			break
		}
	}
	return event.Cut(text, maxMessage)
}

// changes returns events for templates that became ready or failed.
func changes(before, after *v1alpha1.ProxmoxTemplate) []events.Event {
	type key struct{ host, name string }
	was := map[key]v1alpha1.TemplateStatus{}
	for _, one := range before.Status.Templates {
		was[key{one.Host, one.Name}] = one
	}
	var found []events.Event
	for _, one := range after.Status.Templates {
		old := was[key{one.Host, one.Name}]
		switch {
		case one.State == old.State && one.Message == old.Message, strings.HasPrefix(one.Message, usesTemplateOn):
		case one.State == v1alpha1.TemplateReady && old.State != v1alpha1.TemplateReady:
			found = append(found, event.New(after, corev1.EventTypeNormal, ReasonTemplateReady, fmt.Sprintf("created template %d on %s", one.VMID, one.Host), one.Host, one.Name))
		case one.State == v1alpha1.TemplateFailed:
			found = append(found, event.New(after, corev1.EventTypeWarning, ReasonTemplateFailed, one.Host+": "+one.Message, one.Host, one.Name))
		}
	}
	return found
}
