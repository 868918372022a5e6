package topology_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

const exampleSettings = `{
  "region-1": {
    "pve-1": {
      "sockets": 1, "threads": 2, "uncorecaches": 1, "cores": 4,
      "nodes": {
        "0": {"cpus": "0-1,4-5", "memory": 4294967296},
        "1": {"cpus": "2-3,6-7", "memsize": 4294967296}
      },
      "reservedcpus": [0, 4],
      "reservedmemory": 1073741825
    },
    "*": {"reservedcpus": [1], "reservedmemory": 4294967296}
  },
  "region-2": {"pve-3": {"threads": 1}}
}`

func host(region, name string, m topology.Machine) topology.Host {
	return topology.Host{Region: topology.RegionName(region), Name: topology.HostName(name), Machine: m}
}

func TestSettingsApply(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte(exampleSettings))
	if err != nil {
		t.Fatal(err)
	}
	h := host("region-1", "pve-1", topology.FromCounts("CPU", 2, 4, 8, 16384))
	if err := settings.Apply(&h); err != nil {
		t.Fatal(err)
	}
	want := "CPU\nonline 0-7\nnode 0: 0-1,4-5\nnode 1: 2-3,6-7\ncache 0: 0-7\n" +
		"cpus: status\ncaches: settings\nnuma: settings\nmemory: settings\n"
	if diff := cmp.Diff(want, summary(&h.Machine)); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
	if h.NUMANodes[0].MemoryMiB != 4096 || h.NUMANodes[1].MemoryMiB != 4096 {
		t.Errorf("memory of the nodes is %+v, want 4096 MiB by either spelling", h.NUMANodes)
	}
	if h.ReservedCPUs.String() != "0,4" || h.ReservedMemoryMiB != 1025 || h.CPUs[3].Socket != 0 {
		t.Errorf("reserved CPUs %s and %d MiB, socket %d; want 0,4, 1025 MiB rounded up, socket 0",
			h.ReservedCPUs, h.ReservedMemoryMiB, h.CPUs[3].Socket)
	}
}

func TestSettingsFindTheirHost(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte(exampleSettings))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		region, name, reserved string
		siblings               bool
	}{
		{"region-1", "pve-1", "0,4", false},
		{"region-1", "pve-9", "1", false},
		{"region-2", "pve-3", "", true},
		{"region-2", "pve-9", "", false},
		{"region-3", "pve-1", "", false},
	} {
		h := host(test.region, test.name, topology.FromCounts("CPU", 1, 4, 8, 16384))
		if err := settings.Apply(&h); err != nil {
			t.Fatal(err)
		}
		if h.ReservedCPUs.String() != test.reserved || h.SiblingsKnown() != test.siblings {
			t.Errorf("%s: reserved CPUs %q, siblings known %t; want %q, %t",
				h.ID(), h.ReservedCPUs, h.SiblingsKnown(), test.reserved, test.siblings)
		}
	}
	want := []topology.HostID{{Region: "region-1", Host: "pve-1"}, {Region: "region-2", Host: "pve-3"}}
	if diff := cmp.Diff(want, settings.Named()); diff != "" {
		t.Errorf("named hosts (-want +got):\n%s", diff)
	}
}

func TestSettingsKeepUnsetFields(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte(`{"r": {"h": {"nodes": {"0": {"cpus": "0,2"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	before, h := host("r", "h", sound()), host("r", "h", sound())
	if err := settings.Apply(&h); err != nil {
		t.Fatal(err)
	}
	want := []topology.NUMANode{{
		ID: 0, MemoryMiB: 1024,
		HugePages: map[int]int64{2048: 512}, Distances: map[int]int{0: 10},
	}}
	if diff := cmp.Diff(want, h.NUMANodes); diff != "" {
		t.Errorf("NUMA nodes (-want +got):\n%s", diff)
	}
	if h.CPUs[1].NUMANode != topology.Unknown || h.CPUs[2].Core != before.CPUs[2].Core {
		t.Errorf("CPUs are %+v: want CPU 1 on an unknown node and siblings unchanged", h.CPUs)
	}
	if before.NUMANodes[0].Distances[1] != 21 {
		t.Error("applying changed a map that the host shares")
	}
}

func TestSettingsReplaceGuessedCPUs(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte(`{"r": {"*": {"nodes": {"1": {"cpus": "4-7"}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	h := host("r", "h", topology.FromCounts("", 1, 4, 4, 0))
	if err := settings.Apply(&h); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("online 4-7\nnode 1: 4-7\ncpus: settings\nnuma: settings\n", summary(&h.Machine)); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
}

// TestMemoryNodes checks which NUMA nodes without CPUs lend memory to VMs.
func TestMemoryNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		arch, entry string
		want        bool
	}{
		{"", `{}`, true},
		{"arm64", `{}`, false},
		{"", `{"memorynodes": []}`, false},
		{"", `{"memorynodes": [3]}`, false},
		{"arm64", `{"memorynodes": [2, 3]}`, true},
	} {
		settings, err := topology.ParseSettings([]byte(`{"r": {"*": ` + test.entry + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := settings.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := topology.ParseSettings(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []topology.Settings{settings, again} {
			h := host("r", "h", sound())
			h.Arch = test.arch
			h.NUMANodes = append(h.NUMANodes, topology.NUMANode{ID: 2}, topology.NUMANode{ID: 3})
			if err := s.Apply(&h); err != nil || h.LendsMemory(2) != test.want {
				t.Errorf("%s, %q: node 2 lends %v, want %v; error %v", test.entry, test.arch, h.LendsMemory(2), test.want, err)
			}
		}
	}
}

func TestSettingsThatTheHostContradicts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, entry, err string }{
		{"absent CPUs", `{"nodes": {"0": {"cpus": "0-7"}}}`, "r.h.nodes.0.cpus: the host has no CPUs 4-7, only 0-3: remove them"},
		{"too much memory", `{"nodes": {"0": {"cpus": "0,2", "memory": 2147483648}, "1": {"cpus": "1,3", "memory": 1048576}}}`, "r.h.nodes: the nodes have 2148532224 bytes, but the host has 2147483648"},
		{"split siblings", `{"nodes": {"0": {"cpus": "0-1"}, "1": {"cpus": "2-3"}}}`, "cpu 0 and cpu 2 are siblings of core 0 but have different NUMA nodes"},
		{"other threads", `{"threads": 1}`, "r.h.threads: 1, but cores have up to 2 threads according to"},
		{"absent reserved CPU", `{"reservedcpus": [9]}`, "r.h.reservedcpus: the host has no CPUs 9, only 0-3"},
		{"absent memory node", `{"memorynodes": [2]}`, "r.h.memorynodes: the host has no NUMA node 2, only 0-1: remove it"},
		{"memory node with CPUs", `{"memorynodes": [1]}`, "r.h.memorynodes: NUMA node 1 has CPUs: list only NUMA nodes without CPUs"},
		{"all memory reserved", `{"reservedmemory": 99999999999}`, "r.h.reservedmemory: 99999999999 bytes, but the host has 2147483648: lower it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			settings, err := topology.ParseSettings([]byte(`{"r": {"h": ` + test.entry + `}}`))
			if err != nil {
				t.Fatal(err)
			}
			h := host("r", "h", sound())
			checkError(t, settings.Apply(&h), test.err)
			if diff := cmp.Diff(host("r", "h", sound()), h); diff != "" {
				t.Errorf("the host changed despite the error (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseSettingsRefuses checks that faults of the file are errors, and that other faults
// of an entry affect only its host.
func TestParseSettingsRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, err string }{
		{"unknown key", "{\"r\": {\n\"h\": {\n\"reservedcpu\": [0]}}}", "line 3: r.h.reservedcpu: unknown key: must be one of cores, memorynodes, nodes, reservedcpus,"},
		{"host twice", "{\"r\": {\"h\": {},\n\"h\": {}}}", "line 2: r.h: duplicate key"},
		{"bad range", "{\"r\": {\"h\": {\"nodes\": {\n\"0\": {\"cpus\": \"3-1\"}}}}}", "line 2: r.h.nodes.0.cpus: parsing cpu list \"3-1\": range 3-1 is reversed"},
		{"overlap", "{\"r\": {\"h\": {\"nodes\": {\"0\": {\"cpus\": \"0-3\"},\n\"1\": {\"cpus\": \"3-7\"}}}}}", "r.h.nodes.1.cpus: cpu 3 is also on node 0: remove it from one"},
		{"node that is no number", `{"r": {"h": {"nodes": {"a": {}}}}}`, `r.h.nodes.a: key "a" must be a number`},
		{"node out of bounds", `{"r": {"h": {"nodes": {"-1": {"cpus": "0"}}}}}`, "r.h.nodes.-1: must be an ID from 0"},
		{"empty node", `{"r": {"h": {"nodes": {"0": {}}}}}`, "r.h.nodes.0: has neither cpus nor memory"},
		{"two memories", `{"r": {"h": {"nodes": {"0": {"cpus": "0", "memory": 1, "memsize": 2}}}}}`, "memory and memsize are synonyms but differ"},
		{"negative memory", `{"r": {"h": {"nodes": {"0": {"cpus": "0", "memory": -1}}}}}`, "memory is negative"},
		{"negative count", `{"r": {"h": {"threads": -1}}}`, "r.h.threads: -1 is negative"},
		{"memory of no node", `{"r": {"h": {"memorynodes": [-1]}}}`, "r.h.memorynodes: -1: must be an ID from 0"},
		{"reserved twice", `{"r": {"h": {"reservedcpus": [1, 1]}}}`, "r.h.reservedcpus: cpu 1 is listed twice"},
		{"reserved out of bounds", `{"r": {"h": {"reservedcpus": [-1]}}}`, "r.h.reservedcpus: -1: must be an ID"},
		{"reserved on no node", `{"r": {"h": {"nodes": {"0": {"cpus": "0-3"}}, "reservedcpus": [4]}}}`, "cpu 4 is not on a node"},
		{"reserved as text", `{"r": {"h": {"reservedcpus": "0-1"}}}`, "r.h.reservedcpus: must be an array, not a string"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			settings, err := topology.ParseSettings([]byte(test.text))
			if err == nil {
				h := host("r", "h", sound())
				err = settings.Apply(&h)
				other := host("r", "other", sound())
				if err := settings.Apply(&other); err != nil {
					t.Errorf("another host: %v", err)
				}
			}
			checkError(t, err, test.err)
		})
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(exampleSettings))
	f.Add([]byte(`{"region-1": {"*": {"nodes": {"5": {"cpus": "4-9"}}, "threads": 1}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := topology.ParseSettings(data)
		if err != nil {
			return
		}
		text, err := settings.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := topology.ParseSettings(text)
		if err != nil {
			t.Fatalf("%s prints as %s: %v", data, text, err)
		}
		if twice, err := again.Print(); err != nil || string(twice) != string(text) {
			t.Fatalf("%s prints as %s, error %v, and then as %s", data, text, err, twice)
		}
		for _, m := range []topology.Machine{{}, sound(), topology.FromCounts("", 1, 4, 8, 1<<20)} {
			h, other := host("region-1", "pve-1", m), host("region-1", "pve-1", m)
			first, second := settings.Apply(&h), again.Apply(&other)
			if first == nil && h.Validate() != nil {
				t.Fatalf("applied to an invalid machine: %v", h.Validate())
			}
			if diff := cmp.Diff(h, other); (first == nil) != (second == nil) || diff != "" {
				t.Fatalf("%s means something else than %s: %v, %v\n%s", text, data, first, second, diff)
			}
		}
	})
}
