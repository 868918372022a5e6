package proxmox

import (
	pve "github.com/luthermonson/go-proxmox"
)

// Credential is what a client logs in with: a token, or a user with password.
type Credential struct {
	TokenID, TokenSecret string
	Username, Password   string
}

// credential returns what the client logs in with, as last read.
func (c *Client) credential() Credential { return *c.credentials.Load() }

// reread looks whether the credential was changed, and reports whether it was. One
// that cannot be read, or that is none, changes nothing: it may be half written.
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

// renew makes the client log in anew if its credential was changed. c.mu is held.
func (c *Client) renew() {
	if c.reread() {
		c.api = nil
	}
	if login := c.credential(); c.api == nil && login.TokenID != "" {
		c.api = c.newAPI(pve.WithAPIToken(login.TokenID, login.TokenSecret))
	}
}
