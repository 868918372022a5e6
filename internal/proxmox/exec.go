package proxmox

import (
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
	config, err := c.configOf(ctx, vm)
	if err == nil && config == nil {
		err = fmt.Errorf("it is not on host %s of region %s", vm.Host, c.cfg.Region)
	}
	if err == nil {
		err = c.send(ctx, http.MethodPost, vm.path()+"/agent/ping", nil, nil)
	}
	if err != nil {
		return fmt.Errorf("asking the guest agent of vm %d: %w", vm.VMID, err)
	}
	return nil
}

// Exec runs a command in a guest with its agent and waits for its end. It returns an
// *ExecError if the exit code is not 0.
func (c *Client) Exec(ctx context.Context, vm Owned, command Command) error {
	config, err := c.configOf(ctx, vm)
	if err == nil && config == nil {
		err = fmt.Errorf("it is not on host %s of region %s", vm.Host, c.cfg.Region)
	}
	if err != nil {
		return fmt.Errorf("running a command in vm %d: %w", vm.VMID, err)
	}
	if command.Timeout == 0 {
		command.Timeout = defaultCommandTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, command.Timeout)
	defer cancel()
	params := map[string]any{"command": command.Args}
	if command.Input != "" {
		params["input-data"] = command.Input
	}
	var started struct {
		PID number `json:"pid"`
	}
	if err := c.send(ctx, http.MethodPost, vm.path()+"/agent/exec", params, &started); err != nil {
		return fmt.Errorf("running a command in vm %d: %w", vm.VMID, err)
	}
	return c.awaitCommand(ctx, vm, int(started.PID))
}

// awaitCommand waits for the end of a command. If Proxmox or the agent does not respond,
// the command may still be running, so it asks again until the timeout.
func (c *Client) awaitCommand(ctx context.Context, vm Owned, pid int) error {
	path := fmt.Sprintf("%s/agent/exec-status?pid=%d", vm.path(), pid)
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
