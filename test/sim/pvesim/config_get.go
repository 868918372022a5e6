package pvesim

import (
	"encoding/json"
	"maps"
	"strconv"
)

// hiddenPassword replaces a cloud-init password.
const hiddenPassword = "**********"

func vmPath(vmid int) string { return "/vms/" + strconv.Itoa(vmid) }

// guest returns the guest in the request, which must be of that kind and on the request's
// host. The caller must hold the cluster's lock.
func (r *request) guest(kind GuestKind) (*guest, *apiError) {
	id := r.p.number("vmid")
	g := r.s.state.guests[id]
	if g == nil || g.host != r.host || g.kind != kind {
		return nil, dief("Configuration file '%s' does not exist", confPath(r.host.name, kind, id))
	}
	return g, nil
}

// typed returns an option as in Proxmox's JSON: booleans and integers are numbers,
// everything else is text.
func (s *Server) typed(key, text string) any {
	option := s.options()[key]
	if option == nil || (option.Type != "boolean" && option.Type != "integer") {
		return text
	}
	if _, err := strconv.ParseInt(text, 10, 64); err != nil {
		return text
	}
	return json.Number(text)
}

// getConfig handles GET …/config: with pending values, unless current is set.
func getConfig(r *request) (any, error) {
	if r.p.has("snapshot") && r.p.flag("current") {
		text := "cannot use 'snapshot' parameter with 'current'"
		return nil, paramError(map[string]string{"snapshot": text, "current": text})
	}
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	if r.p.has("snapshot") {
		return nil, dief("snapshot '%s' does not exist", r.p["snapshot"])
	}
	conf := maps.Clone(g.conf)
	if !r.p.flag("current") {
		maps.Copy(conf, g.pending)
		for key := range g.drop {
			delete(conf, key)
		}
	}
	return r.s.renderConfig(conf, g.sum()), nil
}

func (s *Server) renderConfig(conf map[string]string, digest string) map[string]any {
	result := make(map[string]any, len(conf)+1)
	for key, text := range conf {
		result[key] = s.typed(key, text)
	}
	if conf["cipassword"] != "" {
		result["cipassword"] = hiddenPassword
	}
	result["digest"] = digest
	return result
}

// getPending handles GET …/pending: each option with its value and its pending value or
// deletion.
func getPending(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	keys := map[string]bool{}
	for _, m := range []map[string]string{g.conf, g.pending} {
		for key := range m {
			keys[key] = true
		}
	}
	result := []any{}
	for _, key := range sortedKeys(keys) {
		entry := map[string]any{"key": key}
		if text, ok := g.conf[key]; ok {
			entry["value"] = r.s.shown(key, text)
		}
		if text, ok := g.pending[key]; ok {
			entry["pending"] = r.s.shown(key, text)
		}
		if forced, ok := g.drop[key]; ok {
			entry["delete"] = 1
			if forced {
				entry["delete"] = 2
			}
		}
		result = append(result, entry)
	}
	return result, nil
}

func (s *Server) shown(key, text string) any {
	if key == "cipassword" {
		return hiddenPassword
	}
	return s.typed(key, text)
}

// getContainerConfig handles GET …/lxc/{vmid}/config.
func getContainerConfig(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestContainer)
	if e != nil {
		return nil, e
	}
	result := map[string]any{"digest": g.sum()}
	for key, text := range g.conf {
		result[key] = text
		if _, err := strconv.Atoi(text); err == nil {
			result[key] = json.Number(text)
		}
	}
	return result, nil
}

// cloudinitPending handles GET …/cloudinit.
func cloudinitPending(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	result := []any{}
	for _, key := range sortedKeys(g.conf) {
		if isCloudinitOption(key) {
			result = append(result, map[string]any{"key": key, "value": r.s.shown(key, g.conf[key])})
		}
	}
	return result, nil
}

// regenerateCloudinit handles PUT …/cloudinit.
func regenerateCloudinit(r *request) (any, error) {
	release, err := r.s.state.lockGuest(r.ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	defer release()
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e == nil {
		e = g.checkLock()
	}
	if e != nil {
		return nil, e
	}
	return nil, nil
}
