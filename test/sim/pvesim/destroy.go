package pvesim

import (
	"context"
)

// destroyVM handles DELETE of a VM. The checks run before the task and in it.
func destroyVM(r *request) (any, error) {
	if e := r.rootOnly("skiplock"); e != nil {
		return nil, e
	}
	if e := r.checkDestroy(); e != nil {
		return nil, e
	}
	return r.fork("qmdestroy", r.p["vmid"], r.destroyWork), nil
}

func (r *request) checkDestroy() *apiError {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	switch {
	case g.conf["protection"] == "1":
		return dief("can't remove VM %d - protection mode enabled", g.id)
	case g.ha && !r.p.flag("purge"):
		return dief("unable to remove VM %d - used in HA resources and purge parameter not set.", g.id)
	case g.running:
		return dief("VM %d is running - destroy failed", g.id)
	}
	return c.writable()
}

func (r *request) destroyWork(ctx context.Context, t *task) error {
	c := r.s.state
	release, err := c.lockGuest(ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
	if err != nil {
		return err
	}
	defer release()
	if e := r.checkDestroy(); e != nil {
		return e
	}
	if err := r.markDestroyed(); err != nil {
		return err
	}
	if err := r.s.tasks.sleep(ctx, r.s.delays().Destroy); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	event, err := r.destroyGuest()
	if err != nil {
		return err
	}
	r.s.powered(event)
	if h := r.s.cfg.Hypervisor; h != nil {
		return h.Remove(r.p.number("vmid"))
	}
	return nil
}

func (r *request) destroyGuest() (*PowerEvent, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	event := r.s.event(Destroyed, g)
	r.freeDisks(g)
	c.remove(g.id)
	r.s.access.forget()
	return event, nil
}

// markDestroyed locks the guest's configuration. It returns an error if the guest is
// locked, or is a template with linked clones.
func (r *request) markDestroyed() error {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	if e := g.checkLock(); e != nil && !r.p.flag("skiplock") {
		return e
	}
	if g.isTemplate() {
		for _, volid := range r.disks(g) {
			if st, v := c.findVolume(r.host, volid); v != nil && st.inUse(volid) {
				return dief("base volume '%s' is still in use by linked cloned", volid)
			}
		}
	}
	g.conf["lock"] = "destroyed"
	g.changed()
	return nil
}

// disks returns the volumes that are in the guest's options and owned by the guest.
func (r *request) disks(g *guest) []string {
	var ids []string
	for _, key := range sortedKeys(g.conf) {
		if !driveName.MatchString(key) && !unusedName.MatchString(key) {
			continue
		}
		as := key
		if unusedName.MatchString(key) {
			as = "scsi0"
		}
		if d, e := r.s.parseDrive(as, g.conf[key]); e == nil && ownerOf(d.volume()) == g.id {
			ids = append(ids, d.volume())
		}
	}
	return ids
}

// freeDisks frees the guest's volumes and, with destroy-unreferenced-disks, also volumes
// that are not in its options.
func (r *request) freeDisks(g *guest) {
	c := r.s.state
	for _, id := range r.disks(g) {
		if st, v := c.findVolume(g.host, id); v != nil {
			c.freeVolume(st, id)
		}
	}
	if r.p.flag("destroy-unreferenced-disks") {
		c.freeImages(g)
	}
}

// freeImages frees all disk images of a guest on the storages of its host.
func (c *cluster) freeImages(g *guest) {
	for _, name := range g.host.storages {
		st := c.storage(g.host, name)
		for _, id := range sortedKeys(st.volumes) {
			if v := st.volumes[id]; v.vmid == g.id && v.content == "images" {
				c.freeVolume(st, id)
			}
		}
	}
}
