package scheduling_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// agentAt is the time at which hosts were read, and their agents last published.
var agentAt = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// machine returns a host whose cores have two threads each, with a host agent.
func machine(name string, sockets, nodesPerSocket, coresPerNode int, memoryGiB int64) topology.Host {
	nodes := sockets * nodesPerSocket
	cores := nodes * coresPerNode
	h := topology.Host{
		Region: "lab", Name: topology.HostName(name), Online: true,
		ReadAt: agentAt, Agent: &topology.Agent{Version: "1.2.3", At: agentAt, Isolation: "enforce", Clusters: []string{"test"}, MaxPinnedPercent: 90},
		Machine: topology.Machine{
			MemoryMiB: memoryGiB * 1024,
			Sources: map[topology.Fact]topology.Source{
				topology.FactCPUs: topology.SourceCollected, topology.FactSiblings: topology.SourceCollected,
				topology.FactCaches: topology.SourceCollected, topology.FactNUMA: topology.SourceCollected,
				topology.FactMemory: topology.SourceCollected,
			},
		},
		Templates: []topology.Template{{VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "local"}},
		Storages:  []topology.Storage{{Name: "local", Type: "dir", Active: true}},
	}
	for n := range nodes {
		h.NUMANodes = append(h.NUMANodes, topology.NUMANode{ID: n, MemoryMiB: memoryGiB * 1024 / int64(nodes)})
	}
	for id := range 2 * cores {
		core := id % cores
		node := core / coresPerNode
		h.CPUs = append(h.CPUs, topology.CPU{ID: id, Online: true, Core: core, NUMANode: node, Socket: node / nodesPerSocket, L3: core / min(3, coresPerNode)})
	}
	return h
}

// lab returns three hosts with the CPUs of different machines: two EPYC 7451, one HX 370,
// and two Xeon 6230.
func lab() *topology.Snapshot {
	return &topology.Snapshot{
		Regions: []topology.Region{{Name: "lab", Version: "9.0.3", Quorate: true}},
		Hosts: []topology.Host{
			machine("epyc", 2, 4, 6, 256),
			machine("ryzen", 1, 1, 12, 64),
			machine("xeon", 2, 1, 20, 192),
		},
	}
}

func oneHost(cores int, memoryGiB int64) *topology.Snapshot {
	s := lab()
	s.Hosts = []topology.Host{machine("solo", 1, 1, cores, memoryGiB)}
	return s
}

const classes = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec:
  template: {name: debian}
---
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: dedicated}
spec:
  template: {name: debian}
  placement: {policy: Dedicated, pinWith: HostAgent}
---
`

func nodePool(name, class, more string) string {
	return fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %s}
spec:
%s
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %s}
      requirements: []
---
`, name, more, class)
}

func deployment(name string, replicas int, cpu, memory, more string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
%[5]s
      containers:
      - name: main
        image: example
        resources: {requests: {cpu: %[3]s, memory: %[4]s}}
---
`, name, replicas, cpu, memory, more)
}

func spread(app, key string) string {
	return fmt.Sprintf(`
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: %s
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: %s}}
`, key, app)
}

// load writes the manifests to a file and loads it.
func load(t testing.TB, manifests ...string) *scheduling.Cluster {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := scheduling.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	return scheduling.FromObjects(objects)
}

func decide(t testing.TB, c *scheduling.Cluster, snapshot *topology.Snapshot, kept ...fleet.VM) *scheduling.Decision {
	t.Helper()
	d, err := c.Decide(context.Background(), scheduling.Request{ClusterID: "test", Snapshot: snapshot, Existing: kept})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// keep appends a decision's new VMs to kept, as desired VMs.
func keep(kept []fleet.VM, d *scheduling.Decision) []fleet.VM {
	for _, n := range d.New {
		id := fleet.VMID(2000 + len(kept))
		kept = append(kept, fleet.VM{
			Key: fleet.Key(fmt.Sprintf("key-%d", id)), VMID: id, Name: fleet.NodeName(n.NodePool, id),
			Spec: n.Spec, Placement: n.Placement,
		})
	}
	return kept
}

func hostsOf(d *scheduling.Decision) map[string]int {
	hosts := map[string]int{}
	for _, n := range d.New {
		hosts[string(n.Placement.Host.Host)] += len(n.Pods)
	}
	return hosts
}
