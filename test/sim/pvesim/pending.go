package pvesim

import (
	"regexp"
	"strings"
)

// applyPending applies all pending changes to a stopped guest.
func (s *Server) applyPending(g *guest) {
	for _, key := range sortedKeys(g.drop) {
		s.dropOption(g, key)
	}
	for _, key := range sortedKeys(g.pending) {
		s.setOption(g, key)
	}
}

// plugPending applies the changes that a running guest accepts; the rest remains pending.
func (s *Server) plugPending(g *guest) {
	features := splitList("network,disk,usb")
	if text, ok := g.conf["hotplug"]; ok {
		features = splitList(strings.Replace(text, "1", "network,disk,usb", 1))
	}
	for _, key := range sortedKeys(g.drop) {
		if plugs(features, key, g.conf[key], "") {
			s.dropOption(g, key)
			delete(g.live, key)
		}
	}
	for _, key := range sortedKeys(g.pending) {
		if plugs(features, key, g.conf[key], g.pending[key]) {
			s.setOption(g, key)
			g.live[key] = g.conf[key]
		}
	}
}

// alwaysPlugs reports whether a change of the option takes effect immediately on a running
// guest, regardless of its hot-plug features.
func alwaysPlugs(key string) bool {
	return isCloudinitOption(key) || holds(strings.Fields("description hookscript lock migrate_downtime migrate_speed name onboot "+
		"protection shares startup tags vmstatestorage hotplug cpulimit cpuunits balloon"), key)
}

var busWithoutHotplug = regexp.MustCompile(`^(ide|sata)\d+$`)

// plugs reports whether a running guest accepts the change of an option immediately. An
// empty new value means the option's removal.
func plugs(features []string, key, old, text string) bool {
	switch {
	case alwaysPlugs(key):
		return true
	case netName.MatchString(key):
		return holds(features, "network")
	case usbName.MatchString(key), key == "tablet":
		return holds(features, "usb")
	case key == "vcpus":
		return holds(features, "cpu")
	case key == "memory":
		return holds(features, "memory")
	case busWithoutHotplug.MatchString(key):
		// A medium can be changed, but the drive can be neither added nor removed.
		return old != "" && text != "" && strings.Contains(old, "media=cdrom") && strings.Contains(text, "media=cdrom")
	case driveName.MatchString(key):
		return holds(features, "disk")
	}
	return false
}

// dropOption removes an option whose removal is pending.
func (s *Server) dropOption(g *guest, key string) {
	if driveName.MatchString(key) {
		s.detach(g, key, g.conf[key], g.drop[key])
	}
	delete(g.conf, key)
	delete(g.drop, key)
}

// setOption makes a pending value current; a drive's old volume is detached.
func (s *Server) setOption(g *guest, key string) {
	old, text := g.conf[key], g.pending[key]
	if driveName.MatchString(key) && old != "" {
		was, _ := s.parseDrive(key, old)
		is, _ := s.parseDrive(key, text)
		if was["file"] != is["file"] {
			s.detach(g, key, old, false)
		}
	}
	g.conf[key] = text
	delete(g.pending, key)
}
