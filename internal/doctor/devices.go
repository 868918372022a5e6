package doctor

import (
	"context"
	"maps"
	"slices"

	"github.com/numaform/numaform/internal/proxmox"
)

// devices checks the requirements of classes that pass PCI devices through.
func (e *examination) devices(ctx context.Context, r *Region, roles map[string][]string) {
	paths := map[string]bool{}
	for i := range e.config.Classes {
		spec := &e.config.Classes[i].Spec
		if spec.Region != "" && spec.Region != string(r.Name) {
			continue
		}
		for _, device := range spec.PCIDevices {
			paths["/mapping/pci/"+device.Mapping] = true
		}
	}
	if len(paths) == 0 {
		return
	}
	sorted := slices.Sorted(maps.Keys(paths))
	have, err := r.Client.Permissions(ctx, sorted)
	if err != nil {
		e.failed("privilege", string(r.Name), err)
		return
	}
	for _, path := range sorted {
		grant := proxmox.Grant{Role: proxmox.DeviceRole(), Path: path, For: "passing PCI devices through"}
		e.compare(r, want{grant: grant, paths: []string{path}, privileges: grant.Role.Privileges}, have, roles)
	}
}
