package pvesim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// clusterResources handles GET /cluster/resources. Guests are rendered once per change,
// because a refresh reads this list for each of its VMs.
func clusterResources(r *request) (any, error) {
	c := r.s.state
	want := func(kind string) bool { return r.p["type"] == "" || r.p["type"] == kind }
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]byte, 1, 512*(len(c.guests)+1))
	out[0] = '['
	if want("vm") {
		for _, id := range c.vmids() {
			if r.s.access.check(r.who, vmPath(id), "VM.Audit") == nil {
				out = append(r.appendResource(out, c.guests[id]), ',')
			}
		}
	}
	for _, entry := range r.otherResources(want) {
		text, err := json.Marshal(entry)
		if err != nil {
			return nil, fmt.Errorf("encoding resource: %w", err)
		}
		out = append(append(out, text...), ',')
	}
	return preRendered(append(bytes.TrimSuffix(out, []byte{','}), ']')), nil
}

// appendResource appends the guest's entry, from its cache if the guest has not changed.
// The entry contains the pool only for callers with Pool.Audit (pve-manager 9.2.11,
// PVE/API2/Cluster.pm:598-603).
func (r *request) appendResource(out []byte, g *guest) []byte {
	c := r.s.state
	if g.resource == nil {
		entry := c.resourceMap(g)
		delete(entry, "uptime")
		delete(entry, "pool")
		text, _ := json.Marshal(entry)
		g.resource = text[:len(text)-1]
	}
	uptime := int64(0)
	if g.running && g.host.offline == "" {
		uptime = c.uptime(g.started)
	}
	out = append(out, g.resource...)
	if pool := c.pools.of(g.id); pool != "" && r.s.access.check(r.who, "/pool/"+pool, "Pool.Audit") == nil {
		out = append(append(append(out, `,"pool":"`...), pool...), '"') // a pool's name needs no quoting
	}
	out = append(out, `,"uptime":`...)
	return append(strconv.AppendInt(out, uptime, 10), '}')
}

// resourceMap returns a guest's entry in /cluster/resources and in pools.
func (c *cluster) resourceMap(g *guest) map[string]any {
	status := c.status(g, false)
	entry := map[string]any{
		"id": fmt.Sprintf("%s/%d", g.kind, g.id), "type": string(g.kind), "node": g.host.name, "maxcpu": status["cpus"], "template": 0,
	}
	for _, key := range []string{"vmid", "name", "status", "maxmem", "maxdisk", "disk", "diskread", "diskwrite", "netin", "netout", "cpu", "mem", "uptime", "tags", "lock"} {
		if v, ok := status[key]; ok {
			entry[key] = v
		}
	}
	if g.isTemplate() {
		entry["template"] = 1
	}
	if g.host.offline != "" {
		entry["status"] = "unknown"
	}
	if pool := c.pools.of(g.id); pool != "" {
		entry["pool"] = pool
	}
	if g.ha {
		entry["hastate"] = "started"
	}
	return entry
}

func (r *request) otherResources(want func(string) bool) []any {
	c := r.s.state
	var entries []any
	if r.p["type"] == "" { // pools are only listed without a filter
		entries = append(entries, r.poolResources()...)
	}
	for _, name := range c.order {
		h := c.hosts[name]
		if want("node") {
			node := c.nodeEntry(h)
			node["id"], node["type"], node["node"] = "node/"+name, "node", name
			delete(node, "ssl_fingerprint")
			if h.maintenance {
				node["hastate"] = "maintenance"
			}
			if r.s.access.check(r.who, "/nodes/"+name, "Sys.Audit") != nil {
				for _, key := range []string{"cpu", "maxcpu", "mem", "maxmem", "disk", "maxdisk", "uptime"} {
					delete(node, key)
				}
			}
			entries = append(entries, node)
		}
		if want("storage") {
			entries = append(entries, r.storageResources(h)...)
		}
		// Proxmox VE 9 lists networks, but only without a filter (pve-manager 9.2.11,
		// PVE/API2/Cluster.pm:690-704).
		if r.s.cfg.major() == 9 {
			if r.p["type"] == "" && r.s.access.check(r.who, "/sdn/zones/localnetwork", "SDN.Audit") == nil {
				entries = append(entries, map[string]any{
					"id": "network/" + name + "/zone/localnetwork", "type": "network", "network-type": "zone", "network": "localnetwork",
					"node": name, "status": "ok",
				})
			}
			continue
		}
		if want("sdn") && r.s.access.checkAny(r.who, "/sdn/zones/localnetwork", "SDN.Audit", "SDN.Allocate") == nil {
			entries = append(entries, map[string]any{"id": "sdn/" + name + "/localnetwork", "type": "sdn", "sdn": "localnetwork", "node": name, "status": "ok"})
		}
	}
	return entries
}

func (r *request) poolResources() []any {
	var entries []any
	for _, id := range r.s.state.pools.ids() {
		if r.s.access.check(r.who, "/pool/"+id, "Pool.Audit") == nil {
			entries = append(entries, map[string]any{"id": "/pool/" + id, "type": "pool", "pool": id})
		}
	}
	return entries
}

func (r *request) storageResources(h *host) []any {
	var entries []any
	for _, name := range h.storages {
		if r.s.access.check(r.who, "/storage/"+name, "Datastore.Audit") != nil {
			continue
		}
		st := r.s.state.storage(h, name)
		entry := map[string]any{
			"id": "storage/" + h.name + "/" + name, "type": "storage", "storage": name, "node": h.name, "plugintype": st.Type,
			"content": joinContent(st.Content), "shared": flag(st.Shared), "status": "available",
			"disk": st.TotalMiB<<20 - st.available(), "maxdisk": st.TotalMiB << 20,
		}
		if h.offline != "" || !st.Active { // pvestatd reports no figures (pve-manager 9.2.11, PVE/API2Tools.pm:126-142)
			entry["status"] = "unknown"
			delete(entry, "disk")
			delete(entry, "maxdisk")
		}
		entries = append(entries, entry)
	}
	return entries
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// nextID handles GET /cluster/nextid, which reserves nothing.
func nextID(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	if r.p.has("vmid") {
		if c.guests[r.p.number("vmid")] != nil {
			return nil, oneParamError("vmid", "VM %s already exists", r.p["vmid"])
		}
		return r.p["vmid"], nil
	}
	for id := 100; ; id++ {
		if c.guests[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
}

// listGuests handles GET /nodes/{node}/qemu and …/lxc.
func listGuests(kind GuestKind) handler {
	return func(r *request) (any, error) {
		c := r.s.state
		c.mu.RLock()
		defer c.mu.RUnlock()
		result := []any{}
		for _, id := range r.host.vmids(kind) {
			if r.s.access.check(r.who, vmPath(id), "VM.Audit") != nil {
				continue
			}
			status := c.status(r.host.guests[id], r.p.flag("full"))
			if kind == GuestContainer {
				status["type"] = "lxc"
			}
			result = append(result, status)
		}
		return result, nil
	}
}
