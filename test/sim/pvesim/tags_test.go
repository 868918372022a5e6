package pvesim_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestTagAccess checks which tags a user without Sys.Modify may set on VM 100, which has
// the tag prod.
func TestTagAccess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		access  pvesim.TagAccess
		tags    string
		refused string
		allowed []any
	}{
		"free":                      {tags: "prod;new", allowed: []any{"prod"}},
		"free, registered":          {access: pvesim.TagAccess{Registered: []string{"new"}}, tags: "prod;new", refused: "new", allowed: []any{"prod"}},
		"registered goes":           {access: pvesim.TagAccess{Allow: "free", Registered: []string{"prod"}}, tags: "new", refused: "prod", allowed: []any{}},
		"registered stays":          {access: pvesim.TagAccess{Registered: []string{"prod"}}, tags: "prod;new", allowed: []any{}},
		"none":                      {access: pvesim.TagAccess{Allow: "none", List: []string{"new"}}, tags: "prod;new", refused: "new", allowed: []any{}},
		"none, unchanged":           {access: pvesim.TagAccess{Allow: "none"}, tags: "prod", allowed: []any{}},
		"list":                      {access: pvesim.TagAccess{Allow: "list", List: []string{"new"}}, tags: "prod;new", allowed: []any{"new"}},
		"list, another":             {access: pvesim.TagAccess{Allow: "list", List: []string{"other"}}, tags: "prod;new", refused: "new", allowed: []any{"other"}},
		"list, one goes":            {access: pvesim.TagAccess{Allow: "list", List: []string{"new"}}, tags: "new", refused: "prod", allowed: []any{"new"}},
		"list, registered":          {access: pvesim.TagAccess{Allow: "list", List: []string{"new"}, Registered: []string{"new"}}, tags: "prod;new", refused: "new", allowed: []any{}},
		"existing":                  {access: pvesim.TagAccess{Allow: "existing"}, tags: "prod;new", refused: "new", allowed: []any{"prod"}},
		"existing, one goes":        {access: pvesim.TagAccess{Allow: "existing", List: []string{"new"}}, tags: "new", allowed: []any{"new", "prod"}},
		"existing, another's case":  {access: pvesim.TagAccess{Allow: "existing"}, tags: "PROD", refused: "PROD", allowed: []any{"prod"}},
		"existing on another guest": {access: pvesim.TagAccess{Allow: "existing"}, tags: "prod;gold", refused: "gold", allowed: []any{"prod"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := cluster()
			cfg.Tags = tt.access
			// The user may not read this guest with the tag gold.
			cfg.Hosts[1].Templates[0].Tags = []string{"gold"}
			cfg = cfg.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
			cfg.ACL = append(cfg.ACL, pvesim.ACL{Path: "/vms/9001", Subject: "numaform@pve", Role: "NoAccess"})
			c := start(t, cfg)
			allowed := c.call("GET", "/cluster/options").data.(map[string]any)["allowed-tags"]
			if diff := cmp.Diff(any(tt.allowed), allowed); diff != "" {
				t.Errorf("allowed-tags (-want +got):\n%s", diff)
			}
			want := step{name: "set", method: "PUT", path: vm100 + "/config", params: []string{"tags", tt.tags}, status: 200, reason: "OK"}
			if tt.refused != "" {
				want.status, want.reason = 403, "Permission check failed (/, Sys.Modify for modifying tag '"+tt.refused+"')"
			}
			check(t, c, []step{want})
			check(t, c.root(), []step{{"root", "PUT", vm100 + "/config", []string{"tags", "whatever"}, 200, "OK"}})
		})
	}
}

func TestTagsOfCloneAndDelete(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Tags = pvesim.TagAccess{Allow: "none"}
	cfg.Hosts[0].Templates[0].Tags = []string{"gold"}
	c := start(t, cfg)
	c.clone(101) // gets the template's tags without a check
	if got := c.config(101)["tags"]; got != "gold" {
		t.Errorf("the clone's tags are %v", got)
	}
	check(t, c, []step{{"delete", "PUT", vm100 + "/config", []string{"delete", "tags"}, 403, "Permission check failed (/, Sys.Modify for modifying tag 'prod')"}})
	options := c.call("GET", "/cluster/options").data.(map[string]any)
	if diff := cmp.Diff(any(map[string]any{"user-allow": "none"}), options["user-tag-access"]); diff != "" {
		t.Errorf("user-tag-access (-want +got):\n%s", diff)
	}
}
