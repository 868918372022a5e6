// Package pvesim runs a simulated Proxmox VE cluster, which is a program of the module
// test/sim: numaform and the simulator share no code. Clients use the cluster's API at
// Server.URL as they use a real Proxmox VE. Tests control the cluster through the methods
// of Server. Start at New.
package pvesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/simprogram"
	"github.com/numaform/numaform/topology"
)

// Server is a simulated Proxmox VE cluster. Create one with New.
type Server struct {
	program *simprogram.Program
	address struct{ URL, Certificate string }
	// attached is the result of Config.Attach, or nil.
	attached io.Closer
}

// New starts the cluster that cfg describes. Call Start to serve its API.
func New(cfg Config) (*Server, error) {
	program, err := simprogram.Start("pvesim", []string{"--stdin"}, cfg.json)
	if err != nil {
		return nil, err
	}
	s := &Server{program: program}
	if cfg.Attach != nil {
		if s.attached, err = cfg.Attach(s); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Attached returns the result of Config.Attach, or nil.
func (s *Server) Attached() io.Closer { return s.attached }

// Start serves the API on addr ("127.0.0.1:0" selects a free port) until Close.
func (s *Server) Start(addr string) error {
	return s.program.Call(context.Background(), "PUT", "/address", addr, &s.address)
}

// URL returns the cluster's endpoint without a path, as the provider expects it.
func (s *Server) URL() string { return s.address.URL }

// CertPEM returns the certificate that clients must trust, PEM-encoded.
func (s *Server) CertPEM() []byte { return []byte(s.address.Certificate) }

// Close ends the cluster with all its tasks. No other method may be called afterwards.
func (s *Server) Close() error {
	var err error
	if s.attached != nil {
		err = s.attached.Close()
		s.attached = nil
	}
	return errors.Join(err, s.program.Close())
}

// Call is a recorded request. Calls are recorded in the order of their arrival.
type Call struct {
	Method string
	// Path is the part after /api2/json.
	Path string
	// Params are the parameters of body and query, unchecked; each password is replaced
	// with "<hidden>".
	Params map[string]string
	// Host is the Proxmox node in the path, or empty.
	Host string
	// User is the user or token, or empty if not authenticated.
	User string
	// Agent is the client's User-Agent.
	Agent string
	Time  time.Time
	// Status is the status of the response; 0 means no response yet.
	Status int
}

// Calls returns the requests since the last ResetCalls.
func (s *Server) Calls() (calls []Call) {
	s.program.Must("GET", "/calls", nil, &calls)
	return calls
}

// ResetCalls discards the recorded requests.
func (s *Server) ResetCalls() { s.program.Must("DELETE", "/calls", nil, nil) }

// MaxInFlight returns the largest number of concurrent requests since the last ResetCalls.
func (s *Server) MaxInFlight() (most int) {
	s.program.Must("GET", "/calls/in-flight", nil, &most)
	return most
}

// Fault makes requests fail. The zero value matches every request and does nothing; set at
// least one of the effects.
type Fault struct {
	// Method and Path select requests: Path is a regular expression for the path
	// after /api2/json. Empty means any.
	Method string
	Path   string
	// Skip is the number of matching requests that pass first.
	Skip int
	// Times is the number of requests that fail; 0 means all.
	Times int

	// After makes Proxmox execute the request before the response is replaced by Status,
	// Hang or Disconnect: the client does not learn that the request succeeded.
	After bool
	// Delay is the time to wait before anything else.
	Delay time.Duration
	// Hit is called once for each request that fails: after Delay or, with After, once
	// Proxmox has executed the request. The request waits until Hit returns. Hit must
	// return when ctx ends, which happens when the client disconnects or the server stops.
	Hit func(ctx context.Context, call Call) `json:"-"`
	// Status and Reason are the response. A status of 595 to 599 has no body.
	Status int
	Reason string
	// Hang keeps the connection open without a response.
	Hang bool
	// Disconnect closes the connection without a response.
	Disconnect bool
	// TaskExit makes the task of the request end with this exit status.
	TaskExit string
	// LeaveLock makes the task of the request end without cleaning up: the guest stays
	// locked.
	LeaveLock bool
}

// AddFault makes matching requests fail from now on, and returns a function that removes
// the fault. It panics if Path is not a valid regular expression.
func (s *Server) AddFault(f Fault) (remove func()) {
	hooked := struct {
		Fault
		HitURL string
	}{Fault: f}
	if f.Hit != nil {
		hooked.HitURL = s.program.Hook(simprogram.Ask(func(ctx context.Context, call Call) any {
			f.Hit(ctx, call)
			return nil
		}))
	}
	var id int
	s.program.Must("POST", "/faults", hooked, &id)
	return func() {
		// Removing a fault twice, or after the cluster has ended, is not an error.
		_ = s.program.Call(context.Background(), "DELETE", fmt.Sprintf("/faults/%d", id), nil, nil)
	}
}

// SetDelays changes the duration of tasks that start from now on.
func (s *Server) SetDelays(delays Delays) { s.program.Must("PUT", "/delays", delays, nil) }

// SetHostOnline sets whether a host is on the network. If it is not, requests to its paths
// return 595. It panics if the host does not exist.
func (s *Server) SetHostOnline(name string, online bool) {
	s.program.Must("PUT", "/hosts/"+name+"/online", online, nil)
}

// SetQuorate sets whether the cluster has a quorum. Without it, writes to the cluster's
// file system fail.
func (s *Server) SetQuorate(quorate bool) { s.program.Must("PUT", "/quorate", quorate, nil) }

// SetGuestAgents sets whether the guest agents of running VMs with the agent option
// respond.
func (s *Server) SetGuestAgents(answer bool) { s.program.Must("PUT", "/guest-agents", answer, nil) }

// CommandResult is the result of a command in a guest.
type CommandResult struct {
	ExitCode       int
	Stdout, Stderr string
	// Looks is how many status queries report the command as still running.
	Looks int
}

// AgentExec runs a command for a guest's agent.
type AgentExec func(vmid int, args []string, input string) CommandResult

// SetAgentExec sets the function that runs the commands of guest agents. It must not call
// the Server. If it is nil, every command succeeds at once.
func (s *Server) SetAgentExec(exec AgentExec) {
	type question struct {
		VMID  int
		Args  []string
		Input string
	}
	url := ""
	if exec != nil {
		url = s.program.Hook(simprogram.Ask(func(_ context.Context, q question) any { return exec(q.VMID, q.Args, q.Input) }))
	}
	s.program.Must("PUT", "/guest-agents/exec", url, nil)
}

// Shell runs a command line as root on a host, such as `pveum pool add`. For a new token it
// returns the secret, or with --output-format json the JSON that Proxmox prints; other
// commands have no output. A command after " | " runs in a shell on this machine and
// filters the output.
func (s *Server) Shell(line string) (out string, err error) {
	line, filter, piped := strings.Cut(line, " | ")
	if err := s.program.Call(context.Background(), "POST", "/shell", line, &out); err != nil || !piped {
		return out, err
	}
	command := exec.Command("sh", "-c", filter) //nolint:gosec // a test's own command
	command.Stdin = strings.NewReader(out)
	filtered, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("running %q: %w", filter, err)
	}
	return strings.TrimRight(string(filtered), "\n"), nil
}

// Pvesh runs `pvesh get PATH` or `pvesh set PATH` as root on a host, and returns the data
// as JSON.
func (s *Server) Pvesh(args ...string) (data []byte, err error) {
	err = s.program.Call(context.Background(), "POST", "/pvesh", args, &data)
	return data, err
}

// ExportHost writes into a directory the parts of a host's file system that a program needs
// to manage guests on the host. The directory follows all changes of guests, and Threads
// reads the changes that the program makes in it. An empty dir ends the export and returns
// the error of its first failed write or read.
func (s *Server) ExportHost(name, dir string) error {
	return s.program.Call(context.Background(), "PUT", "/hosts/"+name+"/export", dir, nil)
}

// Threads are the CPUs on which the threads of a running guest may run.
type Threads struct {
	// PID and Started identify the process: they change when the guest restarts.
	PID     int
	Started time.Time
	// VCPUs are the CPUs of vCPU 0, 1, 2, …
	VCPUs []topology.CPUSet
	// Others are the CPUs of all other threads.
	Others topology.CPUSet
}

// Pins returns the CPU of vCPU 0, 1, 2, … if each is pinned to exactly one, and nil
// otherwise.
func (t Threads) Pins() []int {
	var pins []int
	for _, cpus := range t.VCPUs {
		if cpus.Size() != 1 {
			return nil
		}
		pins = append(pins, cpus.List()...)
	}
	return pins
}

// Threads returns the threads of a guest, and reports false if the guest is not running.
func (s *Server) Threads(vmid int) (Threads, bool) {
	var threads *Threads
	s.program.Must("GET", guestPath(vmid)+"/threads", nil, &threads)
	if threads == nil {
		return Threads{}, false
	}
	return *threads, true
}

// PutISO stores an ISO on a host's storage without using the API.
func (s *Server) PutISO(host, storage, name string, data []byte) error {
	return s.program.Call(context.Background(), "PUT", "/hosts/"+host+"/storages/"+storage+"/iso/"+name, data, nil)
}

// PutSnippet stores an executable script on a host's storage.
func (s *Server) PutSnippet(host, storage, name string) error {
	return s.program.Call(context.Background(), "PUT", "/hosts/"+host+"/storages/"+storage+"/snippets/"+name, nil, nil)
}

// Volumes returns the IDs of all volumes of a host's storages, sorted.
func (s *Server) Volumes(host string) (ids []string) {
	s.program.Must("GET", "/hosts/"+host+"/volumes", nil, &ids)
	return ids
}

// VolumeData returns the content of a file on a host's storage, and reports false if the
// file does not exist.
func (s *Server) VolumeData(host, volid string) (data []byte, found bool) {
	s.program.Must("GET", "/hosts/"+host+"/volumes/"+volid, nil, &data)
	return data, data != nil
}

// GuestState is the state of a guest in the simulated cluster.
type GuestState struct {
	VMID int
	Host string
	Kind topology.GuestKind
	// Config is the content of the configuration file. Pending are the values that take
	// effect at the guest's next restart, and Delete the options that the restart removes.
	Config  map[string]string
	Pending map[string]string
	Delete  []string
	Running bool
	// Runtime is the configuration of the running process; nil if the guest is stopped.
	Runtime map[string]string
	Pool    string
	HA      bool
	// Raw is the text of the configuration file.
	Raw string
}

// Guests returns all guests, sorted by VMID.
func (s *Server) Guests() (guests []GuestState) {
	s.program.Must("GET", "/guests", nil, &guests)
	return guests
}

// Guest returns a guest, and reports false if it does not exist.
func (s *Server) Guest(vmid int) (GuestState, bool) {
	var guest *GuestState
	s.program.Must("GET", guestPath(vmid), nil, &guest)
	if guest == nil {
		return GuestState{}, false
	}
	return *guest, true
}

func guestPath(vmid int) string { return fmt.Sprintf("/guests/%d", vmid) }

// Guest is a guest for PutGuest.
type Guest struct {
	VMID    int
	Host    string
	Kind    topology.GuestKind // empty means a VM
	Config  map[string]string
	Running bool
	HA      bool
	Pool    string
}

// PutGuest creates or replaces a guest without using the API, to simulate a change outside
// numaform. A replaced guest loses its firewall rules.
func (s *Server) PutGuest(f Guest) error {
	return s.program.Call(context.Background(), "PUT", guestPath(f.VMID), f, nil)
}

// RemoveGuest removes a guest without using the API.
func (s *Server) RemoveGuest(vmid int) { s.program.Must("DELETE", guestPath(vmid), nil, nil) }

// SetDeaf sets whether a guest ignores shutdown requests.
func (s *Server) SetDeaf(vmid int, deaf bool) {
	s.program.Must("PUT", guestPath(vmid)+"/deaf", deaf, nil)
}

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
