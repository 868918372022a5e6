package statesim

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/numaform/numaform/test/sim/control"
)

// login contains the arguments of Server.Demand.
type login struct {
	User, Password string
}

// Run runs a server for the parent process: see control.Run.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	return control.Run(ctx, in, out, func(ctx context.Context, _ struct{}) (http.Handler, error) {
		s := New()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("serving states: %w", err)
		}
		server := &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second}
		context.AfterFunc(ctx, func() { _ = server.Close() })
		go func() { _ = server.Serve(listener) }() // ends when the server is closed
		return s.control("http://"+listener.Addr().String(), server), nil
	})
}

func (s *Server) control(url string, server *http.Server) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /url", control.Get(func(*http.Request) string { return url }))
	mux.Handle("DELETE /url", control.Set(func(*http.Request, struct{}) error { return server.Close() }))
	mux.Handle("PUT /refused", control.Set(func(_ *http.Request, methods []string) error { s.Refuse(methods...); return nil }))
	mux.Handle("PUT /login", control.Set(func(_ *http.Request, l login) error { s.Demand(l.User, l.Password); return nil }))
	mux.Handle("GET /states", control.Get(func(*http.Request) map[string][]byte { return s.States() }))
	mux.Handle("PUT /states", control.Set(func(_ *http.Request, states map[string][]byte) error { s.Restore(states); return nil }))
	mux.Handle("GET /locks", control.Get(func(*http.Request) map[string][]byte { return s.Locks() }))
	mux.Handle("GET /taken", control.Get(func(*http.Request) int { return s.Taken() }))
	return mux
}
