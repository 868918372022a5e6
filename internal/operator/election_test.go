package operator_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
)

// TestRelease checks that a run releases only its own Lease, which then has no holder.
func TestRelease(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct{ holder, want string }{
		"its own":       {holder: "us_1", want: ""},
		"another run's": {holder: "us_2", want: "us_2"},
		"none":          {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "numaform", "numaform-controller", client.CoreV1(), client.CoordinationV1(),
				resourcelock.ResourceLockConfig{Identity: "us_1"})
			if err != nil {
				t.Fatal(err)
			}
			if tt.holder != "" {
				record := resourcelock.LeaderElectionRecord{HolderIdentity: tt.holder, LeaseDurationSeconds: 30, RenewTime: metav1.NewTime(now), LeaderTransitions: 3}
				if err := lock.Create(t.Context(), record); err != nil {
					t.Fatal(err)
				}
			}
			if err := operator.Release(t.Context(), lock, testclock.NewFakePassiveClock(now)); err != nil {
				t.Fatal(err)
			}
			if tt.holder == "" {
				return
			}
			record, _, err := lock.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if record.HolderIdentity != tt.want || record.LeaderTransitions != 3 {
				t.Errorf("got %+v, want the holder %q", record, tt.want)
			}
		})
	}
}
