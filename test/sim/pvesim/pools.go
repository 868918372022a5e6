package pvesim

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// letterFirst matches a text that starts with a letter, as the last part of a pool's name
// must.
var letterFirst = regexp.MustCompile(`^[A-Za-z]`)

// poolSet contains the resource pools and their members.
type poolSet struct {
	// mu guards the fields below.
	mu       sync.RWMutex
	comments map[string]string // by pool
	guests   map[int]string    // pool by VMID
	storages map[string]string // pool by storage
}

func newPoolSet(ids []string) *poolSet {
	p := &poolSet{comments: map[string]string{}, guests: map[int]string{}, storages: map[string]string{}}
	for _, id := range ids {
		p.comments[id] = ""
	}
	return p
}

// of returns the pool of a guest, or "".
func (p *poolSet) of(vmid int) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.guests[vmid]
}

// ofPath returns the pool of a path such as /vms/100 or /storage/tank, or "".
func (p *poolSet) ofPath(path string) string {
	parts := splitPath(path)
	if len(parts) != 2 {
		return ""
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	switch parts[0] {
	case "vms":
		return p.guests[number(parts[1])]
	case "storage":
		return p.storages[parts[1]]
	}
	return ""
}

func (p *poolSet) exists(id string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	_, ok := p.comments[id]
	return ok
}

// ids returns the pools, sorted.
func (p *poolSet) ids() []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return sortedKeys(p.comments)
}

// create creates the pool and reports whether it did not exist.
func (p *poolSet) create(id, comment string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.comments[id]; ok {
		return false
	}
	p.comments[id] = comment
	return true
}

// below returns a pool whose parent is id, or "".
func (p *poolSet) below(id string) string {
	for _, other := range p.ids() {
		if rest, ok := strings.CutPrefix(other, id+"/"); ok && !strings.Contains(rest, "/") {
			return other
		}
	}
	return ""
}

// move adds a guest to a pool; "" removes it from its pool.
func (p *poolSet) move(vmid int, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.guests, vmid)
	if id != "" {
		p.guests[vmid] = id
	}
}

// members returns the guests and storages of a pool, sorted as text.
func (p *poolSet) members(id string) (vmids []int, storages []string) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	byID := map[string]bool{}
	for vmid, in := range p.guests {
		if in == id {
			byID[strconv.Itoa(vmid)] = true
		}
	}
	for _, text := range sortedKeys(byID) {
		vmids = append(vmids, number(text))
	}
	for _, name := range sortedKeys(p.storages) {
		if p.storages[name] == id {
			storages = append(storages, name)
		}
	}
	return vmids, storages
}

// listPools handles GET /pools; the parameter poolid selects a single pool.
func listPools(r *request) (any, error) {
	p := r.s.state.pools
	p.mu.RLock()
	ids := sortedKeys(p.comments)
	comments := map[string]string{}
	for _, id := range ids {
		comments[id] = p.comments[id]
	}
	p.mu.RUnlock()
	result := []any{}
	for _, id := range ids {
		if only := r.p["poolid"]; only != "" && only != id {
			continue
		}
		// A pool requested by name is shown to all users: PVE/API2/Pool.pm:97 of
		// pve-manager 9.2.11 ignores the result of the check.
		if !r.p.has("poolid") && r.s.access.check(r.who, "/pool/"+id, "Pool.Audit") != nil {
			continue
		}
		entry := map[string]any{"poolid": id}
		if comments[id] != "" {
			entry["comment"] = comments[id]
		}
		if r.p.has("poolid") {
			entry["members"] = r.poolMembers(id)
		}
		result = append(result, entry)
	}
	if r.p.has("poolid") && len(result) == 0 {
		return nil, dief("pool '%s' does not exist", r.p["poolid"])
	}
	return result, nil
}

// getPool handles GET /pools/{poolid}.
func getPool(r *request) (any, error) {
	id := r.p["poolid"]
	if !r.s.state.pools.exists(id) {
		return nil, dief("pool '%s' does not exist", id)
	}
	return map[string]any{"members": r.poolMembers(id)}, nil
}

func (r *request) poolMembers(id string) []any {
	vmids, storages := r.s.state.pools.members(id)
	result := []any{}
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	for _, vmid := range vmids {
		if g := r.s.state.guests[vmid]; g != nil && r.s.access.check(r.who, vmPath(vmid), "VM.Audit") == nil {
			result = append(result, r.s.state.resourceMap(g))
		}
	}
	for _, name := range storages {
		result = append(result, map[string]any{"id": "storage/" + name, "type": "storage", "storage": name, "node": r.s.state.order[0]})
	}
	return result
}

// createPool handles POST /pools.
func createPool(r *request) (any, error) {
	if e := r.s.state.writableNow(); e != nil {
		return nil, e
	}
	id, p := r.p["poolid"], r.s.state.pools
	if p.exists(id) {
		return nil, dief("create pool failed: pool '%s' already exists", id)
	}
	at := strings.LastIndex(id, "/")
	if at >= 0 && !p.exists(id[:at]) {
		return nil, dief("create pool failed: parent '%s' of pool '%s' does not exist", id[:at], id)
	}
	if !letterFirst.MatchString(id[at+1:]) {
		return nil, dief("create pool failed: pool name must start with a letter")
	}
	if !p.create(id, r.p["comment"]) {
		return nil, dief("create pool failed: pool '%s' already exists", id)
	}
	return nil, nil
}

// deletePool handles DELETE of a pool, which must be empty.
func deletePool(r *request) (any, error) {
	id := r.p["poolid"]
	if e := r.s.state.writableNow(); e != nil {
		return nil, e
	}
	p := r.s.state.pools
	if !p.exists(id) {
		return nil, dief("delete pool failed: pool '%s' does not exist", id)
	}
	vmids, storages := p.members(id)
	switch below := p.below(id); {
	case below != "":
		return nil, dief("delete pool failed: pool '%s' is not empty (contains pool '%s')", id, below)
	case len(vmids) > 0:
		return nil, dief("delete pool failed: pool '%s' is not empty (contains VM %d)", id, vmids[0])
	case len(storages) > 0:
		return nil, dief("delete pool failed: pool '%s' is not empty (contains storage '%s')", id, storages[0])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.comments, id)
	return nil, nil
}

// updatePool handles PUT of a pool: changes its comment, and adds or, with delete, removes
// members.
func updatePool(r *request) (any, error) {
	id := r.p["poolid"]
	p := r.s.state.pools
	if e := r.s.state.writableNow(); e != nil {
		return nil, e
	}
	if !p.exists(id) {
		return nil, dief("update pools failed: pool '%s' does not exist", id)
	}
	if r.p.has("comment") {
		p.mu.Lock()
		p.comments[id] = r.p["comment"]
		p.mu.Unlock()
	}
	for _, text := range splitList(r.p["vms"]) {
		if e := r.movePoolGuest(id, number(text)); e != nil {
			return nil, e
		}
	}
	p.mu.Lock()
	for _, name := range splitList(r.p["storage"]) {
		if p.storages[name] = id; r.p.flag("delete") {
			delete(p.storages, name)
		}
	}
	p.mu.Unlock()
	r.s.access.forget()
	return nil, nil
}

func (r *request) movePoolGuest(id string, vmid int) *apiError {
	p := r.s.state.pools
	if e := r.s.access.checkModify(r.who, vmPath(vmid)); e != nil {
		return locked("update pools failed", e)
	}
	old := p.of(vmid)
	switch {
	case r.p.flag("delete") && old != id:
		return dief("update pools failed: VM %d is not a pool member", vmid)
	case r.p.flag("delete"):
		p.move(vmid, "")
		return nil
	case old == id:
		return dief("update pools failed: VM %d is already a pool member", vmid)
	case old != "" && !r.p.flag("allow-move"):
		return dief("update pools failed: VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, old)
	}
	if old != "" {
		if e := r.s.access.check(r.who, "/pool/"+old, "Pool.Allocate"); e != nil {
			return locked("update pools failed", e)
		}
	}
	p.move(vmid, id)
	return nil
}

// locked returns a 500 with the code and the message of e, as
// PVE::AccessControl::lock_user_config does (pve-access-control 9.1.1,
// src/PVE/AccessControl.pm:81-94).
func locked(prefix string, e *apiError) *apiError {
	return dief("%s: %d %s", prefix, e.code, e.message)
}
