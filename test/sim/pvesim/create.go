package pvesim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// createVM handles POST /nodes/{node}/qemu; restoring archives is not simulated.
func createVM(r *request) (any, error) {
	if r.p.has("archive") {
		return nil, &apiError{code: 501, message: "restoring an archive is not implemented by pvesim, though Proxmox VE has it"}
	}
	ch, e := r.readCreate()
	if e != nil {
		return nil, e
	}
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.writable(); e != nil {
		return nil, e
	}
	if old := c.guests[ch.vmid]; old != nil {
		return nil, dief("unable to create VM %d - %s %d already exists on node '%s'", ch.vmid, old.kindName(), ch.vmid, old.host.name)
	}
	c.put(r.host, ch.vmid, GuestVM, map[string]string{"lock": "create"})
	return r.fork("qmcreate", r.p["vmid"], func(ctx context.Context, t *task) error { return r.createWork(ctx, t, ch) }), nil
}

// readCreate parses and checks the parameters of a new guest, as readChange does for an
// existing guest.
func (r *request) readCreate() (*change, *apiError) {
	vmid := r.p.number("vmid")
	pool := r.p["pool"]
	if pool != "" && !r.s.state.pools.exists(pool) {
		return nil, permissionError("pool '" + pool + "' does not exist")
	}
	// Proxmox VE 9.2 checks the privileges for ha-managed and start before it creates the
	// VM (qemu-server 9.2.6, PVE/API2/Qemu.pm:1301-1307).
	if r.p.flag("ha-managed") && r.s.cfg.from92() {
		if e := r.s.access.check(r.who, "/", "Sys.Console"); e != nil {
			return nil, e
		}
	}
	if r.p.flag("start") && r.s.cfg.from92() {
		if e := r.checkVM(vmid, "VM.PowerMgmt"); e != nil {
			return nil, e
		}
	}
	if r.s.access.check(r.who, vmPath(vmid), "VM.Allocate") != nil &&
		(pool == "" || r.s.access.check(r.who, "/pool/"+pool, "VM.Allocate") != nil) {
		return nil, permissionError("")
	}
	ch := &change{vmid: vmid, drives: map[string]drive{}}
	ch.set = r.without("node vmid pool start storage unique force bwlimit live-restore import-working-storage ha-managed")
	for _, step := range []func(*change) *apiError{r.readDrives, r.readNets, r.readKeys, r.checkKeys, r.checkDevices, r.checkDrives, r.checkAccess} {
		if e := step(ch); e != nil {
			return nil, e
		}
	}
	if e := r.mayUseCPU(ch.set["cpu"], ""); e != nil {
		return nil, e
	}
	return ch, nil
}

// checkDevices returns an error unless the caller may pass through the host devices in the
// options.
func (r *request) checkDevices(ch *change) *apiError {
	for _, key := range sortedKeys(ch.set) {
		if e := r.checkDevice(ch.vmid, "set", key, ch.set[key]); e != nil {
			return e
		}
	}
	return nil
}

// checkDrives returns an error unless the caller may create the drives.
func (r *request) checkDrives(ch *change) *apiError {
	for _, key := range sortedKeys(ch.drives) {
		if e := r.checkDrive(ch.vmid, ch.drives[key]); e != nil {
			return e
		}
	}
	return nil
}

func (r *request) createWork(ctx context.Context, t *task, ch *change) error {
	c := r.s.state
	release, err := c.lockGuest(ctx, ch.vmid, false, cloneTimeout)
	if err != nil {
		return err
	}
	defer release()
	err = r.s.tasks.sleep(ctx, r.s.delays().Clone)
	if err == nil {
		err = t.injected()
	}
	event, err := r.finishNew(ch, err)
	r.s.powered(event)
	return err
}

// finishNew completes the new guest and returns its power event if it runs. After an error,
// it removes the guest, unless the worker was killed.
func (r *request) finishNew(ch *change, err error) (*PowerEvent, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = r.fillNew(ch)
	}
	switch {
	case errors.Is(err, errLeftBehind):
		return nil, err
	case err != nil:
		c.remove(ch.vmid)
		return nil, fmt.Errorf("unable to create VM %d - %w", ch.vmid, err)
	case c.guests[ch.vmid].running:
		return r.s.event(PoweredOn, c.guests[ch.vmid]), nil
	}
	return nil, nil
}

func (r *request) fillNew(ch *change) error {
	c := r.s.state
	g := c.guests[ch.vmid]
	if g == nil {
		return fmt.Errorf("configuration of VM %d vanished", ch.vmid)
	}
	conf := map[string]string{"meta": c.meta(), "smbios1": "uuid=" + c.uuid(g.id, "smbios"), "vmgenid": c.uuid(g.id, "vmgenid")}
	maps.Copy(conf, ch.set)
	if e := r.attachAll(g, ch, conf); e != nil {
		return e
	}
	if conf["boot"] == "" {
		conf["boot"] = "order=" + strings.Join(bootDevices(conf), ";")
	}
	if conf["tags"] != "" {
		if e := r.checkTags(g.id, "", conf["tags"]); e != nil {
			return e
		}
		conf["tags"] = uniqueTags(conf["tags"])
	}
	g.conf, g.ha = conf, r.p.flag("ha-managed")
	if g.isTemplate() {
		r.toBase(g)
	}
	g.changed()
	if r.p["pool"] != "" {
		c.pools.move(g.id, r.p["pool"])
		r.s.access.forget()
	}
	if r.p.flag("start") {
		c.run(g)
	}
	return nil
}

// attachAll creates the drives of a new guest, all of them or none.
func (r *request) attachAll(g *guest, ch *change, conf map[string]string) *apiError {
	var made []string
	for _, key := range sortedKeys(ch.drives) {
		d := ch.drives[key]
		asked := d["file"]
		stored, e := r.s.attach(r.host, g.id, key, d)
		if e != nil {
			for _, id := range made {
				st, _ := r.s.state.findVolume(r.host, id)
				r.s.state.freeVolume(st, id)
			}
			return e
		}
		if d["file"] != asked {
			made = append(made, d["file"])
		}
		conf[key] = stored
	}
	return nil
}

// bootDevices returns the default boot devices of a new VM: drives, then network cards.
func bootDevices(conf map[string]string) []string {
	var drives, cards []string
	for _, key := range sortedKeys(conf) {
		switch {
		case netName.MatchString(key):
			cards = append(cards, key)
		case driveName.MatchString(key) && key != "efidisk0" && key != "tpmstate0":
			drives = append(drives, key)
		}
	}
	return append(drives, cards...)
}

// makeTemplate handles POST …/template: the disks become base images.
func makeTemplate(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	g, e := r.guest(GuestVM)
	switch {
	case e != nil:
	case g.checkLock() != nil:
		e = g.checkLock()
	case g.isTemplate() && !r.p.has("disk"):
		e = dief("you can't convert a template to a template")
	case g.running:
		e = dief("you can't convert a VM to template if VM is running")
	default:
		e = c.writable()
	}
	c.mu.RUnlock()
	if e != nil {
		return nil, e
	}
	return r.fork("qmtemplate", r.p["vmid"], func(_ context.Context, t *task) error {
		if err := t.injected(); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		g, e := r.guest(GuestVM)
		if e != nil {
			return e
		}
		r.toBase(g)
		g.conf["template"] = "1"
		g.changed()
		return nil
	}), nil
}

// toBase renames the guest's images from vm-… to base-….
func (r *request) toBase(g *guest) {
	c := r.s.state
	for _, key := range sortedKeys(g.conf) {
		if !driveName.MatchString(key) {
			continue
		}
		d, e := r.s.parseDrive(key, g.conf[key])
		if e != nil || d.cdrom() {
			continue
		}
		st, v := c.findVolume(g.host, d.volume())
		if v == nil || v.vmid != g.id {
			continue
		}
		c.freeVolume(st, v.id)
		v.id = strings.Replace(v.id, fmt.Sprintf("vm-%d-", g.id), fmt.Sprintf("base-%d-", g.id), 1)
		c.addVolume(st, v)
		d["file"] = v.id
		g.conf[key] = d.String()
	}
}
