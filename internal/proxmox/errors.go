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

	"github.com/numaform/numaform/topology"
)

// Error is a request that Proxmox refused or that did not reach it. It contains no
// secrets.
type Error struct {
	Region   topology.RegionName
	Endpoint string // scheme, host and port
	Path     string // relative to /api2/json
	// Status is the HTTP status, or 0 without a response.
	Status int
	// Text is Proxmox' message, or why there was no response.
	Text string
	// Mend says how to fix it, or is empty.
	Mend string
	// broken is set if the connection failed or broke.
	broken bool
	// writing is set if the request was a write.
	writing bool
	cause   error
}

// Error says what was read or written, where, what went wrong, and how to fix it.
func (e *Error) Error() string {
	doing := "reading"
	if e.writing {
		doing = "writing"
	}
	text := fmt.Sprintf("%s %s of region %s at %s: %s", doing, e.Path, e.Region, e.Endpoint, e.reason())
	if e.Mend != "" {
		text += ": " + e.Mend
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

// advice returns the reason and how to fix it.
func (e *Error) advice() string {
	if e.Mend == "" {
		return e.reason()
	}
	return e.reason() + ": " + e.Mend
}

// The statuses that are specific to pveproxy.
const (
	statusUnreachable = 595
	statusTimeout     = 596
)

// noAnswer reports whether the host, or the connection to it, is down or too slow.
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

// retryable reports whether the same request may succeed a moment later. A timeout is not
// retryable, because the host has had its time.
func (e *Error) retryable() bool {
	switch e.Status {
	case 0:
		return e.broken
	case statusTimeout, http.StatusNotImplemented:
		return false
	}
	return e.Status >= http.StatusInternalServerError && !e.gone()
}

// explain converts the error of a request for path to an *Error.
func (c *Client) explain(path string, err error) *Error {
	e := &Error{Region: c.cfg.Region, Endpoint: c.endpoints.host(), Path: path}
	var status *statusError
	if errors.As(err, &status) {
		e.Status, e.Text = status.code, status.text
		e.Mend = c.mendStatus(e)
		return e
	}
	var inURL *url.Error
	if !errors.As(err, &inURL) {
		e.Status, e.Text, e.cause = http.StatusOK, "the answer cannot be understood: "+garbled(err), err
		e.Mend = "check that url is a Proxmox host"
		return e
	}
	e.cause, e.Text = inURL.Err, inURL.Err.Error()
	c.explainConnection(e)
	return e
}

// garbled describes what is wrong with a response, without names of Go types.
func garbled(err error) string {
	var unexpected *json.UnmarshalTypeError
	if !errors.As(err, &unexpected) {
		return err.Error()
	}
	if unexpected.Field == "" {
		return "unexpected " + unexpected.Value
	}
	return "unexpected " + unexpected.Value + " in " + unexpected.Field
}

// permission matches path and privilege in Proxmox' error.
var permission = regexp.MustCompile(`^Permission check failed \((/[^,]*), ([^)]+)\)`)

func (c *Client) mendStatus(e *Error) string {
	switch e.Status {
	case http.StatusUnauthorized:
		return c.mendLogin(e.Text)
	case http.StatusForbidden:
		path, privilege := "/", "the privilege"
		if found := permission.FindStringSubmatch(e.Text); found != nil {
			path, privilege = found[1], found[2]
		}
		return c.grant(path, privilege)
	case statusTimeout:
		return "the host took longer than pveproxy waits, and may go on with what was asked: look at its load, and at pvedaemon on it"
	case http.StatusNotFound:
		return "check that url is a Proxmox host"
	}
	return ""
}

// oneReason is Proxmox' message for every refused token since pve-manager 9.1.5,
// including expired ones; 9.1.4 and older say why.
const oneReason = "Authentication failed!"

// mendLogin returns the hint for a credential that Proxmox refuses.
func (c *Client) mendLogin(text string) string {
	login := c.credential()
	user, name, _ := strings.Cut(login.TokenID, "!")
	switch {
	case login.TokenID == "":
		return fmt.Sprintf("check username and password of %s", login.Username)
	case strings.HasSuffix(text, "access expired"):
		return fmt.Sprintf("let it last: pveum user token modify %s %s --expire 0", user, name)
	case text == oneReason:
		return fmt.Sprintf("check token_id and token_secret of API token %s; if the token has expired, extend it: pveum user token modify %s %s --expire 0", login.TokenID, user, name)
	}
	return fmt.Sprintf("check token_id and token_secret of API token %s with `pveum user token list %s`", login.TokenID, user)
}

// grant returns how to grant the client's credential a read privilege.
func (c *Client) grant(path, privilege string) string {
	return fmt.Sprintf("grant %s on %s: %s", privilege, path, c.entry(path, privilege, "PVEAuditor"))
}

// entry returns the command that grants the client's credential a role with the
// privilege: one of numaform's, or otherwise. A token without privilege separation has
// its user's privileges.
func (c *Client) entry(path, privilege, otherwise string) string {
	for _, role := range Roles() {
		if slices.Contains(role.Privileges, privilege) {
			otherwise = role.Name
			break
		}
	}
	who := c.User()
	line := fmt.Sprintf("pveum acl modify %s --roles %s --users '%s'", path, otherwise, who)
	if token := c.TokenID(); token != "" {
		line += fmt.Sprintf(" --tokens '%s'", token)
	}
	if path == "/" {
		line += " --propagate 0"
	}
	return line
}

// explainConnection adds a hint to an error without a response of Proxmox.
func (c *Client) explainConnection(e *Error) {
	var (
		verification *tls.CertificateVerificationError
		name         x509.HostnameError
		unknown      x509.UnknownAuthorityError
		network      net.Error
		none         *unreachedError
	)
	switch {
	case errors.Is(e.cause, context.Canceled):
		e.Mend = "the command was interrupted"
	case errors.As(e.cause, &none):
		e.Mend = "check url and urls, and that one of these hosts is up and pveproxy runs on it"
	case errors.As(e.cause, &name):
		e.Mend = "use a host name in url that the certificate is for"
	case errors.As(e.cause, &unknown):
		e.Mend = "set ca_file to a copy of /etc/pve/pve-root-ca.pem of the cluster, or insecure: true on a network that you trust"
	case errors.As(e.cause, &verification):
		e.Mend = "renew the host's certificate: pvecm updatecerts --force"
	case errors.Is(e.cause, context.DeadlineExceeded), errors.As(e.cause, &network) && network.Timeout():
		e.Text = fmt.Sprintf("no answer within %s", c.cfg.Timeout)
		e.Mend = "check that the host is up and pveproxy runs on it"
	case network != nil, errors.Is(e.cause, io.EOF), errors.Is(e.cause, io.ErrUnexpectedEOF):
		e.broken = true
		e.Mend = "check url, and that the host is up and pveproxy runs on it"
	}
}
