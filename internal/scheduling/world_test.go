package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keptVM(id int, pool, class, host string, policy fleet.Policy) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("key-%d", id)), VMID: fleet.VMID(id), Name: fleet.NodeName(pool, fleet.VMID(id)),
		Spec: fleet.Spec{
			Pool: pool, NodeClass: class, InstanceType: "c1.4VCPU-8GB", CapacityType: "on-demand",
			VCPUs: 4, MemoryMiB: 8192, Policy: policy, DiskGiB: 30, Template: "debian", Clone: fleet.CloneFull,
		},
		Placement: fleet.Placement{Host: topology.HostID{Region: "lab", Host: topology.HostName(host)}},
	}
}

// outcome is the part of a decision that these tests check.
type outcome struct {
	New                []string
	InFlight, Existing []string
	Refused            int
}

func outcomeOf(d *scheduling.Decision) outcome {
	o := outcome{Refused: len(d.Refused)}
	for _, n := range d.New {
		o.New = append(o.New, n.NodePool+" "+n.Spec.InstanceType)
	}
	for _, l := range d.InFlight {
		o.InFlight = append(o.InFlight, fmt.Sprintf("%s %d", l.Name, len(l.Pods)))
	}
	for _, l := range d.Existing {
		o.Existing = append(o.Existing, fmt.Sprintf("%s %d", l.Name, len(l.Pods)))
	}
	return o
}

const node2000 = `
apiVersion: v1
kind: Node
metadata: {name: general-2000, labels: {karpenter.sh/nodepool: general}}
spec: {providerID: "proxmox://lab/2000"%s}
status: {capacity: {cpu: 4, memory: 8Gi, ephemeral-storage: 30Gi, pods: 110}%s}
---
`

func TestWhatStands(t *testing.T) {
	vm := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	tests := []struct {
		name      string
		pool      string // more of the NodePool's spec
		manifests []string
		kept      []fleet.VM
		want      outcome
		hosts     map[string]int // pods on new VMs of each host
		reason    string
	}{
		{
			name:      "a VM on its way takes pods",
			manifests: []string{deployment("a", 3, "1", "1Gi", "")},
			kept:      []fleet.VM{vm},
			want:      outcome{InFlight: []string{"general-2000 3"}},
		},
		{
			name:      "a VM on its way is filled before another is made",
			manifests: []string{deployment("a", 4, "1", "1Gi", "")},
			kept:      []fleet.VM{vm},
			want:      outcome{New: []string{"general c1.2VCPU-4GB"}, InFlight: []string{"general-2000 3"}},
		},
		{
			name:      "labels of a VM on its way",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {topology.kubernetes.io/zone: xeon, numaform.dev/placement: Shared, node.kubernetes.io/instance-type: c1.4VCPU-8GB}\n")},
			kept:      []fleet.VM{vm},
			want:      outcome{InFlight: []string{"general-2000 1"}},
		},
		{
			name:      "taints of a VM on its way",
			manifests: []string{deployment("a", 1, "1", "1Gi", "")},
			kept:      []fleet.VM{keptVM(2001, "tainted", "shared", "xeon", fleet.PolicyShared)},
			want:      outcome{New: []string{"general c1.2VCPU-4GB"}},
		},
		{
			name:      "a VM whose pool is gone takes nothing",
			manifests: []string{deployment("a", 1, "1", "1Gi", "")},
			kept:      []fleet.VM{keptVM(2001, "gone", "shared", "xeon", fleet.PolicyShared)},
			want:      outcome{New: []string{"general c1.2VCPU-4GB"}},
		},
		{
			name:      "a VM that joined is a node",
			manifests: []string{fmt.Sprintf(node2000, "", ""), deployment("a", 2, "1", "1Gi", "")},
			kept:      []fleet.VM{vm},
			want:      outcome{Existing: []string{"general-2000 2"}},
		},
		{
			name: "bound pods count",
			manifests: []string{
				fmt.Sprintf(node2000, "", ""), deployment("a", 2, "1", "1Gi", ""),
				"apiVersion: v1\nkind: Pod\nmetadata: {name: old}\nspec: {nodeName: general-2000, containers: [{name: c, resources: {requests: {cpu: 3}}}]}\n---\n",
			},
			kept: []fleet.VM{vm},
			want: outcome{New: []string{"general c1.2VCPU-4GB"}, Existing: []string{"general-2000 1"}},
		},
		{
			name:      "limits count VMs on their way",
			pool:      "  limits: {cpu: 6}",
			manifests: []string{deployment("a", 8, "1500m", "1Gi", "")},
			kept:      []fleet.VM{vm},
			want:      outcome{New: []string{"general c1.2VCPU-4GB"}, InFlight: []string{"general-2000 2"}, Refused: 5},
			reason:    "its limit of cpu 6 leaves no room for another node (6 used)",
		},
		{
			name:      "a limit of nodes",
			pool:      "  limits: {nodes: 2}",
			manifests: []string{deployment("a", 3, "3", "1Gi", antiAffinity("a", "kubernetes.io/hostname"))},
			kept:      []fleet.VM{vm},
			want:      outcome{New: []string{"general c1.4VCPU-8GB"}, InFlight: []string{"general-2000 1"}, Refused: 1},
			reason:    "its limit of nodes 2",
		},
		{
			name: "daemonsets take their share",
			manifests: []string{deployment("a", 1, "1800m", "1Gi", ""), `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}
---
`},
			want: outcome{New: []string{"general c1.4VCPU-8GB"}},
		},
		{
			name: "volumes bind to a host",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n"), `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {volumeName: pv, storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: csi.proxmox, volumeHandle: x}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [ryzen]}]}]}}
---
`},
			want: outcome{New: []string{"general c1.2VCPU-4GB"}}, hosts: map[string]int{"ryzen": 1},
		},
		{
			name:      "a volume that does not exist",
			manifests: []string{deployment("a", 1, "1", "1Gi", "\n      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n")},
			want:      outcome{Refused: 1}, reason: "its volumes cannot be used",
		},
		{
			name: "pods of a node that is being deleted move",
			manifests: []string{
				fmt.Sprintf(strings.Replace(node2000, "metadata: {", `metadata: {deletionTimestamp: "2026-01-01T00:00:00Z", `, 1), "", ""),
				"apiVersion: v1\nkind: Pod\nmetadata: {name: old}\nspec: {nodeName: general-2000, containers: [{name: c, resources: {requests: {cpu: 3}}}]}\n---\n",
			},
			want: outcome{New: []string{"general c1.4VCPU-8GB"}},
		},
		{
			name:      "one pod for each host, then no more",
			manifests: []string{deployment("a", 4, "1", "1Gi", antiAffinity("a", "topology.kubernetes.io/zone"))},
			want:      outcome{New: []string{"general c1.2VCPU-4GB", "general c1.2VCPU-4GB", "general c1.2VCPU-4GB"}, Refused: 1},
			hosts:     map[string]int{"epyc": 1, "ryzen": 1, "xeon": 1},
			reason:    "the pod's pod anti-affinity over topology.kubernetes.io/zone cannot be satisfied",
		},
		{
			name: "a pod that avoids Karpenter",
			manifests: []string{deployment("a", 1, "1", "1Gi", `
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}]}}}
`)},
			want: outcome{Refused: 1}, reason: "it excludes Karpenter's nodes",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tainted := strings.Replace(nodePool("tainted", "shared", "  limits: {cpu: 0}"), "requirements: []",
				"requirements: []\n      taints: [{key: t, effect: NoSchedule}]", 1)
			c := load(t, append([]string{classes, nodePool("general", "shared", test.pool), tainted}, test.manifests...)...)
			d := decide(t, c, lab(), test.kept...)
			if diff := cmp.Diff(test.want, outcomeOf(d)); diff != "" {
				t.Errorf("outcome differs:\n%s\n%+v", diff, d.Refused)
			}
			if got := hostsOf(d); test.hosts != nil && !cmp.Equal(test.hosts, got) {
				t.Errorf("pods are on %v, want %v", got, test.hosts)
			}
			for _, r := range d.Refused {
				if !strings.Contains(r.Reason, test.reason) {
					t.Errorf("reason %q does not tell %q", r.Reason, test.reason)
				}
			}
		})
	}
}
