package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	pve "github.com/luthermonson/go-proxmox"
)

const (
	maxTries   = 3
	retryAfter = 200 * time.Millisecond
)

// ticketPath is the path for logins.
const ticketPath = "/access/ticket"

// get reads a path into a value. It retries a failed request that can still succeed, with
// up to maxTries attempts in total. It returns an *Error, or the context's error.
func (c *Client) get(ctx context.Context, path string, into any) error {
	api, err := c.login(ctx)
	if err != nil {
		return err
	}
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval = retryAfter
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := api.Get(ctx, path, into)
		if err == nil {
			return struct{}{}, nil
		}
		explained := c.explain(path, err)
		if !explained.retryable() {
			return struct{}{}, backoff.Permanent(explained)
		}
		return struct{}{}, explained
	}, backoff.WithBackOff(delays), backoff.WithMaxTries(maxTries))
	if refused, ok := errors.AsType[*Error](err); ok {
		c.logoutIf(refused, api)
		return refused
	}
	return err
}

// send makes a write request. It does not retry, because the effect of a failed request
// is unknown.
func (c *Client) send(ctx context.Context, method, path string, params map[string]any, into any) error {
	return c.sendAs(ctx, path, func(api *pve.Client) error {
		var body []byte
		if params != nil {
			var err error
			if body, err = json.Marshal(params); err != nil {
				return err
			}
		}
		return api.Req(ctx, method, path, body, into)
	})
}

// sendAs makes a request with the client's credential and explains its error.
func (c *Client) sendAs(ctx context.Context, path string, request func(*pve.Client) error) error {
	api, err := c.login(ctx)
	if err != nil {
		return err
	}
	if err = request(api); err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("writing %s of region %s: %w", path, c.cfg.Region, cause)
	}
	refused := c.explain(path, err)
	refused.writing = true
	if found := permission.FindStringSubmatch(refused.Text); found != nil && refused.Status == http.StatusForbidden {
		refused.Hint, _ = c.grant(found[1], found[2], "ROLE")
		refused.Commands = nil // the user chooses the role
	}
	c.logoutIf(refused, api)
	return refused
}

// login returns a logged-in client. go-proxmox could log in by itself, but not while
// other requests use the same client.
func (c *Client) login(ctx context.Context) (*pve.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew()
	user := c.credential()
	if c.api != nil && (user.TokenID != "" || time.Now().Before(c.expires)) {
		return c.api, nil
	}

	credentials := &pve.Credentials{Username: user.Username, Password: user.Password}
	fresh := c.newAPI(pve.WithCredentials(credentials))
	if _, err := fresh.Ticket(ctx, credentials); err != nil {
		return nil, c.explain(ticketPath, err)
	}
	session := fresh.Session()
	if session == nil || session.Ticket == "" || strings.HasPrefix(session.Ticket, "PVE:!tfa!") {
		e := c.explain(ticketPath, &statusError{code: http.StatusUnauthorized, text: "the login requires a second factor"})
		e.Hint = "use an API token, or a user without a second factor"
		return nil, e
	}
	c.api = c.newAPI(pve.WithSession(session.Ticket, session.CSRFPreventionToken))
	c.expires = time.Now().Add(ticketAge)
	return c.api, nil
}

func (c *Client) newAPI(auth pve.Option) *pve.Client {
	return pve.NewClient(c.transport.urls[0], pve.WithHTTPClient(c.http), pve.WithUserAgent(userAgent), auth)
}

// renew reads the credential again, and makes the client log in again if it has changed.
// It ignores an unreadable or invalid credential, which may be only partly written. The
// caller holds c.mu.
func (c *Client) renew() {
	if c.cfg.Reread != nil {
		fresh, err := c.cfg.Reread()
		if err == nil && fresh != c.credential() && fresh.check() == nil {
			c.credentials.Store(&fresh)
			c.api = nil
		}
	}
	if login := c.credential(); c.api == nil && login.TokenID != "" {
		c.api = c.newAPI(pve.WithAPIToken(login.TokenID, login.TokenSecret))
	}
}

// logoutIf drops a ticket that Proxmox no longer accepts.
func (c *Client) logoutIf(refused *Error, used *pve.Client) {
	if refused.Status != http.StatusUnauthorized {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.credential().TokenID == "" && c.api == used {
		c.api = nil
	}
}
