package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// server is a process that serves requests until it is stopped. On Linux, it ends with the
// test binary.
type server struct {
	path string
	// interrupt is the signal for an orderly shutdown.
	interrupt syscall.Signal
	// env is added to the environment of the test.
	env     []string
	process *exec.Cmd
	done    chan struct{}
	said    tail
}

// startServer starts a server and waits until it is ready.
func startServer(path, dir string, args []string, ready func(context.Context) error) (*server, error) {
	s := &server{path: path, interrupt: syscall.SIGTERM}
	return s, s.start(dir, args, &syscall.SysProcAttr{}, ready)
}

// start starts the server and waits until it is ready. With a credential in attributes, the
// server runs as another user.
func (s *server) start(dir string, args []string, attributes *syscall.SysProcAttr, ready func(context.Context) error) error {
	s.process = exec.CommandContext(context.Background(), s.path, args...) //nolint:gosec // the servers of a test
	s.process.Dir, s.process.Stdout, s.process.Stderr = dir, &s.said, &s.said
	// Collect garbage less often: tests have memory to spare, but little time.
	s.process.Env = append(append(os.Environ(), "GOGC=400"), s.env...)
	dieWithParent(attributes)
	s.process.SysProcAttr = attributes
	if err := s.process.Start(); err != nil {
		s.process = nil
		return fmt.Errorf("starting %s: %w: build it with make tools", filepath.Base(s.path), err)
	}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		_ = s.process.Wait() // its output gives the reason
	}()
	if err := s.await(ready); err != nil {
		return errors.Join(err, s.stop())
	}
	return nil
}

// await polls until the server is ready. It returns an error if the server ends first or
// the timeout expires.
func (s *server) await(ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.done:
			return fmt.Errorf("starting %s: it exited: %s", filepath.Base(s.path), s.said.String())
		case <-ctx.Done():
			return fmt.Errorf("starting %s: not ready after %s: %w: %s", filepath.Base(s.path), startTimeout, err, s.said.String())
		}
	}
}

// stop stops the server and waits until it has ended.
func (s *server) stop() error {
	if s == nil || s.process == nil {
		return nil
	}
	_ = s.process.Process.Signal(s.interrupt) // it may have ended
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.process.Process.Kill()
		<-s.done
	}
	s.process = nil
	return nil
}

// Ports from firstPort on are below the ephemeral ports of common systems, so the kernel
// does not assign a chosen port to another process before the server listens on it.
const (
	firstPort = 10000
	manyPorts = 20000
)

// FreePorts returns n addresses of this machine with unused TCP ports, such as
// "127.0.0.1:12345", for servers that cannot choose one themselves. They are below those that
// the kernel chooses for outgoing connections, of which a busy machine has many.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	for tries := 0; len(addresses) < n; tries++ {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(manyPorts))) //nolint:gosec // any will do
		listener, err := net.Listen("tcp", address)                                            //nolint:noctx // nothing to cancel
		if err != nil {
			if tries > manyPorts {
				return nil, fmt.Errorf("looking for free ports: %w", err)
			}
			continue
		}
		defer listener.Close() //nolint:errcheck // open until return, so that all ports differ
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// tail keeps the end of a server's output.
type tail struct {
	// mu guards said.
	mu   sync.Mutex
	said []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = append(t.said, p...)
	t.said = t.said[max(0, len(t.said)-4000):]
	return len(p), nil
}

// String returns the end of the output.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.said))
}
