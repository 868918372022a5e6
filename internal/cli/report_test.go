package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/topology"
)

// TestRepinnedHostIsNotGrouped prints the plans of many equal hosts: the one with a
// repinned VM has its own line.
func TestRepinnedHostIsNotGrouped(t *testing.T) {
	t.Parallel()
	var hosts []topology.HostID
	for i := range 9 {
		hosts = append(hosts, topology.HostID{Region: "lab", Host: topology.HostName(fmt.Sprintf("pve-%d", i))})
	}
	text := cli.Plans(hosts, hosts[0])
	for _, want := range []string{"  lab/pve-0: no changes", "repinned while the VM runs: workers-2000", "  8 hosts (lab/pve-1, "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}
