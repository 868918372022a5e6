package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// UnjoinedError reports that a VM would never join, because its class relies on the
// controller for joining.
type UnjoinedError struct {
	VM, Class string
	Metadata  v1alpha1.MetadataType
}

func (e *UnjoinedError) Error() string { return e.reason() + "; nothing was changed" }

// reason returns the error without its effect on the change.
func (e *UnjoinedError) reason() string {
	needs := "such seeds are made"
	if e.Metadata == v1alpha1.MetadataAgent {
		needs = "such join commands are run"
	}
	return fmt.Sprintf("vm %s: ProxmoxNodeClass %s has metadata of type %s, and %s by numaform controller only: "+
		"let the controller make its nodes, or set metadata: {type: none} and have the template bring all that a node joins with",
		e.VM, e.Class, e.Metadata, needs)
}

// checkJoins refuses new VMs that would start and never join: VMs with a seed, and VMs
// whose class joins nodes by their guest agents.
func (p *proposal) checkJoins(ctx context.Context) error {
	for i := range p.change.Added {
		if vm := &p.change.Added[i]; vm.Seed != "" {
			return &UnjoinedError{VM: vm.Name, Class: vm.NodeClass, Metadata: v1alpha1.MetadataCDROM}
		}
	}
	classes, err := p.session.cluster.NodeClasses(ctx)
	if err != nil {
		return err
	}
	for i := range classes {
		class := &classes[i]
		at := slices.IndexFunc(p.change.Added, func(vm fleet.VM) bool { return vm.NodeClass == class.Name })
		if class.ByAgent() && at >= 0 {
			return &UnjoinedError{VM: p.change.Added[at].Name, Class: class.Name, Metadata: class.Spec.Metadata.Type}
		}
	}
	return nil
}
