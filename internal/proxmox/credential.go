package proxmox

import (
	pve "github.com/luthermonson/go-proxmox"
)

// Credential is what a client logs in with: a token, or a user and a password.
type Credential struct {
	TokenID, TokenSecret string
	Username, Password   string
}

// credential returns the last read credential.
func (c *Client) credential() Credential { return *c.credentials.Load() }

// reread reads the credential again, and reports whether it has changed. It ignores an
// unreadable or invalid one, which may be only partly written.
func (c *Client) reread() bool {
	if c.cfg.Reread == nil {
		return false
	}
	old := c.credential()
	fresh, err := c.cfg.Reread()
	if err != nil || fresh == old {
		return false
	}
	changed := c.cfg
	changed.TokenID, changed.TokenSecret, changed.Username, changed.Password = fresh.TokenID, fresh.TokenSecret, fresh.Username, fresh.Password
	if changed.checkCredential() != nil {
		return false
	}
	c.credentials.Store(&fresh)
	return true
}

// renew makes the client log in again if its credential has changed. The caller holds
// c.mu.
func (c *Client) renew() {
	if c.reread() {
		c.api = nil
	}
	if login := c.credential(); c.api == nil && login.TokenID != "" {
		c.api = c.newAPI(pve.WithAPIToken(login.TokenID, login.TokenSecret))
	}
}
