// Package control implements the control port of a simulator, which accepts HTTP requests
// with JSON for all operations other than the simulated API. It also implements the hooks
// with which a simulator calls the program that runs it. Start at Serve.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Serve serves control requests on address until ctx ends, and calls ready with its URL.
func Serve(ctx context.Context, address string, handler http.Handler, ready func(url string)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serving control requests on %s: %w", address, err)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	ready("http://" + listener.Addr().String())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving control requests on %s: %w", address, err)
	}
	return nil
}

// Do returns a handler for requests with body In and response Out. If do returns an error,
// the response is 400 with the error's text.
func Do[In, Out any](do func(r *http.Request, in In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil && !errors.Is(err, io.EOF) {
			http.Error(w, fmt.Sprintf("reading %s %s: %v", r.Method, r.URL.Path, err), http.StatusBadRequest)
			return
		}
		out, err := do(r, in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // the client detects a truncated response
	}
}

// Get returns a handler for requests without a body.
func Get[Out any](get func(r *http.Request) Out) http.HandlerFunc {
	return Do(func(r *http.Request, _ struct{}) (Out, error) { return get(r), nil })
}

// Set returns a handler for requests whose response has no content.
func Set[In any](set func(r *http.Request, in In) error) http.HandlerFunc {
	return Do(func(r *http.Request, in In) (struct{}, error) { return struct{}{}, set(r, in) })
}

// Ask calls a hook with a question and decodes the response into answer, which may be nil.
func Ask(ctx context.Context, url string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("calling hook %s: %w", url, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("calling hook %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("calling hook %s: %w", url, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("calling hook %s: %s", url, response.Status)
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("calling hook %s: reading the response: %w", url, err)
	}
	return nil
}
