package scaler_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestBurstHasParts reserves VMs on many hosts: a change takes a host for two cores, and more
// hosts until it has 32 VMs, or 8 if it is the first part of a large burst.
func TestBurstHasParts(t *testing.T) {
	t.Parallel()
	few := max(1, runtime.GOMAXPROCS(0)/2)
	for name, test := range map[string]struct{ hosts, onEach, want int }{
		"one host":           {1, 200, 1},
		"a host more":        {few + 1, 40, few},
		"just fewer":         {few + 2, 31, max(few, 2)},
		"small":              {few + 3, 1, few + 3},
		"enough on the last": {few + 32, 1, max(few, 32)},
		"many hosts":         {few + 100, 2, max(2*few, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writer := scaler.NewWriter(scaler.New(scaler.Config{}), scaler.WriterConfig{})
			var want []topology.HostID
			for h := range test.hosts {
				host := topology.HostID{Region: testenv.Region, Host: topology.HostName(fmt.Sprintf("pve-%03d", h))}
				if h >= test.want {
					want = append(want, host)
				}
				for i := range test.onEach {
					vm := fleet.VM{Key: fleet.Key(fmt.Sprintf("%d-%d", h, i)), VMID: fleet.VMID(2000 + i*test.hosts + h)}
					vm.Host = host
					writer.Reserve(vm)
				}
			}
			if diff := cmp.Diff(want, writer.LaterHosts()); diff != "" {
				t.Errorf("hosts that wait (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLimitsCountTheWholeBurst plans a part of a burst that only as a whole exceeds a
// limit: the part needs approval, and the next change contains all VMs.
func TestLimitsCountTheWholeBurst(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(c *scaler.Config) { c.Rules.Limits.PerChange.Creates = 1 })
	writer := scaler.NewWriter(w.Scaler, scaler.WriterConfig{})
	for name, test := range map[string]struct {
		later []fleet.VM
		want  guard.Decision
	}{
		"alone": {nil, guard.Allow},
		"burst": {[]fleet.VM{{Placement: fleet.Placement{Host: second}}}, guard.NeedsApproval},
	} {
		change := propose(t, w.Scaler, w.snapshot(t), on(first))
		change.Later(test.later...)
		plans, err := w.Plan(t.Context(), change)
		if err != nil || len(plans) != 1 || plans[0].Verdict.Decision != test.want {
			t.Fatalf("%s: plans %+v (%v), want one with %s", name, plans, err, test.want)
		}
		if whole := writer.ApprovePart(t.Context(), change, plans); whole != (len(test.later) > 0) {
			t.Errorf("%s: all VMs in the next change: %t", name, whole)
		}
	}
}

// TestWriterAwaitsDrains checks that a removal waits for other VMs of its host only while
// they are being drained.
func TestWriterAwaitsDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	draining := map[fleet.Key]bool{}
	asked := make(chan struct{}, 100)
	writer := w.run(t, func(c *scaler.WriterConfig) {
		c.Gather = time.Hour
		c.Leaving = func(context.Context) (map[fleet.Key]bool, error) {
			mu.Lock()
			defer mu.Unlock()
			asked <- struct{}{}
			return maps.Clone(draining), nil
		}
	})
	vms := ensure(t, writer, on(first), on(first), on(first), on(second))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade, scaler.PhaseMade)
	mu.Lock()
	draining[vms[0].Key], draining[vms[1].Key], draining[vms[3].Key] = true, true, true
	mu.Unlock()
	writer.Remove(vms[0].Key)
	<-asked // the first removal could begin now
	writer.Remove(vms[1].Key)
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 2 || len(history[1].Change.Removed) != 2 {
		t.Errorf("history %+v (%v), want one change that removes both", history, err)
	}
	writer.Remove(vms[2].Key)
	phases(t, writer, scaler.PhaseMade)
}

// TestWriterRemovesTogether requests the removal of a host's VMs in short succession: one
// change removes them.
func TestWriterRemovesTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	looked := make(chan struct{}, 100)
	writer := w.run(t, func(c *scaler.WriterConfig) {
		c.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
			snapshot, err := w.client.Snapshot(ctx)
			looked <- struct{}{}
			return snapshot, err
		}
	})
	vms := ensure(t, writer, on(first), on(first))
	phases(t, writer, scaler.PhaseMade, scaler.PhaseMade)
	for len(looked) > 0 {
		<-looked
	}
	writer.Remove(vms[0].Key)
	<-looked // the first removal could begin now
	writer.Remove(vms[1].Key)
	phases(t, writer)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil || len(history) != 2 || history[1].Change.Kind != audit.KindScaleDown || len(history[1].Change.Removed) != 2 {
		t.Errorf("history %+v (%v), want one change that removes both", history, err)
	}
}
