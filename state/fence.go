package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/numaform/numaform/internal/scratch"
)

// fence prevents an engine from writing a state whose lock it has lost. The lock of the pg
// backend lasts as long as its connection, and an engine that loses the connection opens
// another one and continues, overwriting changes that other clients made meanwhile. The
// engine therefore connects to the fence, a proxy that forwards all connections until the
// server ends one or cannot be reached; from then on it blocks them. The engine then saves
// its state to errored.tfstate.
type fence struct {
	upstream target
	listener net.Listener
	// dir holds the fence's Unix socket, if it uses one.
	dir *scratch.Dir
	// ctx cancels all waits, including dials.
	ctx  context.Context //nolint:containedctx // it ends with the fence
	end  context.CancelFunc
	open sync.WaitGroup

	// mu guards everything below. ending counts ended connections for which the side that
	// ended them is still unknown.
	mu     sync.Mutex
	idle   *sync.Cond
	ending int
	broken error
	conns  map[net.Conn]struct{}
}

// dialTimeout limits how long the server may take to accept a connection.
const dialTimeout = 10 * time.Second

// farewell is the maximum delay from the end of the server's side to the end of the
// engine's side of a connection that the engine ended.
const farewell = 200 * time.Millisecond

// newFence opens a fence in front of a server.
func newFence(upstream target) (*fence, error) {
	f, err := listen(upstream)
	if err == nil {
		f.open.Go(f.accept)
	}
	return f, err
}

// listen returns a fence that does not accept connections yet.
func listen(upstream target) (*fence, error) {
	f := &fence{upstream: upstream, conns: map[net.Conn]struct{}{}}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.idle = sync.NewCond(&f.mu)
	address := "127.0.0.1:0"
	if upstream.network == "unix" {
		var err error
		// The server treats every client of the socket as this process, so access must be
		// restricted.
		if f.dir, err = scratch.NewShort("fence", 107-socketRoom); err != nil {
			return nil, err
		}
		address = filepath.Join(f.dir.Path(), socketName("5432"))
	}
	var err error
	if f.listener, err = (&net.ListenConfig{}).Listen(context.Background(), upstream.network, address); err != nil {
		f.end()
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

// address returns the fence's host and port in the form that PostgreSQL clients expect.
func (f *fence) address() (host, port string) {
	if f.dir != nil {
		return f.dir.Path(), "5432"
	}
	host, port, _ = net.SplitHostPort(f.listener.Addr().String()) // a listener's address has both
	return host, port
}

// breather is the delay after a failed accept, for example because the process has too
// many open files.
const breather = 10 * time.Millisecond

// accept accepts connections until the fence is closed.
func (f *fence) accept() {
	for {
		client, err := f.listener.Accept()
		switch {
		case err == nil:
			f.open.Go(func() { f.serve(client) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			timer := time.NewTimer(breather)
			select {
			case <-f.ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// serve forwards one connection.
func (f *fence) serve(client net.Conn) {
	defer f.forget(client)
	if !f.admit(client) {
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	defer cancel()
	server, err := (&net.Dialer{}).DialContext(ctx, f.upstream.network, f.upstream.address)
	if err != nil {
		f.breakUp(fmt.Errorf("connecting to PostgreSQL: %w", err))
		return
	}
	defer f.forget(server)
	if !f.admit(server) {
		return
	}
	left := make(chan struct{})
	f.open.Go(func() {
		// A failed write is not an orderly end: the server reset the connection.
		if _, err := io.Copy(server, client); err == nil {
			close(left)
		}
		// The engine sends nothing more.
		if half, ok := server.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // it may already be closed
		}
	})
	_, _ = io.Copy(client, server)

	// Determine which side ended the connection: if it was the engine, it disconnects
	// within a moment.
	f.mu.Lock()
	f.ending++
	f.mu.Unlock()
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-left:
	case <-f.ctx.Done():
	case <-timer.C:
		f.breakUp(errors.New("PostgreSQL closed a connection and released the state lock"))
	}
	f.mu.Lock()
	f.ending--
	f.mu.Unlock()
	f.idle.Broadcast()
}

// admit registers a connection and returns true, unless the fence is broken. It first waits
// until it is clear which side ended the previous connections.
func (f *fence) admit(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ending > 0 && f.broken == nil {
		f.idle.Wait()
	}
	if f.broken == nil {
		f.conns[conn] = struct{}{}
	}
	return f.broken == nil
}

// breakUp ends all connections and rejects new ones.
func (f *fence) breakUp(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken == nil {
		f.broken = reason
	}
	for conn := range f.conns {
		_ = conn.Close() // the copies from and to it then end
	}
	f.idle.Broadcast()
}

func (f *fence) forget(conn net.Conn) {
	f.mu.Lock()
	delete(f.conns, conn)
	f.mu.Unlock()
	_ = conn.Close() // it may already be closed
}

// close ends the fence. broken is the reason why it blocked connections, if it did.
func (f *fence) close() (broken, err error) {
	f.mu.Lock()
	broken = f.broken
	f.mu.Unlock()
	f.end()
	err = f.listener.Close()
	f.breakUp(net.ErrClosed)
	f.open.Wait()
	return broken, errors.Join(err, f.remove())
}

// remove removes the directory of the fence's socket.
func (f *fence) remove() error {
	if f.dir == nil {
		return nil
	}
	return f.dir.Remove()
}
