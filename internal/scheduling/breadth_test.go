package scheduling_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// honored is a rule that a decision must follow; want are the new VMs, each as its pool, host
// and number of pods.
type honored struct {
	name      string
	manifests []string
	hosts     func(*topology.Snapshot)
	request   func(*scheduling.Request)
	want      []string
	refused   int
}

func affinityTo(app, key string) string {
	return strings.Replace(antiAffinity(app, key), "podAntiAffinity", "podAffinity", 1)
}

func preferZone(zone string) string {
	return fmt.Sprintf(`
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [%s]}]}}]}}
`, zone)
}

func preferApart(app, key string) string {
	return fmt.Sprintf(`
      affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: %s, labelSelector: {matchLabels: {app: %s}}}}]}}
`, key, app)
}

func withRequirements(pool, requirements string) string {
	return strings.Replace(pool, "requirements: []", "requirements: "+requirements, 1)
}

func thingsToHonor() []honored {
	general := nodePool("general", "shared", "")
	manyTypes := withRequirements(general, "[{key: node.kubernetes.io/instance-type, operator: Exists, minValues: 9}]")
	return []honored{
		{
			name:      "pod affinity over hosts",
			manifests: []string{general, zonePod("ryzen"), deployment("b", 3, "15", "1Gi", affinityTo("a", "topology.kubernetes.io/zone"))},
			want:      []string{"general ryzen 1", "general ryzen 1"}, refused: 2, // ryzen has 24 CPUs: not enough for another one of 16
		},
		{
			name:      "pod affinity on a node",
			manifests: []string{general, deployment("a", 1, "3", "1Gi", ""), deployment("b", 2, "100m", "1Gi", affinityTo("a", "kubernetes.io/hostname"))},
			want:      []string{"general epyc 3"},
		},
		{
			name:      "anti-affinity that is only preferred, where it can be met",
			manifests: []string{general, deployment("a", 3, "100m", "1Gi", preferApart("a", "topology.kubernetes.io/zone"))},
			want:      []string{"general epyc 1", "general ryzen 1", "general xeon 1"},
		},
		{
			name:      "anti-affinity that is only preferred, where it cannot",
			manifests: []string{general, deployment("a", 3, "100m", "1Gi", preferApart("a", "topology.kubernetes.io/zone"))},
			hosts:     func(s *topology.Snapshot) { s.Hosts = oneHost(8, 32).Hosts },
			want:      []string{"general solo 3"},
		},
		{
			name: "a preferred zone", manifests: []string{general, deployment("a", 1, "100m", "1Gi", preferZone("epyc"))},
			want: []string{"general epyc 1"},
		},
		{
			name: "a preferred zone that is full", manifests: []string{general, deployment("a", 1, "100m", "1Gi", preferZone("ryzen"))}, hosts: both(occupied("ryzen"), occupied("epyc")),
			want: []string{"general xeon 1"},
		},
		{
			name: "preferences may be ignored", manifests: []string{general, deployment("a", 1, "100m", "1Gi", preferZone("epyc"))},
			request: func(r *scheduling.Request) { r.IgnorePreferences = true }, hosts: occupied("epyc"),
			want: []string{"general xeon 1"},
		},
		{
			name:      "minValues",
			manifests: []string{manyTypes, deployment("a", 1, "7", "1Gi", "")},
			refused:   1, // 8 types are large enough
		},
		{
			name:      "minValues at their best",
			manifests: []string{manyTypes, deployment("a", 1, "7", "1Gi", "")},
			request:   func(r *scheduling.Request) { r.RelaxMinValues = true },
			want:      []string{"general epyc 1"},
		},
		{
			name:      "the heavier of two pools",
			manifests: []string{nodePool("light", "shared", "  weight: 1"), nodePool("heavy", "shared", "  weight: 2"), deployment("a", 1, "1", "1Gi", "")},
			want:      []string{"heavy epyc 1"},
		},
		{
			name:      "the lighter where the heavier is at its limit",
			manifests: []string{nodePool("light", "shared", "  weight: 1"), nodePool("heavy", "shared", "  weight: 2\n  limits: {memory: 1Gi}"), deployment("a", 1, "1", "1Gi", "")},
			want:      []string{"light epyc 1"},
		},
		{
			name:      "a limit of memory",
			manifests: []string{nodePool("general", "shared", "  limits: {memory: 8Gi}"), deployment("a", 3, "1500m", "1Gi", antiAffinity("a", "kubernetes.io/hostname"))},
			want:      []string{"general epyc 1", "general xeon 1"}, refused: 1,
		},
		{
			name: "a pool with startup taints takes pods that do not tolerate them",
			manifests: []string{
				strings.Replace(general, "requirements: []", "requirements: []\n      startupTaints: [{key: node.cilium.io/agent-not-ready, effect: NoExecute}]", 1),
				deployment("a", 1, "1", "1Gi", ""),
			},
			want: []string{"general epyc 1"},
		},
		{
			name:      "classes by label",
			manifests: []string{general, nodePool("pinned", "dedicated", ""), deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {numaform.dev/nodeclass: dedicated}\n")},
			want:      []string{"pinned epyc 1"},
		},
		{
			name:      "the hosts that a class allows",
			manifests: []string{classManifest("{template: {name: debian}, hosts: [lab/epyc]}"), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")},
			want:      []string{"general epyc 1"},
		},
		{
			name:      "one vCPU on each CPU",
			manifests: []string{classManifest("{template: {name: debian}}"), nodePool("general", "c", ""), deployment("a", 3, "15", "1Gi", "")},
			hosts:     func(s *topology.Snapshot) { s.Hosts = oneHost(8, 128).Hosts },
			want:      []string{"general solo 1"}, refused: 2,
		},
		{
			name:      "overcommit",
			manifests: []string{classManifest(`{template: {name: debian}, placement: {overcommit: "3"}}`), nodePool("general", "c", ""), deployment("a", 3, "15", "1Gi", "")},
			hosts:     func(s *topology.Snapshot) { s.Hosts = oneHost(8, 128).Hosts },
			want:      []string{"general solo 1", "general solo 1", "general solo 1"},
		},
		{
			name: "CPUs and memory kept for hosts", manifests: []string{general, deployment("a", 1, "7", "1Gi", "")},
			hosts: func(s *topology.Snapshot) {
				s.Hosts[0].ReservedMemoryMiB = s.Hosts[0].MemoryMiB - 1024
				s.Hosts[2].ReservedCPUs = s.Hosts[2].OnlineCPUs().Difference(topology.CPUs(0, 1, 2, 3))
			},
			want: []string{"general ryzen 1"},
		},
		{
			name: "a host in HA maintenance", manifests: []string{general, deployment("a", 1, "1", "1Gi", "")},
			hosts: func(s *topology.Snapshot) { s.Hosts[1].Maintenance, s.Hosts[0].Maintenance = true, true },
			want:  []string{"general xeon 1"},
		},
		{
			name: "a host that is evacuated", manifests: []string{general, deployment("a", 1, "1", "1Gi", "")},
			request: func(r *scheduling.Request) {
				r.Unavailable = []scheduling.OfferingSelector{{Host: topology.HostID{Region: "lab", Host: "epyc"}}}
			},
			want: []string{"general xeon 1"},
		},
		{
			name: "packing", manifests: []string{classManifest("{template: {name: debian}, placement: {hostSelection: MostAllocated}}"), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")},
			want: []string{"general ryzen 1"},
		},
		{
			name: "a host with a high load", manifests: []string{general, deployment("a", 1, "1", "1Gi", "")},
			hosts: loaded(95, "epyc"), want: []string{"general xeon 1"},
		},
		{
			name: "hosts with a high load", manifests: []string{general, deployment("a", 1, "1", "1Gi", "")},
			hosts: loaded(95, "epyc", "ryzen", "xeon"), refused: 1,
		},
		{
			name:      "the highest load that a class allows",
			manifests: []string{classManifest("{template: {name: debian}, placement: {maxHostLoad: 50}}"), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")},
			hosts:     loaded(50, "epyc", "xeon"), want: []string{"general ryzen 1"},
		},
		{
			name:      "a class without a limit of the load",
			manifests: []string{classManifest("{template: {name: debian}, placement: {maxHostLoad: 100}}"), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")},
			hosts:     loaded(100, "epyc", "ryzen", "xeon"), want: []string{"general epyc 1"},
		},
		{
			name: "a region without quorum", manifests: []string{general, deployment("a", 1, "1", "1Gi", "")},
			hosts: func(s *topology.Snapshot) { s.Regions[0].Quorate = false }, refused: 1,
		},
		{
			name: "arm64", manifests: []string{general, deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {kubernetes.io/arch: arm64}\n"), deployment("b", 1, "1", "1Gi", "\n      nodeSelector: {kubernetes.io/arch: amd64}\n")},
			hosts: func(s *topology.Snapshot) { s.Hosts[1].Arch = "arm64"; s.Hosts[0].Online = false },
			want:  []string{"general ryzen 1", "general xeon 1"},
		},
	}
}

// loaded sets the measured CPU load of some hosts.
func loaded(percent int, names ...topology.HostName) func(*topology.Snapshot) {
	return func(s *topology.Snapshot) {
		for _, name := range names {
			s.Host(topology.HostID{Region: "lab", Host: name}).Load = &topology.Load{CPUPercent: percent}
		}
	}
}

func TestDecisionsHonor(t *testing.T) {
	for _, test := range thingsToHonor() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			request := scheduling.Request{ClusterID: "test", Snapshot: lab()}
			if test.hosts != nil {
				test.hosts(request.Snapshot)
			}
			if test.request != nil {
				test.request(&request)
			}
			d, err := load(t, append([]string{classes}, test.manifests...)...).Decide(context.Background(), request)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range d.New {
				got = append(got, fmt.Sprintf("%s %s %d", n.NodePool, n.Placement.Host.Host, len(n.Pods)))
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" || len(d.Refused) != test.refused {
				t.Errorf("decision differs, %d refused:\n%s\n%+v", len(d.Refused), diff, d.Refused)
			}
		})
	}
}
