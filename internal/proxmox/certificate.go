package proxmox

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Certificate is a Proxmox host's certificate, trusted or not.
type Certificate struct {
	// Fingerprint is the SHA-256 of the certificate, as `pvenode cert info` prints it.
	Fingerprint string
	Subject     string
	Expires     time.Time
}

// Certificate returns the certificate of the client's host, without trusting it. It sends
// no request.
func (c *Client) Certificate(ctx context.Context) (Certificate, error) {
	endpoint, err := url.Parse(c.endpoints.host())
	if err != nil {
		return Certificate{}, fmt.Errorf("reading the certificate: %w", err)
	}
	address := endpoint.Host
	if endpoint.Port() == "" {
		address += ":443"
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // nothing is sent
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Certificate{}, fmt.Errorf("reading the certificate of %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
		return Certificate{}, fmt.Errorf("reading the certificate of %s: %w", address, errors.New("the host shows none"))
	}
	shown := secure.ConnectionState().PeerCertificates[0]
	sum := sha256.Sum256(shown.Raw)
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return Certificate{Fingerprint: strings.Join(pairs, ":"), Subject: shown.Subject.String(), Expires: shown.NotAfter}, nil
}
