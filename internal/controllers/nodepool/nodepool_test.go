package nodepool_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/internal/controllers/nodepool"
	"github.com/numaform/numaform/internal/scheduling"
)

// recorder records published events.
type recorder struct{ kept []events.Event }

func (r *recorder) Publish(published ...events.Event) { r.kept = append(r.kept, published...) }

func TestOnlyOurPoolsAreTold(t *testing.T) {
	three, now := int64(3), metav1.Now()
	tests := []struct {
		name   string
		change func(*karpv1.NodePool)
		told   string
	}{
		{"of a fixed size", func(p *karpv1.NodePool) { p.Spec.Replicas = &three }, "re-create the NodePool without spec.replicas"},
		{"with a mistyped label", func(p *karpv1.NodePool) {
			p.Spec.Template.Labels = map[string]string{"numaform.dev/plcement": "Shared"}
		}, "label numaform.dev/plcement"},
		{"with a mistyped annotation", func(p *karpv1.NodePool) { p.Annotations["numaform.dev/min-node"] = "2" }, "did you mean numaform.dev/min-nodes?"},
		{"scaled by pods", func(*karpv1.NodePool) {}, ""},
		{"of another provider", func(p *karpv1.NodePool) {
			p.Spec.Replicas = &three
			p.Spec.Template.Spec.NodeClassRef.Group = "karpenter.k8s.aws"
			p.Annotations["numaform.dev/min-nodes"] = "some"
		}, ""},
		{"of no class", func(p *karpv1.NodePool) { p.Spec.Replicas, p.Spec.Template.Spec.NodeClassRef = &three, nil }, ""},
		{"on its way out", func(p *karpv1.NodePool) { p.Spec.Replicas, p.DeletionTimestamp = &three, &now }, ""},
		{"of some nodes at least", func(p *karpv1.NodePool) { p.Annotations["numaform.dev/min-nodes"] = "some" }, `"some" must be a number of nodes`},
		{"of two nodes at least", func(p *karpv1.NodePool) { p.Annotations["numaform.dev/min-nodes"] = "2" }, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := &karpv1.NodePool{}
			pool.Name, pool.Annotations = "general", map[string]string{}
			pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "numaform.dev", Kind: "ProxmoxNodeClass", Name: "c"}
			test.change(pool)
			r := &recorder{}
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithStatusSubresource(pool).Build()
			controller := nodepool.New(nodepool.Config{
				Client: api, Recorder: r, Clock: clock.RealClock{}, Known: func() bool { return true },
				Waits:     func(string) []scheduling.Wait { return nil },
				FixedSize: func(*karpv1.NodePool) string { return "re-create the NodePool without spec.replicas" },
			})
			if _, err := controller.Reconcile(context.Background(), pool); err != nil {
				t.Fatal(err)
			}
			if (len(r.kept) > 0) != (test.told != "") {
				t.Fatalf("told %v", r.kept)
			}
			if test.told != "" && !strings.Contains(r.kept[0].Message, test.told) {
				t.Errorf("the event says %q", r.kept[0].Message)
			}
		})
	}
}
