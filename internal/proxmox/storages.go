package proxmox

import (
	"context"
	"fmt"

	"github.com/numaform/numaform/topology"
)

// StorageState is what a host reports of a storage when it is asked. A Snapshot has what
// pvestatd last saw instead, and leaves out what is disabled.
type StorageState struct {
	// Enabled is false if the storage is disabled, or is not one of this host's.
	Enabled bool
	// Active is false if the host cannot use it, such as an NFS share that does not answer.
	Active bool
	Shared bool
}

// StoragesOf returns all storages of the cluster that the credential may see, by name, as
// the host reports them.
func (c *Client) StoragesOf(ctx context.Context, host topology.HostName) (map[string]StorageState, error) {
	var list []struct {
		Storage                 string
		Enabled, Active, Shared number
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/storage", host), &list); err != nil {
		return nil, fmt.Errorf("listing storages: %w", err)
	}
	states := map[string]StorageState{}
	for _, s := range list {
		states[s.Storage] = StorageState{Enabled: s.Enabled != 0, Active: s.Active != 0, Shared: s.Shared != 0}
	}
	return states, nil
}
