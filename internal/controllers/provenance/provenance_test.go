package provenance_test

import (
	"context"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/provenance"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/tracing"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

type vms map[fleet.Key]scaler.VMState

func (v vms) VM(key fleet.Key) (scaler.VMState, bool) {
	state, exists := v[key]
	return state, exists
}

// bob is an Approvals with the same approver for each VM, or with none if it is empty.
type bob string

func (b bob) ApproverOf(context.Context, fleet.Key, time.Time) (string, error) { return string(b), nil }

func TestAnnotations(t *testing.T) {
	t.Parallel()
	vm := fleet.VM{Key: "a", Name: "workers-2000"}
	pinned := vm
	pinned.CPUs = topology.CPUs(0, 1, 2, 4)
	origin := &scaler.Origin{
		Change: "20260102T030405Z-0000010000", Commit: "c0ffee", PlanSHA256: "1234", PlanDigest: "5678", Verdict: guard.NeedsApproval, Approver: "alice",
	}
	all := map[string]string{
		"numaform.dev/key": "a", "numaform.dev/host-cpus": "0-2,4", "numaform.dev/change": origin.Change, "numaform.dev/commit": "c0ffee",
		"numaform.dev/plan-sha256": "1234", "numaform.dev/plan-digest": "5678", "numaform.dev/verdict": "needs approval", "numaform.dev/approver": "alice",
	}
	onNode := map[string]string{}
	for name, value := range all {
		if name != "numaform.dev/key" {
			onNode[name] = value
		}
	}
	none := map[string]string{"numaform.dev/key": "a"}
	for name, test := range map[string]struct {
		group       string
		approver    bob
		state       *scaler.VMState
		claim, node map[string]string
	}{
		"created":       {"numaform.dev", "", &scaler.VMState{VM: pinned, Phase: scaler.PhaseMade, Origin: origin}, all, onNode},
		"being created": {"numaform.dev", "", &scaler.VMState{VM: pinned, Phase: scaler.PhaseMaking, Origin: origin}, all, onNode},
		"reserved":      {"numaform.dev", "", &scaler.VMState{VM: pinned, Phase: scaler.PhaseReserved}, none, nil},
		"older than history": {
			"numaform.dev", "", &scaler.VMState{VM: pinned, Phase: scaler.PhaseMade},
			map[string]string{"numaform.dev/key": "a", "numaform.dev/host-cpus": "0-2,4"},
			map[string]string{"numaform.dev/host-cpus": "0-2,4"},
		},
		"allowed and unpinned": {
			"numaform.dev", "", &scaler.VMState{VM: vm, Phase: scaler.PhaseMade, Origin: &scaler.Origin{Change: "x", Verdict: guard.Allow}},
			map[string]string{"numaform.dev/key": "a", "numaform.dev/change": "x", "numaform.dev/verdict": "allowed"},
			map[string]string{"numaform.dev/change": "x", "numaform.dev/verdict": "allowed"},
		},
		"approved before": {
			"numaform.dev", "bob", &scaler.VMState{VM: vm, Phase: scaler.PhaseMade, Origin: &scaler.Origin{Change: "x", Verdict: guard.Allow}},
			map[string]string{"numaform.dev/key": "a", "numaform.dev/change": "x", "numaform.dev/verdict": "allowed", "numaform.dev/approver": "bob"},
			map[string]string{"numaform.dev/change": "x", "numaform.dev/verdict": "allowed", "numaform.dev/approver": "bob"},
		},
		"unknown":             {"numaform.dev", "", nil, none, nil},
		"of another provider": {"karpenter.k8s.aws", "", &scaler.VMState{VM: pinned, Phase: scaler.PhaseMade, Origin: origin}, none, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, node := &karpv1.NodeClaim{}, &corev1.Node{}
			claim.Name, node.Name = "workers-2000", "workers-2000"
			claim.Annotations = map[string]string{"numaform.dev/key": "a"}
			claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: test.group, Kind: "ProxmoxNodeClass", Name: "c"}
			claim.Status.NodeName = node.Name
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim, node).WithStatusSubresource(claim).Build()
			known := vms{}
			if test.state != nil {
				known["a"] = *test.state
			}
			controller := provenance.New(api, known, test.approver)
			versions := map[string]bool{}
			for range 2 {
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
					t.Fatal(err)
				}
				result, err := controller.Reconcile(t.Context(), claim)
				if err != nil || (result.RequeueAfter > 0) != (test.group == "numaform.dev") {
					t.Fatalf("again in %s (%v)", result.RequeueAfter, err)
				}
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
					t.Fatal(err)
				}
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
					t.Fatal(err)
				}
				versions[claim.ResourceVersion+" "+node.ResourceVersion] = true
			}
			if len(versions) != 1 {
				t.Errorf("it writes again without a change: %v", versions)
			}
			if diff := cmp.Diff(test.claim, claim.Annotations); diff != "" {
				t.Errorf("nodeclaim (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.node, node.Annotations); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
}

// TestApproverOfTheNewChange checks that a NodeClaim names the approver of the change that it
// names, and no earlier one.
func TestApproverOfTheNewChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		recorded, found, want string
	}{
		"in its record":    {"alice", "", "alice"},
		"of its ScalePlan": {"", "bob", "bob"},
		"none":             {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, node := &karpv1.NodeClaim{}, &corev1.Node{}
			claim.Name, node.Name = "workers-2000", "workers-2000"
			claim.Annotations = map[string]string{"numaform.dev/key": "a", "numaform.dev/change": "x", "numaform.dev/approver": "carol"}
			node.Annotations = map[string]string{"numaform.dev/change": "x", "numaform.dev/approver": "carol"}
			claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "numaform.dev", Kind: "ProxmoxNodeClass", Name: "c"}
			claim.Status.NodeName = node.Name
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim, node).WithStatusSubresource(claim).Build()
			state := scaler.VMState{VM: fleet.VM{Key: "a"}, Phase: scaler.PhaseMade, Origin: &scaler.Origin{Change: "y", Approver: test.recorded}}
			controller := provenance.New(api, vms{"a": state}, bob(test.found))
			for range 2 {
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
					t.Fatal(err)
				}
				if _, err := controller.Reconcile(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}
			for _, object := range []client.Object{claim, node} {
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
					t.Fatal(err)
				}
				if got := object.GetAnnotations(); got["numaform.dev/change"] != "y" || got["numaform.dev/approver"] != test.want {
					t.Errorf("annotations %v of %T, want the approver %q", got, object, test.want)
				}
			}
		})
	}
}

// TestJoin checks that the join of a Node is in the trace of its VM's change, once and with
// its times, and only after the apply has ended.
func TestJoin(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	ctx := tracing.Into(t.Context(), provider.Tracer("test"))
	_, change := tracing.Start(ctx, tracing.SpanChange)
	applied := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	state := scaler.VMState{
		VM: fleet.VM{Key: "a", Name: "workers-2000"}, Phase: scaler.PhaseMaking, Since: applied, Origin: &scaler.Origin{}, Trace: change.SpanContext(),
	}
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.UID = "workers-2000", "1"
	claim.Annotations = map[string]string{"numaform.dev/key": "a"}
	claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "numaform.dev", Kind: "ProxmoxNodeClass", Name: "c"}
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{
			Type: condition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(applied.Add(time.Minute)),
		})
	}
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim).WithStatusSubresource(claim).Build()
	known := vms{"a": state}
	controller := provenance.New(api, known, bob(""))
	reconcile := func() time.Duration {
		t.Helper()
		result, err := controller.Reconcile(ctx, claim)
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	if again := reconcile(); again > 10*time.Second || len(recorder.Ended()) > 0 {
		t.Errorf("%d spans before the end of the apply; again in %s", len(recorder.Ended()), again)
	}
	state.Phase = scaler.PhaseMade
	known["a"] = state
	reconcile()
	reconcile()
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].Name() != tracing.SpanJoin || spans[0].Parent().SpanID() != change.SpanContext().SpanID() {
		t.Fatalf("spans %v", spans)
	}
	if took := spans[0].EndTime().Sub(spans[0].StartTime()); took != time.Minute || len(spans[0].Events()) != 1 {
		t.Errorf("the join took %s, events %v", took, spans[0].Events())
	}
}
