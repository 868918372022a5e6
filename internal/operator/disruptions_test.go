package operator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/numaform/numaform/internal/operator"
)

// recordedMethod is a method of disruption that records its rounds.
type recordedMethod struct {
	disruption.Method
	name   string
	reason karpv1.DisruptionReason
	rounds *[]string
}

func (m recordedMethod) Reason() karpv1.DisruptionReason { return m.reason }
func (m recordedMethod) ConsolidationType() string       { return "" }

// Class is called once in each round.
func (m recordedMethod) Class() string {
	*m.rounds = append(*m.rounds, m.name)
	return disruption.GracefulDisruptionClass
}

// classless is a cloud provider without node classes.
type classless struct{ cloudprovider.CloudProvider }

func (classless) GetSupportedNodeClasses() []status.Object { return nil }

// TestDisruptions checks that a round omits methods that cannot have candidates: for drift if
// no NodeClaim has drifted, and for approval if no NodePool needs it. An omitted method that
// ran before runs once more.
func TestDisruptions(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{}}}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	var listErr error
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim, pool).WithStatusSubresource(claim).Build()
	reader := interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if listErr != nil {
				return listErr
			}
			return api.List(ctx, list, opts...)
		},
	})
	cluster := state.NewCluster(clock.RealClock{}, api, classless{})
	var rounds []string
	methods := func(prefix string) []disruption.Method {
		return []disruption.Method{
			recordedMethod{name: prefix + "empty", reason: karpv1.DisruptionReasonEmpty, rounds: &rounds},
			recordedMethod{name: prefix + "drifted", reason: karpv1.DisruptionReasonDrifted, rounds: &rounds},
		}
	}
	manual := false
	loop := operator.NewDisruptions(reader, func(pool *karpv1.NodePool) bool { return manual && pool.Name == "workers" }, methods(""), methods("held "),
		func(methods ...disruption.Method) *disruption.Controller {
			queue := disruption.NewQueue(api, nil, cluster, clock.RealClock{}, nil)
			return disruption.NewController(clock.RealClock{}, api, nil, classless{}, nil, cluster, queue, nil, disruption.WithMethods(methods...))
		})
	round := func(want ...string) {
		t.Helper()
		rounds = nil
		if _, err := loop.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(rounds, want) {
			t.Errorf("the round has the methods %s, want %s", strings.Join(rounds, ", "), strings.Join(want, ", "))
		}
	}
	set := func(change func(status.ConditionSet)) {
		t.Helper()
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			t.Fatal(err)
		}
		change(claim.StatusConditions())
		if err := api.Status().Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}

	round("empty")
	set(func(conditions status.ConditionSet) { conditions.SetTrue(karpv1.ConditionTypeDrifted) })
	round("empty", "drifted")
	manual = true
	round("empty", "drifted", "held empty", "held drifted")
	set(func(conditions status.ConditionSet) { _ = conditions.Clear(karpv1.ConditionTypeDrifted) })
	round("empty", "drifted", "held empty", "held drifted")
	round("empty", "held empty")
	manual = false
	round("empty", "held empty")
	round("empty")
	listErr = errors.New("the cache has stopped")
	round("empty", "drifted", "held empty", "held drifted")
}
