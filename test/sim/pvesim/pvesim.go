// Package pvesim simulates the HTTP API of a Proxmox VE cluster over TLS, closely enough
// for the bpg/proxmox provider and go-proxmox to work with it unchanged. It checks requests
// against Proxmox's own parameter schemas and privileges, returns errors in the HTTP status
// line, runs long operations as tasks, and locks, clones, starts and destroys guests by
// Proxmox's rules.
//
// It has no disks, and runs no guests unless Config.Hypervisor does. A request that Proxmox
// does not support returns 501; the error names pvesim if only the simulator does not
// support the request. Tests start a Server from a Config, inspect its state with Guests
// and Calls, and make it fail with AddFault, SetHostOnline and SetQuorate.
package pvesim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server is a simulated Proxmox VE cluster. Create one with New.
type Server struct {
	cfg    Config
	routes *routeNode
	access *access
	state  *cluster
	tasks  *taskList
	faults *faultList
	calls  *callLog
	cert   certificate
	// delaysNow are the delays set since the start; nil means none.
	delaysNow atomic.Pointer[Delays]

	http     *http.Server
	listener net.Listener
	serving  sync.WaitGroup
	ctx      context.Context //nolint:containedctx // the server's life: requests and tasks end with it
	cancel   context.CancelFunc
}

// New creates a cluster from its description. It does not open a port.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("building simulated proxmox: %w", err)
	}
	api, err := apiSchema()
	if err != nil {
		return nil, fmt.Errorf("building simulated proxmox: %w", err)
	}
	s := &Server{cfg: cfg, calls: newCallLog(cfg.Clock), faults: &faultList{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.access, err = newAccess(cfg); err != nil {
		return nil, fmt.Errorf("building simulated proxmox: %w", err)
	}
	if s.state, err = newCluster(cfg); err != nil {
		return nil, fmt.Errorf("building simulated proxmox: %w", err)
	}
	s.access.pools = s.state.pools.ofPath
	s.tasks = newTaskList(s.ctx, cfg.Clock)
	if s.routes, err = buildRoutes(api, handlers()); err != nil {
		return nil, fmt.Errorf("building simulated proxmox: %w", err)
	}
	return s, nil
}

// Start serves on addr ("127.0.0.1:0" selects a free port) until Close.
func (s *Server) Start(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("starting simulated proxmox on %s: %w", addr, err)
	}
	if s.cert, err = newCertificate(s.cfg, listener.Addr()); err != nil {
		return errors.Join(fmt.Errorf("starting simulated proxmox on %s: %w", addr, err), listener.Close())
	}
	s.listener = listener
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 30 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.cert.pair}},
		// Proxmox only supports HTTP/1.1, and the simulator writes responses to the
		// connection itself.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		BaseContext:  func(net.Listener) context.Context { return s.ctx },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	s.serving.Go(func() { _ = s.http.ServeTLS(listener, "", "") })
	return nil
}

// URL returns the cluster's endpoint without a path, as the provider expects it.
func (s *Server) URL() string { return "https://" + s.listener.Addr().String() }

// CertPEM returns the certificate that clients must trust, PEM-encoded.
func (s *Server) CertPEM() []byte { return s.cert.pem }

// Close stops serving, ends all tasks, and waits for both.
func (s *Server) Close() error {
	s.cancel()
	var err error
	if s.http != nil {
		if err = s.http.Close(); err != nil {
			err = fmt.Errorf("closing simulated proxmox: %w", err)
		}
	}
	s.serving.Wait()
	s.tasks.wait()
	return err
}
