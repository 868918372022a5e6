package agent_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPublishTellsDevices checks that Publish includes exactly the devices that are mapped
// on this host and whose NUMA node Linux reports.
func TestPublishTellsDevices(t *testing.T) {
	w := newWorld(t)
	for address, node := range map[string]string{"0000:01:00.0": "0", "0000:41:00.0": "1", "0000:42:00.0": "1", "0000:81:00.0": "-1", "0000:82:00.0": "what"} {
		w.Write("sys/bus/pci/devices/"+address+"/numa_node", node+"\n")
	}
	p := &pvesh{}
	publish := func() map[string]int {
		t.Helper()
		if _, err := w.publish(p); err != nil {
			t.Fatal(err)
		}
		return p.said(t).PCINodes
	}
	if got := publish(); got != nil {
		t.Errorf("without mappings: %v", got)
	}
	w.Write("etc/pve/mapping/pci.cfg", "gpu\n"+
		"\tdescription map node=pve-1,path=0000:42:00.0\n"+
		"\tmap id=10de:2204,iommugroup=12,node=pve-1,path=0000:01:00.0;0000:01:00.1\n"+
		"\tmap id=10de:2204,iommugroup=13,node=pve-1,path=0000:41:00\n"+
		"\tmap id=10de:2204,node=pve-2,path=0000:42:00.0\n"+
		"\tmap id=10de:2204,node=pve-1,path=../../x\n\n"+
		"nic\n\tmap id=8086:1,node=pve-1,path=0000:81:00.0\n\tmap id=8086:1,node=pve-1,path=0000:82:00.0\n\tmap id=8086:1,node=pve-1,path=0000:99:00.0\n\tmdev 1\n")
	if diff := cmp.Diff(map[string]int{"0000:01:00.0": 0, "0000:41:00": 1}, publish()); diff != "" {
		t.Errorf("pci_nodes (-want +got):\n%s", diff)
	}
}
