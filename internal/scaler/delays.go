package scaler

import (
	"context"
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// delay postpones an attempt, longer each time.
type delay struct {
	until time.Time
	tries int
}

// The limits of a delay.
const (
	shortestDelay = 5 * time.Second
	longestDelay  = 2 * time.Minute
	// longestRemovalDelay is the limit for VMs that cannot be deleted, for example because they
	// are protected: each attempt is a record of the history.
	longestRemovalDelay = 30 * time.Minute
)

// grown returns the next, longer delay.
func (d delay) grown(now time.Time, longest time.Duration) delay {
	return delay{until: now.Add(min(longest, shortestDelay<<min(d.tries, 10))), tries: d.tries + 1}
}

// waiting reports which hosts wait until their delay ends.
func waiting(delays map[topology.HostID]delay, now time.Time) map[topology.HostID]bool {
	hosts := map[topology.HostID]bool{}
	for host, d := range delays {
		hosts[host] = d.until.After(now)
	}
	return hosts
}

// due returns the time until the next postponed attempt, or 0 if none is postponed.
func (w *Writer) due() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.scaler.config.Clock.Now()
	var again time.Duration
	sooner := func(at time.Time) {
		if left := at.Sub(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	if len(w.cloning) > 0 {
		sooner(now.Add(soon))
	}
	if len(w.outside) > 0 {
		sooner(w.outsideSince.Add(soon))
	}
	for _, delays := range []map[topology.HostID]delay{w.backoff, w.updating, w.removing} {
		for _, d := range delays {
			sooner(d.until)
		}
	}
	for _, until := range w.gathering {
		if sooner(until); !until.After(now) {
			again = time.Millisecond // it ended meanwhile
		}
	}
	for _, m := range w.members {
		sooner(m.retry.until)
	}
	return again
}

// blocked postpones the hosts whose unfinished work cannot proceed, if the change contains
// nothing else, and returns them with the reasons. Without this, each attempt would appear
// in the history.
func (w *Writer) blocked(ctx context.Context, b *batch, plans []RootPlan) map[topology.HostID]error {
	if c := b.change; !c.Empty() || len(c.outside) > 0 || !sameFiles(c.BeforeFiles, withModules(c)) {
		return nil
	}
	found := map[topology.HostID]error{}
	for i := range plans {
		switch {
		case plans[i].Err != nil:
			found[plans[i].Host] = plans[i].Err
		case plans[i].Changes() || b.change.completes(&plans[i]) || len(plans[i].outside) > 0:
			return nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for host, err := range found {
		if slices.Contains(b.change.importing, host) {
			w.endImports(host, err) // the host is planned again without them
			continue
		}
		delays := w.backoff
		switch { // other requests need not wait
		case b.onlyRetriesUpdates(host):
			delays = w.updating
		case b.onlyRetriesRemovals(host):
			delays = w.removing
		}
		delays[host] = delays[host].grown(w.scaler.config.Clock.Now(), longestDelay)
		log.FromContext(ctx).Info("postponed unfinished work on a host", logkey.Host, host.String(), logkey.Reason, err.Error())
		// Interrupted VMs report the new reason. If it is not the backend, they no longer
		// wait.
		for _, m := range w.members {
			if m.VM.Host == host && m.Changing {
				m.ChangeErr = err
			}
			if m.VM.Host != host || m.leaving || !m.interrupted() {
				continue
			}
			phase := m.Phase
			if BackendDown(err, time.Time{}) == nil {
				phase = refusedPhase(err)
				m.resting = m.unstarted
			}
			w.set(m, phase, err)
		}
	}
	return found
}

// onlyRetriesUpdates reports whether the change only repeats updates of an earlier change on a
// host.
func (b *batch) onlyRetriesUpdates(host topology.HostID) bool {
	c := b.change
	return c.open[host].OnlyUpdates() && !slices.Contains(slices.Concat(c.Hosts(), c.differing(), c.importing), host)
}

// onlyRetriesRemovals reports whether the change only repeats removals of an earlier change on a
// host.
func (b *batch) onlyRetriesRemovals(host topology.HostID) bool {
	c := b.change
	return c.open[host].OnlyRemovals() && !slices.Contains(slices.Concat(c.Hosts(), c.differing(), c.importing), host)
}

// concernsHost reports whether an apply failed because of the host or the state backend, and not
// because of one of its VMs.
func concernsHost(err error) bool {
	return BackendDown(err, time.Time{}) != nil || errors.Is(err, state.ErrHostLost) || errors.As(err, new(*HostDownError))
}

// failsForVM reports whether the engine could not apply the plan of a host because of one of its
// VMs. Other requests of the host can then succeed.
func (b *batch) failsForVM(result *Result) bool {
	return !concernsHost(result.Err) && slices.ContainsFunc(on(b.change.After.VMs, result.Host), func(vm fleet.VM) bool { return namesVM(result.Err, withAnyGroups(vm)) })
}

// delayNext delays the next attempt on a host after a failure, and after an apply that found
// nothing to do, because the situation may be unchanged. The caller holds w.mu.
func (w *Writer) delayNext(b *batch, result *Result) {
	now := w.scaler.config.Clock.Now()
	if result.Err != nil && result.PlanSHA256 != "" && b.onlyRetriesRemovals(result.Host) && !concernsHost(result.Err) {
		w.removing[result.Host] = w.removing[result.Host].grown(now, longestRemovalDelay)
		return
	}
	// Other work failed, and is retried together with the removals, or everything succeeded.
	delete(w.removing, result.Host)
	switch {
	case result.Err != nil && result.PlanSHA256 == "" && slices.Contains(b.change.importing, result.Host):
		w.endImports(result.Host, result.Err) // the host is planned again without them
	case result.Err != nil && b.onlyRetriesUpdates(result.Host) && (result.PlanSHA256 == "" || b.failsForVM(result)):
		w.updating[result.Host] = w.updating[result.Host].grown(now, longestDelay)
	case result.Err != nil:
		w.backoff[result.Host] = w.backoff[result.Host].grown(now, longestDelay)
	case len(result.Created)+len(result.Imported)+len(result.Deleted)+len(result.Updated)+len(result.Woken) > 0:
		delete(w.backoff, result.Host)
		delete(w.quiet, result.Host)
	default:
		delete(w.backoff, result.Host)
		w.quiet[result.Host] = w.quiet[result.Host].grown(now, longestDelay)
	}
	switch {
	case result.Err != nil:
	case len(result.Later) == 0:
		delete(w.updating, result.Host)
	case result.PlanSHA256 == "" && !slices.Contains(b.change.differing(), result.Host):
		// Nothing was left to do but these updates, and their own plan did not suffice. A host that
		// was planned completely because it differs is quiet now, so they are planned next.
		w.updating[result.Host] = w.updating[result.Host].grown(now, longestDelay)
	}
}
