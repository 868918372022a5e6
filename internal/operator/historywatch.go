package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/store"
)

const (
	// heldFor is how long the controller writes nothing after it found that its history was
	// rewritten. Then it goes on and records that: whoever may push to the fleet's repository
	// must not be able to stop it for long. See ADR 38.
	heldFor = 15 * time.Minute
	// heldAgain is how long it does not stop again after that.
	heldAgain = 24 * time.Hour
	// historyEvery is the interval of verifications if the drift check is disabled.
	historyEvery = time.Hour
	// heldCheck is the interval of checks while it is held, and after a check that failed.
	heldCheck = time.Minute
	// putBackRecords is the minimum time between two records of copies that were pushed again:
	// whoever may force pushes must not be able to fill the history.
	putBackRecords = time.Hour
)

// The event reasons for faults of the history.
const (
	reasonHistoryForged   = "HistoryForged"
	reasonHistoryAccepted = "HistoryAccepted"
	reasonHistoryPutBack  = "HistoryPutBack"
)

// historyWatch periodically verifies the fleet's history. While it was rewritten, and no user
// accepted that, it holds all changes, for at most heldFor.
type historyWatch struct {
	store *store.Sealed
	// places have copies of the checkpoints.
	places []store.CheckpointPlace
	// accept records an acceptance: see scaler.Scaler.AcceptHistory.
	accept func(ctx context.Context, kind audit.Kind, why string, findings []audit.Finding) (string, error)
	// hold stops the creation and removal of VMs.
	hold func(bool)
	// read receives whether each verification could read the history, observe its result, and
	// putBacks what was pushed again.
	read     func(readable bool)
	observe  func(report *audit.Report, held bool, places int)
	putBacks func(pushed bool)
	recorder events.Recorder
	self     *corev1.ConfigMap
	clock    clock.PassiveClock
	// every is the interval of verifications; 0 means historyEvery.
	every time.Duration

	// mu guards the following fields.
	mu sync.Mutex
	// held is set while changes are held, and since is the time of the finding.
	held  *store.RewrittenError
	since time.Time
	// continued is when the controller last went on by itself. The history has it, too, for
	// the next start, but whoever can write the store can remove that record.
	continued time.Time
	// problem describes the last findings that were reported.
	problem string
	// pushed describes the copies that were pushed again and are not recorded yet, and recorded
	// is the time of their last record.
	pushed   []string
	recorded time.Time
	// wake ends the wait for the next verification.
	wake chan struct{}
}

// putBack reports that the fleet's branch had lost what numaform wrote to it. check records it.
func (h *historyWatch) putBack(done store.PutBack) {
	h.putBacks(done.Err == nil)
	text := done.String()
	h.recorder.Publish(events.Event{
		InvolvedObject: h.self, Type: corev1.EventTypeWarning, Reason: reasonHistoryPutBack, Message: text, DedupeValues: []string{done.From, done.To},
	})
	if done.Err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pushed = append(h.pushed, text)
	select {
	case h.wake <- struct{}{}:
	default: // it will wake up
	}
}

// recordPutBacks records in the history that numaform pushed its copy again.
func (h *historyWatch) recordPutBacks(ctx context.Context) error {
	h.mu.Lock()
	list, held := h.pushed, h.held != nil
	early := h.clock.Since(h.recorded) < putBackRecords
	h.mu.Unlock()
	if len(list) == 0 || held || early {
		return nil
	}
	why := list[len(list)-1]
	if n := len(list) - 1; n > 0 {
		why += fmt.Sprintf(" (and %d times before)", n)
	}
	id, err := h.accept(ctx, audit.KindPutBack, why, nil)
	if err != nil {
		return fmt.Errorf("recording that numaform pushed its copy of the history again: %w", err)
	}
	log.FromContext(ctx).Info("pushed the copy of the history again", logkey.Reason, why, logkey.Change, id)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pushed, h.recorded = h.pushed[len(list):], h.clock.Now()
	return nil
}

// run verifies the history at the start and then every interval, until ctx ends.
func (h *historyWatch) run(ctx context.Context) error {
	if h.store == nil {
		return nil // the store has no key
	}
	for {
		err := h.check(ctx)
		failed := err != nil && ctx.Err() == nil
		if failed {
			log.FromContext(ctx).Error(err, "could not verify the history")
		}
		next := cmp.Or(h.every, historyEvery)
		if failed || h.holding() {
			next = min(next, heldCheck)
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-h.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

func (h *historyWatch) holding() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held != nil
}

// waits returns why new nodes of a NodePool wait while changes are held.
func (h *historyWatch) waits(pool string) []scheduling.Wait {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return nil
	}
	return []scheduling.Wait{{NodePool: pool, Reason: v1alpha1.ReasonHistoryRewritten, Since: h.since, Message: h.held.Error()}}
}

// check verifies the history once.
func (h *historyWatch) check(ctx context.Context) error {
	var checkpoints [][]byte
	reached := 0
	for _, place := range h.places {
		list, err := place.Load(ctx)
		if err != nil {
			log.FromContext(ctx).Error(err, "could not read the history's checkpoints", logkey.Place, place.String())
			continue
		}
		checkpoints = append(checkpoints, list...)
		reached++
	}
	found, err := h.store.Audit(ctx, checkpoints...)
	if ctx.Err() == nil {
		h.read(err == nil)
	}
	if err != nil || found == nil {
		return err
	}
	if err := h.decide(ctx, found); err != nil {
		return err
	}
	if err := h.recordPutBacks(ctx); err != nil {
		return err
	}
	if found.Rewritten == nil && len(found.Checkpoint) > 0 {
		reached = 0
		for _, place := range h.places {
			if err := place.Save(ctx, found.Log, found.Checkpoint); err != nil {
				log.FromContext(ctx).Error(err, "could not copy the history's checkpoint", logkey.Place, place.String())
				continue
			}
			reached++
		}
	}
	h.observe(found.Report, h.holding(), reached)
	return nil
}

// decide holds or releases all changes, and reports the findings.
func (h *historyWatch) decide(ctx context.Context, found *store.Audit) error {
	open := found.Open()
	pending := slices.DeleteFunc(slices.Clone(open), func(f audit.Finding) bool { return !f.Fault.Rewritten() || f.Accepted != "" })
	h.mu.Lock()
	was, since, continued := h.held, h.since, h.continued
	if len(pending) == 0 {
		since = time.Time{}
	} else if since.IsZero() {
		since = h.clock.Now()
	}
	h.mu.Unlock()

	if found.Continued.After(continued) {
		continued = found.Continued
	}
	var held *store.RewrittenError
	switch {
	case len(pending) == 0:
	case found.Rewritten.Older:
		held = found.Rewritten
	case h.clock.Since(since) >= heldFor || h.clock.Since(continued) < heldAgain:
		why := fmt.Sprintf("the history was rewritten and not accepted within %s: numaform continues", heldFor)
		id, err := h.accept(ctx, audit.KindContinue, why, pending)
		if err != nil {
			return fmt.Errorf("recording that numaform goes on: %w", err)
		}
		since, continued = time.Time{}, h.clock.Now()
		log.FromContext(ctx).Info("continued after the history was rewritten", logkey.Reason, pending[0].Text, logkey.Change, id)
	default:
		held = found.Rewritten
	}
	h.store.Hold(held)
	h.hold(held != nil)
	h.mu.Lock()
	h.held, h.since, h.continued = held, since, continued
	problem := audit.Fingerprint(open)
	known := h.problem == problem
	h.problem = problem
	h.mu.Unlock()

	kind, reason, text := corev1.EventTypeWarning, v1alpha1.ReasonHistoryRewritten, ""
	switch {
	case held != nil:
		text = held.Error()
	case found.Rewritten != nil:
		text = "numaform goes on, but: " + found.Rewritten.Error()
	case len(open) > 0:
		reason = reasonHistoryForged
		text = fmt.Sprintf("%d records of the history are not numaform's, such as: %s: numaform does not rely on them; run numaform history verify", len(open), open[0].Text)
	case was != nil:
		kind, reason, text = corev1.EventTypeNormal, reasonHistoryAccepted, "the history was accepted: numaform goes on"
	default:
		return nil
	}
	if !known {
		log.FromContext(ctx).Info("verified the history", logkey.Reason, text)
	}
	h.recorder.Publish(events.Event{InvolvedObject: h.self, Type: kind, Reason: reason, Message: text, DedupeValues: []string{problem}})
	return nil
}
