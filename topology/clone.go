package topology

import (
	"fmt"
	"slices"
)

// CloneProblem returns why VMs on a host cannot be cloned from a template of another host of
// the same Proxmox cluster, or "". It completes a sentence about the host. full is the
// storage for the disks of full clones; "" means the template's storage.
//
// Proxmox requires that all drives of the template, and full, are on shared storages. It
// checks only for full that the VM's host has the storage (qemu-server 9.2.6,
// PVE/API2/Qemu.pm:4454-4499), so that other VMs would be created but not start. Without
// shared storages, the provider clones on the template's host and migrates the VM
// (terraform-provider-proxmox 0.111.1, proxmoxtf/resource/vm/vm.go:2389-2462).
func (h *Host) CloneProblem(t *Template, from *Host, full string) string {
	named := fmt.Sprintf("template %d on %s", t.VMID, from.Name)
	switch {
	case from.Region != h.Region:
		return fmt.Sprintf("is in another Proxmox cluster than %s", named)
	case !from.Online:
		return fmt.Sprintf("cannot use %s, which is offline", named)
	case from.Problem != "":
		return fmt.Sprintf("cannot use %s, which %s", named, from.Problem)
	}
	storages := append([]string{t.Storage}, t.OtherStorages...)
	for _, name := range storages {
		if s := from.Storage(name); s == nil || !s.Shared {
			return fmt.Sprintf("cannot use %s, because a drive of the template is on %q, which is not shared storage", named, name)
		}
	}
	if full != "" && !slices.Contains(storages, full) {
		if s := from.Storage(full); s == nil || !s.Shared {
			return fmt.Sprintf("cannot use %s, because %q is not shared storage, and Proxmox creates full clones on other storages only on the template's host", named, full)
		}
		storages = append(storages, full)
	}
	for _, name := range storages {
		if s := h.Storage(name); s == nil || !s.Active {
			return fmt.Sprintf("cannot use %s, because storage %q does not exist or is not active", named, name)
		}
	}
	return ""
}

// Storage returns the host's storage with the name, or nil.
func (h *Host) Storage(name string) *Storage {
	i := slices.IndexFunc(h.Storages, func(s Storage) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &h.Storages[i]
}
