package pvesim

import (
	"context"
	"strings"
	"time"
)

// existing returns an error unless the VM in the request exists.
func (r *request) existing() *apiError {
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	_, e := r.guest(GuestVM)
	return e
}

// rootOnly returns an error if the caller may not use these parameters: they require
// root@pam with a ticket.
func (r *request) rootOnly(names ...string) *apiError {
	for _, name := range names {
		if val := r.p[name]; val != "" && val != "0" && !r.who.isRoot() {
			return oneParamError(name, "Only root may use this option.")
		}
	}
	return nil
}

// startVM handles POST …/status/start. A missing, locked or running guest is an error of
// the task.
func startVM(r *request) (any, error) {
	if e := r.rootOnly("stateuri", "skiplock", "migratedfrom", "migration_type", "migration_network", "targetstorage", "force-cpu", "nets-host-mtu"); e != nil {
		return nil, e
	}
	if e := r.s.state.writableNow(); e != nil {
		return nil, e
	}
	return r.fork("qmstart", r.p["vmid"], r.startWork), nil
}

// startWork is the task that starts a guest.
func (r *request) startWork(ctx context.Context, t *task) error {
	c := r.s.state
	release, err := c.lockGuest(ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
	if err != nil {
		return err
	}
	defer release()
	if err := r.checkStart(t); err != nil {
		return err
	}
	defer r.releaseDevices()
	if err := r.s.tasks.sleep(ctx, r.s.delays().Start); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	pid, err := r.startVirtualMachine()
	if err != nil {
		r.s.tasks.say(t, "%s", err)
		return errQEMU
	}
	event, err := r.startProcess(pid)
	if err != nil {
		return err
	}
	r.s.powered(event)
	return nil
}

// startProcess records that the guest runs; a pid of 0 means a simulated process.
func (r *request) startProcess(pid int) (*PowerEvent, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	c.run(g)
	if pid != 0 {
		g.pid = pid
		g.changed()
	}
	return r.s.event(PoweredOn, g), nil
}

func (r *request) checkStart(t *task) error {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	if g.isTemplate() {
		return dief("you can't start a vm if it's a template")
	}
	if e := g.checkLock(); e != nil && !r.p.flag("skiplock") {
		return e
	}
	if g.running {
		return dief("VM %d already running", g.id)
	}
	r.s.applyPending(g)
	g.changed()
	err := c.startable(g, func(line string) { r.s.tasks.say(t, "%s", line) })
	if err != nil {
		g.devices = nil
	}
	return err
}

// stopVM handles POST …/status/stop; stopping a stopped guest succeeds.
func stopVM(r *request) (any, error) {
	if e := r.rootOnly("skiplock", "keepActive", "migratedfrom"); e != nil {
		return nil, e
	}
	c := r.s.state
	c.mu.RLock()
	g, e := r.guest(GuestVM)
	managed := e == nil && g.ha
	c.mu.RUnlock()
	if !managed {
		return r.fork("qmstop", r.p["vmid"], r.stopWork), nil
	}
	// The task of an HA resource only requests the stop and ends before it; HA then stops the
	// guest in a task of its own: qemu-server 9.2.6, PVE/API2/Qemu.pm, vm_stop.
	return r.fork("hastop", r.p["vmid"], func(_ context.Context, t *task) error {
		r.s.tasks.say(t, "Requesting HA stop for VM %s", r.p["vmid"])
		r.fork("qmstop", r.p["vmid"], r.stopWork)
		return nil
	}), nil
}

// shutdownVM handles POST …/status/shutdown. The guest shuts down after Delays.Stop, unless
// it ignores the request: see SetDeaf.
func shutdownVM(r *request) (any, error) {
	if e := r.rootOnly("skiplock", "keepActive"); e != nil {
		return nil, e
	}
	return r.fork("qmshutdown", r.p["vmid"], r.shutdownWork), nil
}

// stopWork is the task that ends a guest's process.
func (r *request) stopWork(ctx context.Context, t *task) error {
	c := r.s.state
	release, err := c.lockGuest(ctx, r.p.number("vmid"), false, r.s.cfg.LockTimeout)
	if err != nil {
		return err
	}
	defer release()
	running, err := r.checkStop()
	if err != nil || !running {
		return err
	}
	if err := r.s.tasks.sleep(ctx, r.s.delays().Stop); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	r.s.powered(r.endProcess())
	if h := r.s.cfg.Hypervisor; h != nil {
		h.Stop(r.p.number("vmid"))
	}
	return nil
}

func (r *request) endProcess() *PowerEvent {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil || !g.running {
		return nil
	}
	c.halt(g)
	return r.s.event(PoweredOff, g)
}

func (r *request) checkStop() (bool, error) {
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return false, e
	}
	if e := g.checkLock(); e != nil && !r.p.flag("skiplock") {
		return false, e
	}
	return g.running, nil
}

// rebootVM handles POST …/status/reboot: a shutdown, then a start that applies pending
// changes.
func rebootVM(r *request) (any, error) {
	r.s.state.mu.RLock()
	g, e := r.guest(GuestVM)
	running := e == nil && g.running
	r.s.state.mu.RUnlock()
	if e != nil {
		return nil, e
	}
	if !running {
		return nil, dief("VM %d not running", r.p.number("vmid"))
	}
	return r.fork("qmreboot", r.p["vmid"], func(ctx context.Context, t *task) error {
		if err := r.stopWork(ctx, t); err != nil {
			return err
		}
		return r.startWork(ctx, t)
	}), nil
}

// resetVM handles POST …/status/reset: the process remains, so no pending change is
// applied.
func resetVM(r *request) (any, error) {
	if e := r.rootOnly("skiplock"); e != nil {
		return nil, e
	}
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	if !g.running {
		return nil, dief("VM %d not running", g.id)
	}
	return r.fork("qmreset", r.p["vmid"], func(context.Context, *task) error { return nil }), nil
}

// statusIndex handles GET …/status.
func statusIndex(r *request) (any, error) {
	if e := r.existing(); e != nil {
		return nil, e
	}
	var result []any
	for _, name := range []string{"current", "start", "stop", "reset", "shutdown", "suspend", "reboot"} {
		result = append(result, map[string]any{"subdir": name})
	}
	return result, nil
}

// currentStatus handles GET …/status/current.
func currentStatus(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return nil, e
	}
	status := c.status(g, true)
	status["ha"] = map[string]any{"managed": 0}
	if g.ha {
		status["ha"] = map[string]any{"managed": 1, "state": "started"}
	}
	if enabled(g.conf["agent"]) {
		status["agent"] = 1
	}
	return status, nil
}

func containerStatus(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	g, e := r.guest(GuestContainer)
	if e != nil {
		return nil, e
	}
	status := c.status(g, true)
	status["ha"] = map[string]any{"managed": 0}
	status["type"] = "lxc"
	return status, nil
}

// status returns a guest's entry in lists. The caller must hold the lock.
func (c *cluster) status(g *guest, full bool) map[string]any {
	conf := g.conf
	if g.live != nil {
		conf = g.live
	}
	status := map[string]any{
		"vmid": g.id, "name": g.name(), "status": "stopped", "cpus": numberOf(conf, "vcpus", vcpus(conf)),
		"maxmem": memoryMiB(conf) << 20, "maxdisk": c.bootSize(g), "disk": 0, "diskread": 0, "diskwrite": 0,
		"netin": 0, "netout": 0, "cpu": 0, "mem": 0, "uptime": 0,
	}
	for _, key := range []string{"tags", "lock"} {
		if g.conf[key] != "" {
			status[key] = g.conf[key]
		}
	}
	if g.isTemplate() {
		status["template"] = 1
	}
	if g.conf["serial0"] != "" {
		status["serial"] = 1
	}
	if full && g.kind == GuestVM {
		status["qmpstatus"] = "stopped"
	}
	if g.running {
		c.runningStatus(g, status, full)
	}
	return status
}

func (c *cluster) runningStatus(g *guest, status map[string]any, full bool) {
	status["status"] = "running"
	status["pid"] = g.pid
	status["uptime"] = c.uptime(g.started)
	status["cpu"] = 0.01
	status["mem"] = memoryMiB(g.live) << 20
	if full && g.kind == GuestVM {
		status["qmpstatus"] = "running"
		status["running-machine"] = "pc-i440fx-10.0+pve0"
		status["running-qemu"] = "10.0.2"
	}
}

// uptime returns the seconds since a time, at least one, because some clients treat 0 as
// stopped.
func (c *cluster) uptime(since time.Time) int64 {
	return max(int64(c.cfg.Clock.Now().Sub(since)/time.Second), 1)
}

func (c *cluster) bootSize(g *guest) int64 {
	for _, key := range []string{"scsi0", "virtio0", "sata0", "ide0"} {
		_, rest, _ := strings.Cut(g.conf[key], "size=")
		text, _, _ := strings.Cut(rest, ",")
		if size, ok := parseSize(text); ok {
			return size
		}
	}
	return 0
}

// enabled reports whether the option agent enables the guest agent.
func enabled(agent string) bool {
	props, err := parsePropertyString(map[string]*schema{
		"enabled": {Type: "boolean", DefaultKey: true}, "fstrim_cloned_disks": {Optional: true},
		"freeze-fs-on-backup": {Optional: true}, "freeze-fs": {Optional: true}, "guest-fsfreeze": {Optional: true}, "type": {Optional: true},
	}, agent)
	return err == nil && props["enabled"] == "1"
}
