package scaler

import (
	"encoding/json"
	"fmt"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// VMIDTakenError says that a guest without the VM's key holds its VMID.
type VMIDTakenError struct {
	VM    string
	VMID  fleet.VMID
	Guest string
	Host  topology.HostID
}

func (e *VMIDTakenError) Error() string {
	return fmt.Sprintf("vm %s: VMID %d belongs to guest %q on %s, which is not numaform's: it is left alone; "+
		"plan again, and the VM gets another number", e.VM, e.VMID, e.Guest, e.Host)
}

// GuestGoneError says that the VM that a plan would delete is someone else's now.
type GuestGoneError struct {
	Address string
	VMID    fleet.VMID
	Guest   string
}

func (e *GuestGoneError) Error() string {
	return fmt.Sprintf("%s: the state says VMID %d, which is now guest %q without this VM's key: it is not deleted; "+
		"take the address out of the state with `state rm`", e.Address, e.VMID, e.Guest)
}

// wanted is what may happen to one shard.
type wanted struct {
	clusterID string
	shard     fleet.Shard
	vms       map[string]fleet.VM // by address, as the files say
	added     map[string]fleet.VM // asked for by this change
	removed   map[string]fleet.VM // taken out by this change or an earlier one
	guests    map[guestID]located
}

// guestID names a guest: VMIDs are unique within a region.
type guestID struct {
	region topology.RegionName
	vmid   fleet.VMID
}

// located is a guest and its host.
type located struct {
	topology.Guest
	host topology.HostID
	// unread tells a guest of which only the number is known, as its host is down:
	// nobody can say whose it is.
	unread bool
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

// stale returns the addresses of entries that name nothing of ours: their create
// was cut off, their VMID is someone else's, or their VM is to go and is gone. What
// cannot be told is not stale: the guard judges it.
func (w *wanted) stale(plan *tfjson.Plan) []string {
	var addresses []string
	for _, change := range plan.ResourceChanges {
		tainted := change.ActionReason == tfjson.ActionReasonReplaceBecauseTainted
		deletes := change.Type == guard.ResourceType && change.Change.Actions.Delete()
		if tainted || deletes && (w.strangers(change.Change.Before) || w.gone(change.Address)) {
			addresses = append(addresses, change.Address)
		}
	}
	return addresses
}

// gone reports whether a VM that is to be removed does not exist. The provider
// cannot delete what is not there.
func (w *wanted) gone(address string) bool {
	vm, asked := w.removed[address]
	_, exists := w.guests[guestID{w.shard.Region, vm.VMID}]
	return asked && !exists
}

// strangers reports whether the VMID of a resource's values belongs to a guest
// without the resource's key.
func (w *wanted) strangers(values any) bool {
	attributes, _ := values.(map[string]any)
	description, _ := attributes["description"].(string)
	marker, ok := fleet.ParseMarker(description)
	guest, exists := w.guests[guestID{w.shard.Region, vmidOf(attributes)}]
	return ok && exists && !guest.unread && (guest.ClusterID != marker.ClusterID || fleet.Key(guest.Key) != marker.Key)
}

// vmidOf returns the VMID among a resource's values, or 0.
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

// imports returns the VMs that the plan would create and that exist with our
// marker and key, and refuses if one's VMID is a stranger's.
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
		default:
			return nil, &VMIDTakenError{VM: vm.Name, VMID: vm.VMID, Guest: guest.Name, Host: guest.host}
		}
	}
	return existing, nil
}

// unknown says that a guest may be the VM and cannot be read now.
func (w *wanted) unknown(guest located) error {
	return &HostDownError{Host: guest.host, Problem: fmt.Sprintf("guest %d on it cannot be read", guest.VMID)}
}

// is reports whether a guest is the VM: its number may be a stranger's, its key not.
func (w *wanted) is(guest located, vm fleet.VM) bool {
	return guest.ClusterID == w.clusterID && fleet.Key(guest.Key) == vm.Key
}

// intent says what the plan has to do: create what this change adds and what the
// files wanted earlier, import what exists, delete what was taken out.
func (w *wanted) intent(plan *tfjson.Plan, imported []fleet.VM) guard.Intent {
	intent := guard.Intent{ClusterID: w.clusterID}
	importing := map[string]bool{}
	for _, vm := range imported {
		target := w.target(vm)
		importing[target.Address] = true
		guest := w.guests[guestID{w.shard.Region, vm.VMID}]
		target.Incomplete = !guest.Running
		intent.Import = append(intent.Import, target)
	}
	listed := map[string]bool{}
	for _, change := range plan.ResourceChanges {
		listed[change.Address] = true
		if vm, ok := w.vms[change.Address]; ok && change.Change.Actions.Create() && !importing[change.Address] {
			intent.Create = append(intent.Create, w.target(vm))
		}
		if vm, ok := w.removed[change.Address]; ok {
			intent.Delete = append(intent.Delete, w.target(vm))
		}
	}
	// What this change adds must be in the plan, or the guard says so.
	for address, vm := range w.added {
		if !listed[address] {
			intent.Create = append(intent.Create, w.target(vm))
		}
	}
	return intent
}

func (w *wanted) target(vm fleet.VM) guard.Target {
	return guard.Target{Address: generator.Address(&vm), VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host}
}

// stillFree checks, right before an apply, that what the plan creates does not
// exist and that what it deletes is still ours.
func (w *wanted) stillFree(intent guard.Intent) error {
	for _, target := range intent.Create {
		if guest, taken := w.guests[guestID{w.shard.Region, target.VMID}]; taken {
			return &VMIDTakenError{VM: w.vms[target.Address].Name, VMID: target.VMID, Guest: guest.Name, Host: guest.host}
		}
	}
	for _, target := range intent.Delete {
		guest, exists := w.guests[guestID{w.shard.Region, target.VMID}]
		if exists && guest.unread {
			return w.unknown(guest)
		}
		if exists && (guest.ClusterID != w.clusterID || fleet.Key(guest.Key) != target.Key) {
			return &GuestGoneError{Address: target.Address, VMID: target.VMID, Guest: guest.Name}
		}
	}
	return nil
}

func importsOf(vms []fleet.VM) []generator.Import {
	var imports []generator.Import
	for i := range vms {
		imports = append(imports, generator.Imports(&vms[i])...)
	}
	return imports
}
