package proxmox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
)

func TestShutDown(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	shut := func() proxmox.Shutdown {
		t.Helper()
		result, err := client.ShutDown(t.Context(), ours(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		running, err := client.Running(t.Context(), ours())
		guest, exists := server.Guest(2001)
		if err != nil || running != (result.Outcome == proxmox.ShutdownIgnored) || (exists && guest.Running != running) {
			t.Errorf("%s: running %v, error %v", result, running, err)
		}
		return result
	}
	if got := shut(); got.Outcome != proxmox.ShutdownDone {
		t.Errorf("a guest that obeys: %s", got)
	}
	if got := shut(); got.Outcome != proxmox.ShutdownOff {
		t.Errorf("a guest that is off: %s", got)
	}
	server.RemoveGuest(2001)
	if got := shut(); got.Outcome != proxmox.ShutdownGone {
		t.Errorf("a missing guest: %s", got)
	}
}

// TestTaskIsQueriedOften checks that the end of a task is noticed within a quarter of a
// second or an eighth of its duration, and that a long task needs few queries.
func TestTaskIsQueriedOften(t *testing.T) {
	t.Parallel()
	for duration, most := range map[time.Duration]int{time.Second: 7, 5 * time.Second: 21, time.Minute: 80} {
		queries, at := 1, time.Duration(0)
		for pause := proxmox.TaskPause; at < duration; pause = proxmox.NextPause(pause, at) {
			at += pause
			queries++
		}
		if late := at - duration; late > max(time.Second/4, duration/8) || queries > most {
			t.Errorf("a task of %s: noticed %s late with %d queries, want at most %d", duration, late, queries, most)
		}
	}
}

// TestShutDownDeafGuest checks that the power is never cut, and that the result reports that
// the guest ignored the request.
func TestShutDownDeafGuest(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	server.SetDeaf(2001, true)
	result, err := client.ShutDown(t.Context(), ours(), time.Second)
	if err != nil || result.Outcome != proxmox.ShutdownIgnored {
		t.Fatalf("got %s, %v", result, err)
	}
	if want := "shutdown ignored: VM quit/powerdown failed - got timeout"; result.String() != want {
		t.Errorf("got  %s\nwant %s", result, want)
	}
	for _, call := range server.Calls() {
		if strings.HasSuffix(call.Path, "/status/stop") || call.Params["forceStop"] == "1" {
			t.Errorf("the power was cut: %s %v", call.Path, call.Params)
		}
	}
}

// TestShutDownAtTheLastMoment checks that the outcome is done for a guest that shut down just
// as Proxmox gave up.
func TestShutDownAtTheLastMoment(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	server.AddFault(pvesim.Fault{Method: "POST", Path: "/status/shutdown$", TaskExit: "VM quit/powerdown failed - got timeout"})
	server.AddFault(pvesim.Fault{Method: "GET", Path: "/tasks/.*/status$", Times: 1, Status: 500, Reason: "again", Hit: func(context.Context, pvesim.Call) {
		guest, _ := server.Guest(2001)
		if err := server.PutGuest(pvesim.Guest{VMID: 2001, Host: "pve-1", Config: guest.Config}); err != nil {
			t.Error(err)
		}
	}})
	result, err := client.ShutDown(t.Context(), ours(), time.Minute)
	if err != nil || result.Outcome != proxmox.ShutdownDone {
		t.Errorf("got %s, %v", result, err)
	}
}

func TestShutDownRefused(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	server.AddFault(pvesim.Fault{Method: "POST", Path: "/status/shutdown$", Status: 500, Reason: "VM is locked (backup)"})
	_, err := client.ShutDown(t.Context(), ours(), time.Second)
	var refused *proxmox.Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "shutting down vm 2001: writing /nodes/pve-1/qemu/2001/status/shutdown of region r1") ||
		!strings.Contains(err.Error(), "VM is locked (backup)") {
		t.Errorf("got %v", err)
	}
}

// withAgent allows access to guests through their agents.
func withAgent(cfg *pvesim.Config) {
	cfg.GuestAgents = true
	cfg.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
	cfg.Roles = []pvesim.Role{{Name: "Agent", Privileges: []string{"Sys.Audit", "VM.Audit", "VM.GuestAgent.Unrestricted"}}}
	cfg.ACL = []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "Agent"}}
}

func withAgentOption(t *testing.T, server *pvesim.Server) {
	t.Helper()
	guest, _ := server.Guest(2001)
	config := guest.Config
	config["agent"] = "1"
	if err := server.PutGuest(pvesim.Guest{VMID: 2001, Host: "pve-1", Config: config, Running: true}); err != nil {
		t.Fatal(err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, withAgent)
	withAgentOption(t, server)
	var given []string
	result := pvesim.CommandResult{Looks: 2, Stdout: "geheim"}
	server.SetAgentExec(func(vmid int, args []string, input string) pvesim.CommandResult {
		given = append(slices.Clone(args), input)
		return result
	})
	command := proxmox.Command{Args: []string{"bash", "-s", "a b"}, Input: "join geheim\n"}
	if err := client.Exec(t.Context(), ours(), command); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bash", "-s", "a b", "join geheim\n"}, given); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	// A missing response does not end the wait.
	server.AddFault(pvesim.Fault{Path: "/agent/exec-status", Times: 1, Status: 596, Reason: "Connection timed out"})
	if err := client.Exec(t.Context(), ours(), command); err != nil {
		t.Errorf("with one missing response: %v", err)
	}
	result = pvesim.CommandResult{ExitCode: 3, Stderr: "geheim"}
	err := client.Exec(t.Context(), ours(), command)
	var failed *proxmox.ExecError
	if !errors.As(err, &failed) || failed.ExitCode != 3 || strings.Contains(err.Error(), "geheim") {
		t.Errorf("got %v", err)
	}
	result = pvesim.CommandResult{Looks: 1 << 20}
	command.Timeout = 200 * time.Millisecond
	if err := client.Exec(t.Context(), ours(), command); err == nil || !strings.Contains(err.Error(), "waiting for a command in vm 2001") {
		t.Errorf("a command without end: %v", err)
	}
}

// TestExecWithoutAgent checks that the error contains the message from Proxmox.
func TestExecWithoutAgent(t *testing.T) {
	t.Parallel()
	_, client := simulateOurs(t, withAgent)
	err := client.Exec(t.Context(), ours(), proxmox.Command{Args: []string{"true"}})
	if err == nil || !strings.Contains(err.Error(), "running a command in vm 2001") || !strings.Contains(err.Error(), "agent") {
		t.Errorf("got %v", err)
	}
}
