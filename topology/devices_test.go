package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestParsePCIMap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]topology.PCIDevice{
		"node=pve-1,path=0000:01:00.0,id=10de:2204,iommugroup=12": {Mapping: "gpu", Path: "0000:01:00.0", NUMANode: topology.Unknown},
		"id=10de:2204,node=pve-1,path=0000:01:00":                 {Mapping: "gpu", Path: "0000:01:00", NUMANode: topology.Unknown},
		"path=10000:e1:00.0;10000:e1:00.1,node=pve-1":             {Mapping: "gpu", Path: "10000:e1:00.0;10000:e1:00.1", NUMANode: topology.Unknown},
	} {
		host, got, err := topology.ParsePCIMap("gpu", text)
		if diff := cmp.Diff(want, got); diff != "" || host != "pve-1" || err != nil {
			t.Errorf("%s on %s: %v (-want +got):\n%s", text, host, err, diff)
		}
	}
	for _, text := range []string{"", "node=pve-1", "path=0000:01:00.0", "node=pve-1,path=01:00.0", "node=pve-1,path=0000:01:00.0;x"} {
		if _, got, err := topology.ParsePCIMap("gpu", text); err == nil {
			t.Errorf("%q gives %+v", text, got)
		}
	}
}

func TestParseHostPCI(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]topology.PassedDevice{
		"mapping=gpu,pcie=1":            {Mapping: "gpu"},
		"pcie=1,mapping=gpu,mdev=half":  {Mapping: "gpu", MDev: "half"},
		"01:00.0,x-vga=1":               {Address: "01:00.0"},
		"host=0000:01:00;0000:02:00.0":  {Address: "0000:01:00;0000:02:00.0"},
		"rombar=0,host=01:00,mdev=half": {Address: "01:00", MDev: "half"},
	} {
		if got, err := topology.ParseHostPCI(text); got != want || err != nil {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "pcie=1", "01:00.0,mapping=gpu"} {
		if got, err := topology.ParseHostPCI(text); err == nil {
			t.Errorf("%q gives %+v", text, got)
		}
	}
}

func TestOverlaps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path, address string
		want          bool
	}{
		{"0000:01:00.0", "01:00.0", true},
		{"0000:01:00.0", "0000:01:00", true},
		{"0000:01:00", "01:00.1", true},
		{"0000:01:00.0;0000:01:00.1", "01:00.1", true},
		{"0000:01:00.0", "02:00.0;01:00.0", true},
		{"0000:01:00.0", "01:00.1", false},
		{"0000:01:00.0", "0001:01:00.0", false},
		{"0000:01:00", "01:0", false},
	} {
		if d := (topology.PCIDevice{Path: tt.path}); d.Overlaps(tt.address) != tt.want {
			t.Errorf("%s and %s: want %v", tt.path, tt.address, tt.want)
		}
	}
}

// TestAgentReportsDevices checks that LocatedDevices uses the NUMA nodes that the agent wrote
// to the notes, and that PublishIn rejects invalid addresses and nodes.
func TestAgentReportsDevices(t *testing.T) {
	t.Parallel()
	agent := topology.Agent{
		Version: "1.2.3", At: time.Unix(1700000000, 0), Isolation: "off", MaxPinnedPercent: 90,
		PCINodes: map[string]int{"0000:01:00.0": 0, "0000:81:00": 1},
	}
	notes, err := agent.PublishIn("")
	if err != nil {
		t.Fatal(err)
	}
	read, _, err := topology.ParseAgent(notes)
	if err != nil {
		t.Fatal(err)
	}
	host := topology.Host{Agent: &read, PCIDevices: []topology.PCIDevice{
		{Mapping: "both", Path: "0000:01:00.0;0000:01:00.1", NUMANode: topology.Unknown},
		{Mapping: "card", Path: "0000:81:00", NUMANode: topology.Unknown},
		{Mapping: "other", Path: "0000:82:00", NUMANode: topology.Unknown},
	}}
	var got []int
	for _, d := range host.LocatedDevices() {
		got = append(got, d.NUMANode)
	}
	if diff := cmp.Diff([]int{0, 1, topology.Unknown}, got); diff != "" || host.PCIDevices[0].NUMANode != topology.Unknown {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	for address, node := range map[string]int{"01:00.0": 0, "0000:01:00.0": -1, "0000:02:00.0": 1 << 20} {
		agent.PCINodes = map[string]int{address: node}
		if _, err := agent.PublishIn(""); err == nil || !strings.Contains(err.Error(), "pci_nodes") {
			t.Errorf("%s on node %d: %v", address, node, err)
		}
	}
}
