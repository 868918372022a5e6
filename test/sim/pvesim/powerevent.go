package pvesim

import "strings"

// PowerKind says what became of a guest's process.
type PowerKind string

// The kinds of PowerEvent.
const (
	PoweredOn  PowerKind = "on"
	PoweredOff PowerKind = "off"
	Destroyed  PowerKind = "destroyed"
)

// PowerEvent is that a guest started, stopped or went.
type PowerEvent struct {
	Kind PowerKind
	// Guest is the guest as it is then; one that is destroyed, as it was before.
	Guest GuestState
	// Discs are the contents of the CD-ROM drives that hold a file, by drive. They
	// are only there when a guest starts, and must not be changed.
	Discs map[string][]byte
}

// powered tells Config.OnPower what became of a guest, in order for each guest.
// The caller holds the guest's lock file, but not the cluster's lock.
func (s *Server) powered(event *PowerEvent) {
	if s.cfg.OnPower != nil && event != nil {
		s.cfg.OnPower(*event)
	}
}

// event describes a guest. The caller holds the lock.
func (s *Server) event(kind PowerKind, g *guest) *PowerEvent {
	if s.cfg.OnPower == nil {
		return nil
	}
	event := &PowerEvent{Kind: kind, Guest: s.state.guestState(g)}
	if kind == PoweredOn {
		event.Discs = s.discs(g)
	}
	return event
}

// discs returns what is in the guest's CD-ROM drives, a cloud-init drive aside.
func (s *Server) discs(g *guest) map[string][]byte {
	found := map[string][]byte{}
	for _, key := range sortedKeys(g.live) {
		if !driveName.MatchString(key) || !strings.Contains(g.live[key], "media=cdrom") {
			continue
		}
		d, e := s.parseDrive(key, g.live[key])
		if e != nil || d.cloudinit() {
			continue
		}
		if _, v := s.state.findVolume(g.host, d.volume()); v != nil {
			found[key] = v.data
		}
	}
	return found
}
