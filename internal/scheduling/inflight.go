package scheduling

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// newVMIDs is the first temporary VMID of a decision's new VMs: these VMIDs only
// distinguish them until the fleet assigns real ones.
const newVMIDs = 1_000_000_000

// inflight is an existing or new VM with the NodeClaim that Karpenter sees for it.
type inflight struct {
	fleet.VM
	claim *karpv1.NodeClaim
	// home is the host in an existing VM's file, which differs from the VM's host if another
	// client moved the VM.
	home topology.HostID
	// phase is the phase that requested the VM, if this decision adds it.
	phase int
	// lost is set if the VM's host is down, or is unusable and does not list the VM: no pod
	// is placed there.
	lost bool
	// absent is set if the VM certainly does not exist: it will be created.
	absent bool
	// online is set if the VM's host is up, usable or not.
	online bool
	// outdated is the reason why a standby VM must be replaced, and unusable why it can be
	// neither started nor replaced; retiring is set for the standby VM that is replaced next,
	// wakeable for a standby VM that may be started, and delayed if pods prefer a new VM on
	// another host, because the start would wait there.
	outdated, unusable          string
	retiring, wakeable, delayed bool
}

// providerID returns the ID by which Karpenter finds the VM.
func providerID(vm *fleet.VM) string { return fleet.ProviderID(vm.Host.Region, vm.VMID) }

// newInflight returns the VM with the NodeClaim that Karpenter sees for it.
func newInflight(vm fleet.VM, pools pools, types []InstanceType) *inflight {
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			UID:               apitypes.UID(providerID(&vm)),
			CreationTimestamp: metav1.Unix(writtenAt, 0),
			Labels:            vmLabels(&vm),
			Annotations:       map[string]string{v1alpha1.AnnotationVM: vm.Name},
		},
		Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{
			Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: vm.NodeClass,
		}},
	}
	claim.Status.ProviderID = providerID(&vm)
	t := typeOf(&vm, types)
	if pool := pools.find(vm.Pool); pool != nil {
		if pool.class != nil {
			t = t.forClass(pool.class.fields)
			claim.Labels[corev1.LabelArchStable] = cmp.Or(pool.class.arch[vm.Host], karpv1.ArchitectureAmd64)
		}
		template := &pool.Spec.Template.Spec
		claim.Spec.Taints = slices.Clone(template.Taints)
		claim.Spec.StartupTaints = slices.Clone(template.StartupTaints)
		claim.Labels = poolLabels(pool.NodePool, claim.Labels)
		t = t.with(pool.overlays.extra(claim.Labels))
	} else {
		// Karpenter deletes the nodes of a pool that no longer exists: place nothing
		// there.
		claim.Spec.Taints = []corev1.Taint{karpv1.DisruptedNoScheduleTaint}
	}
	claim.Status.Capacity, claim.Status.Allocatable = t.resources(&vm)
	return &inflight{VM: vm, claim: claim}
}

// vmLabels returns a node's labels that derive from its VM.
func vmLabels(vm *fleet.VM) map[string]string {
	labels := maps.Clone(vm.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	family := (&InstanceType{Name: vm.InstanceType}).Family()
	maps.Copy(labels, map[string]string{
		corev1.LabelHostname:           vm.Name,
		corev1.LabelOSStable:           string(corev1.Linux),
		corev1.LabelTopologyRegion:     string(vm.Host.Region),
		corev1.LabelTopologyZone:       string(vm.Host.Host),
		corev1.LabelInstanceTypeStable: vm.InstanceType,
		karpv1.CapacityTypeLabelKey:    cmp.Or(vm.CapacityType, karpv1.CapacityTypeOnDemand),
		karpv1.NodePoolLabelKey:        vm.Pool,
		karpv1.NodeClassLabelKey(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass).GroupKind()): vm.NodeClass,
		v1alpha1.LabelInstanceFamily: family,
		v1alpha1.LabelNodeClass:      vm.NodeClass,
		v1alpha1.LabelPlacement:      string(vm.Policy),
		v1alpha1.LabelNUMANodes:      strconv.Itoa(max(1, len(vm.Cells))),
	})
	for key, name := range map[string]string{v1alpha1.LabelCPUType: vm.CPUType, v1alpha1.LabelTemplate: vm.Template} {
		if value := labelValue(name); value != "" {
			labels[key] = value
		}
	}
	return labels
}

// poolLabels adds the labels that the pool gives all of its nodes: its labels, and its
// requirements with a single value.
func poolLabels(pool *karpv1.NodePool, labels map[string]string) map[string]string {
	all := map[string]string{}
	for _, r := range pool.Spec.Template.Spec.Requirements {
		if r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 {
			all[r.Key] = r.Values[0]
		}
	}
	maps.Copy(all, pool.Spec.Template.Labels)
	maps.Copy(all, labels)
	return all
}

// resources returns the capacity and the allocatable resources of a VM's node with that
// type.
func (t InstanceType) resources(vm *fleet.VM) (capacity, allocatable corev1.ResourceList) {
	disk := cmp.Or(vm.DiskGiB, vm.Source.DiskGiB, defaultDiskGiB)
	return t.capacity(disk), t.allocatable(disk)
}

// compareInflight orders VMs by the properties that pods see: standby VMs after the
// others, outdated ones last, and otherwise small ones first. Pods are tried largest
// first, so each is placed on the smallest VM that has room. Flexible VMs come last, large
// ones first: the last VM is the one that has room left, and it remains the last after it
// is shrunk. Equal VMs are interchangeable for every pod, so the order, and the whole
// decision, is the same when the new VMs have become existing ones.
func compareInflight(a, b *inflight) int {
	if byState := cmp.Or(boolCompare(a.Standby, b.Standby), boolCompare(a.outdated != "", b.outdated != "")); byState != 0 {
		return byState
	}
	bySize := cmp.Or(cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.MemoryMiB, b.MemoryMiB))
	flexible := isFlexible(a.InstanceType)
	if flexible != isFlexible(b.InstanceType) {
		if flexible {
			return 1
		}
		return -1
	}
	if flexible {
		bySize = -cmp.Or(bySize, cmp.Compare(a.DiskGiB, b.DiskGiB))
	}
	return cmp.Or(
		bySize,
		cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.CapacityType, b.CapacityType),
		a.Host.Compare(b.Host), cmp.Compare(a.DiskGiB, b.DiskGiB), cmp.Compare(len(a.Cells), len(b.Cells)),
		slices.Compare(sortedPairs(a.Labels), sortedPairs(b.Labels)),
		cmp.Compare(a.VMID, b.VMID), cmp.Compare(a.Name, b.Name),
	)
}

// boolCompare orders false before true.
func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func sortedPairs(labels map[string]string) []string {
	var pairs []string
	for key, value := range labels {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return pairs
}

// guestID identifies a VM and its guest on any host. It includes the key because VMIDs
// are reused.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
	key    fleet.Key
}

// locator records which hosts are up and where guests are.
type locator struct {
	// usable are the hosts that are up and without a problem, online all that are up.
	usable, online map[topology.HostID]bool
	// hosts are the hosts that list a guest with a key.
	hosts map[guestID][]topology.HostID
	// unclear maps guests without a key, by region and VMID, to their names, which may
	// identify the owner. The name is empty if the host cannot be read.
	unclear map[guestID]string
	// stopped are the guests with a key that are stopped, and names the names of guests with a
	// key.
	stopped map[guestID]bool
	names   map[guestID]string
}

func newLocator(snapshot *topology.Snapshot) *locator {
	l := &locator{
		usable:  map[topology.HostID]bool{},
		online:  map[topology.HostID]bool{},
		hosts:   map[guestID][]topology.HostID{},
		unclear: map[guestID]string{},
		stopped: map[guestID]bool{},
		names:   map[guestID]string{},
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		l.usable[host.ID()] = host.Online && host.Problem == ""
		l.online[host.ID()] = host.Online
		for j := range host.Guests {
			guest := &host.Guests[j]
			id := guestID{region: host.Region, vmid: fleet.VMID(guest.VMID), key: fleet.Key(guest.Key)}
			switch {
			case guest.Key != "":
				l.hosts[id] = append(l.hosts[id], host.ID())
				l.stopped[id] = !guest.Running
				l.names[id] = guest.Name
			case l.usable[host.ID()]:
				l.unclear[id] = guest.Name
			default:
				l.unclear[id] = ""
			}
		}
	}
	return l
}

// newExisting returns a VM that is already desired, on its current host. If its guest is
// not found, it may not be created yet, so its host is the planned one. During a migration
// a guest may appear twice: its host is then a usable one, preferably the planned one.
func (l *locator) newExisting(vm fleet.VM, pools pools, types []InstanceType) *inflight {
	planned := vm.Host
	seen := l.hosts[guestID{region: planned.Region, vmid: vm.VMID, key: vm.Key}]
	if len(seen) > 0 && (!slices.Contains(seen, planned) || !l.usable[planned]) {
		vm.Host = seen[0]
		if i := slices.IndexFunc(seen, func(host topology.HostID) bool { return l.usable[host] }); i >= 0 {
			vm.Host = seen[i]
		}
	}
	existing := newInflight(vm, pools, types)
	existing.home = planned

	// The VM is created, or re-created, with another VMID if an unmanaged guest has taken
	// its own.
	name, unclear := l.unclear[guestID{region: planned.Region, vmid: vm.VMID}]
	existing.absent = l.usable[planned] && len(seen) == 0 && (!unclear || name != "" && name != vm.Name)
	existing.online = l.online[vm.Host]
	// A host or region that is temporarily unreadable is not known to be down: a VM that
	// was seen there still counts as joining.
	if !l.usable[vm.Host] && (!existing.online || !slices.Contains(seen, vm.Host)) {
		existing.lost = true
		closeClaim(existing.claim)
	}
	return existing
}

// closeClaim keeps every pod off a VM, including pods that tolerate all taints: nothing
// is allocatable. The capacity remains, because it counts against the pool's limits.
func closeClaim(claim *karpv1.NodeClaim) {
	claim.Spec.Taints = append(claim.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
	claim.Status.Allocatable = nil
}
