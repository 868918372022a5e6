package operator_test

import (
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/operator"
)

// TestFixedSize checks when nodes of a NodePool with spec.replicas are created and deleted:
// not while numaform is paused, not if its changes need approval, and at most every ten
// seconds.
func TestFixedSize(t *testing.T) {
	t.Parallel()
	three := int64(3)
	for _, test := range []struct {
		name        string
		annotations map[string]string
		replicas    *int64
		paused      bool
		since       time.Duration // the last attempt
		want        bool          // whether nodes are deleted, and then created
	}{
		{name: "a fixed size", replicas: &three, want: true},
		{name: "no fixed size"},
		{name: "auto", replicas: &three, annotations: map[string]string{"numaform.dev/scale-up": "auto", "numaform.dev/scale-down": "policy"}, want: true},
		{name: "manual scale-up", replicas: &three, annotations: map[string]string{"numaform.dev/scale-up": "manual"}},
		{name: "manual scale-down", replicas: &three, annotations: map[string]string{"numaform.dev/scale-down": "manual"}},
		{name: "an unknown mode", replicas: &three, annotations: map[string]string{"numaform.dev/scale-down": "sometimes"}},
		{name: "paused", replicas: &three, paused: true},
		{name: "too soon", replicas: &three, since: 9 * time.Second},
		{name: "later", replicas: &three, since: 10 * time.Second, want: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := &karpv1.NodePool{}
			pool.Name, pool.Annotations, pool.Spec.Replicas = "workers", test.annotations, test.replicas
			calls, again, err := operator.FixedSize(t.Context(), pool, test.paused, test.since)
			want := ""
			if test.want {
				want = "down up "
			}
			if calls != want || err != nil {
				t.Errorf("calls %q, error %v; want %q", calls, err, want)
			}
			if waits := test.paused || test.since > 0 && !test.want; waits != (again > 0) {
				t.Errorf("it is tried again after %s", again)
			}
		})
	}
}

// TestFixedSizeIsReported checks why a NodePool with spec.replicas has no nodes.
func TestFixedSizeIsReported(t *testing.T) {
	t.Parallel()
	pool := &karpv1.NodePool{}
	if got := operator.FixedSizeProblem(pool, false); got == "" {
		t.Error("nothing is reported without the feature gate")
	}
	if got := operator.FixedSizeProblem(pool, true); got != "" {
		t.Errorf("reported %q", got)
	}
}
