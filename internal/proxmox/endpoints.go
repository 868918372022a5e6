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

// dialTimeout is how long a host may take to be reached where another can be asked.
const dialTimeout = 5 * time.Second

// endpoints are the hosts of one cluster that can be asked, each for all of it.
type endpoints struct {
	// bases end in /api2/json. Requests are made out to the first.
	bases []string
	// now is which of them answered last.
	now atomic.Int32
}

// newEndpoints returns the endpoints of the configuration, each once.
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

// host returns scheme, host and port of the endpoint that answered last.
func (e *endpoints) host() string { return strings.TrimSuffix(e.bases[e.now.Load()], apiPath) }

// several reports whether there is a choice.
func (e *endpoints) several() bool { return len(e.bases) > 1 }

// at makes out a request to one of the endpoints. The request's body is read anew.
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

// unreachedError says that no endpoint answered, and why each did not.
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

// Unwrap returns why each endpoint did not answer.
func (e *unreachedError) Unwrap() []error { return e.errs }

// inTurn sends a request to the endpoint that answered last, and to the others as
// long as none answers and nothing can have been changed.
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
			t.endpoints.now.Store(int32(n)) //nolint:gosec // a position in a list
		}
		if !another(req, err) {
			return res, err
		}
		failed.bases, failed.errs = append(failed.bases, t.endpoints.bases[n]), append(failed.errs, err)
	}
	return nil, failed
}

// answers reports whether the host answered, be it with a refusal.
func answers(err error) bool {
	var answered *statusError
	return err == nil || errors.As(err, &answered)
}

// another reports whether a request may be sent to another host: what only reads, and
// a login, unless the host answered or its certificate is wrong, and else what never
// left.
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
