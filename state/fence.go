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

// A fence keeps an engine from writing a state whose lock it has lost. The lock of
// the pg backend lives as long as its connection, and an engine that lost the
// connection opens another and writes on, over what others wrote meanwhile. So the
// engine connects to the fence, which passes everything on until the server ends a
// connection: from then on it lets nothing through. The engine then keeps what it
// made in errored.tfstate.
type fence struct {
	upstream target
	listener net.Listener
	// dir holds the socket of a fence that is one.
	dir *scratch.Dir
	// ctx ends everything that waits, dials too.
	ctx  context.Context //nolint:containedctx // it is the fence's own end
	end  context.CancelFunc
	open sync.WaitGroup

	// mu guards everything below. ending counts connections of which it is not
	// yet known which side ended them.
	mu     sync.Mutex
	idle   *sync.Cond
	ending int
	broken error
	conns  map[net.Conn]struct{}
}

// dialTimeout is how long the server may take to accept a connection.
const dialTimeout = 10 * time.Second

// farewell is how long after the server's end of a connection the engine's may
// follow, for the engine to have ended it.
const farewell = 200 * time.Millisecond

// newFence opens a fence before a server.
func newFence(upstream target) (*fence, error) {
	f, err := listen(upstream)
	if err == nil {
		f.open.Go(f.accept)
	}
	return f, err
}

// listen returns a fence that does not accept yet.
func listen(upstream target) (*fence, error) {
	f := &fence{upstream: upstream, conns: map[net.Conn]struct{}{}}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.idle = sync.NewCond(&f.mu)
	address := "127.0.0.1:0"
	if upstream.network == "unix" {
		var err error
		// Whoever may connect is taken for us by the server.
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

// address returns host and port of the fence as PostgreSQL's clients want them.
func (f *fence) address() (host, port string) {
	if f.dir != nil {
		return f.dir.Path(), "5432"
	}
	host, port, _ = net.SplitHostPort(f.listener.Addr().String()) // a listener's address has both
	return host, port
}

// breather is how long the fence waits after a connection that it could not accept,
// as of a process with too many open files.
const breather = 10 * time.Millisecond

// accept takes connections until the fence is closed.
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

// serve passes one connection on.
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
		// What cannot be passed on any more is no goodbye: the server reset the connection.
		if _, err := io.Copy(server, client); err == nil {
			close(left)
		}
		halfClose(server)
	})
	_, _ = io.Copy(client, server)
	f.judge(left)
}

// judge finds out who ended a connection: an engine that says goodbye is gone
// within a moment.
func (f *fence) judge(left <-chan struct{}) {
	f.mu.Lock()
	f.ending++
	f.mu.Unlock()
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-left:
	case <-f.ctx.Done():
	case <-timer.C:
		f.breakUp(errors.New("PostgreSQL ended a connection, and the lock of the state with it"))
	}
	f.mu.Lock()
	f.ending--
	f.mu.Unlock()
	f.idle.Broadcast()
}

// admit takes a connection in, unless the fence is broken. It waits for connections
// of which it is not known who ended them.
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

// breakUp ends all connections, and lets none in any more.
func (f *fence) breakUp(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken == nil {
		f.broken = reason
	}
	for conn := range f.conns {
		_ = conn.Close() // its copiers see it
	}
	f.idle.Broadcast()
}

func (f *fence) forget(conn net.Conn) {
	f.mu.Lock()
	delete(f.conns, conn)
	f.mu.Unlock()
	_ = conn.Close() // it may be closed
}

// close ends the fence, and returns why it let nothing through, if so.
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

// halfClose tells the server that the engine has nothing more to say.
func halfClose(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed
	}
}
