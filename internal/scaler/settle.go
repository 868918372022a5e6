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

// step is what must be done before a plan can be checked. Entries are forgotten first;
// then planning again gives the next step.
type step struct {
	// forget are addresses in the state that do not refer to our VMs.
	forget []string
	// imports exist but are not in the state; partial are in the state without their
	// security groups.
	imports, partial []fleet.VM
}

// empty reports whether the plan can be checked as it is.
func (s step) empty() bool { return len(s.forget)+len(s.imports)+len(s.partial) == 0 }

// next compares files, state and Proxmox by the table in state/DESIGN.md. An error means
// that neither a VM nor a state entry may be changed.
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

// doubtful refuses a plan that would change or remove a guest whose owner is unknown.
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

// doubt returns why the owner of an entry's guest is unknown, or nil.
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

// reachable refuses to import or change a VM that is not on its host, where the provider
// would look for it. A VM that is only removed is followed to its host.
func (w *wanted) reachable(e *entry, guest located) error {
	_, wanted := w.vms[generator.Address(&e.vm)]
	if guest.host == w.shard || (e.held && !wanted) {
		return nil
	}
	return &MovedError{VM: e.vm.Name, Host: w.shard, Now: guest.host}
}

// entry is a VM in a plan.
type entry struct {
	vm fleet.VM
	// held is set if the state has the VM, and idle if the plan leaves it and its
	// security groups unchanged.
	held, idle bool
}

// entries returns what a plan says about each VM, by address.
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

// ofState returns the VM of an entry that is in no file, as the state describes it, and
// whether the state says that it is ours.
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

// MovedError reports that a VM cannot be imported or changed because it is on another
// host than its file says.
type MovedError struct {
	VM        string
	Host, Now topology.HostID
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("vm %s: %s would be asked for it, and it is on %s by now: move it back in Proxmox, then apply again", e.VM, e.Host, e.Now)
}

// HiddenError reports that the state has a VM that Proxmox does not list. This proves
// nothing, because the credential may not see all guests.
type HiddenError struct {
	VM     string
	VMID   fleet.VMID
	Region topology.RegionName
}

func (e *HiddenError) Error() string {
	return fmt.Sprintf("vm %s: the state has VMID %d, and nobody can tell whether it exists: the credential does not see all guests of %s: "+
		"give it VM.Audit on /vms", e.VM, e.VMID, e.Region)
}
