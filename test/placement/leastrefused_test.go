package placement_test

import (
	"math"
	"testing"

	"github.com/numaform/numaform/test/placement"
)

// TestLeastRefused checks that numaform refuses as few VMs as the best online placer on a
// machine with three free cores. Refusals are unavoidable if VMs require whole cores for
// all but one odd vCPU.
func TestLeastRefused(t *testing.T) {
	t.Parallel()
	m := known(t, "nuc-i7-1165g7-4c8t")
	flavors := mixes(t)[0].On(m)
	var one, all float64
	for _, f := range flavors {
		all += f.Share
		if f.VCPUs == 1 {
			one += f.Share
		}
	}
	least := placement.LeastRefused(3, one/all)
	if math.Abs(least-0.138) > 0.001 {
		t.Errorf("the least is %.4f, want 0.138", least)
	}
	churn := placement.RunChurn(placement.Numaform(true), m, flavors, 1, placement.Load{Events: 40_000})
	if refused := float64(churn.Refused) / float64(churn.Arrivals); math.Abs(refused-least) > 0.01 {
		t.Errorf("numaform refuses %.4f, the least is %.4f", refused, least)
	}
}
