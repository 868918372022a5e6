package operator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// settled returns a configuration with this settings file and two clusters, of which one
// does not respond, and the clients of both clusters.
func settled(t *testing.T, settings string) (*operator.Config, map[topology.RegionName]*proxmox.Client) {
	t.Helper()
	dir, server := t.TempDir(), testenv.Proxmox(t)
	text := fmt.Sprintf(`clusterID: test
clusters:
- {region: %s, url: '%s', ca_file: '%s', token_id: '%s', token_secret: '%s'}
- {region: away, url: 'https://127.0.0.1:1', token_id: '%s', token_secret: x, vmid_range: {lower: 5000, upper: 5999}}
topology_file: settings.json
`, testenv.Region, server.URL(), testenv.CertFile(t, server), pvesim.DefaultToken, pvesim.DefaultTokenSecret, pvesim.DefaultToken)
	for name, content := range map[string]string{"numaform.yaml": text, "settings.json": settings} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := operator.Load(filepath.Join(dir, "numaform.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := config.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return config, clients
}

// withSettings returns the inventory of these clusters.
func withSettings(t *testing.T, settings string) *operator.Inventory {
	t.Helper()
	config, clients := settled(t, settings)
	return operator.NewInventory(config, clients, testclock.NewFakePassiveClock(time.Now()))
}

// TestReachable checks that Reachable continues without a region that does not respond:
// nothing is placed there, and nothing is reported about its hosts.
func TestReachable(t *testing.T) {
	t.Parallel()
	config, clients := settled(t, `{"homelab": {"pve1": {"reservedcpus": [0]}}, "away": {"pve-9": {"reservedcpus": [0]}}}`)
	snapshot, unread, err := config.Reachable(t.Context(), clients)
	if err != nil {
		t.Fatal(err)
	}
	if len(unread) != 1 || unread[0].Region != "away" || unread[0].Err == nil {
		t.Errorf("unread are %v, want only away", unread)
	}
	var hosts []string
	for i := range snapshot.Hosts {
		hosts = append(hosts, snapshot.Hosts[i].ID().String())
	}
	if diff := cmp.Diff([]string{"homelab/pve-1", "homelab/pve-2", "homelab/pve1"}, hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	for _, region := range snapshot.Regions {
		if away := region.Name == "away"; away != region.HidesGuests || away == region.Quorate {
			t.Errorf("region %+v", region)
		}
	}
	config.Clusters = config.Clusters[1:]
	if _, _, err := config.Reachable(t.Context(), clients); err == nil {
		t.Error("no region responds, but there is no error")
	}
}

// TestSettingsOfHostsThatAreNotThere checks that settings for missing hosts are reported,
// but not those for hosts whose region was not read. A host whose name is probably
// misspelled is not used, because it lacks the reservations.
func TestSettingsOfHostsThatAreNotThere(t *testing.T) {
	t.Parallel()
	inventory := withSettings(t, `{"homelab": {"pve-1": {"reservedcpus": [0]}, "pve1": {"reservedcpus": [0]}}, "away": {"pve-9": {"reservedcpus": [0]}}}`)
	got := map[string]string{}
	for _, host := range snapshot(t, inventory).Hosts {
		got[host.ID().String()] = host.Problem + host.ReservedCPUs.String()
		if host.Absent != (host.Name == "pve1") {
			t.Errorf("host %s is absent: %t", host.ID(), host.Absent)
		}
	}
	if len(got) != 3 || got["homelab/pve-1"] != "0" || got["homelab/pve-2"] != "" ||
		!strings.HasPrefix(got["homelab/pve1"], "is not in the cluster, whose hosts are [pve-1 pve-2]: correct its name in ") {
		t.Errorf("hosts are %v", got)
	}

	for _, test := range []struct{ name, settings, misspelled string }{
		{"another character", `{"homelab": {"pve_2": {"reservedcpus": [0]}}}`, "pve_2"},
		{"beside settings for all others", `{"homelab": {"PVE2": {"reservedcpus": [0]}, "*": {"reservedcpus": [1]}}}`, "PVE2"},
		{"a domain", `{"homelab": {"pve-2.example": {"reservedcpus": [0]}}}`, "pve-2.example"},
		{"a host that was removed", `{"homelab": {"pve-3": {"reservedcpus": [0]}}}`, ""},
		{"another name", `{"homelab": {"server-2": {"reservedcpus": [0]}}}`, ""},
	} {
		hosts := snapshot(t, withSettings(t, test.settings)).Hosts
		i := slices.IndexFunc(hosts, func(h topology.Host) bool { return h.Name == "pve-2" })
		j := slices.IndexFunc(hosts, func(h topology.Host) bool { return h.Name != "pve-1" && h.Name != "pve-2" })
		want := "which has settings for " + test.misspelled + ", and the cluster has no such host: correct the name there, or add settings for pve-2"
		if found := strings.HasSuffix(hosts[i].Problem, want); found != (test.misspelled != "") || !found && hosts[i].Problem != "" {
			t.Errorf("%s: the problem of pve-2 is %q", test.name, hosts[i].Problem)
		}
		if hint := strings.HasSuffix(hosts[j].Problem, "; did you mean pve-2?"); hint != (test.misspelled != "") {
			t.Errorf("%s: the problem of the missing host is %q", test.name, hosts[j].Problem)
		}
	}
}

// TestWrongSettings checks that a fault in the settings of a host or region affects only the
// hosts whose settings may be meant, and that it is reported once.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	const misnamed = `settings.json has settings for regions ["homlab"], but the clusters are [homelab away]: correct the region there, or add the cluster to numaform.yaml`
	for _, test := range []struct {
		name, settings string
		problems       [2]string // of pve-1 and pve-2; each is the end of the problem
		warned         int       // hosts with a warning
	}{
		{
			"a host", `{"homelab": {"pve-1": {"reservedcpus": [79]}, "*": {"reservedcpus": [0]}}}`,
			[2]string{"settings.json: homelab.pve-1.reservedcpus: the host has no CPUs 79, only 0-7: remove them", ""},
			0,
		},
		{
			"an entry that contradicts itself", `{"homelab": {"pve-2": {"reservedcpus": [1, 1]}}}`,
			[2]string{"", "settings.json: homelab.pve-2.reservedcpus: cpu 1 is listed twice: remove one"},
			0,
		},
		{"the region of the hosts", `{"homlab": {"*": {"reservedcpus": [0]}}}`, [2]string{misnamed, misnamed}, 1},
		{"the region of others", `{"homlab": {"*": {"reservedcpus": [0]}}, "homelab": {}}`, [2]string{"", ""}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			hosts := snapshot(t, withSettings(t, test.settings)).Hosts
			if len(hosts) != 2 {
				t.Fatalf("%d hosts, want 2", len(hosts))
			}
			warned := 0
			for i := range hosts {
				warned += len(hosts[i].Warnings)
				if want := test.problems[i]; (want == "") != (hosts[i].Problem == "") || !strings.HasSuffix(hosts[i].Problem, want) {
					t.Errorf("problem of %s: %q, want %q", hosts[i].Name, hosts[i].Problem, want)
				}
			}
			if warned != test.warned {
				t.Errorf("%d warnings, want %d", warned, test.warned)
			}
		})
	}
}

// TestSettingsAreRefused checks that a file that cannot be parsed is an error, because it may
// have settings for any host.
func TestSettingsAreRefused(t *testing.T) {
	t.Parallel()
	_, err := withSettings(t, `{"homelab": {"pve-1": {"nodes": {"0": {"cpus": "3-1"}}}}}`).Snapshot(t.Context())
	if err == nil || !strings.Contains(err.Error(), "range 3-1 is reversed: write 1-3") {
		t.Errorf("got %v", err)
	}
}
