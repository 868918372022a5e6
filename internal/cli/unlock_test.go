package cli //nolint:testpackage // hostNamed and holder have no exported form

import (
	"os"
	"os/user"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// TestHostNamed checks which host a name means: one of the fleet, or one of the only region.
func TestHostNamed(t *testing.T) {
	t.Parallel()
	hosts := []topology.HostID{{Region: "a", Host: "pve-1"}, {Region: "b", Host: "pve-1"}, {Region: "b", Host: "pve-2"}}
	one, two := []scaler.Region{{Name: "a"}}, []scaler.Region{{Name: "a"}, {Name: "b"}}
	for _, tt := range []struct {
		name, want string
		regions    []scaler.Region
	}{
		{"pve-2", "b/pve-2", two},
		{"c/pve-1", "c/pve-1", two},
		{"pve-1", "", two},
		{"pve-3", "", two},
		{"pve-3", "a/pve-3", one},
	} {
		got, err := hostNamed(tt.name, hosts, tt.regions)
		if (err == nil) != (tt.want != "") || err == nil && got.String() != tt.want {
			t.Errorf("%s: %s, %v, want %q", tt.name, got, err, tt.want)
		}
	}
}

// TestLockHolder checks what unlock says about the holder of a lock, without a cluster.
func TestLockHolder(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	u := unlocking{clusterOptions: clusterOptions{kubeconfig: operator.Kubeconfig{Path: "/none"}}}
	for _, tt := range []struct {
		who     string
		engines []int
		known   bool
		want    string
		alive   bool
	}{
		{"someone", nil, true, "the backend does not report it", false},
		{me.Username + "@" + self, nil, true, "it has ended", false},
		{me.Username + "@" + self, []int{7, 8}, true, "processes 7 8", true},
		{me.Username + "@" + self, nil, false, "cannot be listed", false},
		{"anna@laptop", []int{7}, true, "laptop is another machine", false},
	} {
		if text, _, alive := u.holder(t.Context(), tt.who, tt.engines, tt.known); alive != tt.alive || !strings.Contains(text, tt.want) {
			t.Errorf("%s, engines %v: %t, %q, want %q", tt.who, tt.engines, alive, text, tt.want)
		}
	}
}
