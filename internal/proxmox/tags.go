package proxmox

import (
	"context"
	"fmt"
	"slices"
)

// TagAccess says which tags users without Sys.Modify on / may set and remove.
type TagAccess struct {
	// Mode is none, list, existing or free; empty means free.
	Mode string
	// List are the tags for the modes list and existing.
	List []string
	// Registered are tags that only privileged users may set or remove, in any mode.
	Registered []string
	// allowed are the tags that the mode allows, without registered ones.
	allowed []string
}

// TagAccess reads which tags the credential may set. It needs Sys.Audit on /.
func (c *Client) TagAccess(ctx context.Context) (TagAccess, error) {
	var options struct {
		Access struct {
			Mode string   `json:"user-allow"`
			List []string `json:"user-allow-list"`
		} `json:"user-tag-access"`
		Registered []string `json:"registered-tags"`
		Allowed    []string `json:"allowed-tags"`
	}
	if err := c.get(ctx, "/cluster/options", &options); err != nil {
		return TagAccess{}, fmt.Errorf("reading the datacenter's options: %w", err)
	}
	return TagAccess{Mode: options.Access.Mode, List: options.Access.List, Registered: options.Registered, allowed: options.Allowed}, nil
}

// Free reports whether all unregistered tags are allowed.
func (a TagAccess) Free() bool { return a.Mode == "" || a.Mode == "free" }

// Allows reports whether a tag may be set and removed.
func (a TagAccess) Allows(tag string) bool {
	return !slices.Contains(a.Registered, tag) && (a.Free() || slices.Contains(a.allowed, tag))
}
