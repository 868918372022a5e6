package operator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestHeap returns memory once when the controller becomes idle, and collects lazily again
// as soon as it works.
func TestHeap(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Now())
	var got []string
	h := operator.NewTestHeap(clk, func(percent int) int {
		got = append(got, fmt.Sprintf("collect %d", percent))
		return 0
	}, func() { got = append(got, "release") })
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		got = nil
	}

	clk.Step(19 * time.Second)
	h.Rest()
	expect("shortly after it worked")
	h.Work()
	clk.Step(19 * time.Second)
	h.Rest()
	expect("shortly after it worked again")
	clk.Step(time.Second)
	h.Rest()
	expect("idle", "collect 50", "release")
	clk.Step(time.Hour)
	h.Rest()
	expect("still idle")
	h.Work()
	h.Work()
	expect("working", "collect 300")
}
