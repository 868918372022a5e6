package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// TestFullVMIDRange checks that the nodes of a class are limited by the free VMIDs of its
// range, that the reason for the pods that stay pending names the range and its users, and
// that other classes do not wait.
func TestFullVMIDRange(t *testing.T) {
	t.Parallel()
	const ranged = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: ranged}
spec:
  template: {tags: [new]}
  vmidRange: {lower: 2100, upper: 2103}
---
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: free}
spec: {template: {tags: [new]}}
---
`
	snapshot := imaged()
	snapshot.Hosts[0].Guests = append(snapshot.Hosts[0].Guests,
		topology.Guest{VMID: 2101, Name: "db", Kind: topology.GuestVM}, topology.Guest{VMID: 2103, Name: "web", Kind: topology.GuestContainer})
	select1 := func(manifest, pool string) string {
		return strings.Replace(manifest, "      containers:", "      nodeSelector: {karpenter.sh/nodepool: "+pool+"}\n      containers:", 1)
	}
	c := load(t, ranged, nodePool("ranged", "ranged", ""), nodePool("free", "free", ""),
		select1(big(4), "ranged"), select1(strings.ReplaceAll(big(2), "big", "other"), "free"))
	d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: snapshot})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, n := range d.New {
		got[n.NodePool]++
	}
	if diff := cmp.Diff(map[string]int{"ranged": 2, "free": 2}, got); diff != "" {
		t.Errorf("new nodes by NodePool (-want +got):\n%s", diff)
	}
	const reason = `spec.vmidRange of ProxmoxNodeClass "ranged" has no free VMID in region lab: of 2100 to 2103, 2 belong to VMs of this fleet and 2 to others ` +
		`(guest 2101 (db), guest 2103 (web)): widen the range, or remove nodes`
	if len(d.Refused) != 2 {
		t.Fatalf("%d pods are refused, want 2", len(d.Refused))
	}
	for _, r := range d.Refused {
		if !strings.Contains(r.Reason, reason) || strings.Count(r.Reason, "no free VMID") != 1 {
			t.Errorf("pod %s: got  %s\nwant %s once", r.Pod, r.Reason, reason)
		}
	}
}
