package pvesim

import (
	"context"
	"maps"
	"net/url"
	"strings"
)

// change is a validated request to change a VM's configuration.
type change struct {
	vmid   int
	set    map[string]string
	drives map[string]drive // the drives in set
	delete []string
	revert map[string]bool
	force  bool
}

// putConfig handles PUT …/config, which is synchronous.
func putConfig(r *request) (any, error) {
	ch, e := r.readChange()
	if e != nil {
		return nil, e
	}
	release, err := r.lockForChange(ch)
	if err != nil {
		return nil, err
	}
	defer release()
	if e := r.applyChange(ch); e != nil {
		return nil, e
	}
	return nil, nil
}

// postConfig handles POST …/config, which starts a task.
func postConfig(r *request) (any, error) {
	ch, e := r.readChange()
	if e != nil {
		return nil, e
	}
	release, err := r.lockForChange(ch)
	if err != nil {
		return nil, err
	}
	return r.fork("qmconfig", r.p["vmid"], func(context.Context, *task) error {
		defer release()
		if e := r.applyChange(ch); e != nil {
			return e
		}
		return nil
	}), nil
}

// readChange parses the parameters and runs all checks that need no lock.
func (r *request) readChange() (*change, *apiError) {
	ch := &change{vmid: r.p.number("vmid"), drives: map[string]drive{}, revert: map[string]bool{}, force: r.p.flag("force")}
	if r.p.flag("skiplock") && !r.who.isRoot() {
		return nil, oneParamError("skiplock", "Only root may use this option.")
	}
	ch.set = r.without("node vmid digest skiplock delete revert force background_delay import-working-storage")
	if len(ch.set) == 0 && r.p["delete"] == "" && r.p["revert"] == "" {
		return nil, dief("no options specified")
	}
	if text, ok := ch.set["cdrom"]; ok {
		delete(ch.set, "cdrom")
		if !strings.Contains(text, "media=") {
			text += ",media=cdrom"
		}
		ch.set["ide2"] = text
	}
	for _, step := range []func(*change) *apiError{r.readRevert, r.readDelete, r.readDrives, r.readNets, r.readKeys, r.checkHookscript, r.checkKeys, r.checkAccess} {
		if e := step(ch); e != nil {
			return nil, e
		}
	}
	return ch, nil
}

// without returns the request's parameters, except the names in control, which are
// separated by blanks.
func (r *request) without(control string) map[string]string {
	rest := map[string]string{}
	for key, text := range r.p {
		if !holds(strings.Fields(control), key) {
			rest[key] = text
		}
	}
	return rest
}

// checkKeys checks the permissions for the options, first for deleted, then for set
// options.
func (r *request) checkKeys(ch *change) *apiError {
	if e := r.checkOptions(ch.vmid, ch.delete); e != nil {
		return e
	}
	return r.checkOptions(ch.vmid, sortedKeys(ch.set))
}

func (r *request) readRevert(ch *change) *apiError {
	for _, key := range splitList(r.p["revert"]) {
		if !r.s.isOption(key) {
			return oneParamError("revert", "unknown option '%s'", key)
		}
		if _, both := ch.set[key]; both { // qemu-server 9.2.6, PVE/API2/Qemu.pm:2124-2126: reported for delete
			return oneParamError("delete", "you can't use '-%s' and -revert %s' at the same time", key, key)
		}
		ch.revert[key] = true
	}
	return nil
}

func (r *request) readDelete(ch *change) *apiError {
	for _, key := range splitList(r.p["delete"]) {
		if key == "cdrom" {
			key = "ide2"
		}
		if _, both := ch.set[key]; both {
			return oneParamError("delete", "you can't use '-%s' and -delete %s' at the same time", key, key)
		}
		if ch.revert[key] {
			return oneParamError("revert", "you can't use '-delete %s' and -revert %s' at the same time", key, key)
		}
		if !r.s.isOption(key) {
			return oneParamError("delete", "unknown option '%s'", key)
		}
		ch.delete = append(ch.delete, key)
	}
	return nil
}

func (r *request) readDrives(ch *change) *apiError {
	for _, key := range sortedKeys(ch.set) {
		if !driveName.MatchString(key) {
			continue
		}
		d, e := r.s.parseDrive(key, ch.set[key])
		if e != nil {
			return e
		}
		if e := checkImport(key, d); e != nil {
			return e
		}
		if contentOf(d["file"]) == "iso" && !d.cdrom() {
			return oneParamError(key, "explicit 'media=cdrom' is required for iso images")
		}
		ch.drives[key] = d
	}
	return nil
}

func (r *request) readNets(ch *change) *apiError {
	for _, key := range sortedKeys(ch.set) {
		if !netName.MatchString(key) {
			continue
		}
		props, e := r.s.parseNet(ch.vmid, key, ch.set[key])
		if e != nil {
			return e
		}
		ch.set[key] = printNet(props)
	}
	return nil
}

// readKeys refuses invalid CPU models and SSH keys, and replaces vmgenid=1 with a new
// generation ID.
func (r *request) readKeys(ch *change) *apiError {
	if ch.set["vmgenid"] == "1" {
		r.s.state.mu.Lock()
		ch.set["vmgenid"] = r.s.state.uuid(ch.vmid, "vmgenid")
		r.s.state.mu.Unlock()
	}
	if e := r.checkCPUType(ch.set["cpu"]); e != nil {
		return e
	}
	keys, err := url.PathUnescape(ch.set["sshkeys"])
	if err != nil {
		return oneParamError("sshkeys", "invalid urlencoded string")
	}
	for line := range strings.Lines(keys) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && len(strings.Fields(line)) < 2 {
			return dief("SSH public key validation error")
		}
	}
	return nil
}

// checkHookscript checks that the script exists, for all users (qemu-server 9.2.6,
// PVE/API2/Qemu.pm:2190-2193; pve-guest-common 6.0.2, PVE/GuestHelpers.pm:99-115).
func (r *request) checkHookscript(ch *change) *apiError {
	script, ok := ch.set["hookscript"]
	if !ok {
		return nil
	}
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	name, _, _ := strings.Cut(script, ":")
	switch _, v := c.findVolume(r.host, script); {
	case c.anyStorage(name) == nil:
		return oneParamError("hookscript", "storage '%s' does not exist\n", name)
	case contentOf(script) != "snippets":
		return oneParamError("hookscript", "'%s' is not in the snippets directory\n", script)
	case v == nil:
		return oneParamError("hookscript", "script '%s' does not exist\n", script)
	}
	return nil
}

// checkAccess returns an error unless the caller may use the storages and bridges of the
// set options.
func (r *request) checkAccess(ch *change) *apiError {
	for _, key := range sortedKeys(ch.drives) {
		d := ch.drives[key]
		if e := firstError(
			func() *apiError { return r.checkVolume(ch.vmid, d) },
			func() *apiError { return r.checkTarget(d) },
			func() *apiError { return r.checkSource(ch.vmid, key, d) },
		); e != nil {
			return e
		}
	}
	return r.checkBridges(ch.set)
}

// lockForChange takes the guest's lock file and runs the checks that need the lock.
func (r *request) lockForChange(ch *change) (func(), error) {
	release, err := r.s.state.lockGuest(r.ctx, ch.vmid, false, r.s.cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	if e := r.checkLocked(ch); e != nil {
		release()
		return nil, e
	}
	return release, nil
}

func (r *request) checkLocked(ch *change) *apiError {
	r.s.state.mu.Lock()
	defer r.s.state.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	if r.p.has("digest") && r.p["digest"] != g.sum() {
		return dief("checksum mismatch (file change by other user?)")
	}
	if e := r.mayUseCPU(ch.set["cpu"], g.conf["cpu"]); e != nil {
		return e
	}
	if !r.p.flag("skiplock") {
		if e := g.checkLock(); e != nil {
			return e
		}
	}
	for key := range ch.revert {
		if text, ok := g.conf[key]; ok {
			ch.set[key] = text
		} else if _, ok := g.pending[key]; ok {
			ch.delete = append(ch.delete, key)
		}
	}
	if e := checkBalloon(g, ch); e != nil {
		return e
	}
	return r.s.state.writable()
}

// checkBalloon checks that the balloon's minimum does not exceed the memory.
func checkBalloon(g *guest, ch *change) *apiError {
	_, setsMemory := ch.set["memory"]
	_, setsBalloon := ch.set["balloon"]
	if !setsMemory && !setsBalloon {
		return nil
	}
	conf := maps.Clone(g.conf)
	maps.Copy(conf, g.pending)
	maps.Copy(conf, ch.set)
	if int64(numberOf(conf, "balloon", 0)) > memoryMiB(conf) {
		return dief("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}
