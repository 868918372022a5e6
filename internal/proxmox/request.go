package proxmox

import (
	"context"
	"errors"
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

// get reads a path into a value, and retries if the request may still succeed. It returns
// an *Error, or the context's error.
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
	var refused *Error
	if errors.As(err, &refused) {
		if refused.Status == http.StatusUnauthorized {
			c.logout(api)
		}
		return refused
	}
	return err
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
		e := c.explain(ticketPath, &statusError{code: http.StatusUnauthorized, text: "the login needs a second factor"})
		e.Mend = "use an API token, or a user without a second factor"
		return nil, e
	}
	c.api = c.newAPI(pve.WithSession(session.Ticket, session.CSRFPreventionToken))
	c.expires = time.Now().Add(ticketAge)
	return c.api, nil
}

// logout drops a ticket that Proxmox no longer accepts.
func (c *Client) logout(used *pve.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.credential().TokenID == "" && c.api == used {
		c.api = nil
	}
}
