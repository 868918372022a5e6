package proxmox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// dialTimeout limits the connection to a host if another one can be tried.
const dialTimeout = 5 * time.Second

// endpoints are the hosts of one cluster that accept requests, each for the whole
// cluster.
type endpoints struct {
	// bases end in /api2/json. Requests are created for the first.
	bases []string
	// now is the index of the endpoint that responded last.
	now atomic.Int32
}

// newEndpoints returns the endpoints of the configuration, without duplicates.
func newEndpoints(cfg *Config) (*endpoints, error) {
	e := &endpoints{}
	var mistakes []error
	for _, text := range append([]string{cfg.URL}, cfg.URLs...) {
		base, err := apiURL(text)
		if err != nil {
			mistakes = append(mistakes, err)
		} else if !slices.Contains(e.bases, base) {
			e.bases = append(e.bases, base)
		}
	}
	return e, errors.Join(mistakes...)
}

// host returns scheme, host and port of the endpoint that responded last.
func (e *endpoints) host() string { return strings.TrimSuffix(e.bases[e.now.Load()], apiPath) }

// several reports whether there is more than one endpoint.
func (e *endpoints) several() bool { return len(e.bases) > 1 }

// at returns a copy of a request for endpoint n, with a fresh body.
func (e *endpoints) at(ctx context.Context, req *http.Request, n int) (*http.Request, error) {
	if n == 0 && !e.several() {
		return req.WithContext(ctx), nil
	}
	target, err := url.Parse(e.bases[n] + strings.TrimPrefix(req.URL.String(), e.bases[0]))
	if err != nil {
		return nil, err
	}
	again := req.Clone(ctx)
	again.URL, again.Host = target, target.Host
	if req.GetBody != nil {
		again.Body, err = req.GetBody()
	}
	return again, err
}

// unreachedError reports that no endpoint responded, and why.
type unreachedError struct {
	bases []string
	errs  []error
}

func (e *unreachedError) Error() string {
	reasons := make([]string, len(e.errs))
	for i, err := range e.errs {
		reasons[i] = fmt.Sprintf("%s: %v", strings.TrimSuffix(e.bases[i], apiPath), err)
	}
	return fmt.Sprintf("none of %d addresses answers: %s", len(e.errs), strings.Join(reasons, "; "))
}

// Unwrap returns the error of each endpoint.
func (e *unreachedError) Unwrap() []error { return e.errs }

// inTurn sends a request to the endpoint that responded last, and then to the others
// until one responds, as long as nothing can have been changed.
func (t *transport) inTurn(req *http.Request) (*http.Response, error) {
	if !t.endpoints.several() {
		return t.exchange(req, 0)
	}
	failed := &unreachedError{}
	first := int(t.endpoints.now.Load())
	for i := range t.endpoints.bases {
		n := (first + i) % len(t.endpoints.bases)
		res, err := t.exchange(req, n)
		if answers(err) {
			t.endpoints.now.Store(int32(n)) //nolint:gosec // an index of a list
		}
		if !another(req, err) {
			return res, err
		}
		failed.bases, failed.errs = append(failed.bases, t.endpoints.bases[n]), append(failed.errs, err)
	}
	return nil, failed
}

// answers reports whether the host responded, even if with an error.
func answers(err error) bool {
	var answered *statusError
	return err == nil || errors.As(err, &answered)
}

// another reports whether a request may be sent to another host. A read or a login may,
// unless the host responded or its certificate is wrong; other requests may only if they
// were never sent.
func another(req *http.Request, err error) bool {
	var verification *tls.CertificateVerificationError
	if answers(err) || req.Context().Err() != nil || errors.As(err, &verification) || req.Body != nil && req.GetBody == nil {
		return false
	}
	if req.Method == http.MethodGet || strings.HasSuffix(req.URL.Path, apiPath+ticketPath) {
		return true
	}
	var operation *net.OpError
	return errors.As(err, &operation) && operation.Op == "dial"
}
