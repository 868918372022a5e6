package seed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/proxmox"
)

// AnnotationJoin is the progress of the join command of the claim's VM: a state, the number
// of the attempt, and the time when the state began.
const AnnotationJoin = v1alpha1.Group + "/join"

// The states in AnnotationJoin.
const (
	// JoinRunning means that a command was passed to the guest agent and has not ended,
	// or that its result is unknown.
	JoinRunning = "running"
	// JoinFailed means that the command failed.
	JoinFailed = "failed"
	// JoinDone means that the command succeeded.
	JoinDone = "done"
	// Joined means that the node has joined; its token is deleted.
	Joined = "joined"
)

// Reasons of events on NodeClaims.
const (
	ReasonJoinFailed = "JoinFailed"
	ReasonJoinWaits  = "JoinWaits"
	ReasonJoinDone   = "JoinCommandDone"
)

const (
	// joinTries is the maximum number of attempts.
	joinTries = 3
	// joinLimit is how long the command may run in the guest, and joinKill how long after
	// that the guest kills a command that ignores SIGTERM. joinTimeout is how long numaform
	// waits for the end: longer, so that another attempt never runs at the same time.
	joinLimit   = 5 * time.Minute
	joinKill    = 10 * time.Second
	joinTimeout = joinLimit + time.Minute
	// joinPoll is the interval between checks of a guest that does not respond yet, and
	// joinAgain the delay before a failed command is run again.
	joinPoll, joinAgain = 5 * time.Second, 15 * time.Second
	// joinPatience is how long after its NodeClaim's creation a guest agent may be silent
	// before a warning.
	joinPatience = 2 * time.Minute
	// joiners is the maximum number of commands that run concurrently.
	joiners = 16
)

// Joiner joins nodes with a command run by their guest agents, for classes whose metadata
// is of type agent. It runs the command once the guest's agent responds, and retries a
// failed command a few times.
type Joiner struct {
	seeder *Seeder
	paused func() bool
	events events.Recorder
}

// NewJoiner returns a controller for Register. paused reports whether numaform must not write.
func NewJoiner(seeder *Seeder, paused func() bool, recorder events.Recorder) *Joiner {
	return &Joiner{seeder: seeder, paused: paused, events: recorder}
}

// Name returns the controller's name.
func (*Joiner) Name() string { return "nodeclaim.join" }

// Register adds the controller to a manager.
func (j *Joiner) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(j.Name()).
		For(&karpv1.NodeClaim{}, builder.WithPredicates(ourClaims())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(j.seeder.claimsOf), builder.WithPredicates(becameReady())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: joiners,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](joinPoll, joinTimeout/joinTries),
		}).
		Complete(reconcile.AsReconciler(m.GetClient(), j))
}

// joining is the progress of the join command of a claim's VM.
type joining struct {
	state string
	try   int
	since time.Time
}

func (s joining) String() string {
	return fmt.Sprintf("%s %d %s", s.state, s.try, s.since.UTC().Format(time.RFC3339))
}

// joiningOf parses AnnotationJoin. A missing or malformed value counts as a join that has
// not begun, and an invalid time as the zero time.
func joiningOf(claim *karpv1.NodeClaim) joining {
	var s joining
	var since string
	if _, err := fmt.Sscan(claim.Annotations[AnnotationJoin], &s.state, &s.try, &since); err != nil {
		return joining{}
	}
	s.since, _ = time.Parse(time.RFC3339, since)
	return s
}

// Reconcile performs the next step for one claim.
func (j *Joiner) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	at := joiningOf(claim)
	if !ours(claim) || claim.Annotations[v1alpha1.AnnotationVM] == "" || !claim.DeletionTimestamp.IsZero() || at.state == Joined {
		return reconcile.Result{}, nil
	}
	if j.paused() {
		return reconcile.Result{RequeueAfter: pausedDelay}, nil
	}
	ctx = withClaim(ctx, claim)
	joined, err := j.seeder.joined(ctx, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	if joined && at.state == "" {
		return reconcile.Result{}, nil // the node joined in another way
	}
	if joined {
		if err := j.seeder.forget(ctx, claim); err != nil {
			return reconcile.Result{}, err
		}
		at.state = Joined
		return reconcile.Result{}, j.seeder.annotate(ctx, claim, map[string]string{AnnotationJoin: at.String(), jointoken.AnnotationToken: ""})
	}

	now := j.seeder.config.Clock.Now()
	wait, again := at.next(now)
	if !again {
		return j.expire(ctx, claim, now)
	}
	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	vm, known := j.seeder.named(claim)
	if !known {
		return reconcile.Result{RequeueAfter: unknownDelay}, nil
	}
	if vm == nil {
		return reconcile.Result{}, nil
	}
	class, err := j.agentClass(ctx, claim, vm)
	if err != nil || class == nil {
		return reconcile.Result{}, err
	}
	responds, err := j.responds(ctx, claim, vm, now)
	if err != nil || !responds {
		return reconcile.Result{RequeueAfter: joinPoll}, err
	}
	return j.run(ctx, &guest{vm: vm, claim: claim}, class, joining{state: JoinRunning, try: at.try + 1, since: now})
}

// agentClass returns the class of a VM that joins by a command of the guest agent, or nil if it
// joins in another way, or if the claim is not the VM's.
func (j *Joiner) agentClass(ctx context.Context, claim *karpv1.NodeClaim, vm *fleet.VM) (*v1alpha1.ProxmoxNodeClass, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	err := j.seeder.config.Cluster.Client.Get(ctx, client.ObjectKey{Name: vm.NodeClass}, class)
	if err != nil || !class.ByAgent() {
		return nil, client.IgnoreNotFound(err)
	}
	if own, err := j.seeder.owns(ctx, claim, vm); err != nil || !own {
		return nil, err
	}
	return class, nil
}

// expire deletes the unused tokens of a claim whose command does not run again, once
// spec.tokenTTL of the class has passed. Until then, it returns the remaining time. The API
// server may accept a token for longer.
func (j *Joiner) expire(ctx context.Context, claim *karpv1.NodeClaim, now time.Time) (reconcile.Result, error) {
	record, err := j.seeder.record(ctx, claim)
	if err != nil || record == nil || record.Used() {
		return reconcile.Result{}, err
	}
	if left := record.Expires().Sub(now); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	// A token that was used or added meanwhile is not deleted.
	err = j.seeder.drop(ctx, record)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: unknownDelay}, nil
	}
	return reconcile.Result{}, err
}

// next returns how long to wait before the command may run again, or false if it must
// not.
func (s joining) next(now time.Time) (wait time.Duration, again bool) {
	switch s.state {
	case JoinRunning:
		// numaform stopped while the command ran; the command may still run, and succeed.
		wait = s.since.Add(joinTimeout).Sub(now)
	case JoinFailed:
		wait = s.since.Add(joinAgain).Sub(now)
	}
	if s.state == JoinDone || (s.try >= joinTries && (s.state != JoinRunning || wait <= 0)) {
		return 0, false // Karpenter deletes the claim of a node that never joins
	}
	return max(wait, 0), true
}

// responds reports whether the VM runs and its guest agent responds.
func (j *Joiner) responds(ctx context.Context, claim *karpv1.NodeClaim, vm *fleet.VM, now time.Time) (bool, error) {
	running, err := j.seeder.running(ctx, vm)
	if err != nil || !running {
		return false, err
	}
	region, err := j.seeder.region(vm.Host)
	if err != nil {
		return false, err
	}
	silent := region.Proxmox.Ping(ctx, j.seeder.owned(ctx, vm))
	if silent != nil && now.Sub(claim.CreationTimestamp.Time) > joinPatience {
		j.publish(claim, corev1.EventTypeWarning, ReasonJoinWaits, silent.Error())
	}
	return silent == nil, nil
}

// joinShell returns the program that runs the join command in its stdin, and stops it after
// a time. It reads the whole command before it runs it: otherwise a command that reads its
// stdin would consume the following lines. Proxmox cannot stop a command in a guest. A guest
// without timeout(1) does not stop it either.
func joinShell(limit time.Duration) []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf(
		`run='script=$(cat) && eval "$script" </dev/null'; if command -v timeout >/dev/null; then exec timeout -k %d %d /bin/sh -c "$run"; fi; eval "$run"`,
		int(joinKill.Seconds()), int(limit.Seconds()),
	)}
}

// timeoutExit is the exit code of timeout(1) if it stopped the command.
const timeoutExit = 124

// run creates a token and runs the command with it. It first records that the command
// runs, so that a command with an unknown result is not started again at once.
func (j *Joiner) run(ctx context.Context, g *guest, class *v1alpha1.ProxmoxNodeClass, at joining) (reconcile.Result, error) {
	s := j.seeder
	var err error
	if g.class, err = s.gather(ctx, class); err != nil {
		return reconcile.Result{}, err
	}
	if err := s.issue(ctx, g); err != nil {
		return reconcile.Result{}, err
	}
	script, err := s.command(g.class, g.vm, g.claim, g.token)
	if err != nil {
		return reconcile.Result{}, err
	}
	region, err := s.region(g.vm.Host)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := s.annotate(ctx, g.claim, map[string]string{AnnotationJoin: at.String()}); err != nil {
		return reconcile.Result{}, err
	}
	failed := region.Proxmox.Exec(ctx, s.owned(ctx, g.vm), proxmox.Command{
		// The script contains the token: users of the guest can see arguments, but not
		// stdin.
		Args: joinShell(joinLimit), Input: script, Timeout: joinTimeout,
	})
	if exit := new(proxmox.ExecError); errors.As(failed, &exit) && exit.ExitCode == timeoutExit {
		failed = fmt.Errorf("the guest stopped the command because it did not end within %s: %w", joinLimit, failed)
	}

	// If numaform is stopping, the command may still be running, so its state remains
	// running.
	unseen := failed != nil && ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	at.state, at.since = JoinDone, s.config.Clock.Now()
	result := "it succeeded"
	if failed != nil {
		at.state, result = JoinFailed, failed.Error()
	}
	s.config.Record(ctx, []string{fmt.Sprintf("ran the join command of ProxmoxNodeClass %s in VM %s (%d) on host %s with the guest agent, try %d of %d: %s",
		class.Name, g.vm.Name, g.vm.VMID, g.vm.Host, at.try, joinTries, result)})
	if unseen {
		return reconcile.Result{}, failed
	}
	if failed != nil {
		j.publish(g.claim, corev1.EventTypeWarning, ReasonJoinFailed, fmt.Sprintf("try %d of %d: %s", at.try, joinTries, result), strconv.Itoa(at.try))
	} else {
		j.publish(g.claim, corev1.EventTypeNormal, ReasonJoinDone, "the join command succeeded; waiting for the Node")
	}

	// The claim has changed meanwhile, at least by the record that the command runs.
	claim := &karpv1.NodeClaim{}
	if err := s.config.Cluster.Client.Get(ctx, client.ObjectKeyFromObject(g.claim), claim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := s.annotate(ctx, claim, map[string]string{AnnotationJoin: at.String()}); err != nil {
		return reconcile.Result{}, err
	}
	if failed == nil || at.try >= joinTries {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: joinAgain}, nil
}

func (j *Joiner) publish(claim *karpv1.NodeClaim, kind, reason, message string, cause ...string) {
	j.events.Publish(event.New(claim, kind, reason, message, cause...))
}
