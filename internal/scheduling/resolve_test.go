package scheduling_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

func need(key string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// ofKarpenter returns a NodeClaim created by Karpenter.
func ofKarpenter(cpu string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}},
		Spec: karpv1.NodeClaimSpec{
			Requirements: append(requirements, need(karpv1.NodePoolLabelKey, "general")),
			Resources: karpv1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse("2"),
			}},
		},
	}
}

func hostID(name string) topology.HostID {
	return topology.HostID{Region: "lab", Host: topology.HostName(name)}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	types := []string{"s1.4VCPU-16GB", "c1.4VCPU-8GB", "c1.1VCPU-2GB", "c1.16VCPU-32GB"}
	full := []fleet.VM{keptVM(2000, "other", "shared", "ryzen", fleet.PolicyShared)}
	full[0].VCPUs = 20
	tests := []struct {
		name    string
		more    string // of the pool's spec
		claim   *karpv1.NodeClaim
		request scheduling.Request
		// want are the types and their hosts; other fields are not compared.
		want []string
	}{
		{
			name: "the cheapest that is large enough first", claim: ofKarpenter("3", need(corev1.LabelInstanceTypeStable, types...)),
			want: []string{"c1.4VCPU-8GB epyc ryzen xeon", "s1.4VCPU-16GB epyc ryzen xeon", "c1.16VCPU-32GB epyc ryzen xeon"},
		},
		{
			name:  "in the zones of the claim",
			claim: ofKarpenter("3", need(corev1.LabelInstanceTypeStable, types[:2]...), need(corev1.LabelTopologyZone, "xeon", "epyc")),
			want:  []string{"c1.4VCPU-8GB epyc xeon", "s1.4VCPU-16GB epyc xeon"},
		},
		{
			name:  "where there is room",
			claim: ofKarpenter("3", need(corev1.LabelInstanceTypeStable, "c1.16VCPU-32GB")), request: scheduling.Request{Existing: full},
			want: []string{"c1.16VCPU-32GB epyc xeon"},
		},
		{
			name:    "nothing that is closed",
			claim:   ofKarpenter("3", need(corev1.LabelInstanceTypeStable, types[:2]...)),
			request: scheduling.Request{Unavailable: []scheduling.OfferingSelector{{Host: hostID("epyc")}, {NodePool: "general", InstanceType: "c1.4VCPU-8GB"}}},
			want:    []string{"s1.4VCPU-16GB ryzen xeon"},
		},
		{
			name: "a pool of a fixed size", more: "  replicas: 3",
			claim: ofKarpenter("0", need(corev1.LabelArchStable, "amd64")), want: []string{"c1.1VCPU-2GB epyc ryzen xeon"},
		},
		{
			name:  "the capacity type",
			claim: ofKarpenter("1", need(karpv1.CapacityTypeLabelKey, "spot")),
			request: scheduling.Request{Types: []scheduling.InstanceType{
				{Name: "a.1", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 4096, Pods: 9, Price: 1},
				{Name: "b.1", CapacityType: "spot", VCPUs: 2, MemoryMiB: 4096, Pods: 9, Price: 2},
			}},
			want: []string{"b.1 epyc ryzen xeon"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.request.Snapshot = lab()
			specs, err := load(t, classes, nodePool("general", "shared", test.more)).Resolve(t.Context(), test.request, test.claim)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, spec := range specs {
				text := spec.InstanceType
				for _, host := range spec.Hosts {
					text += " " + string(host.Host)
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(test.want, got[:min(len(got), len(test.want))]); diff != "" {
				t.Errorf("specs differ:\n%s", diff)
			}
		})
	}
}

// TestResolveKeepsWhatWasChosen checks that the VM gets the labels that Karpenter chose for
// its claim.
func TestResolveKeepsWhatWasChosen(t *testing.T) {
	t.Parallel()
	pool := strings.Replace(nodePool("general", "shared", ""), "requirements: []", "requirements: [{key: rack, operator: In, values: [r1, r2]}]", 1)
	claim := ofKarpenter("1", need("rack", "r1", "r2"))
	claim.Labels["rack"] = "r2"
	specs, err := load(t, classes, pool).Resolve(t.Context(), scheduling.Request{Snapshot: lab()}, claim)
	if err != nil {
		t.Fatal(err)
	}
	if specs[0].Labels["rack"] != "r2" || specs[0].Demand != (fleet.Demand{Pods: 2, CPUMilli: 1000}) || specs[0].Pool != "general" || specs[0].NodeClass != "shared" {
		t.Errorf("spec is %+v", specs[0])
	}
}

// TestResolveNamesOneTemplate checks that a Spec without a placement names one template,
// however many its hosts have.
func TestResolveNamesOneTemplate(t *testing.T) {
	t.Parallel()
	snapshot := lab()
	for i := range snapshot.Hosts {
		snapshot.Hosts[i].Templates[0].Tags = []string{"golden"}
	}
	snapshot.Hosts[1].Templates[0].Name = "debian-on-ryzen"
	class := strings.Replace(classes, "template: {name: debian}", "template: {tags: [golden]}", 1)
	specs, err := load(t, class, nodePool("general", "shared", "")).Resolve(t.Context(), scheduling.Request{Snapshot: snapshot},
		ofKarpenter("1", need(corev1.LabelInstanceTypeStable, "c1.2VCPU-4GB")))
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]int{}
	for _, spec := range specs {
		hosts[spec.Template] += len(spec.Hosts)
	}
	if diff := cmp.Diff(map[string]int{"debian": 2, "debian-on-ryzen": 1}, hosts); diff != "" {
		t.Errorf("hosts by template differ:\n%s", diff)
	}
}

func TestResolveSaysWhyNot(t *testing.T) {
	t.Parallel()
	isRoom := func(err error) bool { var e *scheduling.NoRoomError; return errors.As(err, &e) }
	isClass := func(err error) bool { var e *scheduling.ClassNotReadyError; return errors.As(err, &e) }
	otherPool := ofKarpenter("1")
	otherPool.Labels[karpv1.NodePoolLabelKey] = "gone"
	pool := nodePool("general", "shared", "")
	tests := []struct {
		name, manifests, want string
		claim                 *karpv1.NodeClaim
		closed                []scheduling.OfferingSelector
		is                    func(error) bool
	}{
		{"too large", classes + pool, "large enough for cpu 99", ofKarpenter("99"), nil, isRoom},
		{"no such host", classes + pool, "topology.kubernetes.io/zone In [nowhere]", ofKarpenter("1", need(corev1.LabelTopologyZone, "nowhere")), nil, isRoom},
		{"no usable host", strings.Replace(classes, "{name: debian}", "{name: windows}", 1) + pool, `each of 3 hosts (lab/epyc, lab/ryzen, lab/xeon) has no template "windows"`, ofKarpenter("1"), nil, isRoom},
		{"all closed", classes + pool, "no host has room", ofKarpenter("1"), []scheduling.OfferingSelector{{}}, isRoom},
		{"no pool", classes + pool, `NodePool "gone" does not exist or has no ProxmoxNodeClass`, otherPool, nil, isRoom},
		{"no class", pool, `ProxmoxNodeClass "shared" does not exist: create it`, ofKarpenter("1"), nil, isClass},
		{"class nowhere", strings.Replace(classes, "spec:", "spec:\n  hosts: [mars]", 1) + pool, "no Proxmox host matches its spec.region and spec.hosts", ofKarpenter("1"), nil, isClass},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			specs, err := load(t, test.manifests).Resolve(t.Context(), scheduling.Request{Snapshot: lab(), Unavailable: test.closed}, test.claim)
			if err == nil || !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q; specs are %v", err, test.want, specs)
			}
		})
	}
}
