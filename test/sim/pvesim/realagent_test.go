package pvesim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/qemu"
)

// hypervisor records what Proxmox requests of guests and their agents.
type hypervisor struct {
	// mu guards the fields below.
	mu       sync.Mutex
	silent   bool
	answers  map[string]string
	requests []string
}

func (h *hypervisor) Start(qemu.VM, func()) (int, error) { return 4711, nil }
func (h *hypervisor) Stop(int)                           {}
func (h *hypervisor) Remove(int) error                   { return nil }

func (h *hypervisor) Shutdown(_ context.Context, vmid int, agent bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, fmt.Sprintf("shutdown %d, agent %t", vmid, agent))
	return nil
}

func (h *hypervisor) Agent(_ context.Context, _ int, command string, arguments map[string]any) (json.RawMessage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.silent {
		return nil, errors.New("got timeout")
	}
	if command == "guest-ping" {
		return json.RawMessage("{}"), nil
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	h.requests = append(h.requests, command+" "+string(text))
	answer, ok := h.answers[command]
	if !ok {
		return nil, &qemu.AgentError{Desc: "refused"}
	}
	return json.RawMessage(answer), nil
}

// TestRealAgents checks that the API passes commands to the agent in a guest that has a
// process, and its responses back.
func TestRealAgents(t *testing.T) {
	t.Parallel()
	h := &hypervisor{silent: true, answers: map[string]string{
		"guest-get-host-name": `{"host-name": "n-101"}`,
		"guest-exec":          `{"pid": 7}`,
		"guest-exec-status":   `{"exited": true, "exitcode": 0, "out-data": "eWVz"}`,
	}}
	cfg := withAgents(cluster())
	cfg.Hypervisor = h
	c := start(t, cfg)
	c.clone(101)
	root := c.root()
	const vm = "/nodes/pve-1/qemu/101"
	root.set(vm, "agent", "1")
	if exit := root.run("POST", vm+"/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	check(t, root, []step{{"not started yet", "POST", vm + "/agent/ping", nil, 500, "QEMU guest agent is not running"}})
	h.mu.Lock()
	h.silent = false
	h.mu.Unlock()
	for _, tt := range []struct {
		method, command string
		params          []string
		want            string
	}{
		{"POST", "ping", nil, `{"result":{}}`},
		{"GET", "get-host-name", nil, `{"result":{"host-name":"n-101"}}`},
		{"POST", "exec", []string{"command", "sh\x00-s", "input-data", "x"}, `{"pid":7}`},
		{"GET", "exec-status", []string{"pid", "7"}, `{"exitcode":0,"exited":1,"out-data":"yes"}`},
	} {
		got := root.call(tt.method, vm+"/agent/"+tt.command, tt.params...)
		text, err := json.Marshal(got.data)
		if err != nil || got.status != 200 || string(text) != tt.want {
			t.Errorf("%s: %d %s %s, want %s", tt.command, got.status, got.reason, text, tt.want)
		}
	}
	h.mu.Lock()
	delete(h.answers, "guest-exec")
	h.mu.Unlock()
	check(t, root, []step{
		{"a rejected command", "POST", vm + "/agent/exec", []string{"command", "none"}, 500, "Agent error: refused"},
		{"another command", "GET", vm + "/agent/get-users", nil, 501, "guest agent command 'get-users' is not implemented by pvesim, though Proxmox VE has it"},
	})
	shutdown := func() {
		if exit := root.run("POST", vm+"/status/shutdown"); exit != "OK" {
			t.Errorf("shutdown: %s", exit)
		}
	}
	shutdown()
	root.set(vm, "agent", "0")
	if exit := root.run("POST", vm+"/status/start"); exit != "OK" {
		t.Fatal(exit)
	}
	shutdown()
	want := []string{
		"guest-get-host-name null", `guest-exec {"arg":["-s"],"capture-output":true,"input-data":"eA==","path":"sh"}`,
		`guest-exec-status {"pid":7}`, `guest-exec {"arg":[],"capture-output":true,"path":"none"}`,
		"shutdown 101, agent true", "shutdown 101, agent false",
	}
	if diff := cmp.Diff(want, h.requests); diff != "" {
		t.Errorf("requests to the hypervisor (-want +got):\n%s", diff)
	}
}
