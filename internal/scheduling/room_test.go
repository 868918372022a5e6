package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// storing returns the lab with a storage of known size on each host; the template has 10
// GiB.
func storing(shared bool, freeGiB ...int64) *topology.Snapshot {
	s := lab()
	for i := range s.Hosts {
		s.Hosts[i].Storages = []topology.Storage{{Name: "local", Type: "dir", Shared: shared, Active: true, TotalMiB: 1 << 20, FreeMiB: 1024 * freeGiB[i]}}
	}
	return s
}

// with adds another storage to each host; 0 GiB means that the size of the storage is
// unknown.
func with(s *topology.Snapshot, name string, freeGiB ...int64) *topology.Snapshot {
	for i := range s.Hosts {
		storage := topology.Storage{Name: name, Type: "lvm", Active: true}
		if freeGiB[i] > 0 {
			storage.TotalMiB, storage.FreeMiB = 1<<20, 1024*freeGiB[i]
		}
		s.Hosts[i].Storages = append(s.Hosts[i].Storages, storage)
	}
	return s
}

// diskClass is the manifest of a class; tests add further fields to its spec.
const diskClass = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: disks}
spec: {template: {name: debian}%s}
---
`

// big returns pods that each need their own node, because they exclude each other.
func big(replicas int) string { return deployment("big", replicas, "5", "4Gi", spreadOne) }

const spreadOne = `
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector: {matchLabels: {app: big}}
`

func TestDisksAddUp(t *testing.T) {
	types, err := scheduling.ParseInstanceTypes([]byte(`[
{"name": "a.8", "capacity": {"cpu": "8", "memory": "8Gi", "ephemeral-storage": "50Gi"}},
{"name": "b.8", "capacity": {"cpu": "8", "memory": "9Gi", "ephemeral-storage": "12Gi"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, class string
		snapshot    *topology.Snapshot
		types       []scheduling.InstanceType
		pods        int
		want        map[string]int // new nodes by host
		refused     string         // part of the reason for the refused pods
	}{
		{"the default size", "", storing(false, 29, 29, 30), nil, 1, map[string]int{"xeon": 1}, ""},
		{"the size of the class", ", bootDevice: {size: 80Gi}", storing(false, 79, 80, 79), nil, 1, map[string]int{"ryzen": 1}, ""},
		{
			"no host has room for one", ", bootDevice: {size: 80Gi}", storing(false, 79, 70, 60), nil, 1, nil,
			`lab/epyc has 80896 MiB free on storage "local", but a node's disks need 81920 MiB, 1024 MiB more (free space there, or change spec.bootDevice)`,
		},
		{"a small type", "", storing(false, 12, 9, 9), types, 1, map[string]int{"epyc": 1}, ""},
		{
			"nodes of one host", ", hosts: [epyc]", storing(false, 100, 500, 500), nil, 5,
			map[string]int{"epyc": 3},
			`lab/epyc has 10240 MiB free on storage "local" after the disks still to be created, but a node's disks need 30720 MiB, 20480 MiB more: free space there`,
		},
		{"the next host", "", storing(false, 60, 31, 90), nil, 6, map[string]int{"epyc": 2, "ryzen": 1, "xeon": 3}, ""},
		{"a storage that hosts share", "", storing(true, 100, 100, 100), nil, 5, map[string]int{"": 3}, "20480 MiB more"},
		{"linked clones", ", clone: linked", storing(false, 3, 2, 0), nil, 6, map[string]int{"epyc": 3, "ryzen": 2}, "1024 MiB more"},
		{
			"with a data disk", ", dataDisks: [{size: 20Gi}]", storing(false, 120, 49, 40), nil, 4,
			map[string]int{"epyc": 2},
			`lab/epyc has 20480 MiB free on storage "local" after the disks still to be created, but a node's disks need 51200 MiB, 30720 MiB more: free space there, or change spec.bootDevice or spec.dataDisks`,
		},
		{"a data disk of linked clones", ", clone: linked, dataDisks: [{size: 10Gi}]", storing(false, 23, 10, 0), nil, 3, map[string]int{"epyc": 2}, ""},
		{
			"a data disk elsewhere", ", dataDisks: [{size: 20Gi, storage: fast}]", with(storing(false, 500, 500, 30), "fast", 45, 19, 200), nil, 4,
			map[string]int{"epyc": 2, "xeon": 1},
			`lab/epyc has 5120 MiB free on storage "fast" after`,
		},
		{"a data disk on a storage that does not tell", ", dataDisks: [{size: 20Gi, storage: fast}]", with(storing(false, 500, 29, 29), "fast", 0, 0, 0), nil, 2, map[string]int{"epyc": 2}, ""},
		{"a storage that does not tell", "", lab(), nil, 6, map[string]int{"": 6}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, fmt.Sprintf(diskClass, test.class), nodePool("general", "disks", ""), big(test.pods))
			request := scheduling.Request{ClusterID: "test", Snapshot: test.snapshot, Types: test.types}
			d, err := c.Decide(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			got, sum := map[string]int{}, 0
			for _, n := range d.New {
				got[string(n.Placement.Host.Host)]++
			}
			for _, n := range test.want {
				sum += n
			}
			if test.want[""] > 0 {
				got = map[string]int{"": len(d.New)}
			}
			if diff := cmp.Diff(test.want, got); diff != "" && len(test.want)+len(got) > 0 {
				t.Errorf("new nodes by host (-want +got):\n%s", diff)
			}
			if len(d.Refused) != test.pods-sum {
				t.Errorf("%d pods are refused, want %d: %v", len(d.Refused), test.pods-sum, d.Refused)
			}
			for _, r := range d.Refused {
				if !strings.Contains(r.Reason, test.refused) {
					t.Errorf("reason is %q, want %q in it", r.Reason, test.refused)
				}
			}
			request.Existing = keep(nil, d)
			for i := range request.Existing {
				request.Existing[i].Source = fleet.Source{Storage: "local", DiskGiB: 10}
			}
			if second, err := c.Decide(t.Context(), request); err != nil || len(second.New) != 0 {
				t.Errorf("the second decision makes %d nodes: %v", len(second.New), err)
			}
		})
	}
}

// TestDisksOnTheirWay checks that the disks of a desired VM use space until the VM has been
// cloned completely.
func TestDisksOnTheirWay(t *testing.T) {
	for lock, want := range map[string]int{"absent": 1, "clone": 1, "": 2} {
		snapshot := storing(false, 60, 0, 0)
		vm := fleet.VM{
			Key: "k", VMID: 2000, Name: "general-2000",
			Spec:      fleet.Spec{Pool: "general", NodeClass: "disks", Policy: fleet.PolicyShared, Clone: fleet.CloneFull, VCPUs: 1, MemoryMiB: 2048, DiskGiB: 30},
			Placement: fleet.Placement{Host: snapshot.Hosts[0].ID()},
			Source:    fleet.Source{Storage: "local", DiskGiB: 10},
		}
		if lock != "absent" {
			snapshot.Hosts[0].Guests = []topology.Guest{{VMID: 2000, Name: vm.Name, Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: 2048, ClusterID: "test", Key: "k", Lock: lock}}
		}
		c := load(t, fmt.Sprintf(diskClass, ""), nodePool("general", "disks", ""), big(3))
		if d := decide(t, c, snapshot, vm); len(d.New) != want {
			t.Errorf("beside a VM %q there are %d new nodes, want %d: %v", lock, len(d.New), want, d.Refused)
		}
	}
}

// TestResolveLooksAtDisks checks that hosts with full storages are not returned.
func TestResolveLooksAtDisks(t *testing.T) {
	c := load(t, fmt.Sprintf(diskClass, ""), nodePool("general", "disks", ""))
	request := scheduling.Request{ClusterID: "test", Snapshot: storing(false, 29, 30, 29)}
	specs, err := c.Resolve(t.Context(), request, ofKarpenter("1"))
	if err != nil || len(specs) == 0 {
		t.Fatalf("specs are %v: %v", specs, err)
	}
	for _, spec := range specs {
		if diff := cmp.Diff(all("ryzen"), spec.Hosts); diff != "" {
			t.Errorf("hosts of %s (-want +got):\n%s", spec.InstanceType, diff)
		}
	}
}
