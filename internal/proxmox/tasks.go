package proxmox

import (
	"context"

	"github.com/numaform/numaform/topology"
)

// Cloning reports whether a host clones a guest now, for this credential or, where
// it may see them, for others.
func (c *Client) Cloning(ctx context.Context, host topology.HostName) (bool, error) {
	var tasks []struct{}
	err := c.get(ctx, "/nodes/"+string(host)+"/tasks?source=active&typefilter=qmclone", &tasks)
	return len(tasks) > 0, err
}
