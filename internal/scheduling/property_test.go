package scheduling_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// drawManifests draws NodePools and deployments with various constraints.
func drawManifests(t *rapid.T) string {
	limits := rapid.SampledFrom([]string{"", "", "  limits: {cpu: 20}", "  limits: {memory: 40Gi}", "  limits: {nodes: 3}"}).Draw(t, "limits")
	pinned := strings.Replace(nodePool("pinned", "dedicated", "  weight: 10"), "requirements: []",
		"requirements: []\n      taints: [{key: pinned, value: \"true\", effect: NoSchedule}]", 1)
	class := rapid.SampledFrom([]string{"shared", "flexible"}).Draw(t, "class")
	all := classes + flexible(", maxVCPUs: 24", "") + pinned + strings.Replace(nodePool("general", class, limits), "requirements: []", `requirements:
      - {key: example.com/team, operator: In, values: [red, blue]}
`, 1)
	if rapid.Bool().Draw(t, "daemonset") {
		all += `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: main, image: example, resources: {requests: {cpu: 100m, memory: 128Mi}}}]
---
`
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "deployments") {
		name := fmt.Sprintf("d%d", i)
		peer := fmt.Sprintf("d%d", rapid.IntRange(0, i).Draw(t, "peer"))
		all += deployment(name, rapid.IntRange(1, 12).Draw(t, "replicas"),
			rapid.SampledFrom([]string{"100m", "500m", "1", "1900m", "3", "7", "20"}).Draw(t, "cpu"),
			rapid.SampledFrom([]string{"128Mi", "1Gi", "3Gi", "7Gi", "30Gi"}).Draw(t, "memory"),
			rapid.SampledFrom([]string{
				"", "",
				spread(name, "topology.kubernetes.io/zone"),
				spread(name, "kubernetes.io/hostname"),
				strings.Replace(spread(peer, "topology.kubernetes.io/zone"), "DoNotSchedule", "ScheduleAnyway", 1),
				antiAffinity(peer, "topology.kubernetes.io/zone"),
				antiAffinity(name, "kubernetes.io/hostname"),
				strings.Replace(antiAffinity(peer, "topology.kubernetes.io/zone"), "podAntiAffinity", "podAffinity", 1),
				"\n      nodeSelector: {topology.kubernetes.io/zone: xeon}\n",
				"\n      nodeSelector: {example.com/team: red}\n",
				"\n      tolerations: [{key: pinned, operator: Exists}]\n",
			}).Draw(t, "constraint"))
	}
	return all
}

func antiAffinity(app, key string) string {
	return fmt.Sprintf(`
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: %s
            labelSelector: {matchLabels: {app: %s}}
`, key, app)
}

// drawSnapshot draws a lab in which some hosts are offline, small or partly used.
func drawSnapshot(t *rapid.T) *topology.Snapshot {
	s := lab()
	if rapid.Bool().Draw(t, "small") {
		s.Hosts = []topology.Host{
			machine("epyc", 1, 1, rapid.IntRange(1, 6).Draw(t, "cores"), 16), machine("xeon", 1, 2, 2, 24),
		}
	}
	for i := range s.Hosts {
		s.Hosts[i].Online = rapid.IntRange(0, 9).Draw(t, "offline") > 0
		if n := rapid.IntRange(0, 8).Draw(t, "foreign"); n > 0 {
			s.Hosts[i].Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: n, MemoryMiB: 4096}}
		}
	}
	return s
}

func TestDecisionIsStableForAnyPods(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		manifests, snapshot := drawManifests(t), drawSnapshot(t)
		file := filepath.Join(dir, "manifests.yaml")
		if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
			t.Fatal(err)
		}
		objects, err := scheduling.Load([]string{file})
		if err != nil {
			t.Fatal(err)
		}
		request := scheduling.Request{ClusterID: "test", Snapshot: snapshot}
		c := scheduling.FromObjects(objects)
		first := mustDecide(t, c, request)
		checkEveryPodOnce(t, first)
		if diff := cmp.Diff(first, mustDecide(t, c, request)); diff != "" {
			t.Fatalf("the same request differs:\n%s", diff)
		}
		request.Existing = keep(nil, first)
		second := mustDecide(t, c, request)
		checkEveryPodOnce(t, second)
		if len(second.New) > 0 {
			t.Fatalf("the second decision makes %d VMs more than the %d of the first:\n%v", len(second.New), len(first.New), second.New)
		}
		if second.Placed != first.Placed {
			t.Fatalf("the second decision places %d pods, the first %d", second.Placed, first.Placed)
		}
		failed := &snapshot.Hosts[rapid.IntRange(0, len(snapshot.Hosts)-1).Draw(t, "failed")]
		failed.Online = false
		checkFailure(t, c, request, failed.ID())
	})
}

// checkFailure checks a decision after a host failed: no VM on that host takes a pod, and
// the replacements are sufficient.
func checkFailure(t *rapid.T, c *scheduling.Cluster, request scheduling.Request, failed topology.HostID) {
	after := mustDecide(t, c, request)
	checkEveryPodOnce(t, after)
	lost := map[string]bool{}
	for _, vm := range request.Existing {
		lost[vm.Name] = vm.Host == failed
	}
	for _, l := range after.InFlight {
		if lost[l.Name] {
			t.Fatalf("%s takes pods, but its host %s failed", l.Name, failed)
		}
	}
	request.Existing = keep(request.Existing, after)
	again := mustDecide(t, c, request)
	if len(again.New) > 0 || again.Placed != after.Placed {
		t.Fatalf("the next decision makes %d VMs more and places %d pods, not %d", len(again.New), again.Placed, after.Placed)
	}
}

func mustDecide(t *rapid.T, c *scheduling.Cluster, request scheduling.Request) *scheduling.Decision {
	d, err := c.Decide(context.Background(), request)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func checkEveryPodOnce(t *rapid.T, d *scheduling.Decision) {
	seen := map[types.NamespacedName]int{}
	count := func(pods []types.NamespacedName) {
		for _, pod := range pods {
			seen[pod]++
		}
	}
	for _, n := range d.New {
		count(n.Pods)
		if len(n.Pods) == 0 {
			t.Fatalf("VM of %s takes no pod", n.Spec.InstanceType)
		}
	}
	for _, l := range append(d.InFlight, d.Existing...) {
		count(l.Pods)
	}
	for _, r := range d.Refused {
		seen[r.Pod]++
		if r.Reason == "" {
			t.Fatalf("pod %s is refused for no reason", r.Pod)
		}
	}
	for pod, times := range seen {
		if times != 1 {
			t.Fatalf("pod %s has %d outcomes", pod, times)
		}
	}
	if len(seen) != d.Asked {
		t.Fatalf("%d pods asked, %d have an outcome", d.Asked, len(seen))
	}
}
