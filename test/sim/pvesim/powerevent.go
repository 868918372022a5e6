package pvesim

import "strings"

// PowerKind is the kind of a PowerEvent.
type PowerKind string

// The kinds of PowerEvent.
const (
	PoweredOn  PowerKind = "on"
	PoweredOff PowerKind = "off"
	Destroyed  PowerKind = "destroyed"
)

// PowerEvent reports that a guest started, stopped or was removed.
type PowerEvent struct {
	Kind PowerKind
	// Guest is the guest after the event; for a removed guest, before it.
	Guest GuestState
	// Discs are the contents of the CD-ROM drives with a file, by drive. They are only set
	// when a guest starts, and must not be changed.
	Discs map[string][]byte
}

// powered calls Config.OnPower with an event, which can be nil. The caller must not hold
// the cluster's lock. Tasks hold the guest's lock file, which keeps the events of a guest
// in order.
func (s *Server) powered(event *PowerEvent) {
	if s.cfg.OnPower != nil && event != nil {
		s.cfg.OnPower(*event)
	}
}

// event returns an event of the guest, or nil without Config.OnPower. The caller must hold
// the lock.
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

// discs returns the contents of the guest's CD-ROM drives, except a cloud-init drive.
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
