package pvesim

// SetDelays changes how long tasks take that begin from now on.
func (s *Server) SetDelays(delays Delays) {
	delays = delays.withDefaults()
	s.delaysNow.Store(&delays)
}

// delays returns how long tasks take now.
func (s *Server) delays() Delays {
	if now := s.delaysNow.Load(); now != nil {
		return *now
	}
	return s.cfg.Delays
}
