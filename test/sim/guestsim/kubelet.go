package guestsim

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// kubeletVersion is the version that the nodes report.
const kubeletVersion = "v1.36.3"

// patience is the number of consecutive refusals after which a problem is reported. A
// starting API server refuses requests until it has loaded all roles and tokens.
const patience = 4

// kubelet is a registered kubelet.
type kubelet struct {
	*Join
	machine *machine
	client  kubernetes.Interface
	clock   clock.WithTicker

	registered time.Time
	ready      bool
	reported   time.Time
	lease      *coordinationv1.Lease // as last written
	refusals   int                   // consecutive refused heartbeats
	pods       map[types.UID]*podState
}

// kubelet runs the machine's kubelet until the context ends.
func (m *machine) kubelet(ctx context.Context) {
	if m.disk.system == nil {
		return
	}
	join, err := newJoin(m.disk.system)
	if err != nil {
		m.report(at(StepKubelet, err))
		return
	}
	if !m.bootstrapped(ctx, join) {
		return
	}
	client, end, err := join.client(m.disk.identity.asNode)
	if err != nil {
		m.report(at(StepKubelet, err))
		return
	}
	defer end()
	k := &kubelet{Join: join, machine: m, client: client, clock: m.guests.cfg.Clock, pods: map[types.UID]*podState{}}
	if _, err := k.node(); err != nil {
		m.report(at(StepKubelet, err))
		return
	}
	if m.persist(ctx, StepRegister, k.register) {
		logr.FromContextOrDiscard(ctx).V(1).Info("registered node", "node", k.NodeName)
		k.work(ctx)
	}
}

// bootstrapped reports whether the machine has its certificate, and requests it if not. A
// denied request is not repeated: kubelet would find the same denied request again.
func (m *machine) bootstrapped(ctx context.Context, join *Join) bool {
	for m.disk.identity == nil && ctx.Err() == nil {
		err := m.bootstrap(ctx, join)
		if err == nil || ctx.Err() != nil {
			continue
		}
		m.report(at(StepCertificate, err))
		if errors.Is(err, ErrDenied) {
			return false
		}
		m.wait(ctx, m.guests.cfg.Retry)
	}
	return ctx.Err() == nil
}

// bootstrap requests the machine's certificate and waits for it.
func (m *machine) bootstrap(ctx context.Context, join *Join) error {
	var request *Request
	asked := m.persist(ctx, StepCertificate, func(ctx context.Context) (err error) {
		request, err = join.RequestCertificate(ctx, join.NodeName)
		return err
	})
	if !asked {
		return ctx.Err()
	}
	defer request.Close()
	certificate, err := request.Wait(ctx)
	if err != nil {
		return err
	}
	m.disk.identity = &identity{certificate: certificate}
	return nil
}

// persist retries until try succeeds, as systemd restarts kubelet, and reports false if the
// context ends first. Repeated refusals are problems.
func (m *machine) persist(ctx context.Context, step Step, try func(context.Context) error) bool {
	refusals := 0
	for ctx.Err() == nil {
		err := try(ctx)
		if err == nil {
			return true
		}
		logr.FromContextOrDiscard(ctx).V(1).Info("failed, retrying", "step", step, "error", err.Error())
		if refusals++; !refused(err) {
			refusals = 0
		}
		if refusals == patience {
			m.report(at(step, err))
		}
		m.wait(ctx, m.guests.cfg.Retry)
	}
	return false
}

// work runs a registered kubelet.
func (k *kubelet) work(ctx context.Context) {
	cfg, watch := &k.machine.guests.cfg, k.machine.guests.pods
	wake := watch.subscribe(k.NodeName)
	defer watch.unsubscribe(k.NodeName, wake)
	beat := k.clock.NewTicker(cfg.Heartbeat)
	defer beat.Stop()
	k.heartbeat(ctx, k.renewLease)
	for ctx.Err() == nil {
		due := min(k.syncReady(ctx), k.syncPods(ctx, watch.of(k.NodeName)))
		timer := k.clock.NewTimer(due)
		select {
		case <-wake:
		case <-beat.C():
			k.heartbeat(ctx, k.renewLease)
			k.heartbeat(ctx, k.keepStatus)
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// idle is the interval between checks if no event is due.
const idle = time.Hour

// syncReady makes the Node ready after Config.Ready, and returns when to check again.
func (k *kubelet) syncReady(ctx context.Context) time.Duration {
	if k.ready {
		return idle
	}
	if left := k.machine.guests.cfg.Ready - k.clock.Since(k.registered); left > 0 {
		return left
	}
	k.ready = true
	if !k.heartbeat(ctx, k.patchStatus) {
		k.ready = false
		return k.machine.guests.cfg.Retry
	}
	return idle
}

// heartbeat runs a part of the heartbeat, and reports whether it succeeded. A conflict is
// not a problem, nor is a deleted Node, which kubelet re-creates only when kubelet
// restarts.
func (k *kubelet) heartbeat(ctx context.Context, do func(context.Context) error) bool {
	err := do(ctx)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		k.refusals = 0
		return err == nil
	}
	k.failed(ctx, StepHeartbeat, err, &k.refusals)
	return false
}

// failed handles an error of an operation that will be retried. It reports a problem if the
// API server refused the operation several times in a row.
func (k *kubelet) failed(ctx context.Context, step Step, err error, refusals *int) {
	if ctx.Err() != nil {
		return
	}
	logr.FromContextOrDiscard(ctx).V(1).Info("failed, retrying", "step", step, "error", err.Error())
	if *refusals++; !refused(err) {
		*refusals = 0
	}
	if *refusals == patience {
		k.machine.report(at(step, err))
	}
}
