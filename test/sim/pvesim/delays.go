package pvesim

// SetDelays changes the duration of tasks that start from now on.
func (s *Server) SetDelays(delays Delays) {
	delays = delays.withDefaults()
	s.delaysNow.Store(&delays)
}

// delays returns the current durations of tasks.
func (s *Server) delays() Delays {
	if now := s.delaysNow.Load(); now != nil {
		return *now
	}
	return s.cfg.Delays
}
