package scaler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// isoContent is Proxmox' content type for ISO images.
const isoContent = "iso"

// NoSeedStorageError reports that a host has no storage for the seed of a VM.
type NoSeedStorageError struct {
	Host topology.HostID
	// Storage is the requested storage, or fleet.AnySeedStorage.
	Storage string
}

func (e *NoSeedStorageError) Error() string {
	if e.Storage == fleet.AnySeedStorage {
		return fmt.Sprintf("placing on %s: it has no active storage with content iso for the seed: "+
			"add iso to the content of one (pvesm set), or leave the host out of the ProxmoxNodeClass", e.Host)
	}
	return fmt.Sprintf("placing on %s: it has no active storage %q with content iso for the seed: "+
		"make it available there, or change spec.metadata.storage of the ProxmoxNodeClass", e.Host, e.Storage)
}

// seedOf returns the volume of a VM's seed, or "" if it has none.
func seedOf(snapshot *topology.Snapshot, clusterID string, vm *fleet.VM) (string, error) {
	if vm.SeedStorage == "" {
		return "", nil
	}
	storage, ok := SeedStorage(snapshot.Host(vm.Host), vm.SeedStorage)
	if !ok {
		return "", &NoSeedStorageError{Host: vm.Host, Storage: vm.SeedStorage}
	}
	return fleet.SeedVolume(storage, clusterID, vm.VMID, vm.Key), nil
}

// SeedStorage returns the storage of a host for seeds: the requested one, or the first
// suitable one if wanted is fleet.AnySeedStorage.
func SeedStorage(host *topology.Host, wanted string) (string, bool) {
	if host == nil || wanted == "" {
		return "", false
	}
	fit := slices.DeleteFunc(slices.Clone(host.Storages), func(s topology.Storage) bool {
		named := wanted == fleet.AnySeedStorage || s.Name == wanted
		return !named || !s.Active || !slices.Contains(s.Content, isoContent)
	})
	if len(fit) == 0 {
		return "", false
	}
	return slices.MinFunc(fit, func(a, b topology.Storage) int { return cmp.Compare(a.Name, b.Name) }).Name, true
}
