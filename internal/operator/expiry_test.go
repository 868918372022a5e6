package operator_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/operator"
)

// TestExpiryWaitsForTheFreeze checks that only an expired NodeClaim waits for the end of a
// freeze window.
func TestExpiryWaitsForTheFreeze(t *testing.T) {
	t.Parallel()
	created := time.Unix(1_800_000_000, 0)
	after := func(d time.Duration) karpv1.NillableDuration { return karpv1.NillableDuration{Duration: &d} }
	for _, test := range []struct {
		name        string
		expireAfter karpv1.NillableDuration
		frozen      bool
		want        bool // whether Karpenter's controller is called
	}{
		{"expired", after(time.Hour), false, true},
		{"expired in a freeze window", after(time.Hour), true, false},
		{"not expired in a freeze window", after(3 * time.Hour), true, true},
		{"never expires", karpv1.NillableDuration{}, true, true},
	} {
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
		claim.Spec.ExpireAfter = test.expireAfter
		called, again, err := operator.Expire(t.Context(), claim, created.Add(2*time.Hour), test.frozen)
		if err != nil || called != test.want || again > 0 == test.want {
			t.Errorf("%s: called %t, again after %s, error %v", test.name, called, again, err)
		}
	}
}
