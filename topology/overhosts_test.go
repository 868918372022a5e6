package topology_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

// TestOverHosts checks that facts that differ only in the host become one sentence.
func TestOverHosts(t *testing.T) {
	t.Parallel()
	var facts []topology.HostFact
	for i := 1; i <= 40; i++ {
		host := topology.HostID{Region: "lab", Host: topology.HostName(fmt.Sprintf("pve-%d", i))}
		text := fmt.Sprintf("%s has no template: create it on %s", host, host)
		if i == 2 {
			text = "lab/pve-2 is offline"
		}
		facts = append(facts, topology.HostFact{Host: host, Text: text})
	}
	want := []string{
		"each of 39 hosts (lab/pve-1, lab/pve-3…pve-40) has no template: create it on the host",
		"lab/pve-2 is offline",
	}
	if diff := cmp.Diff(want, topology.OverHosts(facts)); diff != "" {
		t.Errorf("sentences (-want +got):\n%s", diff)
	}
	if got := topology.OverHosts(facts[:1]); got[0] != "lab/pve-1 has no template: create it on lab/pve-1" {
		t.Errorf("one host: %q", got)
	}
	first, second := topology.HostID{Region: "lab", Host: "pve-1"}, topology.HostID{Region: "lab", Host: "pve-2"}
	for _, test := range []struct {
		texts [2]string
		want  []string
	}{
		{
			[2]string{"host lab/pve-1 cannot be used: start host lab/pve-1", "host lab/pve-2 cannot be used: start host lab/pve-2"},
			[]string{"each of 2 hosts (lab/pve-1, lab/pve-2) cannot be used: start the host"},
		},
		{[2]string{"lab/pve-1-old has the VM", "lab/pve-2-old has the VM"}, []string{"lab/pve-1-old has the VM", "lab/pve-2-old has the VM"}},
	} {
		facts := []topology.HostFact{{Host: first, Text: test.texts[0]}, {Host: second, Text: test.texts[1]}}
		if diff := cmp.Diff(test.want, topology.OverHosts(facts)); diff != "" {
			t.Errorf("sentences (-want +got):\n%s", diff)
		}
	}
}
