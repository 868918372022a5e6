package pvesim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestDeafGuest checks that a deaf guest only stops when it is forced.
func TestDeafGuest(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.clone(101)
	if exit := c.run("POST", "/nodes/pve-1/qemu/101/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	c.server.SetDeaf(101, true)
	exit := c.run("POST", "/nodes/pve-1/qemu/101/status/shutdown", "timeout", "1", "forceStop", "0")
	if exit != "VM quit/powerdown failed - got timeout" || !c.guest(101).Running {
		t.Errorf("shutdown: %s, running %v", exit, c.guest(101).Running)
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu/101/status/shutdown", "timeout", "1", "forceStop", "1"); exit != "OK" || c.guest(101).Running {
		t.Errorf("forced shutdown: %s, running %v", exit, c.guest(101).Running)
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu/101/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	c.server.SetDeaf(101, false)
	if exit := c.run("POST", "/nodes/pve-1/qemu/101/status/shutdown"); exit != "OK" || c.guest(101).Running {
		t.Errorf("shutdown of a guest that obeys again: %s, running %v", exit, c.guest(101).Running)
	}
}

// TestAgentExec checks the results of commands, and who may run them.
func TestAgentExec(t *testing.T) {
	t.Parallel()
	cfg := withAgents(cluster())
	cfg.GuestAgents = true
	c := start(t, cfg)
	root := c.root()
	if exit := root.run("POST", "/nodes/pve-1/qemu/9000/clone", "newid", "101", "name", "n-101"); exit != "OK" {
		t.Fatal(exit)
	}
	if got := root.call("PUT", "/nodes/pve-1/qemu/101/config", "agent", "1"); got.status != 200 {
		t.Fatal(got)
	}
	if exit := root.run("POST", "/nodes/pve-1/qemu/101/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	var ran string
	c.server.SetAgentExec(func(vmid int, args []string, input string) pvesim.CommandResult {
		ran = strings.Join(args, "|") + "<" + input
		return pvesim.CommandResult{ExitCode: vmid, Stderr: "no", Looks: 1}
	})
	const exec, status = "/nodes/pve-1/qemu/101/agent/exec", "/nodes/pve-1/qemu/101/agent/exec-status"
	if got := c.call("POST", exec, "command", "true"); got.status != 403 {
		t.Errorf("a token that may only look: %d %s", got.status, got.reason)
	}
	got := root.call("POST", exec, "command", "sh\x00-s", "input-data", "x")
	if got.status != 200 || ran != "sh|-s<x" {
		t.Fatalf("%d %s, ran %q", got.status, got.reason, ran)
	}
	pid := fmt.Sprint(got.data.(map[string]any)["pid"])
	if first := root.call("GET", status, "pid", pid).data.(map[string]any); fmt.Sprint(first["exited"]) != "0" {
		t.Errorf("at once: %v", first)
	}
	if last := root.call("GET", status, "pid", pid).data.(map[string]any); fmt.Sprint(last["exitcode"]) != "101" || last["err-data"] != "no" {
		t.Errorf("at the end: %v", last)
	}
	if none := root.call("GET", status, "pid", "1"); none.status != 500 || !strings.Contains(none.reason, "PID 1 does not exist") {
		t.Errorf("a command that never was: %d %s", none.status, none.reason)
	}
}
