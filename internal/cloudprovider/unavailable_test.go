package cloudprovider_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scheduling"
)

func TestUnavailableOfferings(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(epoch)
	unavailable := cloudprovider.NewUnavailableOfferings(clock)
	host := scheduling.OfferingSelector{Host: pve1}
	one := scheduling.OfferingSelector{NodePool: "workers", InstanceType: "c1.4VCPU-8GB", Host: pve2}
	unavailable.Mark(one, epoch.Add(time.Minute))
	unavailable.Mark(host, epoch.Add(2*time.Minute))
	unavailable.Mark(host, epoch.Add(time.Minute)) // the earlier call lasts longer

	if diff := cmp.Diff([]scheduling.OfferingSelector{host, one}, unavailable.List()); diff != "" {
		t.Errorf("unavailable differs:\n%s", diff)
	}
	clock.Step(time.Minute)
	if diff := cmp.Diff([]scheduling.OfferingSelector{host}, unavailable.List()); diff != "" {
		t.Errorf("after a minute, unavailable differs:\n%s", diff)
	}
	unavailable.Mark(host, epoch.Add(3*time.Minute))
	clock.Step(time.Minute)
	if len(unavailable.List()) != 1 {
		t.Error("marking it again did not last")
	}
	clock.Step(time.Minute)
	if got := unavailable.List(); len(got) != 0 {
		t.Errorf("unavailable are %v", got)
	}
}

func TestUnavailableOfferingsConcurrently(t *testing.T) {
	t.Parallel()
	unavailable := cloudprovider.NewUnavailableOfferings(testclock.NewFakeClock(epoch))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			unavailable.Mark(scheduling.OfferingSelector{NodePool: string(rune('a' + i))}, epoch.Add(time.Minute))
			unavailable.List()
		})
	}
	group.Wait()
	if got := len(unavailable.List()); got != 8 {
		t.Errorf("%d are unavailable, want 8", got)
	}
}
