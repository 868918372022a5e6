package pvesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"

	"github.com/numaform/numaform/test/sim/control"
	"github.com/numaform/numaform/test/sim/qemu"
)

// Control returns the handler of the server's control requests: all operations of a test on
// a cluster other than API requests. The README lists them.
func (s *Server) Control() http.Handler {
	c := &controller{Server: s, faults: map[int]func(){}}
	mux := http.NewServeMux()
	mux.Handle("PUT /address", control.Do(c.listen))
	mux.Handle("GET /calls", control.Get(func(*http.Request) []Call { return s.Calls() }))
	mux.Handle("DELETE /calls", control.Set(func(*http.Request, struct{}) error { s.ResetCalls(); return nil }))
	mux.Handle("GET /calls/in-flight", control.Get(func(*http.Request) int { return s.MaxInFlight() }))
	mux.Handle("POST /faults", control.Do(c.addFault))
	mux.Handle("DELETE /faults/{id}", control.Set(c.removeFault))
	mux.Handle("GET /guests", control.Get(func(*http.Request) []GuestState { return s.Guests() }))
	mux.Handle("GET /guests/{vmid}", control.Get(c.guest))
	mux.Handle("PUT /guests/{vmid}", control.Set(func(_ *http.Request, f Foreign) error { return s.PutGuest(f) }))
	mux.Handle("DELETE /guests/{vmid}", control.Set(func(r *http.Request, _ struct{}) error { s.RemoveGuest(pathVMID(r)); return nil }))
	mux.Handle("PUT /guests/{vmid}/deaf", control.Set(func(r *http.Request, deaf bool) error { s.SetDeaf(pathVMID(r), deaf); return nil }))
	mux.Handle("PUT /delays", control.Set(func(_ *http.Request, d Delays) error { s.SetDelays(d); return nil }))
	mux.Handle("PUT /hosts/{host}/online", control.Set(c.setOnline))
	mux.Handle("GET /hosts/{host}/volumes", control.Get(func(r *http.Request) []string { return s.Volumes(r.PathValue("host")) }))
	mux.Handle("GET /hosts/{host}/volumes/{id...}", control.Get(c.volume))
	mux.Handle("PUT /hosts/{host}/storages/{storage}/iso/{name}", control.Set(c.putISO))
	mux.Handle("PUT /hosts/{host}/storages/{storage}/snippets/{name}", control.Set(func(r *http.Request, _ struct{}) error {
		return s.PutSnippet(r.PathValue("host"), r.PathValue("storage"), r.PathValue("name"))
	}))
	mux.Handle("PUT /quorate", control.Set(func(_ *http.Request, quorate bool) error { s.SetQuorate(quorate); return nil }))
	mux.Handle("PUT /guest-agents", control.Set(func(_ *http.Request, answer bool) error { s.SetGuestAgents(answer); return nil }))
	mux.Handle("PUT /guest-agents/exec", control.Set(c.setExec))
	mux.Handle("POST /shell", control.Do(func(_ *http.Request, line string) (string, error) { return s.Shell(line) }))
	mux.Handle("POST /pvesh", control.Do(func(_ *http.Request, args []string) ([]byte, error) { return s.Pvesh(args...) }))
	mux.Handle("PUT /hosts/{host}/export", control.Set(func(r *http.Request, dir string) error { return s.ExportHost(r.PathValue("host"), dir) }))
	mux.Handle("GET /guests/{vmid}/threads", control.Get(func(r *http.Request) *Threads {
		if threads, runs := s.Threads(pathVMID(r)); runs {
			return &threads
		}
		return nil
	}))
	return mux
}

// controller is a Server with the objects that control requests refer to.
type controller struct {
	*Server
	// mu guards faults and last.
	mu     sync.Mutex
	faults map[int]func()
	last   int
}

// Address is the address of a Server.
type Address struct {
	URL string `json:"url"`
	// Certificate is the certificate that clients must trust, PEM-encoded.
	Certificate string `json:"certificate"`
}

func (c *controller) listen(_ *http.Request, address string) (Address, error) {
	if c.listener == nil {
		if err := c.Start(address); err != nil {
			return Address{}, err
		}
	}
	return Address{URL: c.URL(), Certificate: string(c.CertPEM())}, nil
}

// HookedFault is a Fault in the JSON of control requests.
type HookedFault struct {
	Fault
	// HitURL is a hook that replaces Fault.Hit.
	HitURL string
}

// addFault adds a fault and returns its ID.
func (c *controller) addFault(_ *http.Request, f HookedFault) (int, error) {
	if _, err := regexp.Compile(f.Path); err != nil {
		return 0, fmt.Errorf("adding fault: %w", err)
	}
	if f.HitURL != "" {
		f.Hit = func(ctx context.Context, call Call) {
			_ = control.Ask(ctx, f.HitURL, call, nil) // if the caller has ended, the request proceeds
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.faults[c.last] = c.AddFault(f.Fault)
	return c.last, nil
}

func (c *controller) removeFault(r *http.Request, _ struct{}) error {
	id, err := strconv.Atoi(r.PathValue("id"))
	c.mu.Lock()
	defer c.mu.Unlock()
	remove := c.faults[id]
	if err != nil || remove == nil {
		return fmt.Errorf("no fault %q", r.PathValue("id"))
	}
	remove()
	delete(c.faults, id)
	return nil
}

// guest returns the guest in the path, or nil if it does not exist.
func (c *controller) guest(r *http.Request) *GuestState {
	if guest, ok := c.Guest(pathVMID(r)); ok {
		return &guest
	}
	return nil
}

func (c *controller) setOnline(r *http.Request, online bool) error {
	name := r.PathValue("host")
	if c.state.hosts[name] == nil {
		return fmt.Errorf("no host %q", name)
	}
	c.SetHostOnline(name, online)
	return nil
}

// volume returns the content of the volume in the path, or nil if it does not exist.
func (c *controller) volume(r *http.Request) []byte {
	data, found := c.VolumeData(r.PathValue("host"), r.PathValue("id"))
	if found && data == nil {
		data = []byte{}
	}
	return data
}

func (c *controller) putISO(r *http.Request, data []byte) error {
	return c.PutISO(r.PathValue("host"), r.PathValue("storage"), r.PathValue("name"), data)
}

// execQuestion is the input of the hook for guest agents.
type execQuestion struct {
	VMID  int      `json:"vmid"`
	Args  []string `json:"args"`
	Input string   `json:"input"`
}

func (c *controller) setExec(_ *http.Request, url string) error {
	if url == "" {
		c.SetAgentExec(nil)
		return nil
	}
	c.SetAgentExec(func(vmid int, args []string, input string) CommandResult {
		result := CommandResult{}
		if err := control.Ask(c.ctx, url, execQuestion{VMID: vmid, Args: args, Input: input}, &result); err != nil {
			return CommandResult{ExitCode: 127, Stderr: err.Error()}
		}
		return result
	})
	return nil
}

// pathVMID returns the VMID in the path, or 0, which is never a VMID, if the path contains
// no number.
func pathVMID(r *http.Request) int { return number(r.PathValue("vmid")) }

// Run runs a cluster for the parent process: see control.Run.
func Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	var server *Server
	var hypervisor *qemu.Hypervisor
	defer func() {
		if server != nil {
			err = errors.Join(err, server.Close())
		}
		if hypervisor != nil {
			hypervisor.Close()
		}
	}()
	return control.Run(ctx, in, out, func(ctx context.Context, cfg HookedConfig) (http.Handler, error) {
		if cfg.PowerURL != "" {
			cfg.OnPower = func(event PowerEvent) {
				_ = control.Ask(server.ctx, cfg.PowerURL, event, nil) // if the parent has ended, the event is lost
			}
		}
		var err error
		if cfg.QEMU != nil {
			if hypervisor, err = qemu.New(ctx, *cfg.QEMU); err != nil {
				return nil, err
			}
			cfg.Hypervisor = hypervisor
		}
		if server, err = New(cfg.Config); err != nil {
			return nil, err
		}
		return server.Control(), nil
	})
}

// HookedConfig is a Config in JSON.
type HookedConfig struct {
	Config
	// PowerURL is a hook that replaces Config.OnPower.
	PowerURL string
	// QEMU runs the VMs with QEMU; nil means that they have no processes.
	QEMU *qemu.Config
}
