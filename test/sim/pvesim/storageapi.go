package pvesim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mayUse reports whether the caller may see the storage.
func (r *request) mayUse(name string) bool {
	return r.s.access.checkAny(r.who, "/storage/"+name, "Datastore.Audit", "Datastore.AllocateSpace") == nil
}

// storageStatus returns the status of a storage as seen by its host.
func storageStatus(st *storage) map[string]any {
	total, avail := st.TotalMiB<<20, st.available()
	if !st.Active {
		total, avail = 0, 0
	}
	return map[string]any{
		"type": st.Type, "content": joinContent(st.Content), "active": flag(st.Active), "enabled": 1, "shared": flag(st.Shared),
		"total": total, "avail": avail, "used": total - avail,
	}
}

// listNodeStorage handles GET /nodes/{node}/storage. Without a filter for content, the
// response includes the storages of other hosts, which are not enabled on this host. A list
// of content types matches storages with any of the types (pve-storage 9.1.7,
// PVE/Storage.pm:1440-1528, PVE/API2/Storage/Status.pm:232-262).
func listNodeStorage(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	known := r.p["storage"] == ""
	result := []any{}
	for _, name := range c.storageNames() {
		here := c.storage(r.host, name)
		if r.p.has("content") && (here == nil || !slices.ContainsFunc(splitList(r.p["content"]), func(kind string) bool { return holds(here.Content, kind) })) {
			continue
		}
		known = known || r.p["storage"] == name
		if !r.mayUse(name) || (r.p["storage"] != "" && r.p["storage"] != name) {
			continue
		}
		entry := storageStatus(cmp.Or(here, c.anyStorage(name)))
		switch {
		case here == nil:
			for _, key := range []string{"active", "enabled", "total", "avail", "used"} {
				entry[key] = 0
			}
		case here.Active && here.TotalMiB > 0:
			entry["used_fraction"] = 1 - float64(here.available())/float64(here.TotalMiB<<20)
		}
		entry["storage"] = name
		result = append(result, entry)
	}
	if !known {
		return nil, oneParamError("storage", "No such storage.")
	}
	return result, nil
}

// getStorageStatus handles GET …/storage/{storage}/status.
func getStorageStatus(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	st := c.storage(r.host, r.p["storage"])
	if st == nil { // pve-storage 9.1.7, PVE/API2/Storage/Status.pm:400-405
		return nil, oneParamError("storage", "No such storage.")
	}
	return storageStatus(st), nil
}

// clusterStorage handles GET /storage.
func clusterStorage(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	result := []any{}
	for _, name := range c.storageNames() {
		st := c.anyStorage(name)
		if r.mayUse(name) && (!r.p.has("type") || r.p["type"] == st.Type) {
			result = append(result, c.storageEntry(st))
		}
	}
	return result, nil
}

// storageEntry returns a storage's configuration, including its hosts unless all hosts have
// it.
func (c *cluster) storageEntry(st *storage) map[string]any {
	entry := map[string]any{"storage": st.Name, "type": st.Type, "content": joinContent(st.Content), "digest": notesDigest(st.Name + st.Type)}
	if st.Shared {
		entry["shared"] = 1
	}
	if st.hasPath() {
		entry["path"] = "/var/lib/vz"
	}
	var nodes []string
	for _, name := range c.order {
		if holds(c.hosts[name].storages, st.Name) {
			nodes = append(nodes, name)
		}
	}
	if len(nodes) < len(c.order) {
		entry["nodes"] = strings.Join(nodes, ",")
	}
	return entry
}

// getStorage handles GET /storage/{storage}.
func getStorage(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	if st := c.anyStorage(r.p["storage"]); st != nil {
		return c.storageEntry(st), nil
	}
	return nil, dief("storage '%s' does not exist", r.p["storage"])
}

// listContent handles GET …/storage/{storage}/content.
func listContent(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	st, e := c.needStorage(r.host, r.p["storage"])
	if e != nil {
		return nil, e
	}
	result := []any{}
	for _, id := range sortedKeys(st.volumes) {
		v := st.volumes[id]
		if (r.p.has("content") && r.p["content"] != v.content) || (r.p.has("vmid") && r.p.number("vmid") != v.vmid) {
			continue
		}
		if !r.who.isRoot() && r.readable(0, st.Name, id) != nil {
			continue
		}
		entry := map[string]any{"volid": id, "content": v.content, "format": v.format, "size": v.size, "ctime": v.created.Unix()}
		if strings.HasPrefix(st.Type, "lvm") { // as printed by lvs (pve-storage 9.1.7, PVE/Storage/LVMPlugin.pm:238-264)
			entry["ctime"] = strconv.FormatInt(v.created.Unix(), 10)
		}
		if v.vmid != 0 {
			entry["vmid"] = v.vmid
		}
		if v.parent != "" {
			_, name, _ := strings.Cut(v.parent, ":")
			entry["parent"] = name
		}
		result = append(result, entry)
	}
	return result, nil
}

// volumeParam returns the full ID of the volume in the path, which can omit the storage.
func (r *request) volumeParam() (string, *apiError) {
	volume := r.p["volume"]
	name, _, ok := strings.Cut(volume, ":")
	switch {
	case !ok:
		return r.p["storage"] + ":" + volume, nil
	case r.p["storage"] != "" && name != r.p["storage"]:
		return "", oneParamError("volume", "storage ID mismatch (%s != %s)\n", name, r.p["storage"])
	}
	return volume, nil
}

// getVolume handles GET …/content/{volume}.
func getVolume(r *request) (any, error) {
	id, e := r.volumeParam()
	if e != nil {
		return nil, e
	}
	name, file, _ := strings.Cut(id, ":")
	if !r.who.isRoot() {
		if e := r.readable(0, name, id); e != nil {
			return nil, e
		}
	}
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	if _, e := c.needStorage(r.host, name); e != nil {
		return nil, e
	}
	_, v := c.findVolume(r.host, id)
	if v == nil {
		return nil, dief("volume_size_info on '%s' failed - no format", id)
	}
	return map[string]any{"path": "/var/lib/vz/template/" + file, "format": v.format, "size": v.size, "used": v.size}, nil
}

// VolumeData returns the content of a volume on a host's storage, which is nil for an
// image, and reports false if the volume does not exist.
func (s *Server) VolumeData(host, volid string) ([]byte, bool) {
	s.state.mu.RLock()
	defer s.state.mu.RUnlock()
	h := s.state.hosts[host]
	if h == nil {
		return nil, false
	}
	_, v := s.state.findVolume(h, volid)
	if v == nil {
		return nil, false
	}
	return v.data, true
}

// Volumes returns the IDs of all volumes of a host's storages, sorted.
func (s *Server) Volumes(host string) []string {
	s.state.mu.RLock()
	defer s.state.mu.RUnlock()
	ids := map[string]bool{}
	if h := s.state.hosts[host]; h != nil {
		for _, name := range h.storages {
			for id := range s.state.storage(h, name).volumes {
				ids[id] = true
			}
		}
	}
	return sortedKeys(ids)
}

// PutISO stores an ISO on a host's storage without using the API.
func (s *Server) PutISO(host, storage, name string, data []byte) error {
	return s.putFile(host, storage, "iso", name, data)
}

// PutSnippet stores an executable script on a host's storage.
func (s *Server) PutSnippet(host, storage, name string) error {
	return s.putFile(host, storage, "snippets", name, []byte("#!/bin/sh\n"))
}

func (s *Server) putFile(host, storage, content, name string, data []byte) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.hosts[host]
	if h == nil {
		return fmt.Errorf("putting %s %s: no host %q", content, name, host)
	}
	st := s.state.storage(h, storage)
	if st == nil {
		return fmt.Errorf("putting %s %s: no storage %q on %s", content, name, storage, host)
	}
	s.state.addVolume(st, &volume{id: storage + ":" + content + "/" + name, content: content, format: content, size: int64(len(data)), data: data})
	return nil
}
