package scaler

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// looker compares VMs of one host with Proxmox.
type looker struct {
	clusterID string
	snapshot  *topology.Snapshot
	guests    map[guestID]located
	// vms are the VMs of the whole fleet.
	vms []fleet.VM
	// planned is the evidence from a refreshed plan.
	planned map[fleet.Key]*evidence
}

func newLooker(change *Change) *looker {
	return &looker{
		clusterID: change.After.ClusterID, snapshot: change.Snapshot, guests: locate(change.Snapshot),
		vms: change.After.VMs, planned: map[fleet.Key]*evidence{},
	}
}

// is reports whether a guest is the VM.
func (l *looker) is(guest located, vm fleet.VM) bool {
	return guest.ClusterID == l.clusterID && fleet.Key(guest.Key) == vm.Key
}

// readable reports whether the VM exists and is ours, on a reachable host.
func (l *looker) readable(vm fleet.VM) bool {
	guest, exists := l.guests[guestID{vm.Host.Region, vm.VMID}]
	host := l.snapshot.Host(guest.host)
	return exists && l.is(guest, vm) && host != nil && host.Online && host.Problem == ""
}

// resourceDifferences returns how a resource differs. For a VM's firewall rules, only the
// rules are compared: their positions and host follow from them.
func resourceDifferences(change *tfjson.ResourceChange) []DriftDifference {
	found := differences(change.Change)
	if change.Type == guard.ResourceType {
		return found
	}
	return slices.DeleteFunc(found, func(d DriftDifference) bool {
		return !strings.HasPrefix(d.Attribute, "rule") || strings.HasSuffix(d.Attribute, ".pos")
	})
}

// at compares one VM.
func (l *looker) at(vm fleet.VM) VMDrift {
	found := VMDrift{VM: vm, Class: DriftNone}
	guest, exists := l.guests[guestID{vm.Host.Region, vm.VMID}]
	if exists {
		found.Host = guest.host
	}
	region := regionOf(l.snapshot, vm.Host.Region)
	switch {
	case !exists && (region.HidesGuests || !region.Quorate):
		found.unknown("Proxmox does not list it, and does not show all guests now: look again when it does")
	case !exists:
		found.Class = DriftVanished
		found.Advice = fmt.Sprintf("the next apply makes it anew; or `numaform remove %s` takes its file out", vm.Name)
	case guest.unread:
		found.unknown(fmt.Sprintf("host %s cannot be read: look again when it is back", guest.host))
	case l.is(guest, vm):
		l.ours(&found, guest)
		found.devices(guest)
		found.disks(guest)
	default:
		l.foreign(&found, guest)
	}
	return found
}

func (d *VMDrift) unknown(advice string) { d.Class, d.Advice = DriftUnknown, advice }

// foreign records a guest with a VM's VMID but not its key.
func (l *looker) foreign(found *VMDrift, guest located) {
	vm := found.VM
	found.Class = DriftForeign
	if guest.looksLike(vm.Name, l.clusterID) {
		found.Differences = []DriftDifference{{Attribute: "description", File: "the marker", Proxmox: "no marker"}}
		found.Advice = "it is neither touched nor replaced; put this line into its description in Proxmox: " + markerOf(l.clusterID, vm)
		return
	}
	found.Differences = []DriftDifference{{Attribute: "vm_id", File: vm.Name, Proxmox: fmt.Sprintf("guest %q without this VM's key", guest.Name)}}
	found.Advice = fmt.Sprintf("that guest is left alone; the next apply makes the VM under another number, or `numaform remove %s` takes its file out", vm.Name)
	for _, other := range l.guests {
		if l.is(other, vm) {
			found.Notes = append(found.Notes, fmt.Sprintf("guest %d (%s) on %s carries this VM's marker: it is a copy, or was restored under another number",
				other.VMID, other.Name, other.host))
			found.Advice = "look which of the two guests is the node; the other must not carry the marker"
		}
	}
	slices.Sort(found.Notes)
}

// handmade lists attributes that only people change, with the command that restores them:
// neither an update in place nor a new VM is the right fix.
var handmade = []struct{ attribute, why, back string }{
	{"name", "somebody renamed it", "qm set VMID --name NAME"},
	{"protection", "somebody protects it: nobody can remove it, numaform neither", "qm set VMID --protection 0"},
	{"started", "somebody stopped it", "qm start VMID"},
}

// ours classifies an existing VM that carries its marker.
func (l *looker) ours(found *VMDrift, guest located) {
	l.moved(found, guest)
	switch planned := l.planned[found.VM.Key]; {
	case planned == nil && found.Class == DriftNone:
		found.unknown("its host cannot be compared now: see there")
	case planned == nil:
	case planned.failed != "":
		found.Notes = append(found.Notes, "the provider cannot read it: "+planned.failed)
		if found.Class == DriftNone {
			found.unknown("look at it in Proxmox, then look for drift again")
		}
	case planned.outside():
		found.Class, found.Advice = DriftOutside, "run `numaform apply`, which takes it into the state as it is; nothing in Proxmox changes"
	case len(planned.differences) > 0 || planned.vm.Change.Actions.Replace():
		found.Differences = append(found.Differences, planned.differences...)
		found.judge(planned, guest)
	}
}

// judge chooses the class and advice for a VM's differences.
func (d *VMDrift) judge(planned *evidence, guest located) {
	deep := func(f guard.Finding) bool { return f.Rule == guard.RuleUpdate || f.Rule == guard.RuleReplace }
	switch other := planned.refusedFor(func(f guard.Finding) bool { return !deep(f) }); {
	case d.byHand():
	case other != nil && other.Address == "":
		d.unknown("its plan cannot be judged: " + other.Message)
	case other != nil:
		d.Class, d.Advice = DriftForeign, other.Message
	case len(planned.refused) > 0:
		d.replace(guest)
	default:
		d.Repairable = true
		if d.Class == DriftNone {
			d.Class = DriftRepairable
		}
		d.Advice = strings.TrimPrefix(d.Advice+"; `numaform drift --repair` takes the differences back while it runs", "; ")
	}
}

// byHand reports whether only a person can restore what differs, and sets the advice.
func (d *VMDrift) byHand() bool {
	for _, edit := range handmade {
		if !slices.ContainsFunc(d.Differences, func(diff DriftDifference) bool { return diff.Attribute == edit.attribute }) {
			continue
		}
		d.Class = DriftForeign
		d.Notes = append(d.Notes, edit.why)
		d.Advice = "put it back on its host: " + strings.NewReplacer("VMID", strconv.Itoa(int(d.VM.VMID)), "NAME", d.VM.Name).Replace(edit.back)
		return true
	}
	return false
}

// replace records a VM that itself differs from its file.
func (d *VMDrift) replace(guest located) {
	d.Class = DriftReplace
	d.Advice = fmt.Sprintf("it is never replaced unasked: put it back in Proxmox, or drain the node and `numaform remove %s`; pods that need it get a new one", d.VM.Name)
	if d.VM.VCPUs == guest.VCPUs && d.VM.MemoryMiB == guest.MemoryMiB && d.only("cpu.cores", "cpu.sockets", "memory.dedicated") {
		d.Notes = append(d.Notes, "the running VM still has what its file says: the edit waits for a restart")
	}
}

// only reports whether no other than the given attributes differ.
func (d *VMDrift) only(attributes ...string) bool {
	return !slices.ContainsFunc(d.Differences, func(diff DriftDifference) bool { return !slices.Contains(attributes, diff.Attribute) })
}

// sortedGuests returns the guests on a host by VMID.
func (l *looker) sortedGuests(host topology.HostID) []located {
	var there []located
	for _, guest := range l.guests {
		if guest.host == host {
			there = append(there, guest)
		}
	}
	slices.SortFunc(there, func(a, b located) int { return cmp.Compare(a.VMID, b.VMID) })
	return there
}
