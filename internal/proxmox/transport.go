package proxmox

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxBody limits one response; reports of large hosts have a few MiB.
	maxBody = 64 << 20
	// dialTimeout limits the connection to a host if another one can be tried.
	dialTimeout = 5 * time.Second
)

// Observe is called for every request to Proxmox with its method, the template of its
// path, such as /nodes/{node}/qemu/{vmid}/config, the HTTP status, or 0 without a
// response, and its duration without the time in the queue.
type Observe func(method, path string, code int, took time.Duration)

// transport limits the number of concurrent requests, from sending to the last byte of
// the response, and the duration of each. An unsuccessful response becomes a
// *statusError, because go-proxmox drops the message from Proxmox.
type transport struct {
	base    http.RoundTripper
	slots   chan struct{}
	timeout time.Duration
	observe Observe

	// urls are the API URLs of hosts of one cluster. Each host accepts requests for the
	// whole cluster. The URLs end in /api2/json. Requests are created for the first URL.
	urls []string
	// last is the index of the host that responded last.
	last atomic.Int32
}

func newTransport(cfg Config, urls []string) (*transport, error) {
	// The bpg/proxmox provider also requires TLS 1.3.
	settings := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: cfg.Insecure} //nolint:gosec // the user's choice
	if len(cfg.CA) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(cfg.CA) {
			return nil, errors.New("ca_file: contains no certificate in PEM: copy /etc/pve/pve-root-ca.pem from a host")
		}
	}
	dialer := &net.Dialer{}
	if len(urls) > 1 {
		dialer.Timeout = dialTimeout
	}
	return &transport{
		// Use HTTP/1.1: HTTP/2 has no reason phrase, which contains the errors of Proxmox.
		base: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			TLSClientConfig:     settings,
			MaxIdleConnsPerHost: cfg.MaxInFlight,
			IdleConnTimeout:     time.Minute,
		},
		slots:   make(chan struct{}, cfg.MaxInFlight),
		timeout: cfg.Timeout,
		observe: cfg.Observe,
		urls:    urls,
	}, nil
}

// endpoint returns scheme, host and port of the host that responded last.
func (t *transport) endpoint() string { return strings.TrimSuffix(t.urls[t.last.Load()], apiPath) }

// RoundTrip sends the request when a slot is free and reads the whole response.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case t.slots <- struct{}{}:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	defer func() { <-t.slots }()

	began := time.Now()
	res, err := t.inTurn(req)
	if t.observe != nil {
		code := 0
		if refused, ok := errors.AsType[*statusError](err); ok {
			code = refused.code
		} else if err == nil {
			code = res.StatusCode
		}
		t.observe(req.Method, pathTemplate(req.URL.Path), code, time.Since(began))
	}
	return res, err
}

// unreachedError reports that no host responded, and why.
type unreachedError struct {
	endpoints []string
	errs      []error
}

func (e *unreachedError) Error() string {
	reasons := make([]string, len(e.errs))
	for i, err := range e.errs {
		reasons[i] = fmt.Sprintf("%s: %v", e.endpoints[i], err)
	}
	return fmt.Sprintf("none of %d addresses responds: %s", len(e.errs), strings.Join(reasons, "; "))
}

// Unwrap returns the error of each host.
func (e *unreachedError) Unwrap() []error { return e.errs }

// inTurn sends a request to the host that responded last, and then to the other hosts
// until one responds, as long as no host can have changed anything.
func (t *transport) inTurn(req *http.Request) (*http.Response, error) {
	if len(t.urls) == 1 {
		return t.exchange(req, req.URL)
	}
	failed := &unreachedError{}
	first := int(t.last.Load())
	for i := range t.urls {
		n := (first + i) % len(t.urls)
		target, err := url.Parse(t.urls[n] + strings.TrimPrefix(req.URL.String(), t.urls[0]))
		if err != nil {
			return nil, err
		}
		res, err := t.exchange(req, target)
		if responded(err) {
			t.last.Store(int32(n)) //nolint:gosec // an index of a list
		}
		if !mayRepeat(req, err) {
			return res, err
		}
		failed.endpoints = append(failed.endpoints, strings.TrimSuffix(t.urls[n], apiPath))
		failed.errs = append(failed.errs, err)
	}
	return nil, failed
}

// responded reports whether the host responded, even if with an error.
func responded(err error) bool {
	_, refused := errors.AsType[*statusError](err)
	return err == nil || refused
}

// mayRepeat reports whether a request may be sent to another host. A read or a login may,
// unless the host responded, its certificate is wrong or the context has ended; other
// requests may only if they were never sent.
func mayRepeat(req *http.Request, err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if responded(err) || req.Context().Err() != nil || untrusted || req.Body != nil && req.GetBody == nil {
		return false
	}
	if req.Method == http.MethodGet || strings.HasSuffix(req.URL.Path, apiPath+ticketPath) {
		return true
	}
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "dial"
}

// exchange sends a copy of the request to the target, with a fresh body, and reads the
// whole response.
func (t *transport) exchange(req *http.Request, target *url.URL) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), t.timeout)
	defer cancel()
	req = req.Clone(ctx)
	req.URL = target
	req.Host = target.Host
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		req.Body = body
	}

	res, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, &statusError{code: res.StatusCode, text: statusText(res, body)}
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, nil
}

// statusError is an unsuccessful response of Proxmox.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return fmt.Sprintf("%d %s", e.code, e.text) }

// statusText returns the message from Proxmox, which is in the status line, or in the
// body if a proxy has rewritten that line.
func statusText(res *http.Response, body []byte) string {
	text := strings.TrimSpace(strings.TrimPrefix(res.Status, fmt.Sprint(res.StatusCode)))
	if text == "" || text == http.StatusText(res.StatusCode) {
		var answer struct{ Message string }
		if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
			text = answer.Message
		}
	}
	const most = 300
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func refuseRedirect(req *http.Request, _ []*http.Request) error {
	return fmt.Errorf("redirected to %s: set url to the address of a Proxmox host", req.URL.Host)
}

// placeholders maps a path element to the placeholder for the name or number that follows
// it, which metrics must not distinguish.
var placeholders = map[string]string{
	"nodes":   "{node}",
	"qemu":    "{vmid}",
	"lxc":     "{vmid}",
	"storage": "{storage}",
	"tasks":   "{upid}",
	"content": "{volume}",
	"pools":   "{poolid}",
	"users":   "{userid}",
	"roles":   "{roleid}",
	"pid":     "{pid}",
}

// pathTemplate returns the path of a request with placeholders for names and numbers, and
// without the API's prefix.
func pathTemplate(path string) string {
	if _, api, ok := strings.Cut(path, "/api2/json"); ok {
		path = api
	}
	elements := strings.Split(strings.Trim(path, "/"), "/")
	for i := 1; i < len(elements); i++ {
		name, ok := placeholders[elements[i-1]]
		if !ok {
			continue
		}
		elements[i] = name
		if name == "{volume}" {
			elements = elements[:i+1] // a volume's name may contain slashes
		}
	}
	return "/" + strings.Join(elements, "/")
}
