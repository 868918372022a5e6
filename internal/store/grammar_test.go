package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/modules"
)

// TestGrammar checks pairs of similar paths, of which the first is part of a fleet and the
// second is refused.
func TestGrammar(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("a", n) }
	module, hash := "modules/"+modules.Names()[0], strings.Repeat("0", 16)
	// A change's ID has 17 bytes before its last part.
	id := func(n int) string { return "20261121T134501Z-" + long(n-17) }
	record := func(id string) string { return "history/2026/11/" + id + ".json" }
	for _, tt := range []struct {
		in, out string
		dir     bool
	}{
		{in: "r/h/main.tf", out: "h/main.tf"},
		{in: "r/h/main.tf", out: "r/h/x/main.tf"},
		{in: long(63) + "/h/main.tf", out: long(64) + "/h/main.tf"},
		{in: "r/" + long(63) + "/main.tf", out: "r/" + long(64) + "/main.tf"},
		{in: "r/h.x/main.tf", out: "r/h./main.tf"},
		{in: "R-1/h/main.tf", out: "-R/h/main.tf"},
		{in: "r/h/node-" + long(128) + ".tf", out: "r/h/node-" + long(129) + ".tf"},
		{in: "r/h/node-a.tf", out: "r/h/node-.tf"},
		{in: "r/h/node-a-b.tf", out: "r/h/node-a-.tf"},
		{in: "r/h/node-a.tf", out: "r/h/node-A.tf"},
		{in: "r/h/.terraform.lock.hcl", out: "r/.terraform.lock.hcl"},
		{in: "fleet.json", out: "r/fleet.json"},
		{in: ".gitignore", out: "r/.gitignore"},
		{in: "r", out: ".r", dir: true},
		{in: "r/h", out: "r/h/x", dir: true},
		{in: "history/h/main.tf", out: "history/h/x.tf"}, // a region with that name

		{in: "templates/r/h/main.tf", out: "templates/r/h/x/main.tf"},
		{in: "templates/r/h/template-a-1.tf", out: "templates/r/h/node-a.tf"},
		{in: "templates/r/h/template-" + long(63) + ".tf", out: "templates/r/h/template-" + long(64) + ".tf"},
		{in: "templates/r/h", out: "templates/r/h/x", dir: true},
		{in: "modules/proxmox-template/" + hash, out: "modules/proxmox-templates/" + hash, dir: true},

		{in: "modules", out: ".modules", dir: true},
		{in: module, out: "modules/other", dir: true},
		{in: module + "/" + hash, out: module + "/" + hash + "0", dir: true},
		{in: module + "/" + hash, out: module + "/" + hash[1:], dir: true},
		{in: module + "/" + hash + "/main.tf", out: module + "/" + hash + "/x/main.tf"},
		{in: module + "/" + hash + "/main.tf", out: module + "/main.tf"},
		{in: module + "/" + hash + "/" + long(63) + ".tf", out: module + "/" + hash + "/" + long(64) + ".tf"},
		{in: module + "/" + hash + "/a_b-c.tf", out: module + "/" + hash + "/_b.tf"},

		{in: "history", out: "history/20261", dir: true},
		{in: "history/2026", out: "history/x", dir: true},
		{in: "history/2026/11", out: "history/2026/1", dir: true},
		{in: "history/2026/11", out: "history/2026/11/21", dir: true},
		{in: "history/" + id(99) + ".json", out: "history/" + id(100) + ".json"},
		{in: "history/" + id(91) + ".outcome.json", out: "history/" + id(92) + ".outcome.json"},
		{in: record(id(99)), out: record(id(100))},
		{in: record(id(25)), out: record(id(25) + ".outcome")},
		{in: record(id(25)), out: strings.Replace(record(id(25)), "/11/", "/12/", 1)},
		{in: record(id(25)), out: strings.Replace(record(id(25)), ".json", ".yaml", 1)},
		{in: record(id(25)), out: "history/2026/" + id(25) + ".json"},
	} {
		if !store.IsPart(tt.in, tt.dir) {
			t.Errorf("%s (directory %t) is refused", tt.in, tt.dir)
		}
		if store.IsPart(tt.out, tt.dir) {
			t.Errorf("%s (directory %t) is part of a fleet", tt.out, tt.dir)
		}
		// A region can have the name of the file at the root.
		if tt.in != "fleet.json" && store.IsPart(tt.in, !tt.dir) {
			t.Errorf("%s is part of a fleet, but directory is %t", tt.in, !tt.dir)
		}
	}
}

// TestLimits fills a census up to each limit, which is accepted, and then exceeds it.
func TestLimits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	name := func(n int) string { return fmt.Sprintf("r/h/node-%d.tf", n) }
	for _, tt := range []struct {
		name string
		// fill adds files and records up to the limit, and more exceeds it.
		fill func(c *store.Census) string
		more func(c *store.Census) string
		want string
	}{
		{
			name: "size of a file",
			fill: func(c *store.Census) string { return c.File(name(1), mib) },
			more: func(c *store.Census) string { return c.File(name(2), mib+1) },
			want: "has 1048577 bytes: a file of the fleet must have at most 1048576",
		},
		{
			name: "size of a record",
			fill: func(c *store.Census) string { return c.Record("x", 8*mib) },
			more: func(c *store.Census) string { return c.Record("y", 8*mib+1) },
			want: "has 8388609 bytes: a record must have at most 8388608",
		},
		{
			name: "bytes",
			fill: func(c *store.Census) (problem string) {
				for n := range 256 {
					problem += c.File(name(n), mib)
				}
				return problem + c.Record("x", 8*mib) // records do not count
			},
			more: func(c *store.Census) string { return c.File(name(256), 1) },
			want: "exceeds the limit of 268435456 bytes for all files of the fleet",
		},
		{
			name: "files",
			fill: func(c *store.Census) (problem string) {
				for n := range 100_000 {
					problem += c.File(name(n), 1)
				}
				return problem
			},
			more: func(c *store.Census) string { return c.File(name(100_000), 1) },
			want: "exceeds the limit of 100000 files in a fleet",
		},
		{
			name: "records",
			fill: func(c *store.Census) (problem string) {
				for range 2_000_000 {
					problem += c.Record("x", 1)
				}
				return problem
			},
			more: func(c *store.Census) string { return c.Record("x", 1) },
			want: "exceeds the limit of 2000000 records in a fleet",
		},
		{
			name: "upper and lower case",
			fill: func(c *store.Census) string { return c.File("r/h/main.tf", 1) },
			more: func(c *store.Census) string { return c.File("R/h/main.tf", 1) },
			want: "differs from r/h/main.tf only in upper and lower case",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := &store.Census{}
			if problem := tt.fill(c); problem != "" {
				t.Errorf("at the limit: %.200s", problem)
			}
			if problem := tt.more(c); problem != tt.want {
				t.Errorf("above it: got %q, want %q", problem, tt.want)
			}
		})
	}
}
