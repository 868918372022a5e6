package pvesim

import (
	"context"
	"strings"
)

// migratePreconditions handles GET …/migrate.
func migratePreconditions(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	local := []any{}
	for _, id := range r.disks(g) {
		if st, v := c.findVolume(r.host, id); v != nil && !st.Shared {
			local = append(local, map[string]any{"volid": id, "size": v.size, "cdrom": 0, "is_unused": 0})
		}
	}
	running := 0
	if g.running {
		running = 1
	}
	return map[string]any{"running": running, "local_disks": local, "local_resources": []any{}, "mapped-resources": []any{}}, nil
}

// migrateVM handles POST …/migrate.
func migrateVM(r *request) (any, error) {
	if e := r.rootOnly("force", "migration_type", "migration_network"); e != nil {
		return nil, e
	}
	if e := r.checkMigrate(); e != nil {
		return nil, e
	}
	return r.fork("qmigrate", r.p["vmid"], r.migrateWork), nil
}

func (r *request) checkMigrate() *apiError {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	name := r.p["target"]
	if name == r.host.name {
		return oneParamError("target", "target is local node.")
	}
	if e := c.writable(); e != nil {
		return e
	}
	if c.hosts[name] == nil {
		return dief("no such cluster node '%s'", name)
	}
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	if e := g.checkLock(); e != nil {
		return e
	}
	if g.running && !r.p.flag("online") {
		return dief("can't migrate running VM without --online")
	}
	return nil
}

func (r *request) migrateWork(ctx context.Context, t *task) error {
	c := r.s.state
	release, err := c.lockGuest(ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
	if err != nil {
		return err
	}
	defer release()
	if e := r.checkMigrate(); e != nil {
		return e
	}
	if err := r.s.tasks.sleep(ctx, r.s.delays().Clone); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	to := c.hosts[r.p["target"]]
	if to.offline != "" {
		return dief("migration aborted: can't connect to destination address")
	}
	if e := r.moveDisks(g, to); e != nil {
		return e
	}
	delete(g.host.guests, g.id)
	g.host.show(g.id)
	g.host = to
	to.guests[g.id] = g
	if g.running {
		g.pid = c.newPID(g)
	}
	g.changed()
	return nil
}

// moveDisks moves local disks with the guest. For a running guest, the request must contain
// with-local-disks.
func (r *request) moveDisks(g *guest, to *host) *apiError {
	c := r.s.state
	for _, id := range r.disks(g) {
		st, v := c.findVolume(g.host, id)
		if v == nil || st.Shared {
			continue
		}
		if g.running && !r.p.flag("with-local-disks") {
			return dief("migration aborted: can't migrate local disk '%s': can't live migrate attached local disks without with-local-disks option", id)
		}
		if strings.Contains(id, "/base-") || v.parent != "" && strings.Contains(id, "base-") {
			return dief("migration aborted: can't migrate '%s' as it's a clone of '%s'", id, v.parent)
		}
		there, e := c.needStorage(to, st.Name)
		if e != nil {
			return e
		}
		c.freeVolume(st, id)
		v.parent = ""
		c.addVolume(there, v)
	}
	return nil
}
