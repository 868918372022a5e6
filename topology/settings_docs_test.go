package topology_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

// documented contains every field in every form that the documentation of
// karpenter-provider-proxmox uses (docs/noderesource.md there).
const documented = `{
  "region-1": {
    "node1": {
      "sockets": 1,
      "threads": 2,
      "uncorecaches": 1,
      "nodes": {
        "0": {"cpus": "0-15", "memory": 4294967296},
        "1": {"cpus": "16-31", "memory": 4294967296}
      },
      "reservedcpus": [0,4],
      "reservedmemory": 1073741824
    },
    "node2": {"reservedcpus": [1,5], "reservedmemory": 4294967296},
    "*": {"reservedcpus": [1,5], "reservedmemory": 4294967296}
  },
  "region-2": {
    "node3": {"reservedcpus": [0,1], "reservedmemory": 1073741824}
  }
}`

// TestSettingsOfTheDocumentation checks that Apply gives each host the topology that the
// documentation describes: two NUMA nodes of 4 GiB each under one socket and one cache, CPUs
// and bytes reserved for the host, and "*" for all other hosts of the region.
func TestSettingsOfTheDocumentation(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte(documented))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		region, name, machine, reserved string
		reservedMiB                     int64
	}{
		{
			"region-1", "node1", "online 0-31\nnode 0: 0-15\nnode 1: 16-31\ncache 0: 0-31\n" +
				"cpus: status\ncaches: settings\nnuma: settings\nmemory: settings\n", "0,4", 1024,
		},
		{"region-1", "node2", "online 0-31\nnode 0: 0-31\ncpus: status\nnuma: assumed\n", "1,5", 4096},
		{"region-1", "node9", "online 0-31\nnode 0: 0-31\ncpus: status\nnuma: assumed\n", "1,5", 4096},
		{"region-2", "node3", "online 0-31\nnode 0: 0-31\ncpus: status\nnuma: assumed\n", "0-1", 1024},
		{"region-2", "node9", "online 0-31\nnode 0: 0-31\ncpus: status\nnuma: assumed\n", "", 0},
	} {
		h := host(test.region, test.name, topology.FromCounts("", 2, 16, 32, 16<<10))
		if err := settings.Apply(&h); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.machine, summary(&h.Machine)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", h.ID(), diff)
		}
		if h.ReservedCPUs.String() != test.reserved || h.ReservedMemoryMiB != test.reservedMiB {
			t.Errorf("%s: reserved %s and %d MiB", h.ID(), h.ReservedCPUs, h.ReservedMemoryMiB)
		}
		if test.name == "node1" && (h.NUMANodes[0].MemoryMiB != 4096 || h.NUMANodes[1].MemoryMiB != 4096 || h.CPUs[31].Socket != 0) {
			t.Errorf("%s: NUMA nodes %+v, socket %d", h.ID(), h.NUMANodes, h.CPUs[31].Socket)
		}
	}
}

// TestCapacityOfTheDocumentation checks the machine that FromCapacity returns for the VM in
// the documentation of karpenter-provider-proxmox: 64 CPUs on four NUMA nodes. On each node,
// the first threads of all cores precede the second threads.
func TestCapacityOfTheDocumentation(t *testing.T) {
	t.Parallel()
	var cells []topology.NUMACell
	for _, text := range []string{
		"cpus=0-15,hostnodes=0,memory=126976", "cpus=16-31,hostnodes=1,memory=126976",
		"cpus=32-47,hostnodes=2,memory=126976", "cpus=48-63,hostnodes=3,memory=126976",
	} {
		cell, err := topology.ParseNUMA(text)
		if err != nil {
			t.Fatal(err)
		}
		cells = append(cells, cell)
	}
	m, err := topology.FromCapacity("0-7,32-39,8-15,40-47,16-23,48-55,24-31,56-63", cells)
	if err != nil {
		t.Fatal(err)
	}
	want := "online 0-63\nnode 0: 0-7,32-39\nnode 1: 8-15,40-47\nnode 2: 16-23,48-55\nnode 3: 24-31,56-63\n" +
		"cpus: node-capacity\nnuma: node-capacity\nmemory: node-capacity\n"
	if diff := cmp.Diff(want, summary(&m)); diff != "" || m.NUMANodes[3].MemoryMiB != 126976 {
		t.Errorf("%d MiB on node 3 (-want +got):\n%s", m.NUMANodes[3].MemoryMiB, diff)
	}
}

func TestSettingsOfAbsentNUMANodes(t *testing.T) {
	t.Parallel()
	settings, err := topology.ParseSettings([]byte("{\"r\": {\"h\": {\"nodes\": {\"0\": {\"cpus\": \"0-7\"},\n\"2\": {\"cpus\": \"8-15\"}}}}}"))
	if err != nil {
		t.Fatal(err)
	}
	known := host("r", "h", asReport(load(t, "xeon-4108-2s-smt")))
	err = settings.Apply(&known)
	if want := "r.h.nodes.2: the host has no NUMA node 2, only 0-1: remove it"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	counted := host("r", "h", topology.FromCounts("", 2, 8, 16, 0))
	if err := settings.Apply(&counted); err != nil {
		t.Errorf("with unknown NUMA nodes: %v", err)
	}
}

func TestMergeDropsOtherNUMANodes(t *testing.T) {
	t.Parallel()
	collected := load(t, "xeon-4108-2s-smt")
	live := asReport(collected)
	live.NUMANodes = live.NUMANodes[:1]
	for i := range live.CPUs {
		live.CPUs[i].NUMANode = 0
	}
	m, warnings := topology.Merge(live, collected)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "it lists NUMA nodes 0-1, but the host has 0: ") || len(m.NUMANodes) != 1 {
		t.Errorf("warnings %q, machine %+v", warnings, m)
	}
}
