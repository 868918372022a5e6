package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/fleet"
)

// session is one decision in progress.
type session struct {
	client  client.Client
	request Request
	types   []InstanceType
	pools   pools
	state   *clusterState
	// pods are the valid pods, by phase; invalid are the refusals of the others.
	pods    [phases][]*corev1.Pod
	invalid []Refusal
	// volumes are the requirements of the pods' volumes.
	volumes map[types.UID][]scheduling.Requirements
	// daemons are the DaemonSets' pods. Karpenter gets copies, because it modifies them.
	daemons []*corev1.Pod

	// added are the VMs that this decision has added so far, and the standby VMs that it
	// wakes; created counts the new VMs, including dropped ones.
	added   []*inflight
	created int
	site    *site
	closed  *unavailableOfferings
	// last is the solution on which the decision is based.
	last *solution
}

func newSession(ctx context.Context, c client.Client, request Request) (*session, error) {
	s := &session{client: c, request: request, types: typesOrDefault(request.Types), closed: newUnavailableOfferings(request.Unavailable)}
	var err error
	if s.pools, err = readPools(ctx, c, &request, s.types); err != nil {
		return nil, err
	}

	locator := newLocator(request.Snapshot)
	var existing []*inflight
	for _, vm := range request.Existing {
		existing = append(existing, locator.newExisting(vm, s.pools, s.types))
	}
	now := request.Now
	if now.IsZero() {
		now = time.Now()
	}
	if s.state, err = newClusterState(ctx, c, existing, now); err != nil {
		return nil, err
	}
	used, err := FromClient(c).inUse(ctx, request.Snapshot)
	if err != nil {
		return nil, err
	}
	s.site = newSite(request.Snapshot, slices.Concat(request.Existing, request.Reserved), used, s.pools...)

	s.prepareStandby(locator)

	if err := s.readPods(ctx); err != nil {
		return nil, err
	}
	if s.daemons, err = s.daemonPods(ctx); err != nil {
		return nil, err
	}
	for _, p := range s.pools {
		p.addExactSizes(slices.Concat(s.pods[:]...), s.daemons)
	}
	return s, nil
}

// patience is the number of times that VMs may turn out idle before their offerings become
// unavailable.
const patience = 3

// run solves until no further VM is needed or can be placed.
func (s *session) run(ctx context.Context) (*Decision, error) {
	var unmet [phases]int
	reset := func() {
		for phase := range unmet {
			unmet[phase] = s.pending() + 1
		}
	}
	reset()
	for sweeps := 0; ; {
		sol, err := s.solve(ctx)
		if err != nil {
			return nil, err
		}

		// A round that added VMs should reduce the number of unmet pods. Otherwise, the
		// scheduler was wrong about the VMs: remove them, and eventually make their
		// offerings unavailable, on every host.
		useless := sol.unmet >= unmet[sol.phase]
		unmet[sol.phase] = sol.unmet
		if idle := s.idle(sol); len(idle) > 0 && (useless || len(sol.claims)+len(sol.wakes) == 0) {
			sweeps++
			if sweeps > patience {
				s.refute(idle, useless)
			}
			s.drop(idle)
			reset()
			continue
		}
		if s.refusesPods(sol) && s.acceptDelays() {
			reset()
			continue
		}
		if len(sol.claims) > 0 || len(sol.wakes) > 0 {
			woken := s.wake(sol)
			if placed := s.place(sol); !woken || !placed {
				reset() // other VMs can take pods now
			}
			continue
		}

		// Fewer and smaller new VMs may be sufficient.
		if sol, err = s.trim(ctx, sol); err != nil {
			return nil, err
		}
		if sol, err = s.shrink(ctx, sol); err != nil {
			return nil, err
		}
		return s.decision(ctx, sol)
	}
}

// refute makes the offerings of idle new VMs unavailable, on every host if everywhere is
// true. It leaves idle standby VMs stopped.
func (s *session) refute(idle []*inflight, everywhere bool) {
	for _, vm := range idle {
		if vm.VMID < newVMIDs {
			s.state.vms[providerID(&vm.VM)].wakeable = false
			continue
		}
		s.closed.refuted[offering{pool: vm.Pool, instanceType: vm.InstanceType, host: vm.Host}] = true
		if !everywhere {
			continue
		}
		for i := range s.request.Snapshot.Hosts {
			host := s.request.Snapshot.Hosts[i].ID()
			s.closed.refuted[offering{pool: vm.Pool, instanceType: vm.InstanceType, host: host}] = true
		}
	}
}

// pending returns the number of valid pods of all phases.
func (s *session) pending() int {
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

// drop removes VMs that this decision added, and leaves standby VMs stopped.
func (s *session) drop(vms []*inflight) {
	s.added = slices.DeleteFunc(s.added, func(vm *inflight) bool { return slices.Contains(vms, vm) })
	for _, vm := range vms {
		switch {
		case vm.VMID >= newVMIDs:
			s.site.Remove(vm.VM)
		case !vm.Reserve:
			s.site.Planner.Remove(vm.VM)
		}
	}
}

// place passes the needed VMs to the planner, all at once, and adds the placed ones. It
// reports false if pods may wake standby VMs on busy hosts instead of some of them.
func (s *session) place(sol *solution) bool {
	defer s.request.timed(PartPlace, time.Now())
	specs := sol.claims
	placed, unplaced := s.site.Place(specs)
	all := true
	if sol.phase < virtualConstrained {
		placed, all = s.avoidBusy(specs, placed)
	}
	for _, p := range placed {
		s.created++
		vm := fleet.VM{
			Key:       fleet.Key(fmt.Sprintf("new-%d", s.created)),
			VMID:      fleet.VMID(newVMIDs + s.created),
			Name:      fmt.Sprintf("%s-new-%d", specs[p.Index].Pool, s.created),
			Spec:      specs[p.Index],
			Placement: p.Placement,
			Standby:   sol.phase >= standbyConstrained,
		}
		if pool := s.pools.find(vm.Pool); pool != nil {
			pool.class.setTemplate(&vm.Spec, vm.Host)
		}
		added := newInflight(vm, s.pools, s.types)
		added.phase = sol.phase
		s.added = append(s.added, added)
	}
	for _, u := range unplaced {
		spec := specs[u.Index]
		for _, host := range spec.Hosts {
			if s.site.Fits(spec, host) {
				s.closed.refuted[offering{spec.Pool, spec.InstanceType, host}] = true
			}
		}
	}
	return all
}

// unjoined returns the VMs that Karpenter sees only by their claims: existing ones
// without a Node, and added ones.
func (s *session) unjoined() []*inflight {
	return slices.Concat(s.state.waiting, s.resting(), s.added)
}

// attempt changes the added VMs and solves again. If change returns false, a further VM
// would be needed, fewer pods were placed, or a VM became idle, it reverts the change and
// returns the given solution.
func (s *session) attempt(ctx context.Context, sol *solution, change func() bool) (*solution, error) {
	added := slices.Clone(s.added)
	site := s.site.Clone()
	if change() {
		changed, err := s.solve(ctx)
		if err != nil {
			return nil, err
		}
		if len(changed.claims) == 0 && len(changed.wakes) == 0 && changed.unmet <= sol.unmet && len(s.idle(changed)) == 0 {
			return changed, nil
		}
	}
	s.added = added
	s.site = site
	return sol, nil
}

// Pods that move between rounds leave behind VMs with few pods. trim tries to remove up to
// trimTries of the VMs whose usage is below trimBelow.
const (
	trimTries = 10
	trimBelow = 0.6
)

// trim removes new VMs whose pods fit on the others, the least used first. It returns the
// solution without them, which like the given one needs no further VM.
func (s *session) trim(ctx context.Context, sol *solution) (*solution, error) {
	tried := map[*inflight]bool{}
	for range trimTries {
		var least *inflight
		usage := trimBelow
		for _, vm := range s.added {
			used := usedShare(sol.landed[providerID(&vm.VM)], vm.claim.Status.Allocatable)
			if !tried[vm] && (used < usage || used == usage && least != nil && compareInflight(vm, least) < 0) {
				least = vm
				usage = used
			}
		}
		if least == nil {
			break
		}
		tried[least] = true
		var err error
		sol, err = s.attempt(ctx, sol, func() bool {
			s.drop([]*inflight{least})
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return sol, nil
}

// usedShare returns the pods' share of the node's scarcest resource, from 0 to 1.
func usedShare(pods []*corev1.Pod, allocatable corev1.ResourceList) float64 {
	used := 0.0
	requests := resources.RequestsForPods(pods...)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		available, requested := allocatable[name], requests[name]
		if available.Sign() > 0 {
			used = max(used, requested.AsApproximateFloat64()/available.AsApproximateFloat64())
		}
	}
	return used
}

// decision returns the decision of the last solution.
func (s *session) decision(ctx context.Context, sol *solution) (*Decision, error) {
	s.last = sol
	d := &Decision{Refused: slices.Clone(s.invalid), Asked: s.pending() + len(s.invalid)}
	unjoined := map[string]*inflight{}
	for _, vm := range s.unjoined() {
		unjoined[providerID(&vm.VM)] = vm
	}
	for id, pods := range sol.landed {
		d.Placed += len(pods)
		names := make([]types.NamespacedName, 0, len(pods))
		for _, pod := range pods {
			names = append(names, client.ObjectKeyFromObject(pod))
		}
		slices.SortFunc(names, compareNames)
		vm := unjoined[id]
		switch {
		case vm != nil && vm.Standby && vm.VMID < newVMIDs: // see standbyVMs
		case vm != nil && vm.VMID < newVMIDs && slices.Contains(s.added, vm):
			d.Woken = append(d.Woken, Woken{VM: vm.VM, ClassHash: s.classHash(vm), Pods: names})
		case vm == nil && s.state.vms[id] != nil:
			d.Existing = append(d.Existing, Landing{Name: s.state.vms[id].Name, Pods: names})
		case vm == nil:
			d.Existing = append(d.Existing, Landing{Name: sol.names[id], Pods: names})
		case vm.VMID < newVMIDs:
			d.InFlight = append(d.InFlight, Landing{Name: vm.Name, Pods: names})
		default:
			placed := Placed{Spec: vm.Spec, Placement: vm.Placement, NodePool: vm.Pool, Pods: names, Standby: vm.Standby}
			placed.Reserve = vm.Standby && reserves(&vm.Spec, pods)
			placed.Spec.Demand = demandOf(pods)
			placed.ClassHash = s.classHash(vm)
			d.New = append(d.New, placed)
		}
	}

	d.Standby = s.standbyVMs(sol)

	if len(sol.failed) > 0 {
		e, err := newExplainer(ctx, s)
		if err != nil {
			return nil, err
		}
		for _, pod := range slices.Concat(s.pods[:]...) {
			if err, failed := sol.failed[pod.UID]; failed {
				d.Refused = append(d.Refused, e.explain(pod, err))
			}
		}
	}

	slices.SortFunc(d.New, func(a, b Placed) int {
		return cmp.Or(
			cmp.Compare(a.NodePool, b.NodePool), a.Placement.Host.Compare(b.Placement.Host),
			cmp.Compare(a.Spec.VCPUs, b.Spec.VCPUs), cmp.Compare(a.Spec.MemoryMiB, b.Spec.MemoryMiB),
			cmp.Compare(a.Spec.InstanceType, b.Spec.InstanceType), slices.Compare(a.Placement.VCPUPins, b.Placement.VCPUPins),
			slices.CompareFunc(a.Pods, b.Pods, compareNames),
		)
	})
	byName := func(a, b Landing) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(d.Woken, func(a, b Woken) int { return cmp.Compare(a.VM.Name, b.VM.Name) })
	slices.SortFunc(d.InFlight, byName)
	slices.SortFunc(d.Existing, byName)
	slices.SortFunc(d.Refused, func(a, b Refusal) int { return compareNames(a.Pod, b.Pod) })
	return d, nil
}

// classHash returns the hash of a VM's class in this decision, or "".
func (s *session) classHash(vm *inflight) string {
	if pool := s.pools.find(vm.Pool); pool != nil && pool.class != nil {
		return pool.class.hash
	}
	return ""
}

func demandOf(pods []*corev1.Pod) fleet.Demand {
	requests := resources.RequestsForPods(pods...)
	return fleet.Demand{Pods: len(pods), CPUMilli: requests.Cpu().MilliValue(), MemoryMiB: requests.Memory().Value() / mebibyte}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
