package topology_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestFromCapacity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, affinity string
		cells          []string
		want, err      string
	}{
		{
			name: "the affinity's order counts", affinity: "0-3,8-11,4-7,12-15",
			cells: []string{"cpus=0-7,hostnodes=0,memory=1000", "cpus=8-15,hostnodes=1,memory=2000"},
			want:  "online 0-15\nnode 0: 0-3,8-11\nnode 1: 4-7,12-15\ncpus: node-capacity\nnuma: node-capacity\nmemory: node-capacity\n",
		},
		{
			name: "no cells", affinity: "0-3",
			want: "online 0-3\nnode 0: 0-3\ncpus: node-capacity\nnuma: assumed\n",
		},
		{
			name: "too few CPUs", affinity: "0-3", cells: []string{"cpus=0-7,hostnodes=0"},
			err: "reading node-capacity: numa0: cpus has position 4, but affinity lists 4 CPUs",
		},
		{
			name: "two nodes in one", affinity: "0-3", cells: []string{"cpus=0-3,hostnodes=0-1"},
			err: `numa0: hostnodes is "0-1": must be one NUMA node`,
		},
		{
			name: "a node twice", affinity: "0-3", cells: []string{"cpus=0-1,hostnodes=0", "cpus=2-3,hostnodes=0"},
			err: "NUMA node 0 is listed twice",
		},
		{name: "a CPU twice", affinity: "0-3,2", err: "cpu 2 is listed twice"},
		{name: "bad affinity", affinity: "0-", err: `affinity "0-"`},
		{name: "hostile affinity", affinity: "0-65535,0-65535,0-65535", err: "affinity must list at most 65535 CPUs"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var cells []topology.NUMACell
			for _, text := range test.cells {
				cell, err := topology.ParseNUMA(text)
				if err != nil {
					t.Fatal(err)
				}
				cells = append(cells, cell)
			}
			m, err := topology.FromCapacity(test.affinity, cells)
			checkError(t, err, test.err)
			if diff := cmp.Diff(test.want, summary(&m)); err == nil && diff != "" {
				t.Errorf("machine (-want +got):\n%s", diff)
			}
		})
	}
}
