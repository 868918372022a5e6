package hostile_test

import (
	"bytes"
	"encoding/base64"
	endian "encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The credentials of every world. They must not appear anywhere except where the world
// writes them.
const (
	tokenCanary   = "c0ffee00-0000-4000-8000-proxmoxtoken"
	gitCanary     = "canary-of-the-git-token-0123456789"
	backendCanary = "canary-of-the-backend-0123456789ab"
)

func canaries() []string { return []string{tokenCanary, gitCanary, backendCanary} }

// leaked returns the credentials in content: verbatim, in base64, or URL-encoded.
func leaked(content []byte) []string {
	var found []string
	for _, canary := range canaries() {
		if slices.ContainsFunc(forms(canary), func(form string) bool { return bytes.Contains(content, []byte(form)) }) {
			found = append(found, canary)
		}
	}
	return found
}

// forms returns the possible encodings of a text. Base64 has three encodings, depending on
// the text's offset. Their ends are omitted, because they depend on the surrounding bytes.
func forms(text string) []string {
	found := []string{text, url.QueryEscape(text)}
	for shift := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
		inner := encoded[4 : len(encoded)-4]
		found = append(found, inner, url.QueryEscape(inner))
	}
	return found
}

// listener is the server to which attacks send data.
type listener struct {
	server *httptest.Server
	// mu guards the fields below.
	mu sync.Mutex
	// connections counts the connections, including those without a request.
	connections int
	asked       bytes.Buffer
}

func newListener(t *testing.T) *listener {
	t.Helper()
	l := &listener{}
	l.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request bytes.Buffer
		_ = r.Write(&request) // an incomplete request is recorded as far as it was sent
		user, password, _ := r.BasicAuth()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked.Write(request.Bytes())
		l.asked.WriteString("\n" + user + " " + password + "\n")
		w.WriteHeader(http.StatusNotFound)
	}))
	l.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state != http.StateNew {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.connections++
	}
	l.server.Start()
	t.Cleanup(l.server.Close)
	return l
}

// seen returns the number of connections and the data sent over them, and resets both.
func (l *listener) seen() (connections int, asked []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	connections, asked = l.connections, bytes.Clone(l.asked.Bytes())
	l.connections = 0
	l.asked.Reset()
	return connections, asked
}

// TestLeakedIsFound checks that leaked finds credentials that are encoded as in attacks.
func TestLeakedIsFound(t *testing.T) {
	t.Parallel()
	for _, canary := range canaries() {
		for shift := range 4 {
			environ := strings.Repeat("y", shift) + "NAME=" + canary + "\x00OTHER=1"
			for _, hidden := range []string{
				environ, url.QueryEscape(environ), base64.StdEncoding.EncodeToString([]byte(environ)),
				url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(environ))),
			} {
				if got := leaked([]byte("before " + hidden + " after")); !slices.Equal(got, []string{canary}) {
					t.Errorf("in %q: found %v, want %s", hidden, got, canary)
				}
			}
		}
	}
	if got := leaked([]byte("nothing of this kind")); len(got) > 0 {
		t.Errorf("found %v in text without credentials", got)
	}
}

// opened detects when files are opened.
type opened struct{ fd int }

func newOpened(t *testing.T) *opened {
	t.Helper()
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return &opened{fd: fd}
}

// watch adds a file. Adding it twice has no effect.
func (o *opened) watch(name string) error {
	_, err := syscall.InotifyAddWatch(o.fd, name, syscall.IN_OPEN)
	return err
}

// any reports whether a file was opened since the last call.
func (o *opened) any() bool {
	found := false
	events := make([]byte, 64<<10)
	for {
		n, err := syscall.Read(o.fd, events)
		if err != nil || n <= 0 {
			return found
		}
		for at := 0; at+syscall.SizeofInotifyEvent <= n; {
			mask := endian.NativeEndian.Uint32(events[at+4:])
			found = found || mask&(syscall.IN_OPEN|syscall.IN_Q_OVERFLOW) != 0
			at += syscall.SizeofInotifyEvent + int(endian.NativeEndian.Uint32(events[at+12:]))
		}
	}
}
