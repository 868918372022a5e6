package guard

import (
	"fmt"
	"maps"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// pinned is a VM of a plan and the CPUs that it will own.
type pinned struct {
	address string
	host    topology.HostName
	vmid    fleet.VMID
	cpus    topology.CPUSet
}

// pins denies a VM whose CPUs belong to another guest, or to another VM of the plan. It
// checks only what the plan creates and updates: an existing overlap of two VMs must not
// prevent the deletion of a third.
func (j *judge) pins(plan *tfjson.Plan) {
	vms := j.allPinned(plan)
	for _, address := range slices.Sorted(maps.Keys(vms)) {
		if j.changes(address) {
			j.claimed(vms[address])
			j.shared(vms[address], vms)
		}
	}
}

// changes reports whether the VM at an address is to be created or updated.
func (j *judge) changes(address string) bool {
	w := j.wanted[address]
	return w != nil && (w.operation == opCreate || w.operation == opUpdate)
}

// claimed denies a VM whose CPUs belong to another guest.
func (j *judge) claimed(vm pinned) {
	for _, claim := range j.intent.Claims {
		if taken := claim.CPUs.Intersection(vm.cpus); claim.Host == vm.host && claim.VMID != vm.vmid && !taken.IsEmpty() {
			j.deny(RulePins, vm.address, fmt.Sprintf("CPUs %s of host %s are held by guest %d (%.80q): plan again, so that the VM is placed elsewhere",
				taken, vm.host, claim.VMID, claim.Guest))
		}
	}
}

// shared denies a VM whose CPUs also belong to another VM of the plan.
func (j *judge) shared(vm pinned, vms map[string]pinned) {
	for _, address := range slices.Sorted(maps.Keys(vms)) {
		other := vms[address]
		if both := other.cpus.Intersection(vm.cpus); address != vm.address && other.host == vm.host && !both.IsEmpty() {
			j.deny(RulePins, vm.address, fmt.Sprintf("CPUs %s of host %s are planned for %s too: plan again from fresh files", both, vm.host, address))
		}
	}
}

// allPinned returns the VMs that own CPUs once the plan is applied, by address. It denies
// VMs that do not declare their CPUs.
func (j *judge) allPinned(plan *tfjson.Plan) map[string]pinned {
	vms := map[string]pinned{}
	for _, r := range resources(plan.PlannedValues) {
		if r != nil && r.Type == ResourceType {
			j.pinsOf(vms, r.Address, r.AttributeValues)
		}
	}
	// The changes repeat the values, and the changes are what gets applied.
	for _, rc := range plan.ResourceChanges {
		if rc == nil || rc.Change == nil || rc.Type != ResourceType || attributes(rc.Change.After) == nil {
			continue
		}
		j.pinsOf(vms, rc.Address, attributes(rc.Change.After))
		cpu := attributes(rc.Change.AfterUnknown)["cpu"]
		if cpu == true || !zero(single(cpu)["affinity"]) {
			j.deny(RulePins, rc.Address, "the CPUs of its affinity are not known before the apply: plan again from fresh files")
		}
	}
	return vms
}

func (j *judge) pinsOf(vms map[string]pinned, address string, values map[string]any) {
	vmid, _ := integer(values["vm_id"])
	vm := pinned{address: address, host: topology.HostName(text(values["node_name"])), vmid: fleet.VMID(vmid)}
	if marker, ok := fleet.ParseMarker(text(values["description"])); ok {
		vm.cpus = topology.CPUs(marker.Pins...)
	}
	affinity := text(single(values["cpu"])["affinity"])
	cpus, err := topology.ParseCPUSet(affinity)
	if err != nil && j.changes(address) {
		j.deny(RulePins, address, fmt.Sprintf("the CPUs %.40q of its affinity cannot be read: plan again from fresh files", affinity))
	}
	vm.cpus = vm.cpus.Union(cpus)
	delete(vms, address)
	if !vm.cpus.IsEmpty() {
		vms[address] = vm
	}
}
