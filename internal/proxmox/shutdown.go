package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ShutdownOutcome says how a guest took the wish to shut down.
type ShutdownOutcome string

// The outcomes of a shutdown.
const (
	// ShutdownDone is a guest that shut itself down.
	ShutdownDone ShutdownOutcome = "done"
	// ShutdownOff is a guest that was not running.
	ShutdownOff ShutdownOutcome = "was off"
	// ShutdownGone is a VM that is not on its host.
	ShutdownGone ShutdownOutcome = "was gone"
	// ShutdownIgnored is a guest that still runs after the time it was given.
	ShutdownIgnored ShutdownOutcome = "ignored"
)

// Shutdown is what became of a shutdown.
type Shutdown struct {
	Outcome ShutdownOutcome
	// Detail is what Proxmox said of a guest that ignored it.
	Detail string
}

// Off reports whether nothing of the VM runs any more.
func (s Shutdown) Off() bool { return s.Outcome != ShutdownIgnored }

// String says what became of it in one line.
func (s Shutdown) String() string {
	if s.Detail == "" {
		return "shutdown " + string(s.Outcome)
	}
	return "shutdown " + string(s.Outcome) + ": " + s.Detail
}

// Running reports whether the VM runs. One that is gone does not.
func (c *Client) Running(ctx context.Context, vm Owned) (bool, error) {
	config, err := c.configOf(ctx, vm)
	if err != nil || config == nil {
		return false, err
	}
	var status struct {
		Status string `json:"status"`
	}
	err = c.get(ctx, vm.path()+"/status/current", &status)
	return status.Status == "running", err
}

// shutdownSlack is how much longer than the guest's time the task may take.
const shutdownSlack = 30 * time.Second

// ShutDown asks a guest to shut down and gives it some time. It never cuts the
// power. A guest that does not obey is no error; the outcome says so.
func (c *Client) ShutDown(ctx context.Context, vm Owned, timeout time.Duration) (Shutdown, error) {
	config, err := c.configOf(ctx, vm)
	if err != nil {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	if config == nil {
		return Shutdown{Outcome: ShutdownGone}, nil
	}
	running, err := c.Running(ctx, vm)
	if err != nil {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	if !running {
		return Shutdown{Outcome: ShutdownOff}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+shutdownSlack)
	defer cancel()
	var upid string
	params := map[string]any{"timeout": max(int(timeout/time.Second), 1), "forceStop": 0}
	if err := c.send(ctx, http.MethodPost, vm.path()+"/status/shutdown", params, &upid); err != nil {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	err = c.await(ctx, upid)
	var failed *TaskError
	if errors.As(err, &failed) {
		return c.afterShutdown(ctx, vm, failed)
	}
	if err != nil {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	return Shutdown{Outcome: ShutdownDone}, nil
}

// afterShutdown looks whether the guest runs after a task that failed: some guests
// end in the same moment in which Proxmox gives up on them.
func (c *Client) afterShutdown(ctx context.Context, vm Owned, failed *TaskError) (Shutdown, error) {
	running, err := c.Running(ctx, vm)
	if err != nil {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	if running {
		return Shutdown{Outcome: ShutdownIgnored, Detail: failed.Exit}, nil
	}
	return Shutdown{Outcome: ShutdownDone}, nil
}
