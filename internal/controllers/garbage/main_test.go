package garbage_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// plane is the control plane of the package's tests. The tests do not run in parallel,
// because the controllers check all existing objects.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// writer replaces the fleet's writer: it removes VMs at once.
type writer struct {
	synced bool
	states []scaler.VMState
	// removed are the keys of the removed VMs.
	removed []fleet.Key
}

func (w *writer) Synced() bool { return w.synced }

func (w *writer) VMs() []scaler.VMState { return slices.Clone(w.states) }

func (w *writer) Any(condition func(*scaler.VMState) bool) bool {
	return slices.ContainsFunc(w.states, func(state scaler.VMState) bool { return condition(&state) })
}

func (w *writer) Remove(keys ...fleet.Key) {
	w.removed = append(w.removed, keys...)
	w.states = slices.DeleteFunc(w.states, func(s scaler.VMState) bool { return slices.Contains(keys, s.VM.Key) })
}

// unavailableOffering is an offering that became unavailable.
type unavailableOffering struct {
	scheduling.OfferingSelector
	Until time.Time
}

// unavailable records unavailable offerings.
type unavailable struct{ closed []unavailableOffering }

func (c *unavailable) Mark(offering scheduling.OfferingSelector, until time.Time) {
	c.closed = append(c.closed, unavailableOffering{offering, until})
}

// take returns the offerings that became unavailable since the last call.
func (c *unavailable) take() []unavailableOffering {
	closed := c.closed
	c.closed = nil
	return closed
}

// recorder records events as "Kind/name Reason: message".
type recorder struct {
	// mu guards the field below.
	mu   sync.Mutex
	kept []string
}

func (r *recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range published {
		object, ok := event.InvolvedObject.(client.Object)
		if !ok {
			panic("an event about nothing")
		}
		kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")
		r.kept = append(r.kept, fmt.Sprintf("%s/%s %s: %s", kind, object.GetName(), event.Reason, event.Message))
	}
}

// Event records an event that Karpenter's recorder does not drop as equal to an earlier one.
func (r *recorder) Event(object runtime.Object, kind, reason, message string) {
	r.Publish(events.Event{InvolvedObject: object, Type: kind, Reason: reason, Message: message})
}

func (*recorder) Eventf(runtime.Object, string, string, string, ...any) { panic("unused") }

func (*recorder) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {
	panic("unused")
}

// dropEqual inserts Karpenter's recorder, which drops equal events by the real clock.
func dropEqual(c *garbage.Config) {
	kept, ok := c.Recorder.(*recorder)
	if !ok {
		panic("not the test's recorder")
	}
	c.Recorder = events.NewRecorder(kept)
}

// take returns the events since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.kept
	r.kept = nil
	return kept
}

// world holds the controllers under test and their inputs.
type world struct {
	client.Client
	t           *testing.T
	clock       *clocktesting.FakePassiveClock
	writer      *writer
	unavailable *unavailable
	events      *recorder
	snapshot    *topology.Snapshot
	unread      error
	paused      bool
	collector   *garbage.Collector
}

func pve1() topology.HostID { return topology.HostID{Region: "lab", Host: "pve-1"} }

func newWorld(t *testing.T, change ...func(*garbage.Config)) *world {
	t.Helper()
	c, err := client.New(plane.Cluster(t).Config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		Client: c, t: t, clock: clocktesting.NewFakePassiveClock(time.Now()),
		writer: &writer{synced: true}, unavailable: &unavailable{}, events: &recorder{},
		snapshot: &topology.Snapshot{
			Regions: []topology.Region{{Name: "lab", Quorate: true}},
			Hosts:   []topology.Host{{Region: "lab", Name: "pve-1", Online: true}, {Region: "lab", Name: "pve-2", Online: true}},
		},
	}
	config := garbage.Config{
		Client: c, Live: c, Recorder: w.events, Writer: w.writer, Unavailable: w.unavailable, ClusterID: "prod", Clock: w.clock,
		Snapshot:     func(context.Context) (*topology.Snapshot, error) { return w.snapshot, w.unread },
		NewNodeClaim: func(vm fleet.VM, pool *karpv1.NodePool) *karpv1.NodeClaim { return scheduling.NewNodeClaim(vm, pool) },
		Paused:       func() bool { return w.paused },
		Self:         &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "numaform-control"}},
	}
	for _, change := range change {
		change(&config)
	}
	w.collector = garbage.New(config)
	return w
}

// after advances the clock.
func (w *world) after(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

// look runs one pass of a controller.
func (w *world) look(name string) {
	w.t.Helper()
	if err := w.tryLook(name); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryLook(name string) error {
	w.t.Helper()
	for _, c := range w.collector.Controllers() {
		if c, ok := c.(*garbage.Controller); ok && c.Name() == "garbage."+name {
			result, err := c.Reconcile(w.t.Context())
			if err == nil && (result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute) {
				w.t.Errorf("%s looks again after %v", name, result.RequeueAfter)
			}
			return err
		}
	}
	w.t.Fatalf("there is no controller %q", name)
	return nil
}

// newVM returns the VM with that VMID on pve-1.
func newVM(vmid fleet.VMID) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", int(vmid))), VMID: vmid, Name: fleet.NodeName("workers", vmid),
		Spec:      fleet.Spec{Pool: "workers", NodeClass: "class", InstanceType: "c1.2VCPU-4GB", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 4096},
		Placement: fleet.Placement{Host: pve1()},
	}
}

// wants adds a VM to the writer.
func (w *world) wants(vm fleet.VM, phase scaler.Phase, err error) {
	w.writer.states = append(w.writer.states, scaler.VMState{VM: vm, Phase: phase, Err: err, Since: w.clock.Now()})
}

// runs adds a VM to its host's guests.
func (w *world) runs(vm fleet.VM, change ...func(*topology.Guest)) {
	guest := topology.Guest{VMID: int(vm.VMID), Name: vm.Name, Kind: topology.GuestVM, Running: true, ClusterID: "prod", Key: string(vm.Key)}
	for _, change := range change {
		change(&guest)
	}
	w.snapshot.Hosts[0].Guests = append(w.snapshot.Hosts[0].Guests, guest)
}

// create creates an object that is deleted at the end of the test.
func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.wipe(object) })
}

// wipe deletes an object regardless of its finalizers.
func (w *world) wipe(object client.Object) {
	ctx := context.Background()
	key := client.ObjectKeyFromObject(object)
	if err := w.Get(ctx, key, object); err != nil {
		return
	}
	if len(object.GetFinalizers()) > 0 {
		object.SetFinalizers(nil)
		if err := w.Update(ctx, object); err != nil {
			w.t.Error(err)
		}
	}
	if err := client.IgnoreNotFound(w.Delete(ctx, object)); err != nil {
		w.t.Error(err)
	}
}

func (w *world) pool(name, class string) *karpv1.NodePool {
	w.t.Helper()
	pool := &karpv1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: reference(class), Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		}}},
	}
	w.create(pool)
	return pool
}

func reference(class string) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: class}
}

// claim creates the NodeClaim of a VM, as Karpenter leaves it after the launch.
func (w *world) claim(vm fleet.VM, change ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.t.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: vm.Name, Finalizers: []string{karpv1.TerminationFinalizer}, Labels: map[string]string{karpv1.NodePoolLabelKey: vm.Pool},
			Annotations: map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)},
		},
		Spec: karpv1.NodeClaimSpec{NodeClassRef: reference(vm.NodeClass), Requirements: []karpv1.NodeSelectorRequirementWithMinValues{}},
	}
	claim.Status.ProviderID = fleet.ProviderID(vm.Host.Region, vm.VMID)
	for _, change := range change {
		change(claim)
	}
	wanted := claim.Status
	w.create(claim)
	claim.Status = wanted
	set := claim.StatusConditions(status.WithClock(realClock{w.clock}))
	if wanted.ProviderID != "" {
		set.SetTrue(karpv1.ConditionTypeLaunched)
	}
	if wanted.NodeName != "" {
		set.SetTrue(karpv1.ConditionTypeRegistered)
	}
	if err := w.Status().Update(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
	return claim
}

// realClock makes a passive clock implement clock.Clock.
type realClock struct{ clock.PassiveClock }

func (realClock) After(time.Duration) <-chan time.Time        { panic("unused") }
func (realClock) NewTimer(time.Duration) clock.Timer          { panic("unused") }
func (realClock) Sleep(time.Duration)                         { panic("unused") }
func (realClock) Tick(time.Duration) <-chan time.Time         { panic("unused") }
func (realClock) NewTicker(time.Duration) clock.Ticker        { panic("unused") }
func (realClock) AfterFunc(time.Duration, func()) clock.Timer { panic("unused") }
func unlaunched(claim *karpv1.NodeClaim)                      { claim.Status.ProviderID = "" }

func registered(claim *karpv1.NodeClaim) { claim.Status.NodeName = claim.Name }

func without(annotation string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) { delete(claim.Annotations, annotation) }
}

func (w *world) node(vm fleet.VM, finalizers ...string) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: vm.Name, Finalizers: finalizers},
		Spec:       corev1.NodeSpec{ProviderID: fleet.ProviderID(vm.Host.Region, vm.VMID)},
	}
	w.create(node)
	return node
}

// fate returns the state of a claim: there, deleting or gone.
func (w *world) fate(name string) string {
	w.t.Helper()
	var claim karpv1.NodeClaim
	err := w.Get(w.t.Context(), client.ObjectKey{Name: name}, &claim)
	switch {
	case client.IgnoreNotFound(err) != nil:
		w.t.Fatal(err)
	case err != nil:
		return "gone"
	case !claim.DeletionTimestamp.IsZero():
		return "deleting"
	}
	return "there"
}

func (w *world) wantFate(name, want string) {
	w.t.Helper()
	if got := w.fate(name); got != want {
		w.t.Errorf("nodeclaim %s is %s, want %s", name, got, want)
	}
}

func (w *world) wantRemoved(keys ...fleet.Key) {
	w.t.Helper()
	if !slices.Equal(w.writer.removed, keys) {
		w.t.Errorf("removed %q, want %q", w.writer.removed, keys)
	}
}

// wantEvents compares the beginnings of the events since the last call.
func (w *world) wantEvents(beginnings ...string) []string {
	w.t.Helper()
	got := w.events.take()
	same := len(got) == len(beginnings)
	for i := 0; same && i < len(got); i++ {
		same = strings.HasPrefix(got[i], beginnings[i])
	}
	if !same {
		w.t.Errorf("events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(beginnings, "\n"))
	}
	return got
}
