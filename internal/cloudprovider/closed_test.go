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

func TestClosed(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(epoch)
	closed := cloudprovider.NewClosed(clock)
	host := scheduling.Offer{Host: pve1}
	one := scheduling.Offer{NodePool: "workers", InstanceType: "c1.4VCPU-8GB", Host: pve2}
	closed.Close(one, epoch.Add(time.Minute), "clone failed")
	closed.Close(host, epoch.Add(2*time.Minute), "is down")
	closed.Close(host, epoch.Add(time.Minute), "earlier") // the earlier call lasts longer

	want := []cloudprovider.ClosedOffer{{Offer: host, Until: epoch.Add(2 * time.Minute), Why: "is down"}, {Offer: one, Until: epoch.Add(time.Minute), Why: "clone failed"}}
	if diff := cmp.Diff(want, closed.Entries()); diff != "" {
		t.Errorf("entries differ:\n%s", diff)
	}
	clock.Step(time.Minute)
	if diff := cmp.Diff([]scheduling.Offer{host}, closed.List()); diff != "" {
		t.Errorf("after a minute, closed differs:\n%s", diff)
	}
	closed.Close(host, epoch.Add(3*time.Minute), "is down still")
	clock.Step(time.Minute)
	if len(closed.List()) != 1 {
		t.Error("closing it again did not last")
	}
	clock.Step(time.Minute)
	if got := closed.List(); len(got) != 0 {
		t.Errorf("closed are %v", got)
	}
}

func TestClosedIsUsedByMany(t *testing.T) {
	t.Parallel()
	closed := cloudprovider.NewClosed(testclock.NewFakeClock(epoch))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			closed.Close(scheduling.Offer{NodePool: string(rune('a' + i))}, epoch.Add(time.Minute), "a test")
			closed.List()
		})
	}
	group.Wait()
	if got := len(closed.List()); got != 8 {
		t.Errorf("%d are closed, want 8", got)
	}
}
