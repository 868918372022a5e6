package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// mixed returns manifests of 40 pods of mixed sizes for the lab: some spread over hosts, some
// restricted to one, with a pool of dedicated cores that is preferred for pods that tolerate
// its taint.
func mixed() []string {
	return []string{
		classes,
		nodePool("general", "shared", ""),
		strings.Replace(nodePool("pinned", "dedicated", "  weight: 10"), "requirements: []",
			"requirements: []\n      taints: [{key: pinned, value: \"true\", effect: NoSchedule}]", 1),
		deployment("web", 12, "1", "2Gi", spread("web", "topology.kubernetes.io/zone")),
		deployment("db", 4, "6", "24Gi", `
      tolerations: [{key: pinned, operator: Exists}]
`+spread("db", "kubernetes.io/hostname")),
		deployment("batch", 10, "2500m", "3Gi", ""),
		deployment("edge", 6, "500m", "1Gi", `
      nodeSelector: {topology.kubernetes.io/zone: ryzen}
`),
		deployment("cache", 8, "1500m", "9Gi", ""),
	}
}

func TestMixedExampleIsPlacedWhole(t *testing.T) {
	d := decide(t, load(t, mixed()...), lab())
	if d.Asked != 40 || d.Placed != 40 || len(d.Refused) != 0 {
		t.Fatalf("asked %d, placed %d, refused %v; want 40, 40, none", d.Asked, d.Placed, d.Refused)
	}
	webs := map[string]int{}
	for _, n := range d.New {
		pinned := n.NodePool == "pinned"
		if got := n.Spec.Policy == fleet.PolicyDedicated; got != pinned {
			t.Errorf("%s has policy %s", n.NodePool, n.Spec.Policy)
		}
		if pinned != (n.Placement.CPUs.Size() == n.Spec.VCPUs) {
			t.Errorf("%s of %d vCPUs owns %d CPUs", n.NodePool, n.Spec.VCPUs, n.Placement.CPUs.Size())
		}
		dbs := 0
		for _, pod := range n.Pods {
			switch app, _, _ := strings.Cut(pod.Name, "-"); {
			case app == "web":
				webs[string(n.Placement.Host.Host)]++
			case app == "edge" && n.Placement.Host.Host != "ryzen":
				t.Errorf("%s is on %s", pod.Name, n.Placement.Host)
			case app == "db":
				dbs++
			}
		}
		if dbs > 1 || dbs == 1 && !pinned {
			t.Errorf("%d db pods on one node of %s", dbs, n.NodePool)
		}
		if n.Spec.Demand.Pods != len(n.Pods) {
			t.Errorf("demand is %d pods, %d are there", n.Spec.Demand.Pods, len(n.Pods))
		}
	}
	if want := map[string]int{"epyc": 4, "ryzen": 4, "xeon": 4}; !cmp.Equal(want, webs) {
		t.Errorf("web pods are spread as %v, want %v", webs, want)
	}
}

func TestSameInputSameDecision(t *testing.T) {
	var first *scheduling.Decision
	for i := range 20 {
		d := decide(t, load(t, mixed()...), lab())
		if i == 0 {
			first = d
		} else if diff := cmp.Diff(first, d); diff != "" {
			t.Fatalf("run %d differs:\n%s", i, diff)
		}
	}
}

func TestSecondDecisionMakesNothing(t *testing.T) {
	c := load(t, mixed()...)
	first := decide(t, c, lab())
	second := decide(t, c, lab(), keep(nil, first)...)
	if len(second.New) != 0 || second.Placed != first.Placed {
		t.Fatalf("the second decision makes %d VMs and places %d of %d", len(second.New), second.Placed, first.Placed)
	}
	landed := 0
	for _, l := range second.InFlight {
		landed += len(l.Pods)
	}
	if landed != 40 {
		t.Errorf("%d pods land on VMs on their way, want 40", landed)
	}
}

func TestDecisions(t *testing.T) {
	tests := []struct {
		name      string
		manifests []string
		cores     int
		memory    int64
		wantTypes []string
		refused   int
		reason    string // part of each refusal
	}{
		{
			name:      "cheapest type that fits",
			manifests: []string{deployment("a", 1, "3", "5Gi", "")},
			wantTypes: []string{"c1.4VCPU-8GB"},
		},
		{
			name:      "joint placement leaves what a host cannot take",
			manifests: []string{deployment("a", 4, "7500m", "4Gi", "")},
			cores:     8, memory: 64, // 16 threads: two of eight
			wantTypes: []string{"c1.16VCPU-32GB"}, refused: 2, reason: "solo",
		},
		{
			name:      "larger than any type",
			manifests: []string{deployment("a", 1, "40", "1Gi", "")},
			refused:   1, reason: "requests cpu 40, memory 1024Mi; the closest instance type,",
		},
		{
			name:      "unknown label",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {disk: fast}\n")},
			refused:   1, reason: "disk",
		},
		{
			name:      "unknown zone",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {topology.kubernetes.io/zone: mars}\n")},
			refused:   1, reason: "the hosts have only solo",
		},
		{
			name:      "wrong architecture",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {kubernetes.io/arch: arm64}\n")},
			refused:   1, reason: "the hosts have only amd64",
		},
		{
			name:      "family by label",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {numaform.dev/instance-family: m1}\n")},
			wantTypes: []string{"m1.2VCPU-16GB"},
		},
		{
			name:      "placement by label",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {numaform.dev/placement: Dedicated}\n")},
			refused:   1, reason: "but nodes of the NodePool have numaform.dev/placement In [Shared]",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.cores == 0 {
				test.cores, test.memory = 32, 128
			}
			c := load(t, append([]string{classes, nodePool("general", "shared", "")}, test.manifests...)...)
			d := decide(t, c, oneHost(test.cores, test.memory))
			var types []string
			for _, n := range d.New {
				types = append(types, n.Spec.InstanceType)
			}
			if diff := cmp.Diff(test.wantTypes, types, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("types differ:\n%s", diff)
			}
			if len(d.Refused) != test.refused {
				t.Errorf("refused are %v, want %d", d.Refused, test.refused)
			}
			for _, r := range d.Refused {
				if !strings.Contains(r.Reason, test.reason) {
					t.Errorf("reason %q does not tell %q", r.Reason, test.reason)
				}
			}
		})
	}
}
