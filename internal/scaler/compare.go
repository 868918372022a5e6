package scaler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
)

// recovery is the work that is required before a plan can be checked. Stale entries are
// removed from the state first; planning again then shows what remains.
type recovery struct {
	// forget are the addresses of stale entries: see hostView.stale.
	forget []string
	// imports exist but are not in the state; partial are in the state without their
	// security groups.
	imports, partial []fleet.VM
}

// compare compares files, state and Proxmox according to the table in state/DESIGN.md. An
// error means that neither a VM nor a state entry may be changed.
func (v *hostView) compare(plan *tfjson.Plan) (recovery, error) {
	if err := v.checkOwners(plan); err != nil {
		return recovery{}, err
	}
	if stale := v.stale(plan); len(stale) > 0 {
		return recovery{forget: stale}, nil
	}

	// A plan does not delete VMs to be removed that exist but are not in the state.
	listed := map[string]bool{}
	creates := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		listed[change.Address] = true
		creates[change.Address] = change.Change.Actions.Create()
	}
	var outside []string
	for address, vm := range v.removed {
		if _, ours := v.of(&vm); ours && !listed[address] {
			outside = append(outside, vm.Name)
		}
	}
	if len(outside) > 0 {
		slices.Sort(outside)
		return recovery{}, &OutsideStateError{Names: outside}
	}

	imports, err := v.imports(plan)
	todo := recovery{imports: imports}
	for address, vm := range v.vms {
		if _, ours := v.of(&vm); !ours || creates[address] {
			continue
		}
		if slices.ContainsFunc(generator.Addresses(&vm), func(address string) bool { return creates[address] }) {
			todo.partial = append(todo.partial, vm)
		}
	}
	slices.SortFunc(todo.partial, func(a, b fleet.VM) int { return cmp.Compare(a.VMID, b.VMID) })
	return todo, err
}

// hasLost reports whether the state has lost VMs since the last apply, other than VMs that a later
// change removes: they are imported before that.
func (v *hostView) hasLost(plan *state.Plan) bool {
	return slices.ContainsFunc(plan.Lost, func(address string) bool {
		vm, desired := v.vms[cmp.Or(guard.VMOf(address), address)]
		return !desired || !v.change.leaving[vm.Key]
	})
}

// entry is a VM in a plan.
type entry struct {
	vm fleet.VM
	// inState is set if the state has the VM, and idle if the plan leaves it and its
	// security groups unchanged.
	inState, idle bool
}

// entries returns the VMs of a plan by address.
func (v *hostView) entries(plan *tfjson.Plan) map[string]*entry {
	found := map[string]*entry{}
	for _, change := range plan.ResourceChanges {
		if change.Type != guard.ResourceType {
			continue
		}
		vm, known := v.vms[change.Address]
		if !known {
			vm, known = v.removed[change.Address]
		}
		if !known {
			vm, _ = v.ofState(change)
		}
		found[change.Address] = &entry{vm: vm, inState: !change.Change.Actions.Create(), idle: change.Change.Actions.NoOp()}
	}
	for _, change := range plan.ResourceChanges {
		if vm := found[guard.VMOf(change.Address)]; vm != nil && !change.Change.Actions.NoOp() {
			vm.idle = false
		}
	}
	return found
}

// ofState returns the VM of an entry without a file, as the state records it, and whether
// the state marks it as ours.
func (v *hostView) ofState(change *tfjson.ResourceChange) (fleet.VM, bool) {
	vm, marker, marked := recordedVM(change.Change.Before)
	vm.Host = v.id
	vm.Pool = strings.TrimSuffix(vm.Name, fmt.Sprintf("-%d", vm.VMID))
	if len(marker.Pins) > 0 {
		vm.PinWith = fleet.PinWithHostAgent
		vm.VCPUPins, vm.Emulator = marker.Pins, marker.Emulator
	}
	return vm, marked && marker.ClusterID == v.clusterID
}

// checkOwners returns the first error of checkOwner for the VMs that the plan changes, and
// for the removed VMs that the plan does not contain.
func (v *hostView) checkOwners(plan *tfjson.Plan) error {
	entries := v.entries(plan)
	for _, address := range sortedKeys(entries) {
		if entry := entries[address]; !entry.idle {
			if err := v.checkOwner(entry); err != nil {
				return err
			}
		}
	}
	for _, address := range sortedKeys(v.removed) {
		if entries[address] == nil {
			if err := v.checkOwner(&entry{vm: v.removed[address]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOwner returns why the owner of an entry's guest is unknown, or nil. It also refuses
// to import or change a VM that is not on its host, where the provider would look for it;
// a VM that is only removed is followed to its host.
func (v *hostView) checkOwner(e *entry) error {
	guest, exists := v.with(&e.vm)
	switch {
	case !exists && e.inState && !v.complete:
		return &HiddenError{VM: e.vm.Name, VMID: e.vm.VMID, Region: v.id.Region}
	case !exists:
		return nil
	case !v.is(guest, &e.vm) && v.foreign(&e.vm):
		return v.adoptable(guest, &e.vm)
	case v.givenBack(guest, &e.vm):
		return nil
	case !v.is(guest, &e.vm):
		return v.mayBe(guest, &e.vm)
	}
	_, desired := v.vms[generator.Address(&e.vm)]
	if guest.host == v.id || (e.inState && !desired) {
		return nil
	}
	return &MovedError{VM: e.vm.Name, Host: v.id, Now: guest.host}
}

// givenBack reports whether a person gave an adopted VM back to the tool that created it:
// the VM has no file, and its guest has neither its marker nor a tag of numaform. Only the
// name of an adopted VM can differ from the name that its NodePool and VMID form. A VM that
// numaform removes is never given back.
func (v *hostView) givenBack(guest located, vm *fleet.VM) bool {
	address := generator.Address(vm)
	_, desired := v.vms[address]
	_, removed := v.removed[address]
	return !desired && !removed && guest.unclaimed() && guest.Name == vm.Name && vm.Name != fleet.NodeName(vm.Pool, vm.VMID)
}

// stale returns the addresses of stale state entries: their create was interrupted, their
// VMID belongs to another guest, or their VM provably does not exist. An entry in doubt is
// not stale: the guard checks it. Security groups are removed with the entry of their VM;
// otherwise the next VM would appear to have them.
func (v *hostView) stale(plan *tfjson.Plan) []string {
	var addresses []string
	staying := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		if change.Type != guard.ResourceType {
			continue
		}
		stale := v.isStale(change)
		staying[change.Address] = !stale && !change.Change.Actions.Create()
		if stale {
			addresses = append(addresses, change.Address)
		}
	}
	for _, change := range plan.ResourceChanges {
		vm := guard.VMOf(change.Address)
		if vm == "" || change.Change.Actions.Create() {
			continue
		}
		if change.ActionReason == tfjson.ActionReasonReplaceBecauseTainted || !staying[vm] {
			addresses = append(addresses, change.Address)
		}
	}
	return addresses
}

func (v *hostView) isStale(change *tfjson.ResourceChange) bool {
	actions := change.Change.Actions
	if change.ActionReason == tfjson.ActionReasonReplaceBecauseTainted {
		return true
	}
	if !actions.Delete() && !actions.Update() && !actions.NoOp() {
		return false
	}
	if v.halfAdopted(change.Address) {
		return true
	}

	// The provider can neither delete nor change a VM that does not exist.
	recorded, marker, marked := recordedVM(change.Change.Before)
	recorded.Host = v.id
	guest, exists := v.with(&recorded)
	if v.complete && recorded.VMID != 0 && !exists {
		return true
	}
	switch {
	case actions.Delete():
		return marked && exists && v.notOurs(guest, recorded, marker)
	case actions.Update():
		// The VM exists but was never completed, because the attempt to complete it was
		// interrupted as well. After a new import it can be completed.
		vm, inFiles := v.vms[change.Address]
		guest, ours := v.of(&vm)
		_, woken := v.woken[change.Address]
		return v.interrupted && inFiles && !v.isUpdate(change.Address) && !woken && ours && v.mayBeHalfMade(&vm, guest)
	}
	return false
}

// notOurs reports whether the guest with the VMID of a state entry without a file provably
// belongs to another owner, or was given back.
func (v *hostView) notOurs(guest located, recorded fleet.VM, marker fleet.Marker) bool {
	recorded.Pool, _ = strings.CutSuffix(recorded.Name, fmt.Sprintf("-%d", recorded.VMID))
	other := v.mayBe(guest, &recorded) == nil && (guest.ClusterID != marker.ClusterID || fleet.Key(guest.Key) != marker.Key)
	return other || v.givenBack(guest, &recorded)
}

// mayBeHalfMade reports whether a VM's guest may never have been completed, because it
// does not run. A standby VM never runs, so its guest may be incomplete only while its
// creation has not ended.
func (v *hostView) mayBeHalfMade(vm *fleet.VM, guest located) bool {
	if vm.Standby && !v.mayBeNew(vm.Key) {
		return false
	}
	return !guest.Running
}

// imports returns the VMs that the plan would create and that already exist with our
// marker and key. It returns an error if a VMID belongs, or may belong, to another guest.
func (v *hostView) imports(plan *tfjson.Plan) ([]fleet.VM, error) {
	var existing []fleet.VM
	for _, change := range plan.ResourceChanges {
		vm, inFiles := v.vms[change.Address]
		if !inFiles || !change.Change.Actions.Create() {
			continue
		}
		guest, exists := v.with(&vm)
		switch {
		case !exists:
		case v.is(guest, &vm), v.foreign(&vm) && v.adoptable(guest, &vm) == nil:
			existing = append(existing, vm)
		default:
			if err := v.mayBe(guest, &vm); err != nil {
				return nil, err
			}
			taken := &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: guest.Name, Host: guest.host}
			for _, other := range v.guests {
				if v.clone(other, &vm) {
					taken.Copy, taken.CopyHost = fleet.VMID(other.VMID), other.host
				}
			}
			return nil, taken
		}
	}
	return existing, nil
}

// takenOut returns the VMs that a person removed from the fleet by deleting their files:
// they are in the state, and in Proxmox they are still ours. It adds them to v.removed, as
// a request would.
func (v *hostView) takenOut(plan *tfjson.Plan) []fleet.VM {
	var vms []fleet.VM
	for _, change := range plan.ResourceChanges {
		if _, known := v.removed[change.Address]; known || change.Type != guard.ResourceType || !change.Change.Actions.Delete() {
			continue
		}
		vm, marked := v.ofState(change)
		if _, ours := v.of(&vm); marked && ours {
			v.removed[change.Address] = vm
			vms = append(vms, vm)
		}
	}
	return vms
}

// orphans returns the guests of the host that carry our marker and are in neither files
// nor state.
func (v *hostView) orphans(plan *tfjson.Plan) []located {
	known := map[fleet.Key]bool{}
	for _, entry := range v.entries(plan) {
		known[entry.vm.Key] = true
	}
	for _, vm := range v.vms {
		known[vm.Key] = true
	}
	var orphans []located
	for _, guest := range v.guests {
		if guest.host == v.id && guest.ClusterID == v.clusterID && !known[fleet.Key(guest.Key)] {
			orphans = append(orphans, guest)
		}
	}
	return orphans
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
