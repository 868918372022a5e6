package scaler

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// Edits are the differences between two versions of the fleet's files.
type Edits struct {
	// Added, Removed and Edited are the VMs whose file is new, missing or different; Edited
	// are the new versions.
	Added, Removed, Edited []fleet.VM

	after      fleet.Fleet
	afterFiles generator.Files
}

// Hosts returns the hosts of all these VMs, sorted.
func (e *Edits) Hosts() []topology.HostID {
	all := fleet.Fleet{VMs: slices.Concat(e.Added, e.Removed, e.Edited)}
	return all.AllHosts()
}

// Compare returns the differences between two versions of the fleet's files. It uses the
// files only as data, and returns an error if the later ones are not a valid fleet.
func (s *Scaler) Compare(now, after generator.Files) (*Edits, error) {
	before, err := s.parse(now)
	if err != nil {
		return nil, err
	}
	e := &Edits{afterFiles: after}
	if e.after, err = s.parse(after); err != nil {
		return nil, err
	}
	for i := range e.after.VMs {
		vm := &e.after.VMs[i]
		at := slices.IndexFunc(before.VMs, func(other fleet.VM) bool { return other.Key == vm.Key })
		switch name := generator.NodeFile(vm); {
		case at < 0:
			e.Added = append(e.Added, *vm)
		case !bytes.Equal(now[name], after[name]):
			e.Edited = append(e.Edited, *vm)
		}
	}
	for _, vm := range before.VMs {
		if !hasKey(e.after.VMs, vm.Key) {
			e.Removed = append(e.Removed, vm)
		}
	}
	return e, nil
}

// Preview plans the hosts of edits as if their files were the desired state, as after the
// merge of a pull request, and checks the plans. It changes neither the fleet nor a state.
func (s *Scaler) Preview(ctx context.Context, snapshot *topology.Snapshot, edits *Edits) (plans []RootPlan, err error) {
	hosts := edits.Hosts()
	if len(hosts) == 0 {
		return nil, nil
	}
	from, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	from.fleet = edits.after
	from.files = edits.afterFiles
	change := newChange(from, snapshot)
	change.After.Hosts = slices.Concat(change.After.Hosts, hosts)
	if err := s.render(change); err != nil {
		return nil, err
	}
	err = s.inScratch("preview", "previewing", func(at places) (err error) {
		plans, err = s.planHosts(ctx, change, at, hosts)
		return errors.Join(err, closeAll(plans))
	})
	return slices.DeleteFunc(plans, func(plan RootPlan) bool { return !slices.Contains(hosts, plan.Host) }), err
}
