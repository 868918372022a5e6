package scheduling_test

import (
	"slices"
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
  vmidRange: {lower: 2100, upper: 2104}
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
	const node = `
apiVersion: v1
kind: Node
metadata: {name: gone-2102}
spec: {providerID: proxmox://lab/2102}
---
`
	c := load(t, node, ranged, nodePool("ranged", "ranged", ""), nodePool("free", "free", ""),
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
	const reason = `spec.vmidRange of ProxmoxNodeClass "ranged" has no free VMID in region lab: of 2100 to 2104, 2 belong to VMs of this fleet and 3 to others ` +
		`(guest 2101 (db), VMID 2102 of a Node or NodeClaim, guest 2103 (web)): widen the range, or remove nodes`
	if len(d.Refused) != 2 {
		t.Fatalf("%d pods are refused, want 2", len(d.Refused))
	}
	for _, r := range d.Refused {
		if !strings.Contains(r.Reason, reason) || strings.Count(r.Reason, "no free VMID") != 1 {
			t.Errorf("pod %s: got  %s\nwant %s once", r.Pod, r.Reason, reason)
		}
	}
}

// TestFullRangeOfARegion checks that new nodes are created in another region if the region's
// range has no free VMID, also because Nodes and NodeClaims have them, and the reason for the
// pods that stay pending if there is no other region.
func TestFullRangeOfARegion(t *testing.T) {
	t.Parallel()
	const manifests = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: ranged}
spec:
  template: {tags: [new]}
  vmidRange: {lower: 2004, upper: 2009}
---
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: free}
spec: {template: {tags: [new]}}
---
apiVersion: v1
kind: Node
metadata: {name: gone-2002}
spec: {providerID: proxmox://lab/2002}
---
`
	one := imaged()
	one.Regions[0].VMIDs = topology.VMIDRange{Lower: 2001, Upper: 2005}
	one.Hosts[0].Guests = append(one.Hosts[0].Guests, topology.Guest{VMID: 2001, Name: "db", Kind: topology.GuestVM})
	two := imaged()
	two.Regions = append(slices.Clone(one.Regions), topology.Region{Name: "west", Version: "9.0.3", Quorate: true, VMIDs: topology.VMIDRange{Lower: 3000, Upper: 3999}})
	for i := range two.Hosts {
		two.Hosts[i].Region = "west"
	}
	two.Hosts = append(slices.Clone(one.Hosts), two.Hosts...)

	for name, test := range map[string]struct {
		snapshot *topology.Snapshot
		want     map[topology.RegionName]int
		refused  int
	}{
		"one region":  {one, map[topology.RegionName]int{"lab": 1}, 4},
		"two regions": {two, map[topology.RegionName]int{"lab": 1, "west": 4}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, manifests, nodePool("free", "free", ""), big(5))
			d := decide(t, c, test.snapshot)
			got := map[topology.RegionName]int{}
			for _, n := range d.New {
				got[n.Placement.Host.Region]++
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("new nodes by region (-want +got):\n%s", diff)
			}
			if len(d.Refused) != test.refused {
				t.Errorf("%d pods are refused, want %d: %v", len(d.Refused), test.refused, d.Refused)
			}
			const reason = "vmid_range of region lab has no free VMID: of 2001 to 2005, 1 belong to VMs of this fleet and 2 to others " +
				"(guest 2001 (db), VMID 2002 of a Node or NodeClaim), and 2 are reserved by spec.vmidRange of ProxmoxNodeClasses: " +
				"widen it in numaform.yaml, or remove nodes"
			for _, r := range d.Refused {
				if !strings.Contains(r.Reason, reason) || strings.Count(r.Reason, "no free VMID") != 1 {
					t.Errorf("pod %s: got  %s\nwant %s once", r.Pod, r.Reason, reason)
				}
			}
		})
	}
}
