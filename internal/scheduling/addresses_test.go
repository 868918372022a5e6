package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// pooled returns the lab with address pools.
func pooled(t *testing.T, pools ...ipam.Config) *topology.Snapshot {
	t.Helper()
	s := imaged()
	for _, config := range pools {
		pool, err := ipam.Parse(config)
		if err != nil {
			t.Fatal(err)
		}
		s.Regions[0].AddressPools = append(s.Regions[0].AddressPools, pool)
	}
	return s
}

// addressClasses are a class with an address pool, and one without.
const addressClasses = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: static}
spec:
  template: {tags: [new]}
  metadata: {type: cdrom}
  networks: [{bridge: vmbr0, addressPools: [nodes]}]
---
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: dhcp}
spec: {template: {tags: [new]}}
---
`

// TestExhaustedPool checks that the nodes of a class are limited by the free addresses of its
// pool, that the reason for the pods that stay pending names the pool, its users and the fix,
// and that other classes do not wait.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	snapshot := pooled(t, ipam.Config{Name: "nodes", Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.10-10.0.0.13"}})
	snapshot.Hosts[0].Guests = append(snapshot.Hosts[0].Guests, topology.Guest{VMID: 105, Name: "db", Kind: topology.GuestVM, Addresses: []string{"10.0.0.11"}})
	const node = `
apiVersion: v1
kind: Node
metadata: {name: cp-1}
status: {addresses: [{type: InternalIP, address: 10.0.0.12}, {type: Hostname, address: cp-1}]}
---
`
	select1 := func(manifest, pool string) string {
		return strings.Replace(manifest, "      containers:", "      nodeSelector: {karpenter.sh/nodepool: "+pool+"}\n      containers:", 1)
	}
	c := load(t, node, addressClasses, nodePool("static", "static", ""), nodePool("dhcp", "dhcp", ""),
		select1(big(4), "static"), select1(strings.ReplaceAll(big(2), "big", "other"), "dhcp"))
	request := scheduling.Request{ClusterID: "test", Snapshot: snapshot}
	d, err := c.Decide(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, n := range d.New {
		got[n.NodePool]++
	}
	if diff := cmp.Diff(map[string]int{"static": 2, "dhcp": 2}, got); diff != "" {
		t.Errorf("new nodes by NodePool (-want +got):\n%s", diff)
	}
	const reason = `address pool "nodes" of region lab has no free address: of 4, 2 belong to VMs of this fleet and 2 to others ` +
		`(guest 105 (db) 10.0.0.11, Node cp-1 10.0.0.12): add ranges to address_pools of that cluster in numaform.yaml, or remove nodes`
	if len(d.Refused) != 2 {
		t.Fatalf("%d pods are refused, want 2", len(d.Refused))
	}
	for _, r := range d.Refused {
		if !strings.Contains(r.Reason, reason) || strings.Count(r.Reason, "no free address") != 1 {
			t.Errorf("pod %s: got  %s\nwant %s once", r.Pod, r.Reason, reason)
		}
	}
}

// TestAddressPoolsOfClass checks the class's Spec, and what is wrong with a pool that a
// region does not have, and with two pools of one family.
func TestAddressPoolsOfClass(t *testing.T) {
	t.Parallel()
	snapshot := pooled(t, ipam.Config{Name: "four", Subnet: "10.0.0.0/24"}, ipam.Config{Name: "more", Subnet: "10.0.1.0/24"}, ipam.Config{Name: "six", Subnet: "fd00::/64"})
	for pools, want := range map[string]string{
		"six, four": "",
		"fuor":      `lab/epyc is in region lab, which has no address pool "fuor", lab/ryzen is in region lab, which has no address pool "fuor", lab/xeon is in region lab, which has no address pool "fuor": add the pool to address_pools of the cluster in numaform.yaml, or correct spec.networks`,
		"more, four": `lab/epyc is in region lab, where the address pools "four" and "more" of spec.networks[0] have the same address family, ` +
			`lab/ryzen is in region lab, where the address pools "four" and "more" of spec.networks[0] have the same address family, ` +
			`lab/xeon is in region lab, where the address pools "four" and "more" of spec.networks[0] have the same address family: ` +
			`remove one of the two: a device has at most one IPv4 and one IPv6 address`,
	} {
		nc := nodeClass(t, "{template: {tags: [new]}, metadata: {type: cdrom}, networks: [{bridge: vmbr0, addressPools: ["+pools+"]}, {bridge: vmbr1}]}")
		report := scheduling.EvaluateClass(nc, snapshot, "test", nil)
		got := ""
		for _, f := range report.Findings {
			got += f.Message
		}
		if got != want {
			t.Errorf("pools %s: got\n%s\nwant\n%s", pools, got, want)
		}
		devices := scheduling.Networks(nc)
		if devices[0].MAC != "BC:24:11" || devices[1].MAC != "BC:24:11" || len(devices[1].Addresses) != 0 {
			t.Errorf("pools %s: devices %+v", pools, devices)
		}
	}
}

// TestAddressPoolsInHash checks that other pools replace nodes, but not their order, and that
// a class without pools has the hash of earlier versions.
func TestAddressPoolsInHash(t *testing.T) {
	t.Parallel()
	hash := func(network string) string {
		return scheduling.ClassHash(nodeClass(t, "{template: {tags: [new]}, networks: [{bridge: vmbr0"+network+"}]}"))
	}
	if hash(", addressPools: [a, b]") != hash(", addressPools: [b, a]") || hash(", addressPools: [a]") == hash("") {
		t.Error("the hash depends on the order of pools, or not on the pools")
	}
	if hash("") != hash(", addressPools: []") {
		t.Error("the hash depends on an empty list")
	}
}
