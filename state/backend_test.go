package state_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// backend is a server for Terraform's http backend: GET, POST, DELETE, LOCK, UNLOCK.
type backend struct {
	*httptest.Server
	// mu guards everything below.
	mu    sync.Mutex
	state []byte
	lock  []byte
	// failing makes writes of the state fail.
	failing bool
	// keeping makes releases of the lock fail.
	keeping bool
	// changed, if set, modifies each state that is written.
	changed func([]byte) []byte
	// saving receives a value when a write begins, which then waits for resume, if both
	// are set.
	saving, resume chan struct{}
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// hold makes writes of the state wait until release is called. saving receives a value when
// a write begins.
func (b *backend) hold() (saving <-chan struct{}, release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saving, b.resume = make(chan struct{}, 16), make(chan struct{})
	resume := b.resume
	return b.saving, sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.saving, b.resume = nil, nil
		close(resume)
	})
}

func (b *backend) fail(failing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = failing
}

func (b *backend) keep(keeping bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keeping = keeping
}

// change modifies the states written from now on.
func (b *backend) change(changed func([]byte) []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = changed
}

// setLock sets the lock's holder; empty means none.
func (b *backend) setLock(lock string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lock = []byte(lock)
}

func (b *backend) locked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.lock) > 0
}

func (b *backend) saved() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *backend) setState(state []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = state
}

// ServeHTTP implements http.Handler.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Method == http.MethodPost {
		b.wait()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		if len(b.state) == 0 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(b.state)
	case http.MethodPost:
		if b.failing || r.Context().Err() != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if b.changed != nil {
			body = b.changed(body)
		}
		b.state = body
	case http.MethodDelete:
		b.state = nil
	case "LOCK":
		b.take(w, body)
	case "UNLOCK":
		if b.keeping {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		b.release(w, body)
	}
}

func (b *backend) wait() {
	b.mu.Lock()
	saving, resume := b.saving, b.resume
	b.mu.Unlock()
	if saving != nil {
		saving <- struct{}{}
		<-resume
	}
}

func (b *backend) take(w http.ResponseWriter, lock []byte) {
	if len(b.lock) > 0 {
		w.WriteHeader(http.StatusLocked)
		_, _ = w.Write(b.lock)
		return
	}
	b.lock = lock
}

// release removes the lock if the request names its ID, or has no body, like that of
// Terraform's force-unlock.
func (b *backend) release(w http.ResponseWriter, lock []byte) {
	var want, got struct{ ID string }
	_ = json.Unmarshal(b.lock, &want)
	_ = json.Unmarshal(lock, &got)
	if len(lock) > 0 && got.ID != want.ID {
		w.WriteHeader(http.StatusConflict)
		return
	}
	b.lock = nil
}
