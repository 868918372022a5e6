package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Owned identifies a VM of the fleet. An operation is performed only if the VM with that
// VMID carries the marker with that cluster and key, because VMIDs are reused.
type Owned struct {
	Host      topology.HostName
	VMID      fleet.VMID
	ClusterID string
	Key       fleet.Key
}

// OwnedBy returns the identity of a VM of the fleet.
func OwnedBy(clusterID string, vm *fleet.VM) Owned {
	return Owned{Host: vm.Host.Host, VMID: vm.VMID, ClusterID: clusterID, Key: vm.Key}
}

func (o Owned) path() string { return fmt.Sprintf("/nodes/%s/qemu/%d", o.Host, o.VMID) }

// NotOursError reports that the guest with a VMID does not carry the expected marker.
type NotOursError struct {
	Region topology.RegionName
	VM     Owned
}

func (e *NotOursError) Error() string {
	return fmt.Sprintf("vm %d on host %s of region %s does not have the marker with cluster=%s and key=%s, so it was not changed: "+
		"to identify it, run `qm config %d`", e.VM.VMID, e.VM.Host, e.Region, e.VM.ClusterID, e.VM.Key, e.VM.VMID)
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

const (
	taskPause    = 50 * time.Millisecond
	maxTaskPause = time.Second
)

// nextPause returns the delay before the next query of a task or command that began a while
// ago: twice the last, but at most a quarter of a second at first and then an eighth of
// the time so far, so that its end is noticed soon, with few queries of a long one.
func nextPause(last, soFar time.Duration) time.Duration {
	return min(2*last, max(maxTaskPause/4, soFar/8), maxTaskPause)
}

// await waits until a task has ended and returns a *TaskError if it failed. The task runs
// on the host in its UPID, which for an upload is the host that responded.
func (c *Client) await(ctx context.Context, upid string) error {
	parts := strings.Split(upid, ":")
	if len(parts) < 2 || parts[0] != "UPID" {
		return fmt.Errorf("waiting for a task of region %s: the response %q is not the ID of a task: check that url is the address of a Proxmox host", c.cfg.Region, upid)
	}
	host := topology.HostName(parts[1])
	path := fmt.Sprintf("/nodes/%s/tasks/%s/status", host, url.PathEscape(upid))
	for began, pause := time.Now(), taskPause; ; pause = nextPause(pause, time.Since(began)) {
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
// and a *NotOursError if the VM with that VMID is not ours.
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
	// ShutdownIgnored means that the guest was still running after the timeout.
	ShutdownIgnored ShutdownOutcome = "ignored"
)

// Shutdown describes the result of a shutdown.
type Shutdown struct {
	Outcome ShutdownOutcome
	// Detail is the message from Proxmox about a guest that ignored the request.
	Detail string
}

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

// ShutDown requests a shutdown of a guest and waits up to timeout. It never cuts the power.
// A guest that does not shut down is not an error, but an outcome.
func (c *Client) ShutDown(ctx context.Context, vm Owned, timeout time.Duration) (_ Shutdown, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("shutting down vm %d: %w", vm.VMID, err)
		}
	}()
	config, err := c.configOf(ctx, vm)
	if err != nil {
		return Shutdown{}, err
	}
	if config == nil {
		return Shutdown{Outcome: ShutdownGone}, nil
	}
	running, err := c.Running(ctx, vm)
	if err != nil {
		return Shutdown{}, err
	}
	if !running {
		return Shutdown{Outcome: ShutdownOff}, nil
	}

	ctx, cancel := context.WithTimeout(ctx, timeout+shutdownSlack)
	defer cancel()
	var upid string
	params := map[string]any{"timeout": max(int(timeout/time.Second), 1), "forceStop": 0}
	if err := c.send(ctx, http.MethodPost, vm.path()+"/status/shutdown", params, &upid); err != nil {
		return Shutdown{}, err
	}
	err = c.await(ctx, upid)
	failed, ok := errors.AsType[*TaskError](err)
	if err != nil && !ok {
		return Shutdown{}, err
	}
	if ok {
		// Some guests shut down just as Proxmox gives up.
		running, err := c.Running(ctx, vm)
		if err != nil {
			return Shutdown{}, err
		}
		if running {
			return Shutdown{Outcome: ShutdownIgnored, Detail: failed.Exit}, nil
		}
	}
	return Shutdown{Outcome: ShutdownDone}, nil
}

// Command is a command to run in a guest through its agent.
type Command struct {
	// Args are the program and its arguments, which all users of the guest can read.
	Args []string
	// Input is the program's stdin; secrets belong here.
	Input string
	// Timeout limits how long Exec waits for the command's end. The command can still be
	// running afterwards. 0 means 2 minutes.
	Timeout time.Duration
}

const defaultCommandTimeout = 2 * time.Minute

// ExecError reports that a command in a guest failed. It omits the command's output,
// which may contain its input.
type ExecError struct {
	VM       Owned
	ExitCode int
	// Signal is the signal that killed the command, or 0.
	Signal int
}

func (e *ExecError) Error() string {
	end := fmt.Sprintf("exit code %d", e.ExitCode)
	if e.Signal != 0 {
		end = fmt.Sprintf("signal %d", e.Signal)
	}
	return fmt.Sprintf("the command in vm %d on host %s ended with %s: run it in the guest to see its output", e.VM.VMID, e.VM.Host, end)
}

// Ping returns an error if a guest's agent does not respond.
func (c *Client) Ping(ctx context.Context, vm Owned) error {
	err := c.requireOurs(ctx, vm)
	if err == nil {
		err = c.send(ctx, http.MethodPost, vm.path()+"/agent/ping", nil, nil)
	}
	if err != nil {
		return fmt.Errorf("pinging the guest agent of vm %d: %w", vm.VMID, err)
	}
	return nil
}

// requireOurs returns an error unless the VM exists and is ours.
func (c *Client) requireOurs(ctx context.Context, vm Owned) error {
	config, err := c.configOf(ctx, vm)
	if err == nil && config == nil {
		return fmt.Errorf("it is not on host %s of region %s", vm.Host, c.cfg.Region)
	}
	return err
}

// Exec runs a command in a guest through its agent and waits for the exit. It returns an
// *ExecError if the exit code is not 0 or a signal killed the command.
func (c *Client) Exec(ctx context.Context, vm Owned, command Command) error {
	params := map[string]any{"command": command.Args}
	if command.Input != "" {
		params["input-data"] = command.Input
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(command.Timeout, defaultCommandTimeout))
	defer cancel()
	var started struct {
		PID number `json:"pid"`
	}
	err := c.requireOurs(ctx, vm)
	if err == nil {
		err = c.send(ctx, http.MethodPost, vm.path()+"/agent/exec", params, &started)
	}
	if err != nil {
		return fmt.Errorf("running a command in vm %d: %w", vm.VMID, err)
	}

	// If Proxmox or the agent does not respond, the command may still be running: query
	// its status again until the timeout.
	path := fmt.Sprintf("%s/agent/exec-status?pid=%d", vm.path(), int(started.PID))
	for began, pause := time.Now(), taskPause; ; pause = nextPause(pause, time.Since(began)) {
		var status struct {
			Exited   number `json:"exited"`
			ExitCode number `json:"exitcode"`
			Signal   number `json:"signal"`
		}
		unseen := c.get(ctx, path, &status)
		switch {
		case unseen != nil || status.Exited == 0:
		case status.ExitCode == 0 && status.Signal == 0:
			return nil
		default:
			return &ExecError{VM: vm, ExitCode: int(status.ExitCode), Signal: int(status.Signal)}
		}
		if err := wait(ctx, pause); err != nil {
			return fmt.Errorf("waiting for a command in vm %d: %w", vm.VMID, errors.Join(err, unseen))
		}
	}
}
