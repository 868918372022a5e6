package scaler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// step is what must be done before a plan can be judged. Entries are forgotten
// first; then it is planned again, and there is another step.
type step struct {
	// forget are addresses of the state that name nothing of ours.
	forget []string
	// imports exist and are not in the state, and partial are there without their
	// security groups.
	imports, partial []fleet.VM
}

// empty reports whether the plan can be judged as it is.
func (s step) empty() bool { return len(s.forget)+len(s.imports)+len(s.partial) == 0 }

// next compares files, state and Proxmox by the table of state/DESIGN.md. Its error
// says that nothing may be done: neither to a VM nor to an entry of the state.
func (w *wanted) next(plan *tfjson.Plan) (step, error) {
	if err := w.doubtful(plan); err != nil {
		return step{}, err
	}
	if stale := w.stale(plan); len(stale) > 0 {
		return step{forget: stale}, nil
	}
	if names := w.outside(plan); len(names) > 0 {
		return step{}, &OutsideStateError{Names: names}
	}
	existing, err := w.imports(plan)
	return step{imports: existing, partial: w.partial(plan)}, err
}

// doubtful refuses a plan that would do something about a guest of which nobody can
// say whose it is, and a removal of one.
func (w *wanted) doubtful(plan *tfjson.Plan) error {
	entries := w.entries(plan)
	for _, address := range slices.Sorted(maps.Keys(entries)) {
		if entry := entries[address]; !entry.idle {
			if err := w.doubt(entry); err != nil {
				return err
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(w.removed)) {
		if _, listed := entries[address]; !listed {
			if err := w.doubt(&entry{vm: w.removed[address]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// doubt says why nobody knows whose the guest of an entry is, if so.
func (w *wanted) doubt(e *entry) error {
	guest, exists := w.guests[guestID{w.shard.Region, e.vm.VMID}]
	switch {
	case !exists && e.held && !w.complete:
		return &HiddenError{VM: e.vm.Name, VMID: e.vm.VMID, Region: w.shard.Region}
	case !exists:
		return nil
	case w.is(guest, e.vm):
		return w.reachable(e, guest)
	case guest.unread:
		return w.unknown(guest)
	case guest.looksLike(e.vm.Name, w.clusterID):
		return w.markerLost(e.vm, guest)
	}
	return nil
}

// reachable refuses to import or change a VM that is not on its host: the provider
// looks for it there. One that only leaves is followed.
func (w *wanted) reachable(e *entry, guest located) error {
	_, wanted := w.vms[generator.Address(&e.vm)]
	if guest.host == w.shard || (e.held && !wanted) {
		return nil
	}
	return &MovedError{VM: e.vm.Name, Host: w.shard, Now: guest.host}
}

// entry is a VM that a plan is about.
type entry struct {
	vm fleet.VM
	// held tells that the state has the VM; idle that the plan leaves it and its
	// security groups as they are.
	held, idle bool
}

// entries gathers what a plan says of each VM, by the VM's address.
func (w *wanted) entries(plan *tfjson.Plan) map[string]*entry {
	found := map[string]*entry{}
	for _, change := range plan.ResourceChanges {
		if change.Type != guard.ResourceType {
			continue
		}
		vm, known := w.vms[change.Address]
		if !known {
			vm, known = w.removed[change.Address]
		}
		if !known {
			vm, _ = w.ofState(change)
		}
		found[change.Address] = &entry{vm: vm, held: !change.Change.Actions.Create(), idle: change.Change.Actions.NoOp()}
	}
	for _, change := range plan.ResourceChanges {
		if vm := found[guard.VMOf(change.Address)]; vm != nil && !change.Change.Actions.NoOp() {
			vm.idle = false
		}
	}
	return found
}

// ofState returns the VM of an entry that no file speaks of, as far as the state
// says, and whether the state says that it is ours.
func (w *wanted) ofState(change *tfjson.ResourceChange) (fleet.VM, bool) {
	attributes, _ := change.Change.Before.(map[string]any)
	description, _ := attributes["description"].(string)
	name, _ := attributes["name"].(string)
	marker, marked := fleet.ParseMarker(description)
	vm := fleet.VM{Name: name, VMID: vmidOf(attributes), Key: marker.Key, Placement: fleet.Placement{Host: w.shard}}
	vm.Pool = strings.TrimSuffix(name, fmt.Sprintf("-%d", vm.VMID))
	if len(marker.Pins) > 0 {
		vm.PinWith, vm.VCPUPins, vm.Emulator = fleet.PinWithHostAgent, marker.Pins, marker.Emulator
	}
	return vm, marked && marker.ClusterID == w.clusterID
}

// MovedError says that a VM cannot be imported or changed, as it is on another host
// than its file says.
type MovedError struct {
	VM        string
	Host, Now topology.HostID
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("vm %s: %s would be asked for it, and it is on %s by now: move it back in Proxmox, then apply again", e.VM, e.Host, e.Now)
}

// HiddenError says that the state has a VM that Proxmox does not list, which proves
// nothing, as the credential may not see all guests.
type HiddenError struct {
	VM     string
	VMID   fleet.VMID
	Region topology.RegionName
}

func (e *HiddenError) Error() string {
	return fmt.Sprintf("vm %s: the state has VMID %d, and nobody can tell whether it exists: the credential does not see all guests of %s: "+
		"give it VM.Audit on /vms", e.VM, e.VMID, e.Region)
}
