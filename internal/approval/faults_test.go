package approval_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state/guard"
)

// errAPI is the API server's response to the bench's faulty call.
var errAPI = errors.New("etcdserver: no leader")

// errConflict is the API server's response to an update of an object that has changed
// meanwhile.
var errConflict = apierrors.NewConflict(schema.GroupResource{Group: v1alpha1.Group, Resource: "scaleplans"}, "x", errAPI)

// faulty is the API server with the bench's fault.
type faulty struct {
	client.Client
	b *bench
}

func (f faulty) fail(verb string, object runtime.Object) error {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", object), ".")
	switch f.b.fault {
	case verb + " " + kind:
		return errAPI
	case verb + " " + kind + ", conflict":
		return errConflict
	}
	return nil
}

func (f faulty) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if err := f.fail("get", object); err != nil {
		return err
	}
	return f.Client.Get(ctx, key, object, options...)
}

func (f faulty) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if err := f.fail("list", list); err != nil {
		return err
	}
	return f.Client.List(ctx, list, options...)
}

func (f faulty) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if err := f.fail("create", object); err != nil {
		return err
	}
	return f.Client.Create(ctx, object, options...)
}

func (f faulty) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if err := f.fail("patch", object); err != nil {
		return err
	}
	return f.Client.Patch(ctx, object, patch, options...)
}

func (f faulty) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if err := f.fail("delete", object); err != nil {
		return err
	}
	return f.Client.Delete(ctx, object, options...)
}

func (f faulty) Status() client.SubResourceWriter { return faultyStatus{f.Client.Status(), f} }

type faultyStatus struct {
	client.SubResourceWriter
	f faulty
}

func (s faultyStatus) Update(ctx context.Context, object client.Object, options ...client.SubResourceUpdateOption) error {
	if err := s.f.fail("status", object); err != nil {
		return err
	}
	err := s.SubResourceWriter.Update(ctx, object, options...)
	if updated := s.f.b.updated; updated != nil {
		s.f.b.updated = nil
		updated()
	}
	return err
}

// fails checks that a call with the fault returns an error that contains names, and allows
// nothing.
func (b *bench) fails(fault, names string, call func() (passed bool, err error)) {
	b.Helper()
	b.fault = fault
	defer func() { b.fault = "" }()
	passed, err := call()
	if passed || !errors.Is(err, errAPI) || !strings.Contains(err.Error(), names) {
		b.Errorf("with a failing %s: passed %t, %v; want an error that names %s", fault, passed, err, names)
	}
}

// TestAFailedReadLetsNothingPass checks that a failed read from the API server is an error
// and allows nothing, because approvals are unknown.
func TestAFailedReadLetsNothingPass(t *testing.T) {
	b := newBench(t, strict())
	b.pool("quick", "auto", "auto")
	b.pool("free", "", "")
	quick, free := b.held(0, placed("quick", pve1, 4096)), b.held(0, placed("free", pve1, 4096))
	b.asked("", free)

	up := func() (bool, error) {
		may, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{placed("quick", pve1, 4096)})
		return len(may) > 0, err
	}
	approver := func(plan *scaler.RootPlan) func() (bool, error) {
		return func() (bool, error) {
			approval, err := b.approvals.Approver(t.Context(), plan)
			return approval != nil, err
		}
	}
	advance := func() (bool, error) {
		_, err := b.approvals.Advance(t.Context())
		return false, err
	}

	const readingPools, readingPlans, readingLedger = "reading nodepools: ", "reading scaleplans: ", "reading ConfigMap default/numaform-approvals: "
	b.fails("list NodePoolList", readingPools, up)
	b.fails("list NodePoolList", readingPools, approver(quick))
	update := &scaler.RootPlan{Intent: guard.Intent{Update: free.Intent.Create}}
	b.fails("list NodePoolList", readingPools, func() (bool, error) { return b.approvals.Asks(t.Context(), update) })
	for fault, names := range map[string]string{"list ScalePlanList": readingPlans, "get ConfigMap": readingLedger} {
		b.fails(fault, names, up)
		b.fails(fault, names, approver(free))
		b.fails(fault, names, advance)
	}
	if plans := b.plans(""); len(plans) != 1 {
		t.Errorf("%d plans, want the one from before", len(plans))
	}
	b.asked("auto mode of NodePool quick", quick)
}

// TestAFailedWriteProposesNothing checks that a proposal that could not be written is
// written by the next call, and that an approval that cannot be recorded allows nothing.
func TestAFailedWriteProposesNothing(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	draft := func() (bool, error) {
		may, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{vm})
		if err != nil {
			t.Fatal(err)
		}
		return len(may) > 0, b.approvals.Draft(t.Context())
	}
	b.fails("create ScalePlan", "checking approval of nodepool slow: proposing scaleplan slow-", draft)
	if plans := b.plans(""); len(plans) != 0 {
		t.Fatalf("%d plans exist", len(plans))
	}
	b.fails("patch ConfigMap", "writing ConfigMap default/numaform-approvals: ", draft)
	b.want(0, vm)
	plan := b.plan(v1alpha1.ScalePlanPending)

	// An approval that cannot be recorded as used allows nothing.
	b.approve(plan)
	begin := func() (bool, error) {
		may, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{vm})
		if err == nil && len(may) == 0 { // it has to be planned again
			if err = b.approvals.Draft(t.Context()); err != nil {
				t.Fatal(err)
			}
			may, err = b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{vm})
		}
		return len(may) > 0, err
	}
	b.fails("status ScalePlan", "checking approval of nodepool slow: beginning scaleplan "+plan.Name+": ", begin)
	b.plan(v1alpha1.ScalePlanPending)
	b.want(1, vm)
	b.plan(v1alpha1.ScalePlanApproved)
}

// TestAFailedReadRemovesNothing checks that no node is removed if a read from the API
// server fails, not even a node of a NodePool that needs no approval.
func TestAFailedReadRemovesNothing(t *testing.T) {
	s := newShop(t)
	free, slow := s.pool("free", "", ""), s.pool("slow", "", "manual")
	one, two := worker("free", 2000), worker("slow", 2001)
	s.stock(one, two)
	for _, test := range []struct {
		fault string
		held  bool
		names string
	}{
		{fault: "list NodePoolList", names: "reading nodepools: "},
		{fault: "list ScalePlanList", held: true, names: "reading scaleplans: "},
		{fault: "get ConfigMap", held: true, names: "reading ConfigMap default/numaform-approvals: "},
	} {
		method, candidate := s.free, s.candidate(free, one)
		if test.held {
			method, candidate = s.held, s.candidate(slow, two)
		}
		if !method.ShouldDisrupt(t.Context(), candidate) {
			t.Fatalf("%s is no candidate", candidate.Name())
		}
		s.fails(test.fault, test.names, func() (bool, error) {
			commands, err := method.ComputeCommands(t.Context(), map[string]int{"free": 9, "slow": 9}, candidate)
			return len(commands) > 0, err
		})
	}
	if plans := s.plans(""); len(plans) != 0 {
		t.Errorf("%d plans exist", len(plans))
	}
	// A removal that cannot be planned or proposed does not happen, and other nodes are
	// removed.
	for _, fault := range []string{"Proxmox", "create ScalePlan"} {
		s.later(2 * time.Minute)
		s.fault = fault
		var logged strings.Builder
		ctx := log.IntoContext(t.Context(), funcr.New(func(_, line string) { logged.WriteString(line) }, funcr.Options{}))
		commands, err := s.held.ComputeCommands(ctx, map[string]int{"slow": 9}, s.candidate(slow, two))
		if len(commands) != 0 || err != nil || !strings.Contains(logged.String(), errAPI.Error()) {
			t.Errorf("with a failing %s: %d commands, %v, logged %s", fault, len(commands), err, &logged)
		}
	}
	if plans := s.plans(""); len(plans) != 0 {
		t.Errorf("%d plans exist", len(plans))
	}
	if got := s.compute(s.free, 9, s.candidate(free, one)); len(got) != 1 {
		t.Errorf("%q go, want free-2000", got)
	}
}

// TestAConflictIsRetried checks that an update of a ScalePlan that fails with a conflict is
// completed by a later call.
func TestAConflictIsRetried(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("slow", "manual", "")
	vm := placed("slow", pve1, 4096, "a")
	b.fault = "status ScalePlan, conflict"
	b.want(0, vm)
	plan := b.plan("") // proposed, and only the copy of its status for users is missing
	if plan.Status.Phase != "" {
		t.Fatalf("the phase is %s", plan.Status.Phase)
	}
	b.settle()
	b.fault = ""
	b.settle()
	plan = b.plan(v1alpha1.ScalePlanPending)

	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.Reject, spec.RejectedBy = "no", "bob" }); err != nil {
		t.Fatal(err)
	}
	b.fault = "status ScalePlan, conflict"
	b.settle()
	b.plan(v1alpha1.ScalePlanPending)
	b.fault = ""
	b.settle()
	b.plan(v1alpha1.ScalePlanRejected)
}

// TestALedgerThatCannotBeRead writes an invalid entry into the ledger, and checks that the
// error contains its key and that nothing is allowed.
func TestALedgerThatCannotBeRead(t *testing.T) {
	b := newBench(t, guard.DefaultRules())
	b.pool("free", "", "")
	b.want(1, placed("free", pve1, 4096, "a"))
	entry := func(content string) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"0000":`+content+`}}`))
		ledger := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: approval.LedgerName}}
		if err := b.client.Patch(t.Context(), ledger, patch); err != nil {
			t.Fatal(err)
		}
	}
	entry(`"{"`)
	may, err := b.approvals.Up(t.Context(), snapshot(), []scheduling.Placed{placed("free", pve1, 4096, "a")})
	if len(may) > 0 || err == nil || !strings.Contains(err.Error(), "ConfigMap default/"+approval.LedgerName+": key 0000: ") || !strings.Contains(err.Error(), "remove the key") {
		t.Errorf("got %d VMs, %v, want the key named", len(may), err)
	}
	entry("null")
	b.want(1, placed("free", pve1, 4096, "a"))
}
