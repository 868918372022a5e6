package pvesim

import (
	"fmt"
	"strings"
)

// SetGuestAgents sets whether the guest agents of running VMs with the agent option
// respond. If not, Proxmox reports that the agent is not running.
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
	if !c.agents || !enabled(g.live["agent"]) {
		return nil, dief("QEMU guest agent is not running")
	}
	return r.agentCommand(g, r.path[strings.LastIndex(r.path, "/")+1:])
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
	return nil, &apiError{code: 501, message: fmt.Sprintf("guest agent command '%s' is not implemented by pvesim, though Proxmox VE has it", command)}
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
