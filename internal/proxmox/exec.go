package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Command is a command to run in a guest with its agent.
type Command struct {
	// Args are the program and its arguments, which all users of the guest can read.
	Args []string
	// Input is the program's stdin; secrets belong here.
	Input string
	// Timeout limits how long it runs; 0 means 2 minutes.
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
	return fmt.Sprintf("command in vm %d on host %s ended with %s: run it in the guest to see what it prints", e.VM.VMID, e.VM.Host, end)
}

// Ping returns an error if a guest's agent does not respond.
func (c *Client) Ping(ctx context.Context, vm Owned) error {
	err := c.requireOurs(ctx, vm)
	if err == nil {
		err = c.send(ctx, http.MethodPost, vm.path()+"/agent/ping", nil, nil)
	}
	if err != nil {
		return fmt.Errorf("asking the guest agent of vm %d: %w", vm.VMID, err)
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

// Exec runs a command in a guest with its agent and waits for its end. It returns an
// *ExecError if the exit code is not 0.
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

	// If Proxmox or the agent does not respond, the command may still be running, so ask
	// again until the timeout.
	path := fmt.Sprintf("%s/agent/exec-status?pid=%d", vm.path(), int(started.PID))
	for pause := taskPause; ; pause = min(2*pause, maxTaskPause) {
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
