package scheduling_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// tenHosts returns 10 hosts of 128 CPUs and 1 TiB each.
func tenHosts() *topology.Snapshot {
	s := lab()
	s.Hosts = nil
	for i := range 10 {
		s.Hosts = append(s.Hosts, machine(fmt.Sprintf("pve-%02d", i), 2, 4, 8, 1024))
	}
	return s
}

// manyPods returns n pods of several kinds for one pool of Shared VMs.
func manyPods(t testing.TB, n, kinds int) *scheduling.Cluster {
	t.Helper()
	manifests := []string{classes, nodePool("general", "shared", "")}
	for i := range kinds {
		manifests = append(manifests, deployment(fmt.Sprintf("app-%02d", i), n/kinds,
			fmt.Sprintf("%dm", 100+20*(i%10)), fmt.Sprintf("%dMi", 128+64*(i%7)), ""))
	}
	return load(t, manifests...)
}

// BenchmarkDecide measures a whole decision for 10 hosts and 20 instance types:
// Karpenter's Solve and the planner's Place, repeated until both agree.
func BenchmarkDecide(b *testing.B) {
	for _, pods := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			c, snapshot := manyPods(b, pods, 20), tenHosts()
			for b.Loop() {
				if d := decide(b, c, snapshot); d.Placed != pods {
					b.Fatalf("%d of %d pods are placed", d.Placed, pods)
				}
			}
		})
	}
}

// BenchmarkDecideBesideNodes measures decisions in fleets of full nodes, 50 on each host: for
// one pod, and for 200 pods that spread over the hosts.
func BenchmarkDecideBesideNodes(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		snapshot := lab()
		snapshot.Hosts = nil
		manifests := []string{classes, nodePool("general", "shared", "")}
		var vms []fleet.VM
		for i := range nodes {
			if i%50 == 0 {
				snapshot.Hosts = append(snapshot.Hosts, machine(fmt.Sprintf("pve-%02d", i/50), 2, 4, 16, 1024))
			}
			id := 100_000 + i
			vm := keptVM(id, "general", "shared", fmt.Sprintf("pve-%02d", i/50), fleet.PolicyShared)
			vms = append(vms, vm)
			manifests = append(manifests, strings.ReplaceAll(fmt.Sprintf(node2000, "", ""), "2000", strconv.Itoa(id)))
			for j := range 4 {
				manifests = append(manifests, boundPod(fmt.Sprintf("bound-%d-%d", id, j), vm.Name))
			}
		}
		for _, pods := range []int{1, 200} {
			b.Run(fmt.Sprintf("nodes=%d/pods=%d", nodes, pods), func(b *testing.B) {
				app := deployment("app", pods, "1200m", "2Gi", spread("app", corev1.LabelTopologyZone))
				c := load(b, append(slices.Clip(manifests), app)...)
				b.ReportAllocs()
				for b.Loop() {
					d := decide(b, c, snapshot, vms...)
					b.ReportMetric(float64(len(d.New)), "VMs")
					if d.Placed != pods {
						b.Fatalf("%d of %d pods are placed", d.Placed, pods)
					}
				}
			})
		}
	}
}

// boundPod returns the manifest of a running pod of one CPU on a node.
func boundPod(name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %s
  containers: [{name: main, image: app, resources: {requests: {cpu: "1", memory: 1Gi}}}]
status: {phase: Running}
---
`, name, node)
}

// BenchmarkRefuse measures a decision for 5,000 pods, most of which do not fit on two small
// hosts: each refused pod gets a reason.
func BenchmarkRefuse(b *testing.B) {
	c, snapshot := manyPods(b, 5000, 20), lab()
	for b.Loop() {
		if d := decide(b, c, snapshot); len(d.Refused) == 0 {
			b.Fatal("no pod is refused")
		}
	}
}
