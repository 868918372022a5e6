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
	"strings"
	"time"
)

// maxBody limits one response; reports of large hosts have a few MiB.
const maxBody = 64 << 20

// transport limits the number of concurrent requests, from sending to the last byte of
// the response, and the duration of each. An unsuccessful response becomes a
// *statusError, because go-proxmox drops Proxmox' message.
type transport struct {
	base    http.RoundTripper
	slots   chan struct{}
	timeout time.Duration
	observe Observe

	endpoints *endpoints
}

func newTransport(cfg Config, hosts *endpoints) (*transport, error) {
	// The bpg/proxmox provider also requires TLS 1.3.
	settings := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: cfg.Insecure} //nolint:gosec // the user's choice
	if len(cfg.CA) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(cfg.CA) {
			return nil, errors.New("ca_file: holds no certificate in PEM: copy /etc/pve/pve-root-ca.pem from a host")
		}
	}
	dialer := &net.Dialer{}
	if hosts.several() {
		dialer.Timeout = dialTimeout
	}
	return &transport{
		// Use HTTP/1.1: HTTP/2 has no reason phrase, which contains Proxmox' errors.
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

		endpoints: hosts,
	}, nil
}

// RoundTrip sends the request when a slot is free and reads the whole response.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case t.slots <- struct{}{}:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
	defer func() { <-t.slots }()
	return t.observed(req)
}

// exchange sends the request to one of the endpoints and reads the whole response.
func (t *transport) exchange(req *http.Request, endpoint int) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), t.timeout)
	defer cancel()
	made, err := t.endpoints.at(ctx, req, endpoint)
	if err != nil {
		return nil, err
	}
	res, err := t.base.RoundTrip(made)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err := errors.Join(err, res.Body.Close()); err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
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

// statusText returns Proxmox' message, which is in the status line, or in the body if a
// proxy has rewritten that line.
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
	return fmt.Errorf("redirected to %s: give the address of a Proxmox host as url", req.URL.Host)
}
