package pvesim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

// cloneTimeout limits how long a clone waits for the lock files of both guests.
const cloneTimeout = time.Second

// cloneJob is a validated clone request.
type cloneJob struct {
	source, target int
	to             *host
	full           bool
	storage        string
}

// copies reports whether the clone copies a disk. Linked clones also copy the TPM state
// (qemu-server 9.2.6, PVE/API2/Qemu.pm:4546-4559).
func (j *cloneJob) copies(key string) bool { return j.full || key == "tpmstate0" }

// cloneVM handles POST …/clone.
func cloneVM(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	g := c.guests[r.p.number("vmid")]
	c.mu.RUnlock()
	if g == nil || g.host != r.host || g.kind != GuestVM {
		// Proxmox first searches for a process (qemu-server 9.2.6, PVE/API2/Qemu.pm:4446,
		// PVE/QemuConfig.pm:36-47).
		return nil, dief("unable to find configuration file for VM %s on node '%s'", r.p["vmid"], r.host.name)
	}
	job := &cloneJob{source: r.p.number("vmid"), target: r.p.number("newid"), to: r.host, storage: r.p["storage"]}
	if e := r.checkClone(job); e != nil {
		return nil, e
	}
	return r.fork("qmclone", r.p["vmid"], func(ctx context.Context, t *task) error {
		source, err := c.lockGuest(ctx, job.source, true, cloneTimeout)
		if err != nil {
			return err
		}
		defer source()
		target, err := c.lockGuest(ctx, job.target, false, cloneTimeout)
		if err != nil {
			return err
		}
		defer target()
		return r.runClone(ctx, t, job)
	}), nil
}

// checkClone checks a clone request and completes the job. It runs twice: before the task
// starts, and in the task.
func (r *request) checkClone(job *cloneJob) *apiError {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	if pool := r.p["pool"]; pool != "" && !c.pools.exists(pool) {
		return permissionError("pool '" + pool + "' does not exist")
	}
	if e := firstError(func() *apiError { return r.cloneTarget(job) }, c.writable); e != nil {
		return e
	}
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	return firstError(
		g.checkLock,
		func() *apiError { return r.cloneMode(g, job) },
		func() *apiError { return r.cloneDisks(g, job) },
		func() *apiError {
			if old := c.guests[job.target]; old != nil && old.host == r.host && old.kind == GuestVM {
				return dief("unable to create VM %d: config file already exists", job.target)
			}
			return nil
		},
	)
}

// cloneMode chooses between a full and a linked clone.
func (r *request) cloneMode(g *guest, job *cloneJob) *apiError {
	if r.p.has("snapname") {
		return dief("snapshot '%s' does not exist", r.p["snapname"])
	}
	job.full = !g.isTemplate()
	if r.p.has("full") {
		job.full = r.p.flag("full")
	}
	for _, name := range []string{"storage", "format"} {
		if r.p.has(name) && !job.full {
			return dief("parameter '%s' not allowed for linked clones", name)
		}
	}
	return nil
}

// cloneTarget checks the target node and storage of the clone. Proxmox checks only a storage
// in the request on the target node, neither the template's storages nor whether the node is
// online (qemu-server 9.2.6, PVE/API2/Qemu.pm:4442-4467).
func (r *request) cloneTarget(job *cloneJob) *apiError {
	c := r.s.state
	if name := r.p["target"]; name != "" && name != "localhost" {
		if job.to = c.hosts[name]; job.to == nil {
			return dief("no such cluster node '%s'", name)
		}
	}
	if job.storage == "" {
		return nil
	}
	st, e := c.needStorage(r.host, job.storage)
	if e != nil {
		return e
	}
	if !holds(st.Content, "images") {
		return oneParamError("storage", "storage '%s' does not support vm images", st.Name)
	}
	if job.to == r.host {
		return nil
	}
	if _, e := c.needStorage(job.to, job.storage); e != nil {
		return e
	}
	if !st.Shared {
		return dief("can't clone to non-shared storage '%s'", st.Name)
	}
	return nil
}

// cloneDisks checks that the disks can be cloned in the job's mode, and checks the bridges. A
// clone on another node requires that all drives of the source, also CD images and drives
// that the clone does not copy to the same storage, are on shared storages (qemu-server 9.2.6,
// PVE/API2/Qemu.pm:282-323 and 4490-4499).
func (r *request) cloneDisks(g *guest, job *cloneJob) *apiError {
	shared := true
	for _, key := range sortedKeys(g.conf) {
		if !driveName.MatchString(key) {
			continue
		}
		isShared, e := r.cloneDisk(job, key, g.conf[key])
		if e != nil {
			return e
		}
		shared = shared && isShared
	}
	if e := r.checkBridges(g.conf); e != nil {
		return e
	}
	if r.s.cfg.from92() {
		if e := r.mayUseCPU(g.conf["cpu"], ""); e != nil {
			return e
		}
	}
	if job.to != r.host && !shared {
		return dief("can't clone VM to node '%s' (VM uses local storage)", job.to.name)
	}
	return nil
}

// checkBridges returns an error unless the caller may use the bridges of all network cards
// among the options.
func (r *request) checkBridges(conf map[string]string) *apiError {
	for _, key := range sortedKeys(conf) {
		if !netName.MatchString(key) {
			continue
		}
		props, _ := parsePropertyString(r.s.options()[key].Properties, conf[key])
		if e := r.s.access.checkBridge(r.who, props); e != nil {
			return e
		}
	}
	return nil
}

// cloneDisk checks one drive, and reports whether its storage is shared.
func (r *request) cloneDisk(job *cloneJob, key, text string) (bool, *apiError) {
	d, e := r.s.parseDrive(key, text)
	if e != nil {
		return false, dief("unable to parse drive options for '%s'", key)
	}
	name, _, ok := strings.Cut(d["file"], ":")
	if !ok {
		return true, nil
	}
	st, e := r.s.state.needStorage(r.host, name)
	if e != nil || d.cdrom() {
		return e == nil && st.Shared, e
	}
	if job.storage != "" {
		name = job.storage
	}
	if e := r.s.access.check(r.who, "/storage/"+name, "Datastore.AllocateSpace"); e != nil {
		return false, e
	}
	base := strings.Contains(d["file"], "base-")
	if !job.copies(key) && (!base || !st.canLink()) {
		return false, dief("Linked clone feature is not supported for '%s' (%s)", d["file"], key)
	}
	return st.Shared, nil
}

// runClone creates the clone's configuration with a lock, waits for the clone's duration, and
// completes the configuration. Until its end, a clone for another node is on the source's
// node (qemu-server 9.2.6, PVE/API2/Qemu.pm:4613-4708).
func (r *request) runClone(ctx context.Context, t *task, job *cloneJob) error {
	if e := r.checkClone(job); e != nil {
		return e
	}
	c := r.s.state
	c.mu.Lock()
	if c.guests[job.target] != nil {
		c.mu.Unlock()
		return fmt.Errorf("close (rename) atomic file '/etc/pve/%s' failed: File exists", confPath(r.host.name, GuestVM, job.target))
	}
	clone := c.put(r.host, job.target, GuestVM, map[string]string{"lock": "clone"})
	c.mu.Unlock()
	r.s.tasks.say(t, "create %s clone of VM %d", cloneWord(job.full), job.source)
	err := r.s.tasks.sleep(ctx, r.s.delays().Clone)
	if err == nil {
		err = t.injected()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = r.fillClone(clone, job)
	}
	if err == nil || errors.Is(err, errLeftBehind) {
		return err
	}
	c.remove(job.target)
	return fmt.Errorf("clone failed: %w", err)
}

func cloneWord(full bool) string {
	if full {
		return "full"
	}
	return "linked"
}

// fillClone gives the clone the source's options, including options that only root may set,
// and the source's firewall. The clone's identity and disks are new.
func (r *request) fillClone(clone *guest, job *cloneJob) error {
	c := r.s.state
	source := c.guests[job.source]
	if source == nil {
		return dief("Configuration file '%s' does not exist", confPath(r.host.name, GuestVM, job.source))
	}
	conf := maps.Clone(source.conf)
	for _, key := range sortedKeys(source.conf) {
		switch {
		case unusedName.MatchString(key), holds([]string{"parent", "vmstate", "snaptime", "template"}, key):
			delete(conf, key)
		case netName.MatchString(key):
			props, _ := parsePropertyString(r.s.options()[key].Properties, conf[key])
			props["macaddr"] = c.mac(clone.id, key)
			conf[key] = printNet(props)
		case driveName.MatchString(key):
			text, err := r.copyDisk(clone, job, key, conf[key])
			if err != nil {
				return err
			}
			conf[key] = text
		}
	}
	r.identify(conf, job)
	clone.conf, clone.fw = conf, source.fw.copied()
	clone.host = job.to
	delete(r.host.guests, clone.id)
	job.to.guests[clone.id] = clone
	clone.changed()
	if pool := r.p["pool"]; pool != "" {
		c.pools.move(clone.id, pool)
		r.s.access.forget()
	}
	return nil
}

// identify gives a clone its name and new unique IDs.
func (r *request) identify(conf map[string]string, job *cloneJob) {
	c := r.s.state
	old := conf["name"]
	if old == "" {
		old = strconv.Itoa(job.source)
	}
	conf["name"] = "Copy-of-VM-" + old
	if r.p["name"] != "" {
		conf["name"] = r.p["name"]
	}
	if r.p["description"] != "" {
		conf["description"] = r.p["description"]
	}
	smbios, _ := parsePropertyString(propertyFormats()["pve-qm-smbios1"], conf["smbios1"])
	if smbios == nil {
		smbios = map[string]string{}
	}
	smbios["uuid"] = c.uuid(job.target, "smbios")
	conf["smbios1"] = printPropertyString(smbios, "")
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = c.uuid(job.target, "vmgenid")
	}
}

// copyDisk creates the clone's volume for a disk. A CD-ROM option is copied unchanged, a
// cloud-init drive is re-created.
func (r *request) copyDisk(clone *guest, job *cloneJob, key, text string) (string, error) {
	d, e := r.s.parseDrive(key, text)
	if e != nil {
		return "", e
	}
	c := r.s.state
	st, from := c.findVolume(r.host, d.volume())
	switch {
	case d.cloudinit():
		name, _, _ := strings.Cut(d["file"], ":")
		made, e := r.s.attachCloudinit(r.host, clone.id, d, name)
		if e != nil {
			return "", e
		}
		return made, nil
	case d.cdrom():
		return text, nil
	case from == nil:
		return "", fmt.Errorf("no such volume '%s'", d["file"])
	case job.storage != "":
		st = c.storage(r.host, job.storage)
	}
	v := &volume{content: "images", format: from.format, size: from.size, vmid: clone.id}
	name := st.freeName(clone.id)
	if job.copies(key) {
		if !st.room(v.size, false) { // as if the template's disk were full of data
			return "", errors.New(st.noRoom(name, v.size))
		}
		if r.p["format"] != "" {
			v.format = r.p["format"]
		}
		v.id = st.volumeID(clone.id, name, v.format)
	} else {
		v.id, v.parent = st.linkedID(from, clone.id, name), from.id
	}
	c.addVolume(st, v)
	d["file"], d["size"] = v.id, formatSize(v.size)
	return d.String(), nil
}
