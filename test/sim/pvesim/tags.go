package pvesim

import "slices"

// TagAccess contains the datacenter's options for tags. They apply to users without
// Sys.Modify on / (pve-guest-common 6.0.2, PVE/GuestHelpers.pm:271-347; pve-cluster 9.1.6,
// PVE/DataCenterConfig.pm:321-350, 527-541).
type TagAccess struct {
	// Allow selects the tags that may be added and removed: none, list, existing or free,
	// the default.
	Allow string
	// List contains the tags that Allow permits if it is list or existing.
	List []string
	// Registered are the tags that require Sys.Modify regardless of Allow.
	Registered []string
}

// allowedTags returns the tags that the caller may set if Allow is not free. The caller
// must hold the cluster's lock.
func (r *request) allowedTags() map[string]bool {
	access := r.s.cfg.Tags
	privileged := r.s.access.check(r.who, "/", "Sys.Modify") == nil
	allowed := map[string]bool{}
	if access.Allow != "none" || privileged {
		for _, tag := range access.List {
			allowed[tag] = true
		}
	}
	if access.Allow == "" || access.Allow == "free" || access.Allow == "existing" || privileged {
		for id, g := range r.s.state.guests {
			if r.s.access.check(r.who, vmPath(id), "VM.Audit") == nil {
				for _, tag := range splitList(g.conf["tags"]) {
					allowed[tag] = true
				}
			}
		}
	}
	for _, tag := range access.Registered {
		delete(allowed, tag)
		if privileged {
			allowed[tag] = true
		}
	}
	return allowed
}

// checkTags returns an error unless the caller may add and remove the tags that differ. The
// caller must hold the cluster's lock.
func (r *request) checkTags(vmid int, before, after string) *apiError {
	if e := r.checkVM(vmid, "VM.Config.Options"); e != nil {
		return e
	}
	if r.s.access.check(r.who, "/", "Sys.Modify") == nil {
		return nil
	}
	access := r.s.cfg.Tags
	free := access.Allow == "" || access.Allow == "free"
	allowed := r.allowedTags()
	balance := map[string]int{}
	for _, tag := range splitList(before) {
		balance[tag]--
	}
	for _, tag := range splitList(after) {
		balance[tag]++
	}
	for _, tag := range sortedKeys(balance) {
		if balance[tag] != 0 && (slices.Contains(access.Registered, tag) || !free && !allowed[tag]) {
			return permissionError("/, Sys.Modify for modifying tag '" + tag + "'")
		}
	}
	return nil
}

// clusterOptions handles GET /cluster/options (pve-manager 9.2.11, PVE/API2/Cluster.pm:773-826).
func clusterOptions(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	options := map[string]any{"allowed-tags": sortedKeys(r.allowedTags())}
	if r.s.access.check(r.who, "/", "Sys.Audit") != nil {
		return options, nil
	}
	options["keyboard"], options["mac_prefix"] = "en-us", "BC:24:11"
	if access := r.s.cfg.Tags; access.Allow != "" || len(access.List) > 0 {
		tags := map[string]any{}
		if access.Allow != "" {
			tags["user-allow"] = access.Allow
		}
		if len(access.List) > 0 {
			tags["user-allow-list"] = access.List
		}
		options["user-tag-access"] = tags
	}
	if len(r.s.cfg.Tags.Registered) > 0 {
		options["registered-tags"] = r.s.cfg.Tags.Registered
	}
	return options, nil
}
