package pvesim

import (
	"crypto/sha1" //nolint:gosec // Proxmox's config digest is SHA-1
	"encoding/hex"
	"fmt"
)

// hostOverheadMiB is the memory that a host itself uses.
const hostOverheadMiB = 2048

// version handles GET /version.
func version(r *request) (any, error) {
	return map[string]any{"version": r.s.cfg.Version + ".3", "release": r.s.cfg.Version, "repoid": "5bd5b0ff1e5c2a4b"}, nil
}

// subdirs returns a handler that returns an index of links.
func subdirs(key string, names ...string) handler {
	return func(*request) (any, error) {
		result := []any{}
		for _, name := range names {
			result = append(result, map[string]any{key: name})
		}
		return result, nil
	}
}

// listNodes handles GET /nodes.
func listNodes(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	result := []any{}
	for _, name := range c.order {
		entry := c.nodeEntry(c.hosts[name])
		entry["node"], entry["id"], entry["type"] = name, "node/"+name, "node"
		if r.s.access.check(r.who, "/nodes/"+name, "Sys.Audit") != nil {
			entry = map[string]any{"node": name, "id": "node/" + name, "type": "node", "status": entry["status"], "ssl_fingerprint": entry["ssl_fingerprint"]}
		}
		result = append(result, entry)
	}
	return result, nil
}

// nodeEntry returns a host's entry in lists. The caller must hold the lock.
func (c *cluster) nodeEntry(h *host) map[string]any {
	entry := map[string]any{"status": "offline", "level": "", "ssl_fingerprint": "00:" + h.name}
	if h.offline != "" {
		return entry
	}
	total := c.memory(h)
	entry["status"] = "online"
	entry["maxcpu"] = h.machine.OnlineCPUs().Size()
	// extract_node_stats in pve-manager, PVE/API2Tools.pm: cpu is a part of 1, mem is bytes.
	entry["cpu"] = h.busy()
	entry["maxmem"] = total << 20
	entry["mem"] = c.usedMemory(h) << 20
	entry["disk"], entry["maxdisk"] = int64(8)<<30, int64(96)<<30
	entry["uptime"] = c.uptime(c.started)
	return entry
}

// memory returns the host's memory in MiB: as configured, or the sum of its NUMA nodes.
func (c *cluster) memory(h *host) int64 {
	if h.machine.MemoryMiB > 0 {
		return h.machine.MemoryMiB
	}
	sum := int64(0)
	for _, n := range h.machine.NUMANodes {
		if n.MemoryMiB > 0 {
			sum += n.MemoryMiB
		}
	}
	return sum
}

// busy returns the part of the host's CPUs that is in use.
func (h *host) busy() float64 {
	if h.load != nil {
		return float64(h.load.CPUPercent) / 100
	}
	return 0.02
}

// usedMemory returns the memory in MiB that the host itself and its running guests use.
func (c *cluster) usedMemory(h *host) int64 {
	if h.load != nil {
		return c.memory(h) * int64(h.load.MemoryPercent) / 100
	}
	used := min(hostOverheadMiB, c.memory(h)/4)
	for _, g := range h.guests {
		if g.running {
			used += memoryMiB(g.live)
		}
	}
	return min(used, c.memory(h))
}

// nodeStatus handles GET /nodes/{node}/status. The response contains the number of CPUs,
// but not their IDs.
func nodeStatus(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	total, used := c.memory(r.host)<<20, c.usedMemory(r.host)<<20
	return map[string]any{
		"cpu":      r.host.busy(),
		"wait":     0,
		"idle":     0,
		"uptime":   c.uptime(c.started),
		"loadavg":  []string{"0.10", "0.12", "0.09"},
		"kversion": "Linux " + kernelRelease + " #1 SMP PREEMPT_DYNAMIC",
		"current-kernel": map[string]any{
			"sysname": "Linux", "release": kernelRelease, "version": "#1 SMP PREEMPT_DYNAMIC", "machine": machineArch(&r.host.machine),
		},
		"pveversion": "pve-manager/" + r.s.cfg.Version + ".3/5bd5b0ff1e5c2a4b",
		"boot-info":  map[string]any{"mode": "efi", "secureboot": 0},
		"cpuinfo":    cpuInfo(&r.host.machine),
		"memory":     map[string]any{"total": total, "used": used, "free": total - used, "available": total - used},
		"swap":       map[string]any{"total": int64(8) << 30, "used": 0, "free": int64(8) << 30},
		"rootfs":     map[string]any{"total": int64(96) << 30, "used": int64(8) << 30, "free": int64(88) << 30, "avail": int64(84) << 30},
		"ksm":        map[string]any{"shared": 0},
	}, nil
}

func cpuInfo(m *Machine) map[string]any {
	t := countCPUs(m)
	return map[string]any{
		"model": m.Model, "sockets": t.sockets, "cores": t.cores, "cpus": t.online, "user_hz": 100,
		"mhz": "2400.000", "hvm": "1", "flags": cpuFlags,
	}
}

// nodeConfig handles GET /nodes/{node}/config.
func nodeConfig(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	config := map[string]any{"digest": notesDigest(r.host.notes)}
	if r.host.notes != "" {
		config["description"] = r.host.notes
	}
	if only := r.p["property"]; only != "" {
		return map[string]any{only: config[only]}, nil
	}
	return config, nil
}

func notesDigest(notes string) string {
	sum := sha1.Sum([]byte(notes)) //nolint:gosec // Proxmox's config digest is SHA-1
	return hex.EncodeToString(sum[:])
}

// putNodeConfig handles PUT /nodes/{node}/config; only the notes are stored.
func putNodeConfig(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.writable(); e != nil {
		return nil, e
	}
	if r.p.has("digest") && r.p["digest"] != notesDigest(r.host.notes) {
		return nil, dief("detected modified configuration - file changed by other user? Try again.")
	}
	if holds(splitList(r.p["delete"]), "description") {
		r.host.notes = ""
	}
	if r.p.has("description") {
		r.host.notes = r.p["description"]
	}
	return nil, nil
}

// nodeTime handles GET /nodes/{node}/time.
func nodeTime(r *request) (any, error) {
	now := r.s.cfg.Clock.Now().Unix()
	return map[string]any{"time": now, "localtime": now, "timezone": "UTC"}, nil
}

// listNetwork handles GET /nodes/{node}/network: one bridge on one card, with the address in
// /cluster/status. A static interface has its address in three forms (pve-common,
// PVE/INotify.pm: __read_etc_network_interfaces).
func listNetwork(r *request) (any, error) {
	result := []any{}
	if kind := r.p["type"]; kind == "" || kind == "eth" {
		result = append(result, map[string]any{"iface": "eno1", "type": "eth", "active": 1, "exists": 1, "method": "manual", "priority": 3})
	}
	if kind := r.p["type"]; kind == "" || kind == "bridge" || kind == "any_bridge" || kind == "any_local_bridge" {
		result = append(result, map[string]any{
			"iface": "vmbr0", "type": "bridge", "active": 1, "autostart": 1, "bridge_ports": "eno1", "bridge_vlan_aware": 1,
			"method": "static", "priority": 4,
			"address": fmt.Sprintf("192.0.2.%d", r.host.id), "netmask": "24", "cidr": fmt.Sprintf("192.0.2.%d/24", r.host.id),
		})
	}
	return result, nil
}

// clusterStatus handles GET /cluster/status.
func clusterStatus(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	result := []any{map[string]any{
		"type": "cluster", "id": "cluster", "name": r.s.cfg.Name, "nodes": len(c.order), "quorate": flag(c.quorate), "version": len(c.order),
	}}
	for i, name := range c.order {
		h := c.hosts[name]
		result = append(result, map[string]any{
			"type": "node", "id": "node/" + name, "name": name, "nodeid": h.id, "online": flag(h.offline == ""), "local": flag(i == 0),
			"level": "", "ip": fmt.Sprintf("192.0.2.%d", h.id),
		})
	}
	return result, nil
}
