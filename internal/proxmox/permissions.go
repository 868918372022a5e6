package proxmox

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
)

// Permissions maps each privilege of a credential on a path to whether it also applies
// below the path.
type Permissions map[string]bool

// Has reports whether the privilege is granted and, if deep is set, also applies below
// the path.
func (p Permissions) Has(privilege string, deep bool) bool {
	below, ok := p[privilege]
	return ok && (below || !deep)
}

// Permissions returns the privileges of the client's credential on the paths.
func (c *Client) Permissions(ctx context.Context, paths []string) (map[string]Permissions, error) {
	answers := make([]map[string]map[string]number, len(paths))
	errs := make([]error, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() {
			errs[i] = c.get(ctx, "/access/permissions?path="+url.QueryEscape(path), &answers[i])
		})
	}
	wg.Wait()
	found := map[string]Permissions{}
	for i, path := range paths {
		if errs[i] != nil {
			return nil, fmt.Errorf("reading the permissions on %s: %w", path, errs[i])
		}
		have := Permissions{}
		for privilege, below := range answers[i][path] {
			have[privilege] = below != 0
		}
		found[path] = have
	}
	return found, nil
}

// RolesThere returns the existing roles, with their privileges.
func (c *Client) RolesThere(ctx context.Context) (map[string][]string, error) {
	var list []struct {
		Name       string `json:"roleid"`
		Privileges string `json:"privs"`
	}
	if err := c.get(ctx, "/access/roles", &list); err != nil {
		return nil, fmt.Errorf("reading the roles: %w", err)
	}
	roles := make(map[string][]string, len(list))
	for _, role := range list {
		roles[role.Name] = strings.FieldsFunc(role.Privileges, func(r rune) bool { return r == ',' || r == ' ' })
	}
	return roles, nil
}

// User returns the user that the client logs in as, or that owns its token.
func (c *Client) User() string {
	credential := c.credential()
	if credential.TokenID == "" {
		return credential.Username
	}
	user, _, _ := strings.Cut(credential.TokenID, "!")
	return user
}

// TokenID returns the ID of the client's token, or "" if it logs in with a password.
func (c *Client) TokenID() string { return c.credential().TokenID }

// AllPermissions returns the privileges of the client's credential, on paths with an
// entry of their own and on the top levels.
func (c *Client) AllPermissions(ctx context.Context) (map[string]Permissions, error) {
	var answer map[string]map[string]number
	if err := c.get(ctx, "/access/permissions", &answer); err != nil {
		return nil, fmt.Errorf("reading the permissions: %w", err)
	}
	found := make(map[string]Permissions, len(answer))
	for path, privileges := range answer {
		found[path] = Permissions{}
		for privilege, below := range privileges {
			found[path][privilege] = below != 0
		}
	}
	return found, nil
}
