package operator

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// Unread is a region that did not respond, and why.
type Unread struct {
	Region topology.RegionName
	Err    error
}

// Reachable reads the clusters like Snapshot, but continues without clusters that do not
// respond, as long as one does. Their regions are in the snapshot without hosts, and
// nothing can be placed in them. Errors that a person must fix, such as a wrong password,
// are still returned.
func (c *Config) Reachable(ctx context.Context, clients map[topology.RegionName]*proxmox.Client) (*topology.Snapshot, []Unread, error) {
	parts, errs := make([]*topology.Snapshot, len(c.Clusters)), make([]error, len(c.Clusters))
	var wg sync.WaitGroup
	for i := range c.Clusters {
		if client := clients[c.Clusters[i].Region]; client != nil {
			wg.Go(func() { parts[i], errs[i] = client.Snapshot(ctx) })
		}
	}
	wg.Wait()
	merged := &topology.Snapshot{}
	var unread []Unread
	for i, part := range parts {
		var failed *proxmox.Error
		region := c.Clusters[i].Region
		switch {
		case errs[i] == nil && part != nil:
			merged.Regions, merged.Hosts = append(merged.Regions, part.Regions...), append(merged.Hosts, part.Hosts...)
		case errors.As(errs[i], &failed) && failed.Unreachable():
			unread = append(unread, Unread{region, errs[i]})
			merged.Regions = append(merged.Regions, topology.Region{Name: region, HidesGuests: true})
		}
	}
	if err := errors.Join(errs...); err != nil && (len(unread) == len(parts) || !only(errs, unread)) {
		return nil, nil, err
	}
	slices.SortFunc(merged.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	return merged, unread, c.applySettings(merged)
}

// only reports whether all errors are about regions that did not respond.
func only(errs []error, unread []Unread) bool {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return failed == len(unread)
}
