package scheduling_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// TestPhasesShareClaimedVMs checks that resources of a joining VM that one phase uses are not
// available to the next phase, even if the VM has a NodeClaim.
func TestPhasesShareClaimedVMs(t *testing.T) {
	t.Parallel()
	bound := "\n      nodeSelector: {topology.kubernetes.io/zone: xeon}\n"
	manifests := []string{classes, nodePool("general", "shared", ""), deployment("bound", 1, "3", "1Gi", bound), deployment("free", 1, "3", "1Gi", "")}
	vm := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	id := fleet.ProviderID(vm.Host.Region, vm.VMID)
	claim := fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: general-2000, labels: {karpenter.sh/nodepool: general, topology.kubernetes.io/zone: xeon, topology.kubernetes.io/region: lab}}
spec:
  nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
  requirements: []
status:
  providerID: %s
  capacity: {cpu: "4", memory: 8Gi, pods: "110"}
  allocatable: {cpu: 3900m, memory: 7Gi, pods: "110"}
---
`, id)
	for name, c := range map[string]*scheduling.Cluster{"claimed": load(t, append(manifests, claim)...), "unclaimed": load(t, manifests...)} {
		if d := decide(t, c, lab(), vm); len(d.New) != 1 || d.Placed != 2 {
			t.Errorf("%s: %d VMs are made, want 1; in flight %v", name, len(d.New), d.InFlight)
		}
	}
}
