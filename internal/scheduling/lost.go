package scheduling

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// joiningGrace is how long after its creation a Node that cannot run pods counts as
// joining. A Node does not record whether it has ever been ready, so its age must
// distinguish a start from a failure.
const joiningGrace = 10 * time.Minute

// guestID is what a VM and its guest have in common, on any host. VMIDs are reused, keys
// are not.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
	key    fleet.Key
}

// locator knows which hosts run and where guests are.
type locator struct {
	// runs are the usable hosts, online all hosts that are up.
	runs, online map[topology.HostID]bool
	at           map[guestID][]topology.HostID
	// unclear are the names of guests without a key, which may show whose they are, by
	// region and VMID. A guest on a host that cannot be read has no name.
	unclear map[guestID]string
}

func newLocator(snapshot *topology.Snapshot) *locator {
	l := &locator{runs: map[topology.HostID]bool{}, online: map[topology.HostID]bool{}, at: map[guestID][]topology.HostID{}, unclear: map[guestID]string{}}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		l.runs[host.ID()] = host.Online && host.Problem == ""
		l.online[host.ID()] = host.Online
		for j := range host.Guests {
			guest := &host.Guests[j]
			id := guestID{host.Region, fleet.VMID(guest.VMID), fleet.Key(guest.Key)}
			switch {
			case guest.Key != "":
				l.at[id] = append(l.at[id], host.ID())
			case l.runs[host.ID()]:
				l.unclear[id] = guest.Name
			default:
				l.unclear[id] = ""
			}
		}
	}
	return l
}

// find returns a VM's host, and whether that host runs. A guest that is not found may not
// be created yet: its host is the planned one. During a migration a guest may appear
// twice: its host is then one where it can run, preferably its own.
func (l *locator) find(vm *fleet.VM) (topology.HostID, bool) {
	seen := l.at[guestID{vm.Host.Region, vm.VMID, vm.Key}]
	if len(seen) == 0 || slices.Contains(seen, vm.Host) && l.runs[vm.Host] {
		return vm.Host, l.runs[vm.Host]
	}
	if i := slices.IndexFunc(seen, func(host topology.HostID) bool { return l.runs[host] }); i >= 0 {
		return seen[i], true
	}
	return seen[0], false
}

// absent reports whether a VM certainly does not exist: it will be created or re-created,
// with another VMID if an unmanaged guest has taken its own.
func (l *locator) absent(vm *fleet.VM) bool {
	name, unclear := l.unclear[guestID{region: vm.Host.Region, vmid: vm.VMID}]
	return l.runs[vm.Host] && len(l.at[guestID{vm.Host.Region, vm.VMID, vm.Key}]) == 0 && (!unclear || name != "" && name != vm.Name)
}

// newKept returns a VM that is already desired, on its current host.
func newKept(vm fleet.VM, s *session, l *locator) *inflight {
	host, runs := l.find(&vm)
	absent := l.absent(&vm)
	vm.Host = host
	kept := newInflight(vm, s.pools, s.sizes)
	kept.absent = absent
	kept.online = l.online[host]
	// A host or region that is temporarily unreadable is not known to be down: a VM that
	// was seen there still counts as joining.
	seen := slices.Contains(l.at[guestID{vm.Host.Region, vm.VMID, vm.Key}], host)
	if !runs && (!kept.online || !seen) {
		kept.lost = true
		closeClaim(kept.claim)
	}
	return kept
}

// closeClaim keeps every pod off a VM, including pods that tolerate all taints: nothing
// is allocatable. The capacity remains, because it counts against the pool's limits.
func closeClaim(claim *karpv1.NodeClaim) {
	claim.Spec.Taints = append(claim.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
	claim.Status.Allocatable = nil
}

// judgeNode determines how Karpenter sees a VM's node: as lost, which takes no pods; as
// joining, whose taints will be removed; or as it reports itself.
func (w *world) judgeNode(node *corev1.Node, vm *inflight, claimed bool) {
	switch {
	case vm.lost && (!vm.online || !isReady(node)):
		node.Spec.Taints = append(node.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
		node.Status.Allocatable = nil
	case !w.mayJoin(node, vm), !claimed && isSettled(node, vm.claim):
		settle(node, vm)
	}
}

// isReady reports whether kubelet responds: then the node can run pods, even if its host
// cannot take more VMs.
func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// mayJoin reports whether a node that cannot run pods may still join. If its VM does not
// exist, the node is a leftover, and its VM is re-created.
func (w *world) mayJoin(node *corev1.Node, vm *inflight) bool {
	return !node.Spec.Unschedulable && (vm.absent || w.now.Sub(node.CreationTimestamp.Time) < joiningGrace)
}

// settle makes Karpenter use the node's own taints and size. A node that has not reported
// its size counts with its VM's.
func settle(node *corev1.Node, vm *inflight) {
	node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	node.Labels[karpv1.NodeInitializedLabelKey] = "true"
	for name, quantity := range vm.claim.Status.Capacity {
		if node.Status.Capacity == nil {
			node.Status.Capacity = corev1.ResourceList{}
		}
		if resources.IsZero(node.Status.Capacity[name]) {
			node.Status.Capacity[name] = quantity
		}
	}
}

// addNodeTaints adds the taints that Kubernetes' node controller derives from a node's
// state: it may not have set them yet, and manifests lack them.
func addNodeTaints(node *corev1.Node) {
	add := func(key string) {
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	if node.Spec.Unschedulable {
		add(corev1.TaintNodeUnschedulable)
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue:
		case c.Status == corev1.ConditionUnknown:
			add(corev1.TaintNodeUnreachable)
		default:
			add(corev1.TaintNodeNotReady)
		}
	}
}
