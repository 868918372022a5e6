package state_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/state"
)

// echo is a server that returns all data that it receives on a connection, until the client
// ends it.
type echo struct {
	net.Listener
	// conns are the accepted connections.
	conns chan net.Conn
}

func newEcho(t *testing.T, network, address string) *echo {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{Listener: listener, conns: make(chan net.Conn, 16)}
	t.Cleanup(func() { _ = e.Close() })
	go func() {
		for {
			conn, err := e.Accept()
			if err != nil {
				return
			}
			e.conns <- conn
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return e
}

// ask sends a line through a fence and returns the connection if the line comes back. If it
// does not, ask returns nil, and the connection must end.
func ask(t *testing.T, network, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), network, address)
	if err != nil {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is neither forwarded nor ended")
		}
		_ = conn.Close()
		return nil
	}
	return conn
}

func TestFence(t *testing.T) {
	t.Parallel()
	sockets := t.TempDir()
	for name, at := range map[string]struct{ network, address, conn string }{
		"tcp":  {"tcp", "127.0.0.1:0", ""},
		"unix": {"unix", filepath.Join(sockets, ".s.PGSQL.5432"), "host=" + sockets},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newEcho(t, at.network, at.address)
			conn := at.conn
			if conn == "" {
				conn = "postgres://" + server.Addr().String() + "/"
			}
			fence, err := state.OpenFence(conn)
			if err != nil {
				t.Fatal(err)
			}
			host, port := fence.Address()
			address := net.JoinHostPort(host, port)
			if at.network == "unix" {
				address = filepath.Join(host, ".s.PGSQL."+port)
			}
			for range 3 { // the engine ends its own connections
				if err := ask(t, at.network, address).Close(); err != nil {
					t.Fatal(err)
				}
				<-server.conns
			}
			kept, other := ask(t, at.network, address), ask(t, at.network, address)
			if err := (<-server.conns).Close(); err != nil { // the server ends one
				t.Fatal(err)
			}
			for _, conn := range []net.Conn{kept, other} {
				if n, err := conn.Read(make([]byte, 1)); err == nil {
					t.Errorf("read %d bytes of a connection that must have ended", n)
				}
			}
			if ask(t, at.network, address) != nil {
				t.Error("a broken fence lets through")
			}
			if broken, err := fence.Close(); broken == nil || err != nil {
				t.Errorf("got %v, %v, want a broken fence", broken, err)
			}
		})
	}
}

// TestFenceBeforeAReset checks that the fence is broken after the server resets a
// connection to which the engine writes.
func TestFenceBeforeAReset(t *testing.T) {
	t.Parallel()
	server := newEcho(t, "tcp", "127.0.0.1:0")
	fence, err := state.OpenFence("postgres://" + server.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	conn := ask(t, "tcp", net.JoinHostPort(fence.Address()))
	there := <-server.conns
	if err := errors.Join(there.(*net.TCPConn).SetLinger(0), there.Close()); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = io.WriteString(conn, "hello\n")
	}
	if broken, err := fence.Close(); broken == nil || err != nil {
		t.Errorf("got %v, %v, want a broken fence", broken, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFenceThatHeld(t *testing.T) {
	t.Parallel()
	server := newEcho(t, "tcp", "127.0.0.1:0")
	fence, err := state.OpenFence("postgres://" + server.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	conn := ask(t, "tcp", net.JoinHostPort(fence.Address()))
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if broken, err := fence.Close(); broken != nil || err != nil {
		t.Errorf("got %v, %v, want no trouble", broken, err)
	}
}

func TestFenceBeforeNobody(t *testing.T) {
	t.Parallel()
	server := newEcho(t, "tcp", "127.0.0.1:0")
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	fence, err := state.OpenFence("postgres://" + server.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	if ask(t, "tcp", net.JoinHostPort(fence.Address())) != nil {
		t.Error("an answer of nobody")
	}
	if broken, err := fence.Close(); broken == nil || err != nil {
		t.Errorf("got %v, %v, want what went wrong", broken, err)
	}
}

// deaf returns the address of a server that accepts no connections, so that a dial waits.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*unix.SockaddrInet4).Port))
	for range 4 { // more than its backlog
		conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("it takes connections")
	return ""
}

// TestFenceBeforeADeafServer checks that closing a fence does not wait for its dial to the
// server, because the workspace stays locked until the fence is closed.
func TestFenceBeforeADeafServer(t *testing.T) {
	t.Parallel()
	fence, err := state.OpenFence("postgres://" + deaf(t) + "/")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort(fence.Address()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fence.Admitted(1)
	closed := make(chan error, 1)
	go func() {
		broken, err := fence.Close()
		closed <- errors.Join(broken, err)
	}()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("got %v, want no trouble", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits for the dial")
		<-closed
	}
}

// faulty is a listener whose Accept fails at first.
type faulty struct {
	net.Listener
	failures atomic.Int32
}

func (f *faulty) Accept() (net.Conn, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// TestFenceWithoutFiles checks that the fence works again after the process ran out of file
// descriptors.
func TestFenceWithoutFiles(t *testing.T) {
	t.Parallel()
	server := newEcho(t, "tcp", "127.0.0.1:0")
	fence, err := state.OpenFenceOn("postgres://"+server.Addr().String()+"/", func(l net.Listener) net.Listener {
		listener := &faulty{Listener: l}
		listener.failures.Store(3)
		return listener
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort(fence.Address()))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("got %q, %v, want an answer", line, err)
	}
	_ = conn.Close()
	if broken, err := fence.Close(); broken != nil || err != nil {
		t.Errorf("got %v, %v, want no trouble", broken, err)
	}
}

func TestConnectionStrings(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text                        string
		env                         map[string]string
		network, address, elsewhere string
	}{
		"url":           {"postgres://u:p@db:6000/x?sslmode=require", nil, "tcp", "db:6000", "postgres://u:p@127.0.0.1:99/x?sslmode=require"},
		"url, defaults": {"postgres:///x", nil, "tcp", "localhost:5432", "postgres://127.0.0.1:99/x"},
		"ipv6":          {"postgres://[::1]/x", nil, "tcp", "[::1]:5432", "postgres://127.0.0.1:99/x"},
		"environment":   {"", map[string]string{"PGHOST": "db", "PGPORT": "1"}, "tcp", "db:1", " host='127.0.0.1' port=99"},
		"list":          {"host=db password='a host=b' user=u", nil, "tcp", "db:5432", "host=db password='a host=b' user=u host='127.0.0.1' port=99"},
		"socket":        {"host=/run/pg port=7", nil, "unix", "/run/pg/.s.PGSQL.7", "host=/run/pg port=7 host='127.0.0.1' port=99"},
		"by its name":   {"postgres://db/x?sslmode=verify-full", nil, "", "", ""},
		"by its name 2": {"host=db", map[string]string{"PGSSLMODE": "verify-full"}, "", "", ""},
		"kerberos":      {"host=db krbsrvname=pg", nil, "", "", ""},
		"service":       {"service=x", nil, "", "", ""},
		"many hosts":    {"host=a,b", nil, "", "", ""},
		"many hosts 2":  {"postgres://a:1,b:2/x", nil, "", "", ""},
		"host twice":    {"postgres://a/x?host=b", nil, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network, address, elsewhere := state.Led(tt.text, tt.env)
			if network != tt.network || address != tt.address || elsewhere != tt.elsewhere {
				t.Errorf("got %q %q %q, want %q %q %q", network, address, elsewhere, tt.network, tt.address, tt.elsewhere)
			}
		})
	}
}

// TestBehindFence checks which engines reach PostgreSQL through a fence: only the ones
// with the server's address in their environment, and without a password file.
func TestBehindFence(t *testing.T) {
	t.Parallel()
	server := "postgres://db.example/states"
	for _, test := range []struct {
		name, backend string
		config        map[string]string
		passwords     bool
		want          bool
	}{
		{name: "environment", backend: `backend "pg" {}`, want: true},
		{name: "backend block", backend: `backend "pg" { conn_str = "postgres://other.example/states" }`},
		{name: "configuration", backend: `backend "pg" {}`, config: map[string]string{"conn_str": "postgres://other.example/states"}},
		{name: "password file", backend: `backend "pg" {}`, passwords: true},
		{name: "another backend", backend: `backend "local" {}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir, home := t.TempDir(), t.TempDir()
			write(t, dir, "main.tf", "terraform {\n  "+test.backend+"\n}\n")
			if test.passwords {
				write(t, home, ".pgpass", "")
			}
			got := state.BehindFence(state.Config{Dir: dir, BackendConfig: test.config}, map[string]string{"PG_CONN_STR": server, "HOME": home})
			if got != test.want {
				t.Errorf("behind a fence: %v, want %v", got, test.want)
			}
		})
	}
}
