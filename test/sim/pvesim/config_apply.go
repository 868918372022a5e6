package pvesim

import (
	"regexp"
	"strings"
)

var (
	serialName = regexp.MustCompile(`^serial\d+$`)
	usbName    = regexp.MustCompile(`^usb\d+$`)
	pciName    = regexp.MustCompile(`^hostpci\d+$`)
)

// applyChange writes the change to the pending section, then applies it: completely to a
// stopped guest, and only the hot-pluggable part to a running guest.
func (r *request) applyChange(ch *change) *apiError {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e != nil {
		return e
	}
	defer g.changed()
	for _, key := range ch.delete {
		if e := r.markDeleted(g, ch, key); e != nil {
			return e
		}
	}
	for _, key := range sortedKeys(ch.set) {
		if e := r.markSet(g, ch, key); e != nil {
			return e
		}
	}
	g.cleanPending()
	if g.running {
		r.s.plugPending(g)
	} else {
		r.s.applyPending(g)
	}
	return nil
}

// markDeleted makes the removal of an option pending. Unused disks and tags are removed
// immediately.
func (r *request) markDeleted(g *guest, ch *change, key string) *apiError {
	text, ok := g.conf[key]
	if !ok {
		if text, ok = g.pending[key]; !ok {
			return nil // Proxmox only warns
		}
	}
	if e := r.mayDelete(g, key, text); e != nil {
		return e
	}
	delete(g.pending, key)
	r.unboot(g, key)
	switch {
	case unusedName.MatchString(key):
		r.s.detach(g, key, text, true)
		delete(g.conf, key)
	case key == "tags":
		delete(g.conf, key)
		if g.running {
			delete(g.live, key)
		}
	default:
		g.drop[key] = ch.force
	}
	return nil
}

// mayDelete returns an error if the guest is protected, or if the caller lacks a privilege
// that removing this value of the option requires.
func (r *request) mayDelete(g *guest, key, text string) *apiError {
	protected := g.conf["protection"] == "1"
	switch {
	case unusedName.MatchString(key):
		if protected {
			return dief("can't remove unused disk '%s' - protection mode enabled", text)
		}
		return r.checkVM(g.id, "VM.Config.Disk")
	case driveName.MatchString(key):
		if protected {
			return dief("can't remove drive '%s' - protection mode enabled", key)
		}
		d, e := r.s.parseDrive(key, text)
		if e != nil {
			return e
		}
		return r.checkDrive(g.id, d)
	case netName.MatchString(key):
		return r.checkBridges(map[string]string{key: text})
	case key == "tags":
		return r.checkTags(g.id, text, "")
	}
	return r.checkDevice(g.id, "delete", key, text)
}

// checkDevice returns an error unless the caller may set, modify or delete this value of a
// serial, USB or PCI option.
func (r *request) checkDevice(vmid int, verb, key, text string) *apiError {
	if r.who.isRoot() {
		return nil
	}
	switch {
	case serialName.MatchString(key):
		if text == "socket" {
			return r.checkVM(vmid, "VM.Config.HWType")
		}
		return dief("only root can %s '%s' config for real devices", verb, key)
	case usbName.MatchString(key):
		if strings.Contains(text, "host=") || regexp.MustCompile(`^[0-9a-fA-Fx:]+$`).MatchString(text) {
			return dief("only root can set '%s' config for real devices", key)
		}
		return r.checkVM(vmid, "VM.Config.HWType")
	case pciName.MatchString(key):
		return r.checkHostPCI(vmid, key, text)
	}
	return nil
}

// unboot removes a deleted device from the boot order.
func (r *request) unboot(g *guest, key string) {
	order, ok := strings.CutPrefix(g.conf["boot"], "order=")
	if pending, is := g.pending["boot"]; is {
		order, ok = strings.CutPrefix(pending, "order=")
	}
	devices := strings.Split(order, ";")
	if !ok || !holds(devices, key) {
		return
	}
	var rest []string
	for _, d := range devices {
		if d != key {
			rest = append(rest, d)
		}
	}
	g.pending["boot"] = "order=" + strings.Join(rest, ";")
}

// markSet makes an option's new value pending.
func (r *request) markSet(g *guest, ch *change, key string) *apiError {
	text := ch.set[key]
	old, had := g.conf[key]
	var e *apiError
	switch {
	case driveName.MatchString(key):
		text, e = r.markDrive(g, ch, key)
	case netName.MatchString(key) && had:
		e = r.checkBridges(map[string]string{key: old})
	case key == "tags":
		e = r.checkTags(g.id, old, text)
		text = uniqueTags(text)
	case key == "boot":
		e = r.checkBoot(g, ch, text)
	case separateOption.MatchString(key):
		e = firstError(
			func() *apiError { return r.checkDevice(g.id, "modify", key, text) },
			func() *apiError {
				if !had {
					return nil
				}
				return r.checkDevice(g.id, "modify", key, old)
			},
		)
	}
	if e != nil {
		return e
	}
	g.pending[key] = text
	delete(g.drop, key)
	return nil
}

// markDrive checks the old and the new drive, and creates the volume of the new drive.
func (r *request) markDrive(g *guest, ch *change, key string) (string, *apiError) {
	if old, ok := g.conf[key]; ok {
		d, e := r.s.parseDrive(key, old)
		if e == nil {
			e = r.checkDrive(g.id, d)
		}
		if e != nil {
			return "", e
		}
	}
	d := ch.drives[key]
	if d == nil { // set by a revert
		return ch.set[key], nil
	}
	if e := r.checkDrive(g.id, d); e != nil {
		return "", e
	}
	stored, e := r.s.attach(g.host, g.id, key, d)
	if e != nil {
		return "", e
	}
	if order, ok := strings.CutPrefix(g.conf["boot"], "order="); ok && d.cdrom() && !holds(strings.Split(order, ";"), key) && ch.set["boot"] == "" {
		g.pending["boot"] = "order=" + strings.TrimPrefix(order+";"+key, ";")
	}
	return stored, nil
}

// checkBoot checks that the devices of a boot order exist.
func (r *request) checkBoot(g *guest, ch *change, text string) *apiError {
	order, ok := strings.CutPrefix(text, "order=")
	if !ok {
		return nil
	}
	for _, device := range splitList(order) {
		_, inConf := g.conf[device]
		_, isPending := g.pending[device]
		_, isSet := ch.set[device]
		if (!inConf && !isPending && !isSet) || holds(ch.delete, device) {
			return dief("invalid bootorder: device '%s' does not exist'", device)
		}
	}
	return nil
}

// cleanPending removes pending entries that do not change the configuration.
func (g *guest) cleanPending() {
	for key, text := range g.pending {
		if old, ok := g.conf[key]; ok && old == text {
			delete(g.pending, key)
		}
	}
	for key := range g.drop {
		if _, ok := g.conf[key]; !ok {
			delete(g.drop, key)
		}
	}
}
