package guestsim_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/bootstrap"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestDefaultTemplates checks that a guest joins with numaform's default templates.
func TestDefaultTemplates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	vm := fleet.VM{
		VMID: 2050, Key: "0123456789abcdef0123456789abcdef", Name: "rendered",
		Placement: fleet.Placement{Host: topology.HostID{Region: testenv.Region, Host: "pve-1"}},
	}
	values := bootstrap.ValuesOf(&vm)
	values.Kubernetes.APIServer, values.Kubernetes.RootCA = w.cluster.Config.Host, string(w.cluster.CA)
	values.Kubernetes.Token = w.token("render")
	values.Network.Interfaces = []bootstrap.Interface{{Name: "en*", Addresses: []string{"192.0.2.50/24"}, Gateway4: "192.0.2.1"}}
	err := values.Configure(bootstrap.Kubelet{
		Labels: map[string]string{"karpenter.sh/nodepool": "workers", "karpenter.sh/registered": "true"},
		Taints: []bootstrap.Taint{{Key: "example.com/gpu", Value: "yes", Effect: "NoSchedule"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	documents, err := bootstrap.Render(bootstrap.Defaults(), values)
	if err != nil {
		t.Fatal(err)
	}
	seed := map[string]string{}
	for name, content := range documents {
		seed[name] = string(content)
	}
	w.approve(corev1.ConditionTrue, "rendered")
	w.start(2050, "rendered", seed)
	node := w.ready("rendered")
	if node.Spec.ProviderID != fleet.ProviderID(vm.Host.Region, vm.VMID) || node.Labels["karpenter.sh/nodepool"] != "workers" {
		t.Errorf("providerID %s, labels %v", node.Spec.ProviderID, node.Labels)
	}
	if address := node.Status.Addresses[0].Address; address != "192.0.2.50" {
		t.Errorf("address %s", address)
	}
	w.noProblems()
}
