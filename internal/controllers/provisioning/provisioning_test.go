package provisioning_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/tracing"
	numastate "github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

func TestMain(m *testing.M) {
	if err := v1alpha1.AddToScheme(clientgo.Scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	karpv1.WellKnownLabels.Insert(scheduling.WellKnownLabels()...)
	os.Exit(m.Run())
}

const poolOfTwo = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec: {template: {name: debian}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers, uid: pool-uid}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
---
`

// pods returns the manifests of n pods that request the given CPU.
func pods(n int, cpu string) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `apiVersion: v1
kind: Pod
metadata: {name: web-%d, namespace: default}
spec: {containers: [{name: c, image: c, resources: {requests: {cpu: "%s", memory: 1Gi}}}]}
---
`, i, cpu)
	}
	return text.String()
}

// lab returns a host with 8 CPUs and 32 GiB.
func lab() *topology.Snapshot {
	h := topology.Host{
		Region: "lab", Name: "pve-1", Online: true,
		Machine:   topology.Machine{MemoryMiB: 32 << 10, Sources: map[topology.Fact]topology.Source{}},
		Templates: []topology.Template{{VMID: 9001, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "local"}},
		Storages:  []topology.Storage{{Name: "local", Type: "dir", Active: true}},
	}
	for _, fact := range []topology.Fact{topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory} {
		h.Sources[fact] = topology.SourceCollected
	}
	h.NUMANodes = []topology.NUMANode{{ID: 0, MemoryMiB: h.MemoryMiB}}
	for id := range 8 {
		h.CPUs = append(h.CPUs, topology.CPU{ID: id, Online: true, Core: id % 4})
	}
	return &topology.Snapshot{Regions: []topology.Region{{Name: "lab", Version: "9.0.3", Quorate: true}}, Hosts: []topology.Host{h}}
}

// writer reserves VMs and creates none.
type writer struct {
	wanted  []fleet.VM
	woken   []fleet.Key
	removed []fleet.Key
	// removing is set if the removals of removed wait for an approval.
	removing bool
	// made are the VMs that exist.
	made map[fleet.Key]bool
	err  error
	// unread is the error of States.
	unread error
	// waits is the reason why the VMs wait.
	waits error
	// decided is the span in which Ensure was called.
	decided trace.SpanContext
}

func (w *writer) Synced() bool             { return true }
func (w *writer) Remove(keys ...fleet.Key) { w.removed = append(w.removed, keys...) }

func (w *writer) States(context.Context) ([]scaler.VMState, error) {
	var states []scaler.VMState
	for _, vm := range w.wanted {
		state := scaler.VMState{VM: vm, Phase: scaler.PhaseReserved, Err: w.waits}
		switch {
		case w.removing && slices.Contains(w.removed, vm.Key):
			state.Phase, state.Err = scaler.PhaseRemoving, &scaler.PendingApprovalError{}
		case w.made[vm.Key]:
			state.Phase = scaler.PhaseMade
		}
		states = append(states, state)
	}
	return states, w.unread
}

func (w *writer) Ensure(ctx context.Context, requests []scaler.Request) ([]fleet.VM, error) {
	w.decided = trace.SpanContextFromContext(ctx)
	if w.err != nil {
		return nil, w.err
	}
	var vms []fleet.VM
	for _, r := range requests {
		id := fleet.VMID(2000 + len(w.wanted))
		vm := fleet.VM{
			Key: fleet.Key(fmt.Sprintf("%032x", int(id))), VMID: id, Name: fleet.NodeName(r.Spec.Pool, id), Spec: r.Spec, Placement: r.Placement,
			Source: fleet.Source{VMID: 9001, DiskGiB: 10}, Standby: r.Standby, Reserve: r.Reserve,
		}
		w.wanted = append(w.wanted, vm)
		vms = append(vms, vm)
	}
	return vms, nil
}

func (w *writer) Wake(_ context.Context, keys ...fleet.Key) ([]fleet.VM, error) {
	var vms []fleet.VM
	for _, key := range keys {
		for i := range w.wanted {
			vm := &w.wanted[i]
			if vm.Key != key {
				continue
			}
			if !vm.Standby || !w.made[key] {
				return nil, &scaler.NotStandbyError{Key: key, VM: vm.Name}
			}
			vm.Standby = false
			delete(w.made, key)
			w.woken = append(w.woken, key)
			vms = append(vms, *vm)
		}
	}
	return vms, nil
}

// recorder records events.
type recorder struct{ published []events.Event }

func (r *recorder) Publish(list ...events.Event) { r.published = append(r.published, list...) }

// approvals allows the VMs that a test selects.
type approvals func([]scheduling.Placed) ([]scheduling.Placed, error)

func (a approvals) Up(_ context.Context, _ *topology.Snapshot, placed []scheduling.Placed) ([]scheduling.Placed, error) {
	return a(placed)
}

func (a approvals) MayWake(context.Context) (func(*fleet.VM) bool, error) {
	return func(*fleet.VM) bool { return true }, nil
}

func (a approvals) Created(context.Context, string, []fleet.VM) error { return nil }

func (a approvals) Draft(context.Context) error { return nil }

func (a approvals) Waits() []scheduling.Wait { return nil }

// held selects VMs like approvals, and reports why others wait.
type held struct {
	approvals
	waits []scheduling.Wait
}

func (h held) Waits() []scheduling.Wait { return h.waits }

type world struct {
	*provisioning.Controller
	config   provisioning.Config
	state    *state.Cluster
	client   client.Client
	writer   *writer
	recorder *recorder
	placing  sync.Mutex
	// begun is called by Begun.
	begun func(keys []fleet.Key)
}

// newWorld returns a controller for the objects of manifests. It uses a fake client,
// because these tests do not depend on watches or validation.
func newWorld(t *testing.T, pass provisioning.Approvals, manifests ...string) *world {
	t.Helper()
	if pass == nil {
		pass = approvals(func(placed []scheduling.Placed) ([]scheduling.Placed, error) { return placed, nil })
	}
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := scheduling.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{writer: &writer{}, recorder: &recorder{}}
	w.client = fake.NewClientBuilder().WithScheme(clientgo.Scheme).WithObjects(objects...).WithStatusSubresource(&autoscalingv1beta1.CapacityBuffer{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		WithIndex(&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).
		Build()
	clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	w.state = state.NewCluster(clk, w.client, nil)
	w.config = provisioning.Config{
		Client: w.client, Cluster: scheduling.FromClient(w.client), State: w.state, Recorder: w.recorder,
		Writer: w.writer, Approvals: pass, Clock: clk, Request: scheduling.Request{ClusterID: "test"}, Placing: &w.placing,
		Begun: func(_ context.Context, keys ...fleet.Key) {
			if w.begun != nil {
				w.begun(keys)
			}
		},
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return lab(), nil },
	}
	w.Controller = provisioning.New(w.config)
	return w
}

// claim creates a NodeClaim as a user does.
func (w *world) claim(t *testing.T, name string, annotations map[string]string) {
	t.Helper()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "shared"}
	if err := w.client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

func (w *world) claims(t *testing.T) []karpv1.NodeClaim {
	t.Helper()
	var list karpv1.NodeClaimList
	if err := w.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// told returns the number of events with a reason.
func (w *world) told(reason string) int {
	n := 0
	for _, event := range w.recorder.published {
		if event.Reason == reason {
			n++
		}
	}
	return n
}

func TestClaimsNameTheirVMs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(3, "1"))
	made, err := w.Provision(t.Context())
	if err != nil || len(made) == 0 {
		t.Fatalf("made %v, %v", made, err)
	}
	claims := w.claims(t)
	if len(claims) != len(w.writer.wanted) {
		t.Fatalf("%d claims of %d VMs", len(claims), len(w.writer.wanted))
	}
	for i, vm := range w.writer.wanted {
		annotations := claims[i].Annotations
		if annotations[v1alpha1.AnnotationVM] != vm.Name || annotations[v1alpha1.AnnotationKey] != string(vm.Key) || annotations[v1alpha1.AnnotationClassHash] == "" {
			t.Errorf("claim of %s has annotations %v", vm.Name, annotations)
		}
	}
	if got := w.told("Nominated"); got != 3 {
		t.Errorf("%d pods were told where they go, want 3", got)
	}
	// Desired VMs count: a second decision adds nothing.
	if again, err := w.Provision(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

// TestTrace checks that a decision that requests VMs has a span, which the writer receives,
// with its pods and NodeClaims, and that a decision without VMs has none.
func TestTrace(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	ctx := tracing.Into(t.Context(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test"))
	w := newWorld(t, nil, poolOfTwo, pods(3, "1"))
	for range 2 {
		if _, err := w.Provision(ctx); err != nil {
			t.Fatal(err)
		}
	}
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].Name() != tracing.SpanDecide || spans[0].SpanContext().SpanID() != w.writer.decided.SpanID() {
		t.Fatalf("spans %v, and the writer got %v", spans, w.writer.decided)
	}
	found := map[attribute.Key]attribute.Value{}
	for _, pair := range spans[0].Attributes() {
		found[pair.Key] = pair.Value
	}
	vms := len(w.writer.wanted)
	if len(found[tracing.KeyPods].AsStringSlice()) != 3 || found[tracing.KeyPodCount].AsInt64() != 3 ||
		len(found[tracing.KeyNodeClaims].AsStringSlice()) != vms || found[tracing.KeyCreate].AsInt64() != int64(vms) {
		t.Errorf("attributes %v of 3 pods and %d VMs", found, vms)
	}
}

// TestChangeBeforeClaims checks that claims are created after the changes of their VMs have
// begun, and that other placements can run meanwhile.
func TestChangeBeforeClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(3, "1"))
	var asked []fleet.Key
	w.begun = func(keys []fleet.Key) {
		asked = keys
		if claims := w.claims(t); len(claims) != 0 {
			t.Errorf("claims %v stand before the change", claims)
		}
		w.placing.Lock()
		defer w.placing.Unlock()
	}
	made, err := w.Provision(t.Context())
	if err != nil || len(made) == 0 || len(made) != len(asked) {
		t.Errorf("made %v, asked about %v, %v", made, asked, err)
	}
}

func TestPodsThatFitNowhereAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(1, "100"))
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 0 {
		t.Fatalf("made %v, %v", made, err)
	}
	if got := w.told("FailedScheduling"); got != 1 {
		t.Errorf("%d events tell of it, want 1: %v", got, w.recorder.published)
	}
}

func TestNothingWithoutApproval(t *testing.T) {
	t.Parallel()
	asked := 0
	w := newWorld(t, approvals(func(placed []scheduling.Placed) ([]scheduling.Placed, error) {
		asked = len(placed)
		return nil, nil
	}), poolOfTwo, pods(1, "1"))
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 0 || asked != 1 {
		t.Errorf("made %v, %v, %d were asked about", made, err, asked)
	}
	if len(w.writer.wanted) != 0 || len(w.claims(t)) != 0 {
		t.Errorf("reserved %v, claims %v", w.writer.wanted, w.claims(t))
	}
}

// TestOnePoolDoesNotStopTheOthers checks that VMs are created if only the approval of other
// pools is unknown.
func TestOnePoolDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("another pool cannot be planned")
	w := newWorld(t, approvals(func(placed []scheduling.Placed) ([]scheduling.Placed, error) { return placed, broken }), poolOfTwo, pods(1, "1"))
	made, err := w.Provision(t.Context())
	if !errors.Is(err, broken) || len(made) != 1 {
		t.Errorf("made %v, %v", made, err)
	}
}

// recording selects VMs like approvals, and records which VMs each plan creates.
type recording struct {
	approvals
	created map[string][]fleet.VM
}

func (r recording) Created(_ context.Context, plan string, vms []fleet.VM) error {
	r.created[plan] = vms
	return nil
}

// TestPlansListTheirVMs checks that the VMs that an approved plan creates are recorded in
// it.
func TestPlansListTheirVMs(t *testing.T) {
	t.Parallel()
	created := map[string][]fleet.VM{}
	w := newWorld(t, recording{created: created, approvals: func(placed []scheduling.Placed) ([]scheduling.Placed, error) {
		placed[0].ScalePlan = "workers-up-1"
		return placed, nil
	}}, poolOfTwo, pods(1, "1"))
	made, err := w.Provision(t.Context())
	if err != nil || len(made) != 1 {
		t.Fatalf("made %v, %v", made, err)
	}
	if vms := created["workers-up-1"]; len(created) != 1 || len(vms) != 1 || string(vms[0].Key) != w.claims(t)[0].Annotations[v1alpha1.AnnotationKey] {
		t.Errorf("the plan creates %v, want the VM of the claim", created)
	}
}

// TestNameTaken checks that a NodeClaim of another VM with the same name is not changed, and
// that the reservation is released.
func TestNameTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(1, "1"))
	w.claim(t, "workers-2000", map[string]string{v1alpha1.AnnotationKey: "another"})
	if made, err := w.Provision(t.Context()); err == nil || len(made) != 0 {
		t.Errorf("made %v, %v", made, err)
	}
	if len(w.writer.removed) != 1 || w.claims(t)[0].Annotations[v1alpha1.AnnotationKey] != "another" {
		t.Errorf("removed %v, claims %v", w.writer.removed, w.claims(t))
	}
}

// TestUnknownFleetIsNotEmpty checks that nothing is reserved if the existing VMs cannot be
// read.
func TestUnknownFleetIsNotEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(1, "1"))
	w.writer.unread = errors.New("the disk is gone")
	if _, err := w.Provision(t.Context()); !errors.Is(err, w.writer.unread) {
		t.Errorf("got %v", err)
	}
	if len(w.writer.wanted)+len(w.claims(t)) != 0 {
		t.Errorf("reserved %v", w.writer.wanted)
	}
}

func TestNoReservationNoClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, poolOfTwo, pods(1, "1"))
	w.writer.err = errors.New("no number is left")
	if _, err := w.Provision(t.Context()); !errors.Is(err, w.writer.err) {
		t.Errorf("got %v", err)
	}
	if len(w.claims(t)) != 0 {
		t.Error("a claim stands for nothing")
	}
}

// TestPodsReportTheirPlan checks that a pod whose node waits for approval gets an event with
// the plan, and that no other pod gets one.
func TestPodsReportTheirPlan(t *testing.T) {
	t.Parallel()
	const message = "waits for approval of plan workers-up-1: to approve it, run numaform approve workers-up-1"
	none := approvals(func([]scheduling.Placed) ([]scheduling.Placed, error) { return nil, nil })
	name := types.NamespacedName{Namespace: "default", Name: "web-0"}
	gone := types.NamespacedName{Namespace: "default", Name: "gone"}
	w := newWorld(t, held{none, []scheduling.Wait{
		{NodePool: "workers", ScalePlan: "workers-up-1", Reason: v1alpha1.ReasonPendingApproval, Message: message, Pods: []types.NamespacedName{name, gone}},
	}}, poolOfTwo, pods(2, "1"))
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 0 {
		t.Fatalf("made %v, %v", made, err)
	}
	w.wantWaits(t, v1alpha1.ReasonPendingApproval, corev1.EventTypeNormal, message, "web-0")
}

// TestPodsReportAnOutage checks that pods whose VMs wait for the state backend get an event
// with the cause.
func TestPodsReportAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, approvals(func(placed []scheduling.Placed) ([]scheduling.Placed, error) { return placed, nil }), poolOfTwo, pods(1, "1"))
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 1 {
		t.Fatalf("made %v, %v", made, err)
	}
	w.writer.waits = fmt.Errorf("planning: %w", &numastate.CommandError{Backend: "kubernetes", Text: "connection refused"})
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 0 {
		t.Fatalf("made %v, %v", made, err)
	}
	w.wantWaits(t, v1alpha1.ReasonStateBackendUnreachable, corev1.EventTypeWarning, "waits: numaform's state backend has been unreachable since ", "web-0")
	w.writer.waits = &numastate.CommandError{Backend: "kubernetes", Text: "secret response"}
	if _, err := w.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, event := range w.recorder.published {
		if event.Reason == v1alpha1.ReasonStateBackendUnreachable {
			keys = append(keys, strings.Join(event.DedupeValues, " "))
		}
		if strings.Contains(event.Message, "secret response") {
			t.Errorf("event %q of a pod contains the response", event.Message)
		}
	}
	if len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("events of one outage have the keys %q, want equal ones", keys)
	}
	if got := w.told("FailedScheduling"); got != 0 {
		t.Errorf("%d events report that no host has room", got)
	}
}

// wantWaits checks that exactly one event has the reason, and that this event is of the
// kind, about the pod, and starts with the message.
func (w *world) wantWaits(t *testing.T, reason, kind, message, pod string) {
	t.Helper()
	if got := w.told(reason); got != 1 {
		t.Fatalf("%d events %s, want 1: %v", got, reason, w.recorder.published)
	}
	for _, event := range w.recorder.published {
		about, ok := event.InvolvedObject.(*corev1.Pod)
		if event.Reason == reason && (!ok || about.Name != pod || event.Type != kind || !strings.HasPrefix(event.Message, message)) {
			t.Errorf("event %+v, want %s of %s with %q", event, kind, pod, message)
		}
	}
}

// TestLimitsAreReported checks that a NodePool whose limit is the only obstacle is reported
// until its pods are gone.
func TestLimitsAreReported(t *testing.T) {
	t.Parallel()
	all := approvals(func(placed []scheduling.Placed) ([]scheduling.Placed, error) { return placed, nil })
	w := newWorld(t, all, strings.Replace(poolOfTwo, "spec:\n  template:", "spec:\n  limits: {cpu: 1}\n  template:", 1), pods(2, "1"))
	if made, err := w.Provision(t.Context()); err != nil || len(made) != 0 {
		t.Fatalf("made %v, %v", made, err)
	}
	if !w.Decided() {
		t.Error("the decision is not known")
	}
	waits := w.Limited()
	if len(waits) != 1 || waits[0].NodePool != "workers" || waits[0].Reason != v1alpha1.ReasonLimitReached || len(waits[0].Pods) != 2 {
		t.Errorf("waits %+v, want two pods of workers", waits)
	}
	if !w.config.Clock.(*testclock.FakeClock).HasWaiters() {
		t.Error("no further decision is due, although the end of the pods triggers none")
	}
	if err := w.client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Provision(t.Context()); err != nil {
		t.Fatal(err)
	}
	if waits := w.Limited(); len(waits) != 0 {
		t.Errorf("waits %+v without pods", waits)
	}
}
