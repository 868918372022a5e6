package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// poolPrivilege is the Proxmox privilege for changing the members of a pool.
const poolPrivilege = "Pool.Allocate"

// mayMove returns an error if VMs of a region cannot move between two Proxmox pools,
// either of which may be empty.
func (w *workshop) mayMove(ctx context.Context, region topology.RegionName, from, to string) error {
	client := w.clients[region]
	if client == nil {
		return fmt.Errorf("numaform.yaml has no region %q", region)
	}
	var paths, lacking []string
	for _, pool := range []string{from, to} {
		if pool != "" {
			paths = append(paths, "/pool/"+pool)
		}
	}
	have, err := client.Permissions(ctx, paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if !have[path].Has(poolPrivilege, false) {
			lacking = append(lacking, path)
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("numaform's login lacks %s on %s: give it a role with that, or let new nodes alone be in the pool",
			poolPrivilege, strings.Join(lacking, " and "))
	}
	return w.hasPool(ctx, region, to)
}

// hasPool returns an error if a region has no pool with that name. Whoever may change a
// pool can see it.
func (w *workshop) hasPool(ctx context.Context, name topology.RegionName, pool string) error {
	snapshot, err := w.inventory.Snapshot(ctx)
	if err != nil || pool == "" {
		return err
	}
	for _, region := range snapshot.Regions {
		if region.Name == name && slices.Contains(region.Pools, pool) {
			return nil
		}
	}
	return fmt.Errorf("region %s has no pool %q: make the resource pool in Proxmox, or correct spec.pool", name, pool)
}
