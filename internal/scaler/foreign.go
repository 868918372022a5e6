package scaler

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// AdoptError reports why a VM cannot be adopted.
type AdoptError struct{ VM, Problem string }

func (e *AdoptError) Error() string { return fmt.Sprintf("adopting %s: %s", e.VM, e.Problem) }

// ProposeAdoption returns the change that imports VMs that another tool created, or of which
// this fleet lost the files, and writes this fleet's marker to them. Each VM is as Proxmox has it, with a key that is the
// same whenever the adoption is repeated: an adoption that was interrupted continues. VMs
// of the fleet that have the marker of their key already are skipped. permit is called right before
// each apply. ProposeAdoption returns an *AdoptError for each VM that cannot be adopted.
func (s *Scaler) ProposeAdoption(
	ctx context.Context, snapshot *topology.Snapshot, vms []fleet.VM, permit func(ctx context.Context) error,
) (*Change, error) {
	change, err := s.NewChange(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	change.Kind, change.Permit = audit.KindAdopt, permit
	index := change.index()
	var refused []error
	for _, vm := range vms {
		refuse := func(format string, args ...any) {
			refused = append(refused, &AdoptError{VM: vm.Name, Problem: fmt.Sprintf(format, args...)})
		}
		bounds := s.region(vm.Host.Region).VMIDs
		guest, exists := index.with(&vm)
		known := slices.IndexFunc(change.Before.VMs, func(other fleet.VM) bool {
			return other.Name == vm.Name || other.Host.Region == vm.Host.Region && other.VMID == vm.VMID
		})
		switch {
		case !bounds.Contains(vm.VMID):
			refuse("VMID %d is outside vmid_range, %d to %d, and numaform changes no VM outside it: widen vmid_range of region %s in numaform.yaml",
				vm.VMID, bounds.Lower, bounds.Upper, vm.Host.Region)
		case known >= 0 && change.Before.VMs[known].Key != vm.Key:
			refuse("the fleet has VM %s with VMID %d already", change.Before.VMs[known].Name, change.Before.VMs[known].VMID)
		case !exists:
			refuse("guest %d does not exist in region %s", vm.VMID, vm.Host.Region)
		case index.is(guest, &vm) && known >= 0:
		case guest.host != vm.Host:
			refuse("guest %d moved from %s to %s: run the command again", vm.VMID, vm.Host, guest.host)
		case index.adoptable(guest, &vm) != nil:
			refused = append(refused, index.adoptable(guest, &vm))
		default:
			if known >= 0 {
				vm = change.Before.VMs[known] // its file was written by an interrupted adoption
			} else {
				change.After.VMs = append(change.After.VMs, vm)
			}
			change.Foreign = append(change.Foreign, vm)
		}
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return change, s.render(change)
}

// adoptable returns why a guest cannot be adopted as a VM, or nil. It may have the VM's
// marker already.
func (g guestIndex) adoptable(guest located, vm *fleet.VM) error {
	problem := ""
	switch {
	case guest.unread:
		return &HostDownError{Host: guest.host, Problem: fmt.Sprintf("guest %d on it cannot be read", guest.VMID)}
	case guest.Kind != topology.GuestVM || guest.Template:
		problem = fmt.Sprintf("guest %d is a container or a template", guest.VMID)
	case guest.Key != "" && !g.is(guest, vm):
		problem = fmt.Sprintf("guest %d has the marker of another numaform, or of another VM: it stays with its owner", guest.VMID)
	case guest.Name != vm.Name:
		problem = fmt.Sprintf("guest %d is named %q: it is another VM", guest.VMID, guest.Name)
	case guest.Lock != "":
		problem = fmt.Sprintf("guest %d is locked (%s): wait until its task has ended, then run the command again", guest.VMID, guest.Lock)
	case !guest.Running:
		problem = fmt.Sprintf("guest %d does not run: start it, or delete it with the tool that created it", guest.VMID)
	}
	if problem == "" {
		return nil
	}
	return &AdoptError{VM: vm.Name, Problem: problem}
}

// foreign reports whether the change adopts a VM.
func (v *hostView) foreign(vm *fleet.VM) bool { return hasKey(v.change.Foreign, vm.Key) }

// permit checks, right before an apply, that the VMs to be adopted are still the ones that
// were reviewed.
func (c *Change) permit(ctx context.Context, v *hostView) error {
	foreign := on(c.Foreign, v.id)
	if len(foreign) == 0 {
		return nil
	}
	for i := range foreign {
		guest, exists := v.with(&foreign[i])
		if !exists {
			return &AdoptError{VM: foreign[i].Name, Problem: fmt.Sprintf("guest %d no longer exists", foreign[i].VMID)}
		}
		if err := v.adoptable(guest, &foreign[i]); err != nil {
			return err
		}
		if guest.host != v.id {
			return &MovedError{VM: foreign[i].Name, Host: v.id, Now: guest.host}
		}
	}
	if c.Permit == nil {
		return errors.New("adopting VMs: no check before the apply was given")
	}
	return c.Permit(ctx)
}

// halfAdopted reports whether the state may have a VM that the change adopts: because an
// adoption was interrupted after the import, or because the VM had a file before. The VM is
// imported again.
func (v *hostView) halfAdopted(address string) bool {
	vm, inFiles := v.vms[address]
	return inFiles && v.foreign(&vm)
}
