package proxmox

import (
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
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/topology"
)

// Error reports a request that Proxmox refused, that did not reach Proxmox, or that got an
// invalid response. It contains no secrets.
type Error struct {
	Region   topology.RegionName
	Endpoint string // scheme, host and port
	Path     string // relative to /api2/json
	// Status is the HTTP status, or 0 without a response.
	Status int
	// Text is the message from Proxmox, or the reason for the missing response.
	Text string
	// Hint is the fix, or empty. Commands are the command lines in Hint that change
	// something; root must run them on a host. If Conditional is set, they apply only under
	// a condition that Hint names.
	Hint        string
	Commands    []string
	Conditional bool
	// broken is set if the connection failed or broke.
	broken bool
	// writing is set if the request was a write.
	writing bool
	cause   error
}

// Error describes what was read or written, where, what went wrong, and how to fix it.
func (e *Error) Error() string {
	doing := "reading"
	if e.writing {
		doing = "writing"
	}
	text := fmt.Sprintf("%s %s of region %s at %s: %s", doing, e.Path, e.Region, e.Endpoint, e.reason())
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	return text
}

// Unwrap returns the cause if there was no valid response.
func (e *Error) Unwrap() error { return e.cause }

// reason returns a short form of the error, for a host's Problem.
func (e *Error) reason() string {
	if e.Status == 0 || e.Status == http.StatusOK {
		return e.Text
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, e.Text))
}

// short formats an error for a host's Problem or Warnings.
func short(err error) string {
	refused, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return err.Error()
	case refused.Hint == "":
		return refused.reason()
	}
	return refused.reason() + ": " + refused.Hint
}

// The statuses that are specific to pveproxy.
const (
	statusUnreachable = 595
	statusTimeout     = 596
)

// noAnswer reports whether there was no response, or pveproxy got none from the host in
// time.
func (e *Error) noAnswer() bool {
	return e.Status == 0 || e.Status == statusUnreachable || e.Status == statusTimeout
}

// Unreachable reports whether no host of the region responded: the request may be
// correct, but the region, or the connection to it, is down. A wrong certificate, or a
// response that is not from Proxmox, does not count.
func (e *Error) Unreachable() bool {
	var verification *tls.CertificateVerificationError
	return e.noAnswer() && !errors.As(e.cause, &verification) && !errors.Is(e.cause, context.Canceled)
}

// gone reports whether the requested guest does not exist, or no longer exists.
func (e *Error) gone() bool {
	return e.Status == http.StatusInternalServerError && strings.Contains(e.Text, "does not exist")
}

// retryable reports whether the same request can succeed a moment later. A timeout is not
// retryable, because the host already had enough time.
func (e *Error) retryable() bool {
	switch e.Status {
	case 0:
		return e.broken
	case statusTimeout, http.StatusNotImplemented:
		return false
	}
	return e.Status >= http.StatusInternalServerError && !e.gone()
}

// isGone reports whether the requested guest does not exist, or no longer exists.
func isGone(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && refused.gone()
}

// permission matches the path and the privilege in an error from Proxmox.
var permission = regexp.MustCompile(`^Permission check failed \((/[^,]*), ([^)]+)\)`)

// oneReason is the message for every rejected token since pve-manager 9.1.5, including
// expired ones; 9.1.4 and older report the reason.
const oneReason = "Authentication failed!"

// explain converts the error of a request for path to an *Error, and adds how to fix it.
func (c *Client) explain(path string, err error) *Error {
	e := &Error{Region: c.cfg.Region, Endpoint: c.transport.endpoint(), Path: path}
	if status, ok := errors.AsType[*statusError](err); ok {
		e.Status = status.code
		e.Text = status.text
		c.explainStatus(e)
		return e
	}

	failed, ok := errors.AsType[*url.Error](err)
	if !ok {
		// Omit the names of Go types.
		problem := err.Error()
		if unexpected, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			problem = "unexpected " + unexpected.Value
			if unexpected.Field != "" {
				problem += " in " + unexpected.Field
			}
		}
		e.Status = http.StatusOK
		e.Text = "the response is invalid: " + problem
		e.Hint = "check that url is the address of a Proxmox host"
		e.cause = err
		return e
	}
	e.Text = failed.Err.Error()
	e.cause = failed.Err
	c.explainConnection(e)
	return e
}

// explainStatus adds a hint to an unsuccessful response.
func (c *Client) explainStatus(e *Error) {
	switch e.Status {
	case http.StatusUnauthorized:
		login := c.credential()
		user, name, _ := strings.Cut(login.TokenID, "!")
		extend := shell.Line("pveum", "user", "token", "modify", user, name, "--expire", "0")
		// Whether a user or a token may be used is a decision of their owner.
		decide := func(hint, command string) {
			e.Hint = hint + ": " + command
			e.Commands = []string{command}
			e.Conditional = true
		}
		switch {
		case login.TokenID == "":
			e.Hint = fmt.Sprintf("check username and password of %s", login.Username)
		case strings.HasPrefix(e.Text, "user '") && strings.HasSuffix(e.Text, "' is disabled"):
			decide("if an administrator did not intend this, enable the user", shell.Line("pveum", "user", "modify", user, "--enable", "1"))
		case strings.HasPrefix(e.Text, "user '") && strings.HasSuffix(e.Text, "access expired"):
			decide("extend the user's access", shell.Line("pveum", "user", "modify", user, "--expire", "0"))
		case strings.HasSuffix(e.Text, "access expired"):
			decide("extend the token", extend)
		case e.Text == oneReason:
			decide(fmt.Sprintf("check token_id and token_secret of API token %s; if the token was deleted, create it again with `%s` and store its value as token_secret; "+
				"if the token has expired, extend it", login.TokenID, AddToken(login.TokenID)), extend)
		default:
			e.Hint = fmt.Sprintf("check token_id and token_secret of API token %s with `pveum user token list %s`", login.TokenID, user)
		}
	case http.StatusForbidden:
		path, privilege := "/", "the privilege"
		if found := permission.FindStringSubmatch(e.Text); found != nil {
			path, privilege = found[1], found[2]
		}
		var command string
		e.Hint, command = c.grant(path, privilege, auditor)
		e.Commands = []string{command}
	case statusTimeout:
		e.Hint = "the host did not respond before pveproxy's timeout, and the operation may continue: check its load and pvedaemon on it"
	case http.StatusNotFound:
		e.Hint = "check that url is the address of a Proxmox host"
	}
}

// auditor is the built-in role of Proxmox for read privileges.
const auditor = "PVEAuditor"

// grant returns the hint for granting the client's credential a privilege, and the command
// in it: with the role of numaform that contains the privilege, or else with the role that
// the parameter otherwise names. A token without privilege separation has its user's
// privileges.
func (c *Client) grant(path, privilege, otherwise string) (hint, command string) {
	for _, role := range Roles() {
		if slices.Contains(role.Privileges, privilege) {
			otherwise = role.Name
			break
		}
	}
	command = shell.Line("pveum", "acl", "modify", path, "--roles", otherwise, "--users", c.User())
	if token := c.TokenID(); token != "" {
		command += " --tokens " + shell.Quote(token)
	}
	if path == "/" {
		command += " --propagate 0"
	}
	return fmt.Sprintf("grant %s on %s: %s", privilege, path, command), command
}

// explainConnection adds a hint to an error without a response from Proxmox.
func (c *Client) explainConnection(e *Error) {
	var (
		verification *tls.CertificateVerificationError
		name         x509.HostnameError
		unknown      x509.UnknownAuthorityError
		network      net.Error
		lookup       *net.DNSError
		plain        tls.RecordHeaderError
		none         *unreachedError
	)
	switch {
	case errors.Is(e.cause, context.Canceled):
		e.Hint = "the command was interrupted"
	case errors.As(e.cause, &none):
		e.Hint = "check url and urls, and that one of these hosts is up and pveproxy runs on it"
	case errors.As(e.cause, &name):
		e.Hint = "use a host name in url for which the certificate is valid"
	case errors.As(e.cause, &unknown):
		e.Hint = "set ca_file to a copy of /etc/pve/pve-root-ca.pem of the cluster, or insecure: true on a network that you trust"
	case errors.As(e.cause, &verification):
		e.Hint = "check the clocks of both machines, or renew the host's certificate: " + RenewCertificate + ", or pvenode acme cert renew for one from ACME"
		e.Commands = []string{RenewCertificate}
		e.Conditional = true
	case errors.Is(e.cause, context.DeadlineExceeded), errors.As(e.cause, &network) && network.Timeout():
		e.Text = fmt.Sprintf("no response within %s", c.cfg.Timeout)
		e.Hint = "check that the host is up and pveproxy runs on it"
	case errors.As(e.cause, &plain), errors.Is(e.cause, http.ErrSchemeMismatch):
		e.Hint = "this port does not serve TLS: set url to the port of pveproxy, https://HOST:8006"
	case errors.As(e.cause, &lookup):
		e.broken = true
		e.Hint = "correct the host name in url, or use an IP address"
	case network != nil, errors.Is(e.cause, io.EOF), errors.Is(e.cause, io.ErrUnexpectedEOF):
		e.broken = true
		e.Hint = "check url, and that the host is up and pveproxy runs on it"
		if endpoint, err := url.Parse(c.transport.endpoint()); err == nil && endpoint.Port() == "" {
			e.Hint += "; url has no port, and pveproxy listens on 8006"
		}
	}
}

// RenewCertificate is the command that renews the certificate of a host from the cluster's
// own authority.
const RenewCertificate = "pvecm updatecerts --force"

// CopyCA returns the command that copies the certificate authority of a cluster to a file,
// from the host of an API URL.
func CopyCA(apiURL, file string) string {
	host := "HOST"
	if parsed, err := url.Parse(apiURL); err == nil && parsed.Hostname() != "" {
		host = parsed.Hostname()
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]" // scp requires brackets around an IPv6 address
	}
	return shell.Line("scp", "root@"+host+":/etc/pve/pve-root-ca.pem", file)
}
