package pvesim

import (
	"context"
	"strings"
)

// resizeDisk handles PUT …/resize. All errors except a refused skiplock are errors of the
// task.
func resizeDisk(r *request) (any, error) {
	if e := r.rootOnly("skiplock"); e != nil {
		return nil, e
	}
	return r.fork("resize", r.p["vmid"], func(ctx context.Context, t *task) error {
		release, err := r.s.state.lockGuest(ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
		if err != nil {
			return err
		}
		defer release()
		if err := r.s.tasks.sleep(ctx, r.s.delays().Resize); err != nil {
			return err
		}
		if err := t.injected(); err != nil {
			return err
		}
		if e := r.resizeNow(); e != nil {
			return e
		}
		return nil
	}), nil
}

func (r *request) resizeNow() *apiError {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	if r.p.has("digest") && r.p["digest"] != g.sum() {
		return dief("checksum mismatch (file change by other user?)")
	}
	if e := g.checkLock(); e != nil && !r.p.flag("skiplock") {
		return e
	}
	if e := c.writable(); e != nil {
		return e
	}
	key := r.p["disk"]
	text, ok := g.conf[key]
	if !ok {
		return dief("disk '%s' does not exist", key)
	}
	d, e := r.s.parseDrive(key, text)
	if e != nil {
		return e
	}
	if d.cdrom() {
		return dief("you can't resize a cdrom")
	}
	return r.growDisk(g, key, d)
}

func (r *request) growDisk(g *guest, key string, d drive) *apiError {
	c := r.s.state
	name, _, _ := strings.Cut(d["file"], ":")
	if e := r.s.access.check(r.who, "/storage/"+name, "Datastore.AllocateSpace"); e != nil {
		return e
	}
	st, v := c.findVolume(g.host, d["file"])
	if v == nil {
		return dief("Could not determine current size of volume '%s'", d["file"])
	}
	text, add := strings.CutPrefix(r.p["size"], "+")
	size, _ := parseSize(text)
	if add {
		size += v.size
	}
	switch {
	case size < v.size:
		return dief("shrinking disks is not supported")
	case size == v.size:
		return nil
	case !st.room(size-v.size, true):
		return dief("%s", st.noGrowth(v.id, size-v.size))
	case st.thick():
		v.taken += size - v.size
		st.used += size - v.size
	}
	v.size = size
	d["size"] = formatSize(size)
	g.conf[key] = d.String()
	if g.running {
		g.live[key] = g.conf[key]
	}
	g.changed()
	return nil
}
