package pvesim

import (
	"strconv"
	"strings"
)

// vmFeature handles GET …/feature.
func vmFeature(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	shared, has := true, true
	for _, id := range r.disks(g) {
		if st, v := c.findVolume(r.host, id); v != nil {
			shared = shared && st.Shared
			has = has && (r.p["feature"] != "clone" || (strings.Contains(id, "base-") && st.canLink()))
		}
	}
	nodes := []string{r.host.name}
	if shared {
		nodes = c.order
	}
	return map[string]any{"hasFeature": flag(has), "nodes": nodes}, nil
}

// listSnapshots handles GET …/snapshot; only the current state is listed.
func listSnapshots(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	return []any{map[string]any{"name": "current", "digest": g.sum(), "running": flag(g.running), "description": "You are here!"}}, nil
}

// haEntry returns a guest's entry in the HA manager.
func haEntry(g *guest) map[string]any {
	prefix := "vm:"
	if g.kind == GuestContainer {
		prefix = "ct:"
	}
	sid := prefix + strconv.Itoa(g.id)
	return map[string]any{"sid": sid, "type": strings.TrimSuffix(prefix, ":"), "state": "started", "digest": notesDigest(sid)}
}

// listHA handles GET /cluster/ha/resources.
func listHA(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	result := []any{}
	for _, id := range c.vmids() {
		if g := c.guests[id]; g.ha {
			result = append(result, haEntry(g))
		}
	}
	return result, nil
}

// getHA handles GET /cluster/ha/resources/{sid}.
func getHA(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	sid := r.p["sid"]
	_, id, typed := strings.Cut(sid, ":")
	g := c.guests[number(id)]
	if !typed { // pve-ha-manager 5.2.0, PVE/HA/Config.pm:194-204
		if g = c.guests[number(sid)]; g == nil {
			return nil, dief("unable to detect SID from VMID - VM/CT %s does not exist", sid)
		}
		sid = haEntry(g)["sid"].(string)
	}
	if g == nil || !g.ha || haEntry(g)["sid"] != sid {
		return nil, dief("no such resource '%s'", sid)
	}
	return haEntry(g), nil
}
