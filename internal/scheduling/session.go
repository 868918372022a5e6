package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpscheduling "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// session is one decision in progress.
type session struct {
	client  client.Client
	request Request
	sizes   []InstanceType
	pools   []*pool
	world   *world
	// pods are the pending pods that can be placed; invalid ones cannot. Pods that count
	// one another over hosts come first, then the others, which take any remaining room:
	// see phases.
	pods    [phases][]*corev1.Pod
	invalid []Refusal
	volumes map[types.UID][]scheduling.Requirements
	// daemons are the DaemonSets' pods. Karpenter gets copies, because it modifies them.
	daemons []*corev1.Pod

	// added are the VMs that this decision has added so far.
	added []*inflight
	made  int
	plan  *site
	// closed are the unavailable offerings.
	closed *closedOffers
	// last is the solution on which the decision is based.
	last *solution
}

func newSession(ctx context.Context, c client.Client, request Request) (*session, error) {
	s := &session{client: c, request: request, sizes: request.Types, closed: newClosedOffers(request.Closed)}
	if s.sizes == nil {
		s.sizes = DefaultInstanceTypes()
	}
	var err error
	if s.pools, err = readPools(ctx, c, &request, s.sizes); err != nil {
		return nil, err
	}
	var kept []*inflight
	where := newLocator(request.Snapshot)
	for _, vm := range request.Kept {
		kept = append(kept, newKept(vm, s, where))
	}
	now := request.Now
	if now.IsZero() {
		now = time.Now()
	}
	if s.world, err = newWorld(ctx, c, kept, now); err != nil {
		return nil, err
	}
	s.plan = newSite(request.Snapshot, slices.Concat(request.Kept, request.Occupied), s.pools...)
	if err := s.readPods(ctx); err != nil {
		return nil, err
	}
	if s.daemons, err = s.daemonPods(ctx); err != nil {
		return nil, err
	}
	for _, p := range s.pools {
		p.offerExact(slices.Concat(s.pods[:]...), s.daemons)
	}
	return s, nil
}

const (
	// patience is how often VMs may turn out idle before offerings like theirs become
	// unavailable.
	patience = 3
)

// A decision is made in two phases. Pods that count one another over hosts need room on
// certain hosts, so they are scheduled before pods that can go anywhere. Two more phases
// are for virtual pods, so that they do not take room from real ones.
const (
	choosy = iota
	easy
	virtualChoosy
	virtualEasy
	phases
)

// readPods finds the pending pods: the ones for which the scheduler found no room, and
// the ones on nodes being deleted.
func (s *session) readPods(ctx context.Context) error {
	pending, err := nodeutils.GetProvisionablePods(ctx, s.client)
	if err != nil {
		return err
	}
	_, deleting, err := s.world.stateNodes(ctx, nil, nil)
	if err != nil {
		return err
	}
	moving, err := deleting.CurrentlyReschedulablePods(ctx, s.client, clock.RealClock{}, silence{})
	if err != nil {
		return fmt.Errorf("reading pods of nodes that are being deleted: %w", err)
	}
	asking := slices.Concat(pending, moving)
	slices.SortFunc(asking, func(a, b *corev1.Pod) int { return compareKeys(a, b) })
	asking = slices.CompactFunc(asking, func(a, b *corev1.Pod) bool { return compareKeys(a, b) == 0 })

	s.volumes = map[types.UID][]scheduling.Requirements{}
	s.pods[choosy], s.pods[easy] = divide(s.valid(ctx, asking), s.volumes)
	s.pods[virtualChoosy], s.pods[virtualEasy] = divide(s.valid(ctx, virtualPods(s.request.Virtual)), s.volumes)
	return ctx.Err()
}

// virtualPods returns copies of virtual pods, in order and with the same age.
func virtualPods(pods []*corev1.Pod) []*corev1.Pod {
	copies := make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		pod = pod.DeepCopy()
		pod.CreationTimestamp = metav1.Unix(writtenAt, 0)
		copies = append(copies, pod)
	}
	slices.SortFunc(copies, func(a, b *corev1.Pod) int { return compareKeys(a, b) })
	return copies
}

// valid returns the pods that can be placed, and records the others with the reasons.
func (s *session) valid(ctx context.Context, asking []*corev1.Pod) []*corev1.Pod {
	var valid []*corev1.Pod
	topologies := karpscheduling.NewVolumeTopology(s.client)
	for _, pod := range asking {
		requirements, err := judgePod(ctx, topologies, pod)
		if err != nil {
			s.invalid = append(s.invalid, Refusal{client.ObjectKeyFromObject(pod), err.Error()})
			continue
		}
		if len(requirements) > 0 {
			s.volumes[pod.UID] = requirements
		}
		valid = append(valid, pod)
	}
	return valid
}

// run solves until no further VM is needed or can be placed.
func (s *session) run(ctx context.Context) (*Decision, error) {
	var unmet [phases]int
	reset := func() {
		for phase := range unmet {
			unmet[phase] = s.asked() + 1
		}
	}
	reset()
	for sweeps := 0; ; {
		sol, err := s.solve(ctx)
		if err != nil {
			return nil, err
		}
		// A round that added VMs must have reduced the unmet pods; otherwise the
		// scheduler was wrong about the VMs: remove them, and eventually make their
		// offerings unavailable.
		useless := sol.unmet >= unmet[sol.phase]
		unmet[sol.phase] = sol.unmet
		if idle := s.idle(sol); len(idle) > 0 && (useless || len(sol.claims) == 0) {
			if sweeps++; sweeps > patience {
				s.shut(idle, useless)
			}
			s.drop(idle)
			reset()
			continue
		}
		if len(sol.claims) == 0 {
			return s.finish(ctx, sol)
		}
		s.place(sol)
	}
}

// finish turns the last solution into a decision, with fewer and smaller new VMs if these
// are sufficient.
func (s *session) finish(ctx context.Context, sol *solution) (*Decision, error) {
	sol, err := s.trim(ctx, sol)
	if err != nil {
		return nil, err
	}
	if sol, err = s.shape(ctx, sol); err != nil {
		return nil, err
	}
	return s.decision(ctx, sol)
}

// asked returns the number of pods that can be placed.
func (s *session) asked() int {
	all := 0
	for _, pods := range s.pods {
		all += len(pods)
	}
	return all
}

// idle returns the added VMs that got no pods in the solved phases.
func (s *session) idle(sol *solution) []*inflight {
	var idle []*inflight
	for _, vm := range s.added {
		if vm.phase <= sol.phase && len(sol.landed[providerID(&vm.VM)]) == 0 {
			idle = append(idle, vm)
		}
	}
	return idle
}

// shut makes the offerings of idle VMs unavailable, on every host if they were useless.
func (s *session) shut(idle []*inflight, useless bool) {
	for _, vm := range idle {
		s.closed.add(offer{vm.Pool, vm.InstanceType, vm.Host})
		for i := range s.request.Snapshot.Hosts {
			if useless {
				s.closed.add(offer{vm.Pool, vm.InstanceType, s.request.Snapshot.Hosts[i].ID()})
			}
		}
	}
}

// drop removes VMs that this decision added.
func (s *session) drop(idle []*inflight) {
	s.added = slices.DeleteFunc(s.added, func(vm *inflight) bool { return slices.Contains(idle, vm) })
	for _, vm := range idle {
		s.plan.Remove(vm.VM)
	}
}

// place passes the needed VMs to the planner, all at once, and adds the placed ones.
func (s *session) place(sol *solution) {
	defer s.request.timed(PartPlace, time.Now())
	specs := sol.claims
	placed, unplaced := s.plan.Place(specs)
	for _, p := range placed {
		s.made++
		vm := fleet.VM{
			Key: fleet.Key(fmt.Sprintf("new-%d", s.made)), VMID: fleet.VMID(newVMIDs + s.made),
			Spec: specs[p.Index], Placement: p.Placement,
		}
		s.settle(&vm)
		vm.Name = fmt.Sprintf("%s-new-%d", vm.Pool, s.made)
		added := newInflight(vm, s.pools, s.sizes)
		added.phase = sol.phase
		s.added = append(s.added, added)
	}
	for _, u := range unplaced {
		spec := specs[u.Index]
		for _, host := range spec.Hosts {
			if s.plan.Fits(spec, host) {
				s.closed.add(offer{spec.Pool, spec.InstanceType, host})
			}
		}
	}
}

// settle sets what a VM's Spec can only contain once its host is known.
func (s *session) settle(vm *fleet.VM) {
	if i := slices.IndexFunc(s.pools, func(p *pool) bool { return p.Name == vm.Pool }); i >= 0 {
		s.pools[i].class.settle(&vm.Spec, vm.Host)
	}
}

// standing returns the VMs that Karpenter sees: kept ones without a Node, and added ones.
func (s *session) standing() []*inflight { return slices.Concat(s.world.waiting, s.added) }

func comparePlaced(a, b Placed) int {
	return cmp.Or(
		cmp.Compare(a.NodePool, b.NodePool), a.Placement.Host.Compare(b.Placement.Host),
		cmp.Compare(a.Spec.VCPUs, b.Spec.VCPUs), cmp.Compare(a.Spec.MemoryMiB, b.Spec.MemoryMiB),
		cmp.Compare(a.Spec.InstanceType, b.Spec.InstanceType), slices.Compare(a.Placement.VCPUPins, b.Placement.VCPUPins),
		slices.CompareFunc(a.Pods, b.Pods, compareNames),
	)
}

// hostOf returns the host of an offering.
func hostOf(requirements scheduling.Requirements) topology.HostID {
	return topology.HostID{
		Region: topology.RegionName(requirements.Get(corev1.LabelTopologyRegion).Any()),
		Host:   topology.HostName(requirements.Get(corev1.LabelTopologyZone).Any()),
	}
}
