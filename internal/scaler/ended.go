package scaler

import (
	"context"
	"errors"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// begun updates the writer after a change has become the desired state.
func (w *Writer) begun(m *move, b *begun) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applying++
	if b.id != "" {
		w.outside = w.outside[len(b.change.outside):]
	}
	for _, key := range m.coming {
		if e := w.members[key]; e != nil {
			w.scaler.config.Observe.QueueDone(e.VM.Host, b.started.Sub(e.Since))
			e.Filed, e.moving = true, true
			if !e.leaving {
				w.set(e, PhaseMaking, nil)
			}
		}
	}
	for _, key := range m.leaving {
		if e := w.members[key]; e != nil {
			e.moving = true
		}
	}
	for _, vm := range b.change.Updated {
		if e := w.members[vm.Key]; e != nil {
			e.moving = true
			e.VM = vm
		}
	}
	for _, vm := range b.change.TakenIn {
		underWay := b.change.open[vm.Host].Removed
		leaving := slices.ContainsFunc(underWay, func(r fleet.VM) bool { return r.Key == vm.Key })
		w.members[vm.Key] = &member{VMState: VMState{VM: vm, Phase: PhaseMaking, Since: b.started, Filed: true}, leaving: leaving}
	}
}

// ended updates the writer after the apply on a host has ended.
func (w *Writer) ended(ctx context.Context, m *move, id string, result Result) {
	standing := map[fleet.Key]bool{}
	if result.Err != nil {
		standing = w.look(ctx, m.change.Snapshot, result.Shard)
		log.FromContext(ctx).Info("applied a shard not wholly", logkey.Host, result.Shard.String(), logkey.Reason, result.Err.Error())
	}
	// Until all this is recorded the host is busy, or a failed change would begin again
	// at once.
	defer w.nudge()
	defer w.scaler.running.end(id, result.Shard, result.Err == nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember(&result)
	var lost *ContendedError
	contended := errors.As(result.Err, &lost)
	for key, e := range w.members {
		if e.VM.Host != result.Shard {
			continue
		}
		taken := contended && slices.ContainsFunc(lost.VMs, func(vm fleet.VM) bool { return vm.Key == key })
		w.settle(e, m, result.Err, standing[key] && !taken)
	}
}

// remember delays the next attempt after a failure, and after an apply that found nothing
// to do, because the situation may be unchanged.
func (w *Writer) remember(result *Result) {
	now, shard := w.scaler.config.Clock.Now(), result.Shard
	if result.Err != nil {
		w.backoff[shard] = w.backoff[shard].grown(now)
		return
	}
	delete(w.backoff, shard)
	if len(result.Created)+len(result.Imported)+len(result.Deleted)+len(result.Updated) > 0 {
		delete(w.quiet, shard)
		return
	}
	w.quiet[shard] = w.quiet[shard].grown(now)
}

// settle updates a VM of a host whose apply has ended.
func (w *Writer) settle(e *member, m *move, err error, stands bool) {
	if slices.Contains(m.changing, e.VM.Key) {
		w.settleInPlace(e, err)
		return
	}
	if err == nil && e.wish == nil {
		e.Changing, e.ChangeErr = false, nil // completes an earlier change, too
	}
	w.settlePhase(e, m, err, stands)
}

// settlePhase sets the phase of a VM of a host whose apply has ended.
func (w *Writer) settlePhase(e *member, m *move, err error, stands bool) {
	leaving := slices.Contains(m.leaving, e.VM.Key)
	unfinished := e.Phase == PhaseMaking || (e.Phase == PhaseFailed && e.Filed)
	if part := leaving || slices.Contains(m.coming, e.VM.Key); !part && (err != nil || !unfinished) {
		return // part of an earlier change, and unchanged
	}
	e.moving = false
	switch {
	case leaving:
		w.settleLeaving(e, err)
	case e.leaving:
	case err == nil || stands:
		w.set(e, PhaseMade, nil)
	default:
		w.set(e, PhaseFailed, err)
	}
}

// settleLeaving drops a VM that is gone, or retries its removal later.
func (w *Writer) settleLeaving(e *member, err error) {
	if err == nil {
		w.drop(e.VM.Key)
		w.config.Changed()
		return
	}
	e.Filed = true // assume so: the removal is in progress until a change succeeds
	e.Err, e.retry = err, e.retry.grown(w.scaler.config.Clock.Now())
}

// look returns the keys of the cluster's guests that run on a host.
func (w *Writer) look(ctx context.Context, snapshot *topology.Snapshot, shard fleet.Shard) map[fleet.Key]bool {
	running := map[fleet.Key]bool{}
	live := w.scaler.region(shard.Region).Live
	if live == nil {
		return running
	}
	now, err := live.Refresh(context.WithoutCancel(ctx), snapshot, []topology.HostName{shard.Host})
	if err != nil {
		return running
	}
	for _, guest := range locate(now) {
		if guest.host == shard && guest.Running && guest.ClusterID == w.scaler.config.ClusterID {
			running[fleet.Key(guest.Key)] = true
		}
	}
	return running
}
