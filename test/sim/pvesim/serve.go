package pvesim

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// request is an API request for a handler.
type request struct {
	s      *Server
	ctx    context.Context //nolint:containedctx // one request is one value, ended with its context
	who    identity
	method string
	path   string
	p      params
	file   *upload
	host   *host  // the node in the path, or nil
	at     *host  // the node that runs the method
	fault  *Fault // fault of the request's task, or nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/api2/json")
	if path == "" {
		path = "/"
	}
	call := s.calls.begin(r, path)
	status := 0
	defer func() { s.calls.end(call, status) }()
	given, file, failed := readParams(r)
	if !ok {
		failed = &apiError{code: http.StatusNotImplemented, message: "no such uri", bare: true}
	}
	s.calls.edit(call, func(c *Call) { c.Params = visible(given) })
	fault := s.faults.match(r.Method, path)
	s.pause(r.Context(), fault)
	s.calls.hit(r.Context(), fault, call, false)
	if fault.replaces() && !fault.After {
		status = s.strike(w, r, fault)
		return
	}
	req := &request{s: s, ctx: r.Context(), method: r.Method, path: path, file: file, fault: fault}
	data, failed := s.answer(r, req, given, failed)
	s.calls.edit(call, func(c *Call) {
		c.User = string(req.who)
		if req.host != nil {
			c.Host = req.host.name
		}
	})
	s.calls.hit(r.Context(), fault, call, true)
	switch {
	case fault.replaces():
		status = s.strike(w, r, fault)
	case failed != nil:
		status = failed.code
		s.writeError(w, failed)
	default:
		status = http.StatusOK
		s.writeData(w, data)
	}
}

// answer admits the request and runs it. If reading the request failed, it returns that
// error after authentication.
func (s *Server) answer(r *http.Request, req *request, given map[string]value, failed *apiError) (any, *apiError) {
	if e := s.admit(r, req); e != nil {
		return nil, e
	}
	if failed != nil {
		return nil, failed
	}
	return s.dispatch(req, given)
}

// pause waits for the fault's delay.
func (s *Server) pause(ctx context.Context, f *Fault) {
	if f == nil || f.Delay <= 0 {
		return
	}
	timer := s.cfg.Clock.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// admit checks the method and, unless the request is a login, authenticates the sender.
func (s *Server) admit(r *http.Request, req *request) *apiError {
	switch r.Method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete:
	default:
		return &apiError{code: http.StatusNotImplemented, message: "method '" + r.Method + "' not available", bare: true}
	}
	if strings.TrimSuffix(req.path, "/") == "/access/ticket" {
		return nil
	}
	who, failed := s.access.authenticate(r, s.cfg.Clock.Now())
	req.who = who
	return failed
}

// dispatch runs a request in the same order as Proxmox: find the method, check privileges,
// select the method's node, check the parameters, run the method.
func (s *Server) dispatch(req *request, given map[string]value) (any, *apiError) {
	e, values, failed := s.routes.lookup(req.method, req.path)
	if failed != nil {
		return nil, failed
	}
	for name, text := range values {
		if v, twice := given[name]; twice && v.text != text { // pve-manager 9.2.11, PVE/HTTPServer.pm:160-166
			return nil, oneParamError(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		given[name] = value{text: text}
	}
	if failed := s.access.permit(e, req.who, given); failed != nil {
		return nil, failed
	}
	if failed := s.reach(req, e, values); failed != nil {
		return nil, failed
	}
	if req.p, failed = e.validate(given); failed != nil {
		return nil, failed
	}
	data, err := e.handle(req)
	if err == nil {
		return data, nil
	}
	var known *apiError
	if errors.As(err, &known) {
		return nil, known
	}
	return nil, dief("%s", err)
}

// reach finds the host in the path, which must exist, and the host that runs the method. A
// proxied method runs on the host in the path, which must be online; other methods run on
// the host to which the client is connected (pve-manager 9.2.11,
// PVE/HTTPServer.pm:176-189).
func (s *Server) reach(req *request, e *endpoint, values map[string]string) *apiError {
	req.at = s.state.entry()
	name, ok := values["node"]
	if !ok {
		return nil
	}
	if name == "localhost" {
		name = req.at.name
	}
	if err := verifyNodeName(name); err != nil && e.proxyTo == "" { // for a proxied method, the name is looked up before it is checked
		return oneParamError("node", "invalid format - %s\n", err)
	}
	h := s.state.hosts[name]
	if h == nil {
		return dief("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	req.host = h
	if e.proxyTo == "" {
		return nil
	}
	req.at = h
	if reason, down := s.state.down(h); down {
		return &apiError{code: 595, message: reason, bare: true}
	}
	return nil
}
