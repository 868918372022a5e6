package approval

import (
	"cmp"
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// MaxPictures is the maximum number of hosts whose pictures a plan has.
const MaxPictures = 16

// maxDrawn is the maximum number of plans whose pictures are kept.
const maxDrawn = 64

// Pictures returns images of the CPUs of a plan's hosts before and after the change, by host,
// as they were when this process proposed the plan; nil after a restart, until the plan is
// drafted again. They are for reviewers: no decision depends on them.
func (a *Approvals) Pictures(plan string) map[string][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pictures[plan]
}

// draw draws the pictures of a draft. A problem only means that there are none.
func (a *Approvals) draw(ctx context.Context, plan string, d *draft) {
	if !a.config.Pictures {
		return
	}
	snapshot, err := a.config.Snapshot(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "drew no pictures of scaleplan", logkey.ScalePlan, plan)
		return
	}
	states := a.fleet.VMs()
	vms := make([]fleet.VM, len(states))
	for i := range states {
		vms[i] = states[i].VM
	}
	slices.SortFunc(vms, func(x, y fleet.VM) int { return cmp.Compare(x.VMID, y.VMID) })

	pictures := map[string][]byte{}
	changes := changesOf(d, vms)
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if of := changes[host.ID()]; len(of) > 0 && len(pictures) < MaxPictures {
			pictures[host.ID().String()] = cpumap.Compare(host, vms, of)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pictures) >= maxDrawn { // also of plans that a user deleted
		clear(a.pictures)
	}
	a.pictures[plan] = pictures
}

// changesOf returns the changes of a draft's VMs whose placement is known, by host.
func changesOf(d *draft, vms []fleet.VM) map[topology.HostID][]cpumap.Change {
	kinds := map[v1alpha1.ScalePlanAction]cpumap.ChangeKind{
		v1alpha1.ScalePlanCreate: cpumap.Created, v1alpha1.ScalePlanDelete: cpumap.Removed, v1alpha1.ScalePlanUpdate: cpumap.Updated,
		v1alpha1.ScalePlanReplace: cpumap.Replaced, v1alpha1.ScalePlanWake: cpumap.Woken,
	}
	changes := map[topology.HostID][]cpumap.Change{}
	for i := range d.vms {
		line := &d.vms[i]
		change := cpumap.Change{Kind: kinds[line.Action], Name: cmp.Or(line.Name, line.InstanceType+" for "+line.NodePool)}
		at := slices.IndexFunc(vms, func(vm fleet.VM) bool { return line.Key != "" && string(vm.Key) == line.Key })
		switch {
		case at >= 0:
			change.VM = vms[at]
		case i < len(d.created): // addCreates adds both in the same order
			change.VM = d.created[i]
		default:
			continue // a replacement that is not placed yet
		}
		changes[change.VM.Host] = append(changes[change.VM.Host], change)
	}
	return changes
}
