package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ShutdownOutcome is the result of a shutdown request.
type ShutdownOutcome string

// The outcomes of a shutdown.
const (
	// ShutdownDone means that the guest shut down.
	ShutdownDone ShutdownOutcome = "done"
	// ShutdownOff means that the guest was not running.
	ShutdownOff ShutdownOutcome = "was off"
	// ShutdownGone means that the VM is not on its host.
	ShutdownGone ShutdownOutcome = "was gone"
	// ShutdownIgnored means that the guest still runs after its timeout.
	ShutdownIgnored ShutdownOutcome = "ignored"
)

// Shutdown describes the result of a shutdown.
type Shutdown struct {
	Outcome ShutdownOutcome
	// Detail is Proxmox' message about a guest that ignored it.
	Detail string
}

// Off reports whether the VM is no longer running.
func (s Shutdown) Off() bool { return s.Outcome != ShutdownIgnored }

// String returns the result in one line.
func (s Shutdown) String() string {
	if s.Detail == "" {
		return "shutdown " + string(s.Outcome)
	}
	return "shutdown " + string(s.Outcome) + ": " + s.Detail
}

// Running reports whether the VM runs. A missing VM does not.
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

// shutdownSlack is the time allowed for the task in addition to the guest's timeout.
const shutdownSlack = 30 * time.Second

// ShutDown asks a guest to shut down and waits up to timeout. It never cuts the power. A
// guest that does not shut down is not an error, but an outcome.
func (c *Client) ShutDown(ctx context.Context, vm Owned, timeout time.Duration) (Shutdown, error) {
	fail := func(err error) (Shutdown, error) {
		return Shutdown{}, fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
	}
	config, err := c.configOf(ctx, vm)
	if err != nil {
		return fail(err)
	}
	if config == nil {
		return Shutdown{Outcome: ShutdownGone}, nil
	}
	running, err := c.Running(ctx, vm)
	if err != nil {
		return fail(err)
	}
	if !running {
		return Shutdown{Outcome: ShutdownOff}, nil
	}

	ctx, cancel := context.WithTimeout(ctx, timeout+shutdownSlack)
	defer cancel()
	var upid string
	params := map[string]any{"timeout": max(int(timeout/time.Second), 1), "forceStop": 0}
	if err := c.send(ctx, http.MethodPost, vm.path()+"/status/shutdown", params, &upid); err != nil {
		return fail(err)
	}
	err = c.await(ctx, upid)
	failed, ok := errors.AsType[*TaskError](err)
	if err != nil && !ok {
		return fail(err)
	}
	if ok {
		// Some guests end at the moment when Proxmox gives up.
		running, err := c.Running(ctx, vm)
		if err != nil {
			return fail(err)
		}
		if running {
			return Shutdown{Outcome: ShutdownIgnored, Detail: failed.Exit}, nil
		}
	}
	return Shutdown{Outcome: ShutdownDone}, nil
}
