package scaler

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// wanted is what may happen on one host.
type wanted struct {
	clusterID string
	shard     fleet.Shard
	host      *topology.Host
	vms       map[string]fleet.VM // by address, from the files
	added     map[string]fleet.VM // requested by this change
	removed   map[string]fleet.VM // removed by this change or an earlier one
	updated   map[string]fleet.VM // to change in place, by this change or an earlier one
	// calls are the module calls of updated, whether or not their files contain them.
	calls []string
	// lagging is set if VMs of an earlier change are among updated.
	lagging bool
	guests  map[guestID]located
	// complete is set if all guests are known: a guest that is not listed then does not
	// exist.
	complete bool
	// interrupted is set if a create may have been interrupted.
	interrupted bool
	// blocked says why VMs in removed must stay for now, by address.
	blocked map[string]string
}

// guestID identifies a guest: VMIDs are unique within a region.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
}

// located is a guest and its host.
type located struct {
	topology.Guest
	host topology.HostID
	// unread is set for a guest of which only the VMID is known, because its host is
	// down: its owner is unknown.
	unread bool
}

// looksLike reports whether a guest without a marker may still be the VM with that name,
// because people edit descriptions.
func (l located) looksLike(name, clusterID string) bool {
	return l.Key == "" && (l.Name == name || slices.Contains(l.Tags, "numaform-"+clusterID))
}

func locate(snapshot *topology.Snapshot) map[guestID]located {
	guests := map[guestID]located{}
	for h := range snapshot.Hosts {
		host := &snapshot.Hosts[h]
		for _, guest := range host.Guests {
			guests[guestID{host.Region, fleet.VMID(guest.VMID)}] = located{
				Guest: guest, host: host.ID(), unread: guest.Key == "" && (!host.Online || host.Problem != ""),
			}
		}
	}
	return guests
}

func byAddress(vms []fleet.VM, shard fleet.Shard) map[string]fleet.VM {
	found := map[string]fleet.VM{}
	for _, vm := range vms {
		if vm.Host == shard {
			found[generator.Address(&vm)] = vm
		}
	}
	return found
}

// stale returns the addresses of state entries that do not refer to our VMs: their create
// was interrupted, their VMID belongs to someone else, or their VM provably does not
// exist. A doubtful entry is not stale: the guard checks it. Security groups are
// forgotten with the entry of their VM, or the next VM would appear to have them.
func (w *wanted) stale(plan *tfjson.Plan) []string {
	var addresses []string
	staying := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		if change.Type != guard.ResourceType {
			continue
		}
		stale := w.staleChange(change)
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

func (w *wanted) staleChange(change *tfjson.ResourceChange) bool {
	actions := change.Change.Actions
	attributes, _ := change.Change.Before.(map[string]any)
	switch {
	case change.ActionReason == tfjson.ActionReasonReplaceBecauseTainted:
		return true
	case actions.Delete():
		return w.strangers(attributes) || w.gone(attributes)
	case actions.Update():
		return w.gone(attributes) || w.cutOff(change.Address)
	case actions.NoOp():
		return w.gone(attributes)
	}
	return false
}

// cutOff reports whether a VM in the files exists but was never completed, because the
// attempt to complete it was interrupted as well. After a new import it can be completed.
func (w *wanted) cutOff(address string) bool {
	vm, ours := w.vms[address]
	guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
	_, made := w.updated[address]
	return w.interrupted && ours && !made && exists && w.is(guest, vm) && !guest.Running
}

// gone reports whether the VM in a resource's values provably does not exist. The
// provider can neither delete nor change a VM that does not exist.
func (w *wanted) gone(attributes map[string]any) bool {
	vmid := vmidOf(attributes)
	_, exists := w.guests[guestID{w.shard.Region, vmid}]
	return w.complete && vmid != 0 && !exists
}

// strangers reports whether the VMID in a resource's values provably belongs to an
// unmanaged guest.
func (w *wanted) strangers(attributes map[string]any) bool {
	description, _ := attributes["description"].(string)
	name, _ := attributes["name"].(string)
	marker, ok := fleet.ParseMarker(description)
	guest, exists := w.guests[guestID{w.shard.Region, vmidOf(attributes)}]
	if !ok || !exists || guest.unread || guest.looksLike(name, w.clusterID) {
		return false
	}
	return guest.ClusterID != marker.ClusterID || fleet.Key(guest.Key) != marker.Key
}

// vmidOf returns the VMID in a resource's values, or 0.
func vmidOf(attributes map[string]any) fleet.VMID {
	switch vmid := attributes["vm_id"].(type) {
	case float64:
		return fleet.VMID(vmid)
	case json.Number:
		number, err := vmid.Int64()
		if err != nil {
			return 0
		}
		return fleet.VMID(number)
	}
	return 0
}

// imports returns the VMs that the plan would create and that already exist with our
// marker and key. It returns an error if a VMID belongs to an unmanaged guest.
func (w *wanted) imports(plan *tfjson.Plan) ([]fleet.VM, error) {
	var existing []fleet.VM
	for _, change := range plan.ResourceChanges {
		vm, ours := w.vms[change.Address]
		if !ours || !change.Change.Actions.Create() {
			continue
		}
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		switch {
		case !exists:
		case w.is(guest, vm):
			existing = append(existing, vm)
		case guest.unread:
			return nil, w.unknown(guest)
		case guest.looksLike(vm.Name, w.clusterID):
			return nil, w.markerLost(vm, guest)
		default:
			return nil, &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: guest.Name, Host: guest.host}
		}
	}
	return existing, nil
}

// partial returns the VMs that are in the state without their firewall rules: their
// create was interrupted.
func (w *wanted) partial(plan *tfjson.Plan) []fleet.VM {
	creates := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		creates[change.Address] = change.Change.Actions.Create()
	}
	var partial []fleet.VM
	for address, vm := range w.vms {
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		if creates[address] || !exists || !w.is(guest, vm) {
			continue
		}
		if slices.ContainsFunc(generator.Addresses(&vm), func(address string) bool { return creates[address] }) {
			partial = append(partial, vm)
		}
	}
	slices.SortFunc(partial, func(a, b fleet.VM) int { return cmp.Compare(a.VMID, b.VMID) })
	return partial
}

// unknown returns the error for a guest that may be the VM and cannot be read now.
func (w *wanted) unknown(guest located) error {
	return &HostDownError{Host: guest.host, Problem: fmt.Sprintf("guest %d on it cannot be read", guest.VMID)}
}

// is reports whether a guest is the VM, by its key: the VMID may have been reused.
func (w *wanted) is(guest located, vm fleet.VM) bool {
	return guest.ClusterID == w.clusterID && fleet.Key(guest.Key) == vm.Key
}

// intent returns what the plan has to do: create what this change adds and what earlier
// changes added to the files, import what exists, delete what was removed.
func (w *wanted) intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	intent := guard.Intent{ClusterID: w.clusterID, Claims: w.claims()}
	importing := map[string]bool{}
	for _, vm := range imported {
		target := w.target(vm)
		importing[target.Address] = true
		guest := w.guests[guestID{w.shard.Region, vm.VMID}]
		_, made := w.updated[target.Address]
		target.Incomplete = w.interrupted && !made && !guest.Running
		intent.Import = append(intent.Import, target)
	}
	listed := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		listed[change.Address] = true
		if vm, ok := w.vms[change.Address]; ok && change.Change.Actions.Create() && !importing[change.Address] {
			intent.Create = append(intent.Create, w.target(vm))
		}
		if vm, ok := w.removed[change.Address]; ok {
			intent.Delete = append(intent.Delete, w.leaving(change.Address, vm))
		}
	}
	// The plan must contain what this change adds; otherwise the guard reports it.
	for address, vm := range w.added {
		if !listed[address] {
			intent.Create = append(intent.Create, w.target(vm))
		}
	}
	intent.Update = w.updates(plan, intent)
	return intent
}

// targets are the module calls affected by the change.
func (w *wanted) targets() []string {
	targets := slices.Clone(w.calls)
	for _, vms := range []map[string]fleet.VM{w.added, w.removed} {
		for _, vm := range vms {
			targets = append(targets, generator.Calls(&vm)...)
		}
	}
	slices.Sort(targets)
	return targets
}

func (w *wanted) target(vm fleet.VM) guard.Target { return targetOf(w.clusterID, &vm) }

// targetOf returns the target of a VM in the files. A VM that cannot be rendered has no
// inputs, and the guard then denies everything but a delete.
func targetOf(clusterID string, vm *fleet.VM) guard.Target {
	inputs, err := generator.Inputs(clusterID, vm)
	if err != nil {
		inputs = nil
	}
	return guard.Target{
		Address: generator.Address(vm), VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host, Pool: vm.Pool,
		BootDisk: vm.Source.DiskInterface, DataDisks: vm.DataDisks, PCIDevices: vm.PCIDevices,
		Module: cmp.Or(vm.Module, modules.Hash()), Inputs: inputs,
	}
}

// leaving returns the target of a VM to be deleted.
func (w *wanted) leaving(address string, vm fleet.VM) guard.Target {
	target := w.target(vm)
	target.Address, target.Inputs = address, nil
	target.Blocked = w.blocked[address]
	target.Drained = target.Blocked == ""
	return target
}

// takenOut returns the VMs that a person removed from the fleet by deleting their files:
// they are in the state, and in Proxmox they are still ours. They are removed as if by a
// request.
func (w *wanted) takenOut(plan *tfjson.Plan) []fleet.VM {
	var vms []fleet.VM
	for _, change := range plan.ResourceChanges {
		if _, known := w.removed[change.Address]; known || change.Type != guard.ResourceType || !change.Change.Actions.Delete() {
			continue
		}
		vm, ours := w.ofState(change)
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		if ours && exists && w.is(guest, vm) {
			w.removed[change.Address] = vm
			vms = append(vms, vm)
		}
	}
	return vms
}

// claims are the host CPUs that belong to guests, by VMID.
func (w *wanted) claims() []guard.Claim {
	var claims []guard.Claim
	for _, guest := range w.guests {
		if guest.host == w.shard && !guest.Pins.IsEmpty() {
			claims = append(claims, guard.Claim{Host: w.shard.Host, CPUs: guest.Pins, Guest: guest.Name, VMID: fleet.VMID(guest.VMID)})
		}
	}
	slices.SortFunc(claims, func(a, b guard.Claim) int { return cmp.Compare(a.VMID, b.VMID) })
	return claims
}

// made returns the VMs that a plan creates and that the change did not request.
func (w *wanted) made(intent guard.Intent) []fleet.VM {
	var vms []fleet.VM
	for _, target := range intent.Create {
		if _, asked := w.added[target.Address]; !asked {
			vms = append(vms, w.vms[target.Address])
		}
	}
	return vms
}

// stillFree checks, right before an apply, that what the plan creates does not exist and
// that what it deletes is still ours.
func (w *wanted) stillFree(intent guard.Intent) error {
	for _, target := range intent.Create {
		if guest, taken := w.guests[guestID{w.shard.Region, target.VMID}]; taken {
			return &VMIDTakenError{VM: w.vms[target.Address].Name, VMID: target.VMID, Guest: guest.Name, Host: guest.host}
		}
	}
	for _, target := range intent.Delete {
		if err := w.stillOurs(target); err != nil {
			return err
		}
	}
	return nil
}

// stillOurs refuses to delete a guest that is not, or may not be, the target.
func (w *wanted) stillOurs(target guard.Target) error {
	vm := w.removed[target.Address]
	guest, exists := w.guests[guestID{w.shard.Region, target.VMID}]
	switch {
	case !exists || w.is(guest, fleet.VM{Key: target.Key}):
		return nil
	case guest.unread:
		return w.unknown(guest)
	case guest.looksLike(vm.Name, w.clusterID):
		return w.markerLost(vm, guest)
	}
	return &GuestGoneError{Address: target.Address, VMID: target.VMID, Guest: guest.Name}
}

// pinsFree returns an error if another guest was pinned to a VM's CPUs since the VM was
// placed.
func (w *wanted) pinsFree(vm fleet.VM) error {
	for _, guest := range w.guests {
		if shared := guest.Pins.Intersection(vm.CPUs); guest.host == w.shard && guest.Key != string(vm.Key) && !shared.IsEmpty() {
			return &CPUsTakenError{VM: vm.Name, CPUs: shared, Guest: guest.Name, VMID: guest.VMID, Host: guest.host}
		}
	}
	return nil
}

// outside returns the VMs to be removed that exist but are not in the state: a plan would
// not delete them.
func (w *wanted) outside(plan *tfjson.Plan) []string {
	listed := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		listed[change.Address] = true
	}
	var names []string
	for address, vm := range w.removed {
		guest, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
		if !listed[address] && exists && w.is(guest, vm) {
			names = append(names, vm.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *wanted) markerLost(vm fleet.VM, guest located) error {
	return &MarkerLostError{VM: vm.Name, VMID: vm.VMID, Host: guest.host, Marker: markerOf(w.clusterID, vm)}
}

// markerOf returns the marker line that identifies the VM.
func markerOf(clusterID string, vm fleet.VM) string {
	marker := fleet.Marker{ClusterID: clusterID, Key: vm.Key}
	if vm.PinWith == fleet.PinWithHostAgent {
		marker.Pins, marker.Emulator = vm.VCPUPins, vm.Emulator
	}
	return marker.String()
}

func importsOf(vms []fleet.VM) []generator.Import {
	var imports []generator.Import
	for i := range vms {
		imports = append(imports, generator.Imports(&vms[i])...)
	}
	return imports
}
