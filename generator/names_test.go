package generator_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// stateName matches names that all backends accept: Kubernetes label values that begin and
// end with a letter, which are also valid schema names in PostgreSQL.
var stateName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z])?$`)

func TestStateName(t *testing.T) {
	t.Parallel()
	long := topology.HostName(strings.Repeat("h", 63))
	seen := map[string]topology.HostID{}
	for _, host := range []topology.HostID{
		{Region: "region-1", Host: "pve-1"},
		{Region: "region-1", Host: "PVE_1"},
		{Region: "region-1", Host: "pve.1"},
		{Region: "region-1", Host: long},
		{Region: "region-1", Host: long[:62] + "-1"},
		{Region: topology.RegionName(long), Host: long},
		{Region: "region", Host: "1-pve-1"},
		{Region: "r", Host: "pve-1"},
	} {
		name := generator.StateName("prod", host)
		if !stateName.MatchString(name) {
			t.Errorf("state of %s is %q", host, name)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("%s and %s share the state %q", host, other, name)
		}
		seen[name] = host
	}
	if generator.StateName("prod", somewhere) == generator.StateName("test", somewhere) {
		t.Error("two clusters share a state")
	}
}

func TestStateNameOfAnyHost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		host := topology.HostID{
			Region: topology.RegionName(rapid.String().Draw(t, "region")), Host: topology.HostName(rapid.String().Draw(t, "host")),
		}
		cluster := rapid.StringMatching(`[a-z0-9]{1,32}`).Draw(t, "cluster")
		if name := generator.StateName(cluster, host); !stateName.MatchString(name) {
			t.Fatalf("state of %q is %q", host, name)
		}
	})
}

func TestBackends(t *testing.T) {
	t.Parallel()
	state := generator.StateName("prod", somewhere)
	cases := map[string]struct {
		backend fleet.Backend
		want    []string
	}{
		"none":       {fleet.Backend{}, nil},
		"local":      {fleet.Backend{Type: "local", Config: map[string]string{"path": "/states/"}}, []string{`path = "/states/STATE.tfstate"`}},
		"kubernetes": {fleet.Backend{Type: "kubernetes"}, []string{`secret_suffix = "STATE"`}},
		"pg":         {fleet.Backend{Type: "pg"}, []string{`schema_name = "STATE"`}},
		"s3": {
			fleet.Backend{Type: "s3", Config: map[string]string{"dynamodb_table": "locks"}},
			[]string{`dynamodb_table = "locks"`, `key = "STATE.tfstate"`},
		},
		"s3 with its own lock": {
			fleet.Backend{Type: "s3", Config: map[string]string{"key": "a/{state}/b"}},
			[]string{`key = "a/STATE/b"`, `use_lockfile = "true"`},
		},
		"http": {
			fleet.Backend{Type: "http", Config: map[string]string{"address": "https://h/s/", "lock_address": "https://h/s/{state}/lock"}},
			[]string{`address = "https://h/s/STATE"`, `lock_address = "https://h/s/STATE/lock"`, `unlock_address = "https://h/s/STATE"`},
		},
		"gcs":     {fleet.Backend{Type: "gcs", Config: map[string]string{"prefix": "p"}}, []string{`prefix = "p/STATE"`}},
		"consul":  {fleet.Backend{Type: "consul"}, []string{`path = "STATE"`}},
		"azurerm": {fleet.Backend{Type: "azurerm"}, []string{`key = "STATE.tfstate"`}},
		"another": {fleet.Backend{Type: "oss", Config: map[string]string{"key": "{state}"}}, []string{`key = "STATE"`}},
	}
	spaces := regexp.MustCompile(` +`)
	block := regexp.MustCompile(`(?s)backend "[a-z0-9]+" \{(.*?)\n  \}`)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fleetOf(vmAt(somewhere, 2001))
			f.Backend = c.backend
			files, err := generator.Render(f)
			if err != nil {
				t.Fatal(err)
			}
			checkParse(t, f, files)
			var got []string
			if found := block.FindStringSubmatch(string(files["region-1/pve-1/main.tf"])); found != nil {
				for line := range strings.Lines(strings.ReplaceAll(found[1], state, "STATE")) {
					if line = strings.TrimSpace(line); line != "" {
						got = append(got, spaces.ReplaceAllString(line, " "))
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	vm := vmAt(somewhere, 2001)
	if got, want := generator.Address(&vm), "module.workers-2001.proxmox_virtual_environment_vm.node"; got != want {
		t.Errorf("address %s, want %s", got, want)
	}
	vm.Name, vm.SecurityGroups = "3d-2001", []string{"k8s"}
	want := []string{
		"module._3d-2001.proxmox_virtual_environment_vm.node",
		"module._3d-2001_security_groups.proxmox_virtual_environment_firewall_rules.security_groups",
	}
	if diff := cmp.Diff(want, generator.Addresses(&vm)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	calls := []string{"module._3d-2001", "module._3d-2001_security_groups"}
	if diff := cmp.Diff(calls, generator.Calls(&vm)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	imports := []generator.Import{{Address: want[0], ID: "pve-1/2001"}, {Address: want[1], ID: "vm/pve-1/2001"}}
	if diff := cmp.Diff(imports, generator.Imports(&vm)); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}

// TestGuestTopology checks which cells become sockets.
func TestGuestTopology(t *testing.T) {
	t.Parallel()
	cells := func(sets ...topology.CPUSet) []topology.NUMACell {
		var list []topology.NUMACell
		for i, set := range sets {
			list = append(list, topology.NUMACell{
				GuestCPUs: set, HostNodes: topology.CPUs(i), MemoryMiB: int64(set.Size()) * 2048, Policy: topology.NUMABind,
			})
		}
		return list
	}
	cases := map[string]struct {
		cells          []topology.NUMACell
		sockets, cores string
	}{
		"none":       {nil, "1", "4"},
		"one":        {cells(topology.CPUs(0, 1, 2, 3)), "1", "4"},
		"two":        {cells(topology.CPUs(0, 1), topology.CPUs(2, 3)), "2", "2"},
		"four":       {cells(topology.CPUs(0), topology.CPUs(1), topology.CPUs(2), topology.CPUs(3)), "4", "1"},
		"unequal":    {cells(topology.CPUs(0), topology.CPUs(1, 2, 3)), "1", "4"},
		"interlaced": {cells(topology.CPUs(0, 2), topology.CPUs(1, 3)), "1", "4"},
		"swapped":    {cells(topology.CPUs(2, 3), topology.CPUs(0, 1)), "1", "4"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := vmAt(somewhere, 2001)
			vm.Policy, vm.Cells = fleet.PolicyNUMA, c.cells
			files, err := generator.Render(fleetOf(vm))
			if err != nil {
				t.Fatal(err)
			}
			content := string(files[generator.NodeFile(&vm)])
			if !strings.Contains(content, "sockets = "+c.sockets+"\n    cores   = "+c.cores+"\n") {
				t.Errorf("want %s sockets of %s cores:\n%s", c.sockets, c.cores, content)
			}
		})
	}
}
