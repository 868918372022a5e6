package proxmox

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Owned identifies a VM of ours. An operation is performed only if the VM with that VMID
// carries the marker with that cluster and key, because VMIDs are reused.
type Owned struct {
	Host      topology.HostName
	VMID      fleet.VMID
	ClusterID string
	Key       fleet.Key
}

// OwnedBy returns what identifies a VM of the fleet.
func OwnedBy(clusterID string, vm *fleet.VM) Owned {
	return Owned{Host: vm.Host.Host, VMID: vm.VMID, ClusterID: clusterID, Key: vm.Key}
}

func (o Owned) path() string { return fmt.Sprintf("/nodes/%s/qemu/%d", o.Host, o.VMID) }

// NotOursError reports that a VMID belongs to another guest.
type NotOursError struct {
	Region topology.RegionName
	VM     Owned
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("vm %d on host %s of region %s does not carry the marker with cluster=%s and key=%s: it is left alone: "+
		"see whose it is with `qm config %d`", e.VM.VMID, e.VM.Host, e.Region, e.VM.ClusterID, e.VM.Key, e.VM.VMID)
}

// TaskError reports a failed Proxmox task.
type TaskError struct {
	Region topology.RegionName
	Host   topology.HostName
	// UPID is the task's ID.
	UPID string
	// Exit is the task's exit status.
	Exit string
}

func (e *TaskError) Error() string {
	kind := "unknown"
	if parts := strings.Split(e.UPID, ":"); len(parts) > 5 {
		kind = parts[5]
	}
	return fmt.Sprintf("task %s on host %s of region %s ended with %q: see the host's task log for %s", kind, e.Host, e.Region, e.Exit, e.UPID)
}

// The first and the longest delay between two queries of a task.
const (
	taskPause    = 50 * time.Millisecond
	maxTaskPause = time.Second
)

// await waits until a task has ended and returns a *TaskError if it failed. The task runs
// on the host in its UPID, which for an upload is the host that responded.
func (c *Client) await(ctx context.Context, upid string) error {
	parts := strings.Split(upid, ":")
	if len(parts) < 2 || parts[0] != "UPID" {
		return fmt.Errorf("waiting for a task of region %s: the answer %q is not a task: check that url is a Proxmox host", c.cfg.Region, upid)
	}
	host := topology.HostName(parts[1])
	path := fmt.Sprintf("/nodes/%s/tasks/%s/status", host, url.PathEscape(upid))
	for pause := taskPause; ; pause = min(2*pause, maxTaskPause) {
		var status struct {
			Status     string `json:"status"`
			ExitStatus string `json:"exitstatus"`
		}
		if err := c.get(ctx, path, &status); err != nil {
			return err
		}
		switch {
		case status.Status == "running":
		case status.ExitStatus == "OK", strings.HasPrefix(status.ExitStatus, "WARNINGS"):
			return nil
		default:
			return &TaskError{Region: c.cfg.Region, Host: host, UPID: upid, Exit: status.ExitStatus}
		}
		if err := wait(ctx, pause); err != nil {
			return fmt.Errorf("waiting for task %s of region %s: %w", upid, c.cfg.Region, err)
		}
	}
}

// wait waits for pause, or returns the context's error at once.
func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// configOf returns the configuration of a VM, nil if its host has no VM with its VMID,
// and a *NotOursError if that is another guest.
func (c *Client) configOf(ctx context.Context, vm Owned) (values, error) {
	var config values
	err := c.get(ctx, vm.path()+"/config", &config)
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	marker, ok := fleet.ParseMarker(config["description"])
	if !ok || marker.ClusterID != vm.ClusterID || marker.Key != vm.Key {
		return nil, &NotOursError{Region: c.cfg.Region, VM: vm}
	}
	return config, nil
}
