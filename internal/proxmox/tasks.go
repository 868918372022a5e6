package proxmox

import (
	"context"

	"github.com/numaform/numaform/topology"
)

// Busy reports whether a host is cloning or destroying a guest, for this credential or,
// if it may see them, for others.
func (c *Client) Busy(ctx context.Context, host topology.HostName) (bool, error) {
	var tasks []struct {
		Type string `json:"type"`
	}
	err := c.get(ctx, "/nodes/"+string(host)+"/tasks?source=active", &tasks)
	for _, task := range tasks {
		if task.Type == "qmclone" || task.Type == "qmdestroy" {
			return true, err
		}
	}
	return false, err
}
