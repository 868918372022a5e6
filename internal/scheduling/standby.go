package scheduling

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// A standby VM is created and stopped. It is not a Node, and only the pods of standby
// buffers hold it. Real pods that fit neither a node nor an in-flight VM wake it.

// Woken is a standby VM to start, with the pods that need it.
type Woken struct {
	VM fleet.VM
	// ClassHash is the hash of the class in this decision.
	ClassHash string
	Pods      []types.NamespacedName
}

// Standby is a standby VM that stays stopped.
type Standby struct {
	VM fleet.VM
	// Pods are the pods of standby buffers that hold the VM. If there are none, the VM is
	// not needed.
	Pods []types.NamespacedName
	// Outdated is the reason why the VM must be replaced and not started, or empty. One
	// outdated VM of each NodePool at a time holds no pods, so that another VM is created
	// for them.
	Outdated string
	// Unusable is the reason why the VM is neither started nor replaced until a user solves the
	// problem, or empty.
	Unusable string
}

// takes reports whether pods of a phase may be placed on the VM.
func (vm *inflight) takes(phase int) bool {
	switch {
	case phase >= standbyConstrained:
		return vm.Standby && !vm.retiring
	case vm.Standby:
		return phase < virtualConstrained && vm.wakeable && !vm.delayed
	}
	return true
}

// prepareStandby determines which standby VMs may be woken, which are outdated, and which
// of these is replaced first.
func (s *session) prepareStandby(locator *locator) {
	slices.SortFunc(s.state.standby, func(a, b *inflight) int { return cmp.Compare(a.VMID, b.VMID) })
	replacing := map[string]bool{}
	for _, vm := range s.state.standby {
		p := s.pools.find(vm.Pool)
		id := guestID{region: vm.Host.Region, vmid: vm.VMID, key: vm.Key}
		vm.outdated = s.whyOutdated(vm, p)
		if name, seen := locator.names[id]; seen && name != vm.Name {
			vm.unusable = fmt.Sprintf("it was renamed to %q in Proxmox: to rename it back, run qm set %d --name %s on host %s", name, vm.VMID, vm.Name, vm.Host.Host)
		}
		vm.unusable = cmp.Or(vm.unusable, s.nameTaken(vm))
		replaceable := p == nil || p.class == nil || p.class.replaceable(vm.Host) || slices.Contains(s.request.Evacuated, vm.Host)
		if vm.outdated != "" && vm.unusable == "" && replaceable && !vm.lost && !replacing[vm.Pool] && !s.request.Keep[vm.Key] {
			replacing[vm.Pool] = true
			vm.retiring = true
		}
		vm.wakeable = p != nil && p.problem == "" && vm.outdated == "" && vm.unusable == "" && !vm.lost && !s.request.Unready[vm.Key] &&
			locator.stopped[id] && !s.closed.byRequest(offering{pool: vm.Pool, instanceType: vm.InstanceType, host: vm.Host})
		vm.delayed = s.request.delays(&vm.Spec, vm.Host)
	}
}

// nameTaken returns why a VM cannot get a NodeClaim, or "". An outdated VM needs none.
func (s *session) nameTaken(vm *inflight) string {
	name := ClaimName(&vm.VM)
	if key, taken := s.state.keys[name]; !taken || key == vm.Key || vm.outdated != "" {
		return ""
	}
	return fmt.Sprintf("another NodeClaim has the name of its NodeClaim: delete NodeClaim %s, or run numaform remove %s", name, vm.Name)
}

// delays reports whether a VM would start later on the host than a new VM on a host that is
// not busy. How long a change will take is unknown; a full clone usually takes longer than
// the removal of VMs.
func (r *Request) delays(vm *fleet.Spec, host topology.HostID) bool {
	return slices.Contains(r.Busy, host) || vm.Clone == fleet.CloneLinked && slices.Contains(r.Removing, host)
}

// delayed returns the standby VMs that pods could wake if their hosts were not busy.
func (s *session) delayed() []*inflight {
	return slices.DeleteFunc(slices.Clone(s.state.standby), func(vm *inflight) bool { return !vm.wakeable || !vm.delayed })
}

// acceptDelays allows pods to wake the standby VMs on busy hosts, and reports whether there
// are any.
func (s *session) acceptDelays() bool {
	delayed := s.delayed()
	for _, vm := range delayed {
		vm.delayed = false
	}
	return len(delayed) > 0
}

// refusesPods reports whether the solution has no place for a real pod.
func (s *session) refusesPods(sol *solution) bool {
	if sol.phase < virtualConstrained && len(sol.claims)+len(sol.wakes) > 0 {
		return false // the VMs to add may change this
	}
	refused := func(pod *corev1.Pod) bool { return sol.failed[pod.UID] != nil }
	return slices.ContainsFunc(s.pods[constrained], refused) || slices.ContainsFunc(s.pods[unconstrained], refused)
}

// avoidBusy places VMs for real pods again that the planner placed on busy hosts, at most
// one for each delayed standby VM of their NodePool. If one of them fits on no other host,
// pods may wake the delayed standby VMs, because a new VM would wait as well, and then be
// cloned. avoidBusy returns the placed VMs that remain, and reports whether these are all.
func (s *session) avoidBusy(specs []fleet.Spec, placed []planner.Placed) (rest []planner.Placed, all bool) {
	delayed := map[string]int{} // by NodePool
	for _, vm := range s.delayed() {
		delayed[vm.Pool]++
	}
	all = true
	var again []int // the position of each VM of elsewhere
	var elsewhere []fleet.Spec
	for _, p := range placed {
		spec := specs[p.Index]
		if delayed[spec.Pool] == 0 || !s.request.delays(&spec, p.Host) {
			rest = append(rest, p)
			continue
		}
		delayed[spec.Pool]--
		s.site.Remove(fleet.VM{Spec: spec, Placement: p.Placement})
		spec.Hosts = slices.DeleteFunc(slices.Clone(spec.Hosts), func(host topology.HostID) bool { return s.request.delays(&spec, host) })
		if len(spec.Hosts) == 0 {
			all = false
			continue
		}
		again = append(again, p.Index)
		elsewhere = append(elsewhere, spec)
	}
	moved, refused := s.site.Place(elsewhere)
	for _, p := range moved {
		p.Index = again[p.Index]
		rest = append(rest, p)
	}
	slices.SortFunc(rest, func(a, b planner.Placed) int { return cmp.Compare(a.Index, b.Index) })
	if all = all && len(refused) == 0; !all {
		s.acceptDelays()
	}
	return rest, all
}

// replaceable reports whether another VM could be created once a VM on the host is removed.
// If no host can take VMs of the class, and this one lacks the template, there would be none,
// and the class may be changed back.
func (c *class) replaceable(host topology.HostID) bool {
	lacksTemplate := func(f Fault) bool { return f.Host == host && f.Condition == v1alpha1.ConditionTemplateReady }
	return len(c.hosts) > 0 || !slices.ContainsFunc(c.faults, lacksTemplate)
}

// whyOutdated returns why a standby VM of a NodePool, which may be nil, must be replaced, or
// "".
func (s *session) whyOutdated(vm *inflight, p *pool) string {
	switch {
	case slices.Contains(s.request.Evacuated, vm.Host):
		return "its host is being evacuated"
	case p == nil:
		return fmt.Sprintf("its NodePool %s no longer exists", vm.Pool)
	case p.class == nil:
		return fmt.Sprintf("its %s %s no longer exists", v1alpha1.KindProxmoxNodeClass, vm.NodeClass)
	case vm.Host != vm.home:
		return fmt.Sprintf("it was moved from host %s to host %s", vm.home, vm.Host)
	case p.class.invalid():
		return ""
	}
	return cmp.Or(p.outdated(&vm.VM, s.request.Snapshot), s.lostReservation(&vm.VM))
}

// lostReservation returns why the guard would deny the start of a standby VM although it
// reserves its addresses and, with Reserve, its CPUs, or "".
func (s *session) lostReservation(vm *fleet.VM) string {
	if err := ipam.Check(s.request.Snapshot, vm, s.site.used.nodes); err != nil {
		return err.Error()
	}
	host := s.request.Snapshot.Host(vm.Host)
	if host == nil || !vm.Reserve {
		return ""
	}
	for i := range host.Guests {
		guest := &host.Guests[i]
		if shared := guest.Pins.Intersection(vm.CPUs); fleet.VMID(guest.VMID) != vm.VMID && !shared.IsEmpty() {
			return fmt.Sprintf("guest %d (%s) is pinned to its CPUs %s", guest.VMID, guest.Name, shared)
		}
	}
	return ""
}

// outdated returns why the class or the NodePool would no longer create this VM, or "".
// It ignores everything that a VM gets when it starts, such as kubelet's configuration.
func (p *pool) outdated(vm *fleet.VM, snapshot *topology.Snapshot) string {
	c := p.class
	i := slices.IndexFunc(p.types, func(t InstanceType) bool { return t.Name == vm.InstanceType })
	var t InstanceType
	switch {
	case i >= 0:
		t = p.types[i]
	case isFlexible(vm.InstanceType) && c.flexible():
		t = flexibleType(vm.VCPUs, vm.MemoryMiB, 0)
	default:
		return fmt.Sprintf("instance type %s is no longer offered", vm.InstanceType)
	}
	now := c.spec(p.Name, &t, []topology.HostID{vm.Host})
	// A larger disk is as good: new VMs get the size of the largest template on any host
	// that is up, which changes when hosts go down and come back.
	if least := max(cmp.Or(max(c.diskGiB, t.DiskGiB), defaultDiskGiB), vm.Source.DiskGiB); vm.DiskGiB >= least {
		now.DiskGiB = vm.DiskGiB
	}

	labels := vmLabels(vm)
	own := scheduling.NewNodeSelectorRequirementsWithMinValues(p.Spec.Template.Spec.Requirements...)
	for key, requirement := range own {
		if value, known := labels[key]; known && !requirement.Has(value) {
			return fmt.Sprintf("its NodePool does not allow %s=%s", key, value)
		}
	}
	from, known := c.templates[vm.Host]
	switch {
	case !Allows(&v1alpha1.ProxmoxNodeClass{Spec: *c.fields}, vm.Host):
		return "its class does not allow host " + vm.Host.String()
	case known && vm.Source.VMID != 0 && fleet.VMID(from.VMID) != vm.Source.VMID:
		return fmt.Sprintf("its template is now VM %d", from.VMID)
	case !known && !c.selectsSource(vm, snapshot):
		return fmt.Sprintf("its class no longer selects its template %s (VM %d)", vm.Template, vm.Source.VMID)
	}
	for _, field := range []struct {
		name string
		same bool
	}{
		{name: "class", same: vm.NodeClass == now.NodeClass},
		{name: "capacity type", same: vm.CapacityType == now.CapacityType},
		{name: "size", same: vm.VCPUs == now.VCPUs && vm.MemoryMiB == now.MemoryMiB},
		{name: "placement", same: vm.Policy == now.Policy && vm.PinWith == now.PinWith},
		{name: "overcommit", same: vm.Overcommit == now.Overcommit && vm.MemoryOvercommit == now.MemoryOvercommit},
		{name: "huge pages", same: vm.HugePages == now.HugePages},
		{name: "clone", same: vm.Clone == now.Clone},
		{name: "CPU type", same: vm.CPUType == now.CPUType},
		{name: "boot disk", same: vm.DiskGiB == now.DiskGiB && vm.Storage == now.Storage},
		{name: "data disks", same: slices.EqualFunc(vm.DataDisks, now.DataDisks, sameDisk)},
		{name: "seed", same: vm.SeedStorage == now.SeedStorage},
		{name: "networks", same: slices.EqualFunc(vm.Networks, now.Networks, sameNetwork)},
		{name: "hardware", same: reflect.DeepEqual(vm.Hardware, now.Hardware)},
		{name: "PCI devices", same: slices.Equal(vm.PCIDevices, now.PCIDevices)},
	} {
		if !field.same {
			return "its " + field.name + " changed"
		}
	}
	return ""
}

// selectsSource reports whether the class still selects the template from which a VM was
// cloned, or may still select it: if that template no longer exists, only its name and VMID
// are known.
func (c *class) selectsSource(vm *fleet.VM, snapshot *topology.Snapshot) bool {
	on := topology.HostID{Region: vm.Host.Region, Host: cmp.Or(vm.Source.Host, vm.Host.Host)}
	if host := snapshot.Host(on); host != nil {
		for i := range host.Templates {
			if t := &host.Templates[i]; fleet.VMID(t.VMID) == vm.Source.VMID {
				return c.selects(t)
			}
		}
	}
	ref := &c.fields.Template
	return (ref.Name == "" || ref.Name == vm.Template) && (ref.VMID == 0 || fleet.VMID(ref.VMID) == vm.Source.VMID)
}

// sameDisk reports whether a VM's data disk is as its class requests.
func sameDisk(vm, class fleet.DataDisk) bool {
	return vm.SizeGiB == class.SizeGiB && (class.Storage == "" || vm.Storage == class.Storage)
}

// sameNetwork reports whether a VM's network device is as its class requests. The class
// sets only the prefix of the MAC address, and the pools of the addresses.
func sameNetwork(vm, class fleet.Network) bool {
	sameMAC := strings.HasPrefix(strings.ToUpper(vm.MAC), class.MAC)
	samePools := slices.Equal(vm.AddressPools(), class.AddressPools())
	vm.MAC, class.MAC = "", ""
	vm.Addresses, class.Addresses = nil, nil
	vm.Model, class.Model = cmp.Or(vm.Model, "virtio"), cmp.Or(class.Model, "virtio")
	return sameMAC && samePools && reflect.DeepEqual(vm, class)
}

// resting returns the existing standby VMs that this decision does not wake.
func (s *session) resting() []*inflight {
	woken := map[string]bool{}
	for _, vm := range s.added {
		woken[providerID(&vm.VM)] = true
	}
	return slices.DeleteFunc(slices.Clone(s.state.standby), func(vm *inflight) bool { return woken[providerID(&vm.VM)] })
}

// standbyVMs returns the standby VMs that stay stopped, sorted by name, except VMs whose
// host is down.
func (s *session) standbyVMs(sol *solution) []Standby {
	var list []Standby
	for _, vm := range s.resting() {
		if vm.lost {
			continue
		}
		standby := Standby{VM: vm.VM, Outdated: vm.outdated, Unusable: vm.unusable}
		for _, pod := range sol.landed[providerID(&vm.VM)] {
			standby.Pods = append(standby.Pods, client.ObjectKeyFromObject(pod))
		}
		slices.SortFunc(standby.Pods, compareNames)
		list = append(list, standby)
	}
	slices.SortFunc(list, func(a, b Standby) int { return cmp.Compare(a.VM.Name, b.VM.Name) })
	return list
}

// wake adds the standby VMs that pods need to the decision, and reports whether all of them
// can start: a VM that reserved nothing needs free resources.
func (s *session) wake(sol *solution) bool {
	all := true
	for _, vm := range sol.wakes {
		if !vm.Reserve && !s.site.Start(vm.VM) {
			vm.wakeable = false
			all = false
			continue
		}
		woken := *vm
		woken.Standby = false
		woken.phase = sol.phase
		woken.claim = vm.claim.DeepCopy()
		s.added = append(s.added, &woken)
	}
	return all
}

// closeNodes keeps the pods of a phase off all nodes that cannot take them.
func (s *session) closeNodes(nodes state.StateNodes, phase int) {
	unjoined := map[string]*inflight{}
	for _, vm := range s.unjoined() {
		unjoined[providerID(&vm.VM)] = vm
	}
	for i, node := range nodes {
		vm := unjoined[node.ProviderID()]
		if vm != nil && vm.takes(phase) || vm == nil && phase < standbyConstrained {
			continue
		}
		node = node.ShallowCopy()
		nodes[i] = node
		if node.NodeClaim != nil {
			node.NodeClaim = node.NodeClaim.DeepCopy()
			closeClaim(node.NodeClaim)
		}
		if node.Node != nil {
			node.Node = node.Node.DeepCopy()
			node.Node.Spec.Taints = append(node.Node.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
			node.Node.Status.Allocatable = nil
		}
	}
}

// reserves reports whether a new standby VM for these pods reserves its CPUs and memory:
// always if its CPUs are pinned, because its stopped guest keeps its pins, and otherwise if
// the pods' buffers request it.
func reserves(spec *fleet.Spec, pods []*corev1.Pod) bool {
	reserve := spec.Policy.Pinned()
	for _, pod := range pods {
		if reserve {
			break
		}
		if value, err := strconv.ParseBool(pod.Annotations[v1alpha1.AnnotationReserve]); err == nil {
			reserve = value
		}
	}
	return reserve
}
