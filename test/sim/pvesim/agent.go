package pvesim

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/numaform/numaform/test/sim/qemu"
)

// SetGuestAgents sets whether the guest agents of running VMs with the agent option
// respond. If not, Proxmox reports that the agent is not running. With a hypervisor, the
// guests' own agents respond.
func (s *Server) SetGuestAgents(answer bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.agents = answer
}

// guestAgent handles all of …/agent/*.
func guestAgent(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	if !enabled(g.conf["agent"]) {
		return nil, dief("No QEMU guest agent configured")
	}
	if !g.running {
		return nil, dief("VM %d is not running", g.id)
	}
	command := r.path[strings.LastIndex(r.path, "/")+1:]
	if r.s.cfg.Hypervisor != nil && enabled(g.live["agent"]) {
		id := g.id
		c.mu.Unlock() // the guest may take seconds to respond
		defer c.mu.Lock()
		return r.realAgent(id, command)
	}
	if !c.agents || !enabled(g.live["agent"]) {
		return nil, dief("QEMU guest agent is not running")
	}
	return r.agentCommand(g, command)
}

// realAgent runs a command of the agent in a guest (qemu-server 9.2.6,
// src/PVE/API2/Qemu/Agent.pm:226-240, src/PVE/QemuServer/Agent.pm:117-193).
func (r *request) realAgent(vmid int, command string) (any, error) {
	h := r.s.cfg.Hypervisor
	if _, err := h.Agent(r.ctx, vmid, "guest-ping", nil); err != nil {
		return nil, dief("QEMU guest agent is not running")
	}
	var arguments map[string]any
	switch command {
	case "exec":
		arguments = map[string]any{"capture-output": true}
		if words := strings.Split(r.p["command"], "\x00"); r.p.has("command") {
			arguments["path"], arguments["arg"] = words[0], words[1:]
		}
		if r.p.has("input-data") {
			arguments["input-data"] = base64.StdEncoding.EncodeToString([]byte(r.p["input-data"]))
		}
	case "exec-status":
		arguments = map[string]any{"pid": r.p.number("pid")}
	case "ping", "get-host-name", "get-osinfo", "network-get-interfaces":
	default:
		return nil, notImplemented(command)
	}
	text, err := h.Agent(r.ctx, vmid, "guest-"+command, arguments)
	var refused *qemu.AgentError
	switch {
	case errors.As(err, &refused) && arguments == nil:
		return map[string]any{"result": map[string]any{"error": map[string]any{"desc": refused.Desc}}}, nil
	case errors.As(err, &refused):
		return nil, dief("Agent error: %s", refused.Desc)
	case err != nil:
		return nil, dief("VM %d qga command 'guest-%s' failed - %s", vmid, command, err)
	}
	var result any
	if err := json.Unmarshal(text, &result); err != nil {
		return nil, err
	}
	if arguments == nil {
		return map[string]any{"result": result}, nil
	}
	if status, ok := result.(map[string]any); ok {
		plainStatus(status)
	}
	return result, nil
}

// plainStatus decodes the output of a command in its status, and replaces its Booleans with
// 0 and 1.
func plainStatus(status map[string]any) {
	for key, value := range status {
		switch value := value.(type) {
		case bool:
			status[key] = 0
			if value {
				status[key] = 1
			}
		case string:
			if plain, err := base64.StdEncoding.DecodeString(value); err == nil {
				status[key] = string(plain)
			}
		}
	}
}

func notImplemented(command string) error {
	return &apiError{code: 501, message: fmt.Sprintf("guest agent command '%s' is not implemented by pvesim, though Proxmox VE has it", command)}
}

// agentCommand runs the commands that simulated guest agents support.
func (r *request) agentCommand(g *guest, command string) (any, error) {
	switch command {
	case "ping":
		return map[string]any{"result": map[string]any{}}, nil
	case "get-host-name":
		return map[string]any{"result": map[string]any{"host-name": g.name()}}, nil
	case "get-osinfo":
		return map[string]any{"result": map[string]any{"id": "debian", "name": "Debian GNU/Linux", "version-id": "13"}}, nil
	case "network-get-interfaces":
		return map[string]any{"result": agentInterfaces(g)}, nil
	case "exec":
		return r.agentExec(g), nil
	case "exec-status":
		return r.agentExecStatus()
	}
	return nil, notImplemented(command)
}

// agentInterfaces returns the loopback interface, and a network card with an address
// derived from the VMID.
func agentInterfaces(g *guest) []any {
	address := func(kind, ip string, prefix int) map[string]any {
		return map[string]any{"ip-address": ip, "ip-address-type": kind, "prefix": prefix}
	}
	_, mac, _ := strings.Cut(g.live["net0"], "=")
	mac, _, _ = strings.Cut(mac, ",")
	return []any{
		map[string]any{"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": []any{address("ipv4", "127.0.0.1", 8)}},
		map[string]any{
			"name": "eth0", "hardware-address": strings.ToLower(mac),
			"ip-addresses": []any{address("ipv4", fmt.Sprintf("10.%d.%d.%d", g.id>>16&255, g.id>>8&255, g.id&255), 8)},
		},
	}
}
