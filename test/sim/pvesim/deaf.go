package pvesim

import (
	"context"
	"time"
)

// defaultShutdown is how long Proxmox waits for a guest to shut down.
const defaultShutdown = 60 * time.Second

// SetDeaf sets whether a guest ignores shutdown requests.
func (s *Server) SetDeaf(vmid int, deaf bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.deaf[vmid] = deaf
}

// shutdownWork is the task that requests a guest's shutdown. After the timeout it fails, or
// with forceStop kills the process.
func (r *request) shutdownWork(ctx context.Context, t *task) error {
	r.s.state.mu.RLock()
	deaf := r.s.state.deaf[r.p.number("vmid")]
	r.s.state.mu.RUnlock()
	if !deaf && r.s.cfg.Hypervisor == nil {
		return r.stopWork(ctx, t)
	}
	if running, err := r.checkStop(); err != nil || !running {
		return err
	}
	timeout := defaultShutdown
	if r.p.has("timeout") {
		timeout = time.Duration(r.p.number("timeout")) * time.Second
	}
	if !deaf {
		asked, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if r.s.cfg.Hypervisor.Shutdown(asked, r.p.number("vmid"), r.hasAgent()) == nil {
			return r.stopWork(ctx, t)
		}
	} else if err := r.s.tasks.sleep(ctx, timeout); err != nil {
		return err
	}
	if r.p.flag("forceStop") {
		return r.stopWork(ctx, t)
	}
	return dief("VM quit/powerdown failed - got timeout")
}

// hasAgent reports whether the guest agent is enabled in the guest's configuration.
func (r *request) hasAgent() bool {
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	g, e := r.guest(GuestVM)
	return e == nil && enabled(g.conf["agent"])
}
