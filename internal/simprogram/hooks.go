package simprogram

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Hook is a function that a simulator calls. Its context ends with the simulator's request.
type Hook func(ctx context.Context, question json.RawMessage) (answer any, err error)

// Ask returns a hook that decodes its input as In and calls do.
func Ask[In any](do func(ctx context.Context, in In) any) Hook {
	return func(ctx context.Context, question json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(question, &in); err != nil {
			return nil, err
		}
		return do(ctx, in), nil
	}
}

// hooks serves hooks, each at its own path.
type hooks struct {
	url    string
	server *http.Server
	done   sync.WaitGroup

	// mu guards the fields below.
	mu  sync.Mutex
	all map[string]Hook
}

func newHooks() (*hooks, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &hooks{url: "http://" + listener.Addr().String(), all: map[string]Hook{}}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	h.done.Go(func() { _ = h.server.Serve(listener) }) // ends when the server is closed
	return h, nil
}

func (h *hooks) add(hook Hook) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := fmt.Sprintf("/%d", len(h.all))
	h.all[path] = hook
	return h.url + path
}

// close cancels the contexts of running hooks, and does not wait for them.
func (h *hooks) close() {
	_ = h.server.Close()
	h.done.Wait()
}

// ServeHTTP implements http.Handler.
func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	hook := h.all[r.URL.Path]
	h.mu.Unlock()
	question, err := io.ReadAll(r.Body)
	if err == nil && hook == nil {
		err = errors.New("no such hook")
	}
	var answer any
	if err == nil {
		answer, err = hook(r.Context(), question)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
}
