package scheduling_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// pending is a pod that cannot be placed, and the change that its explanation proposes.
type pending struct {
	name string
	// pod is "a-0" of Deployment a; more are the other objects of the cluster.
	pod, more   string
	class, pool string // the class's spec and the pool's manifest; empty means the defaults
	hosts       func(*topology.Snapshot)
	request     func(*scheduling.Request)
	obstacle    scheduling.Obstacle
	want        string // part of the first sentence
	// host is part of the message about a host, such as "lab/xeon: is offline".
	host string
	// fix makes the proposed change to the case.
	fix func(*pending)
}

const (
	anyClass = "{template: {name: debian}}"
	dataPod  = "\n      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]\n"
)

func zonePod(zone string) string {
	return deployment("a", 1, "1", "1Gi", fmt.Sprintf("\n      nodeSelector: {topology.kubernetes.io/zone: %s}\n", zone))
}

func volumeIn(zone string) string {
	return fmt.Sprintf(`
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
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [%s]}]}]}}
---
`, zone)
}

const bigDaemon = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: %s}}}]}}
---
`

// occupied fills a host with an unmanaged guest.
func occupied(host string) func(*topology.Snapshot) {
	return func(s *topology.Snapshot) {
		for i := range s.Hosts {
			if s.Hosts[i].Name == topology.HostName(host) {
				s.Hosts[i].Guests = []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: len(s.Hosts[i].CPUs), MemoryMiB: 1024}}
			}
		}
	}
}

// only removes all hosts but one, and modifies that host.
func only(host string, change func(*topology.Host)) func(*topology.Snapshot) {
	return func(s *topology.Snapshot) {
		for _, h := range s.Hosts {
			if h.Name == topology.HostName(host) {
				change(&h)
				s.Hosts = []topology.Host{h}
				return
			}
		}
	}
}

func both(a, b func(*topology.Snapshot)) func(*topology.Snapshot) {
	return func(s *topology.Snapshot) { a(s); b(s) }
}

func poolWith(requirements string) string {
	return strings.Replace(nodePool("general", "c", ""), "requirements: []", requirements, 1)
}

func kindsOfPending() []pending {
	small := func(h *topology.Host) {}
	return []pending{
		{
			name: "larger than any instance type", pod: deployment("a", 1, "20", "1Gi", ""),
			obstacle: scheduling.ObstacleSize, want: "the pod requests cpu 20, memory 1024Mi; the closest instance type, c1.16VCPU-32GB, has cpu 15890m",
			fix: func(p *pending) { p.pod = deployment("a", 1, "15", "1Gi", "") },
		},
		{
			name: "larger with the DaemonSets", pod: deployment("a", 1, "15", "1Gi", ""), more: fmt.Sprintf(bigDaemon, "2"),
			obstacle: scheduling.ObstacleSize, want: "the pod requests cpu 15, memory 1024Mi and DaemonSets request cpu 2; the closest instance type",
			fix: func(p *pending) { p.more = fmt.Sprintf(bigDaemon, "500m") },
		},
		{
			name: "larger than any host", pod: deployment("a", 1, "10", "1Gi", ""), hosts: func(s *topology.Snapshot) { s.Hosts = oneHost(4, 64).Hosts },
			obstacle: scheduling.ObstacleHost, want: "lab/solo has only 8 CPUs, and a VM with more vCPUs cannot start: add a host, lower the CPU requests", host: "lab/solo",
			fix: func(p *pending) { p.hosts = func(s *topology.Snapshot) { s.Hosts = oneHost(8, 64).Hosts } },
		},
		{
			name: "an architecture that no host has", pod: deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {kubernetes.io/arch: arm64}\n"),
			obstacle: scheduling.ObstacleRequirement, want: "require kubernetes.io/arch In [arm64], but the hosts have only amd64",
			fix: func(p *pending) { p.hosts = only("xeon", func(h *topology.Host) { h.Arch = "arm64" }) },
		},
		{
			name: "a label that nodes do not have", pod: deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {disk: fast}\n"),
			obstacle: scheduling.ObstacleRequirement, want: "the pod requires disk In [fast], a label that nodes of the NodePool do not have: add it to the NodePool's spec.template",
			fix: func(p *pending) { p.pool = poolWith("requirements: [{key: disk, operator: In, values: [fast]}]") },
		},
		{
			name: "a taint", pod: deployment("a", 1, "1", "1Gi", ""), pool: poolWith("requirements: []\n      taints: [{key: gpu, effect: NoSchedule}]"),
			obstacle: scheduling.ObstacleTaint, want: "the pod does not tolerate its taint gpu:NoSchedule",
			fix: func(p *pending) { p.pod = deployment("a", 1, "1", "1Gi", "\n      tolerations: [{key: gpu}]\n") },
		},
		{
			name: "resource claims", pod: deployment("a", 1, "1", "1Gi", "\n      resourceClaims: [{name: gpu, resourceClaimName: gpu}]\n"),
			obstacle: scheduling.ObstacleScheduler, want: "the pod has resourceClaims, for which Karpenter 1.14 creates no nodes: request the device as an extended resource",
			fix: func(p *pending) { p.pod = deployment("a", 1, "1", "1Gi", "") },
		},
		{
			name: "a disk", pod: deployment("a", 1, "1", "1Gi, ephemeral-storage: 100Gi", ""),
			obstacle: scheduling.ObstacleSize, want: "lower the requests, or set spec.bootDevice.size of ProxmoxNodeClass \"c\" to at least 114G",
			fix: func(p *pending) { p.class = "{template: {name: debian}, bootDevice: {size: 114G}}" },
		},
		{
			name: "a limit", pod: deployment("a", 1, "3", "1Gi", ""), pool: nodePool("general", "c", "  limits: {cpu: 3}"),
			obstacle: scheduling.ObstacleLimit, want: "its limit of cpu 3 leaves no room for another node (0 used): raise spec.limits",
			fix: func(p *pending) { p.pool = nodePool("general", "c", "  limits: {cpu: 4}") },
		},
		{
			name: "pods that it keeps away from", pod: deployment("a", 4, "1", "1Gi", antiAffinity("a", "topology.kubernetes.io/zone")),
			obstacle: scheduling.ObstacleScheduler, want: "the pod's pod anti-affinity over topology.kubernetes.io/zone cannot be satisfied",
			fix: func(p *pending) {
				p.hosts = func(s *topology.Snapshot) { s.Hosts = append(s.Hosts, machine("zen", 1, 1, 4, 16)) }
			},
		},
		{
			name: "a volume on a host that is not there", pod: deployment("a", 1, "1", "1Gi", dataPod), more: volumeIn("mars"),
			obstacle: scheduling.ObstacleRequirement, want: "the pod's volumes require topology.kubernetes.io/zone In [mars], but the hosts have only epyc, ryzen, xeon",
			fix: func(p *pending) {
				p.hosts = func(s *topology.Snapshot) { s.Hosts = append(s.Hosts, machine("mars", 1, 1, 4, 16)) }
			},
		},
		{
			name: "a volume on a host that is full", pod: deployment("a", 1, "1", "1Gi", dataPod), more: volumeIn("ryzen"), hosts: occupied("ryzen"),
			obstacle: scheduling.ObstacleHost, want: "no host has room: c1.2VCPU-4GB: 2 shared vCPUs, 4 GiB: lab/ryzen has 24 floating vCPUs and room for 0 more",
			host: "lab/xeon: is not where the pod's volumes are: topology.kubernetes.io/zone In [ryzen]",
			fix:  func(p *pending) { p.hosts = nil },
		},
		{
			name: "the selected host is full", pod: zonePod("ryzen"), hosts: occupied("ryzen"),
			obstacle: scheduling.ObstacleHost, want: "lab/ryzen has 24 floating vCPUs and room for 0 more: add a host or raise overcommit in the ProxmoxNodeClass",
			host: "lab/xeon: does not meet the requirements of pool and pod: topology.kubernetes.io/zone In [ryzen]",
			fix:  func(p *pending) { p.class = `{template: {name: debian}, placement: {overcommit: "2"}}` },
		},
		{
			name: "NUMA nodes too small for the policy", pod: deployment("a", 1, "500m", "6Gi", ""),
			class: "{template: {name: debian}, placement: {policy: NUMA}}",
			pool:  poolWith("requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [m1.1VCPU-8GB]}]"),
			hosts: func(s *topology.Snapshot) { s.Hosts = []topology.Host{machine("two", 1, 2, 4, 12)} }, host: "lab/two",
			obstacle: scheduling.ObstacleHost, want: "1 NUMA vCPU, 8 GiB: lab/two has room for 8 vCPUs and 6 GiB on NUMA node 0; 2 NUMA nodes together have room for 16 vCPUs and 12 GiB: add a host, lower the memory requests",
			fix: func(p *pending) {
				p.hosts = func(s *topology.Snapshot) { s.Hosts = []topology.Host{machine("two", 1, 2, 4, 32)} }
			},
		},
		{
			name: "memory kept for the host", pod: deployment("a", 1, "1", "6Gi", ""),
			hosts:    only("ryzen", func(h *topology.Host) { h.ReservedMemoryMiB = 60 * 1024 }),
			obstacle: scheduling.ObstacleHost, want: "lab/ryzen has 4 GiB free: add a host, lower the memory requests",
			fix: func(p *pending) {
				p.hosts = only("ryzen", func(h *topology.Host) { h.ReservedMemoryMiB = 1024 })
			},
		},
		{
			name: "CPUs kept for the host", pod: deployment("a", 1, "3", "1Gi", ""), class: "{template: {name: debian}, placement: {policy: Dedicated, pinWith: HostAgent}}",
			hosts:    only("ryzen", func(h *topology.Host) { h.ReservedCPUs = h.OnlineCPUs().Difference(topology.CPUs(11, 23)) }),
			obstacle: scheduling.ObstacleHost, want: "lab/ryzen has 2 free CPUs beside 0 floating vCPUs",
			fix: func(p *pending) { p.hosts = only("ryzen", small) },
		},
		{
			name: "a class whose template is nowhere", pod: deployment("a", 1, "1", "1Gi", ""), class: "{template: {name: debain}}",
			obstacle: scheduling.ObstacleRequirement, want: `no host can take its nodes: each of 3 hosts (lab/epyc, lab/ryzen, lab/xeon) has no template "debain"`,
			host: `lab/epyc: has no template "debain"`,
			fix:  func(p *pending) { p.class = "" },
		},
		{
			name: "a class that is not allowed the host", pod: zonePod("xeon"), class: "{template: {name: debian}, hosts: [ryzen]}",
			obstacle: scheduling.ObstacleRequirement, want: "require topology.kubernetes.io/zone In [xeon], but the hosts have only ryzen",
			host: `lab/xeon: is not in spec.region and spec.hosts of ProxmoxNodeClass "c"`,
			fix:  func(p *pending) { p.class = "{template: {name: debian}, hosts: [ryzen, xeon]}" },
		},
		{
			name: "a class that does not exist", pod: deployment("a", 1, "1", "1Gi", ""), pool: nodePool("general", "gone", ""),
			obstacle: scheduling.ObstacleNodePool, want: `its ProxmoxNodeClass "gone" does not exist: create it`,
			fix: func(p *pending) { p.pool = "" },
		},
		{
			name: "a NodePool of a fixed size", pod: deployment("a", 1, "1", "1Gi", ""), pool: nodePool("general", "c", "  replicas: 2"),
			obstacle: scheduling.ObstacleNodePool, want: "it has spec.replicas",
			fix: func(p *pending) { p.pool = "" },
		},
		{
			name: "a host that is down", pod: deployment("a", 1, "1", "1Gi", ""), hosts: only("xeon", func(h *topology.Host) { h.Online = false }),
			obstacle: scheduling.ObstacleRequirement, want: "no host can take its nodes: lab/xeon is offline", host: "lab/xeon: is offline",
			fix: func(p *pending) { p.hosts = only("xeon", small) },
		},
		{
			name: "a host in HA maintenance", pod: deployment("a", 1, "1", "1Gi", ""), hosts: only("xeon", func(h *topology.Host) { h.Maintenance = true }),
			obstacle: scheduling.ObstacleRequirement, want: "lab/xeon is in HA maintenance: to end it, run ha-manager crm-command node-maintenance disable xeon",
			fix: func(p *pending) { p.hosts = only("xeon", small) },
		},
		{
			name: "an offer that is closed", pod: zonePod("xeon"),
			request: func(r *scheduling.Request) {
				r.Unavailable = []scheduling.OfferingSelector{{Host: topology.HostID{Region: "lab", Host: "xeon"}}}
			},
			obstacle: scheduling.ObstacleHost, want: "lab/xeon is temporarily unavailable: VMs could not be created there, or it is being evacuated",
			fix: func(p *pending) { p.request = nil },
		},
		{
			name: "too few values for minValues", pod: deployment("a", 1, "7", "1Gi", ""),
			pool:     poolWith("requirements: [{key: node.kubernetes.io/instance-type, operator: Exists, minValues: 12}]"),
			obstacle: scheduling.ObstacleScheduler, want: "its requirement on node.kubernetes.io/instance-type has minValues 12, but the instance types that suit the pod and have room provide only 8: lower minValues",
			fix: func(p *pending) {
				p.pool = poolWith("requirements: [{key: node.kubernetes.io/instance-type, operator: Exists, minValues: 8}]")
			},
		},
		{
			name: "the NodePool that is meant comes first", pod: zonePod("ryzen"), hosts: occupied("ryzen"),
			more: strings.Replace(nodePool("aaa", "c", "  weight: 50"), "requirements: []", "requirements: []\n      taints: [{key: gpu, effect: NoSchedule}]", 1) +
				nodePool("fixed", "c", "  weight: 60\n  replicas: 1"),
			obstacle: scheduling.ObstacleHost, want: "NodePool general: no host has room",
			fix: func(p *pending) { p.hosts = nil },
		},
	}
}

func (p *pending) explain(t *testing.T) *scheduling.Explanation {
	t.Helper()
	class, pool, snapshot := p.class, p.pool, lab()
	if class == "" {
		class = anyClass
	}
	if pool == "" {
		pool = nodePool("general", "c", "")
	}
	if p.hosts != nil {
		p.hosts(snapshot)
	}
	request := scheduling.Request{ClusterID: "test", Snapshot: snapshot}
	if p.request != nil {
		p.request(&request)
	}
	c := load(t, classManifest(class), pool, p.pod, p.more)
	d, err := c.Decide(context.Background(), request)
	if err != nil {
		t.Fatal(err)
	}
	name := types.NamespacedName{Namespace: "default", Name: "a-0"}
	if len(d.Refused) > 0 {
		name = d.Refused[0].Pod
	}
	x, err := c.Explain(context.Background(), request, name)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Refused) > 0 && !strings.HasPrefix(d.Refused[0].Reason, x.Summary) {
		t.Errorf("the decision says %q, the explanation %q", d.Refused[0].Reason, x.Summary)
	}
	return x
}

// TestExplainNamesTheTrueCause checks that the explanation names a cause that can be fixed:
// each case makes the proposed change and checks that the pod is placed.
func TestExplainNamesTheTrueCause(t *testing.T) {
	for _, test := range kindsOfPending() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			x := test.explain(t)
			if x.State != scheduling.PodRefused || len(x.Pools) == 0 {
				t.Fatalf("explained as %+v", x)
			}
			if !strings.Contains(x.Summary, test.want) {
				t.Errorf("summary is %q, want %q in it", x.Summary, test.want)
			}
			if x.Pools[0].Obstacle != test.obstacle {
				t.Errorf("obstacle is %s, want %s", x.Pools[0].Obstacle, test.obstacle)
			}
			said := ""
			for _, h := range x.Pools[0].Hosts {
				said += fmt.Sprintf("%s: %s\n", h.Host, h.Reason)
			}
			if !strings.Contains(said, test.host) {
				t.Errorf("hosts are said to be\n%swant %q", said, test.host)
			}
			if test.obstacle == scheduling.ObstacleNodePool && said != "" {
				t.Errorf("hosts are blamed for what the NodePool lacks:\n%s", said)
			}
			test.fix(&test)
			if x := test.explain(t); x.State != scheduling.PodNeedsVM {
				t.Errorf("after the change that was named: %s %s", x.State, x.Summary)
			}
		})
	}
}

// TestExplainNamesTheTypeWithRoom checks that the explanation of a host with room for a
// dearer type only is about that type: the cheapest type needs more memory than is free.
func TestExplainNamesTheTypeWithRoom(t *testing.T) {
	t.Parallel()
	p := pending{
		pod: deployment("a", 1, "500m", "1Gi", ""),
		pool: strings.Replace(nodePool("general", "c", "  limits: {memory: 1Gi}"), "requirements: []",
			"requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [c1.2VCPU-4GB, m1.1VCPU-8GB]}]", 1),
		hosts: only("ryzen", func(h *topology.Host) { h.ReservedMemoryMiB = 59 * 1024 }),
	}
	x := p.explain(t)
	if len(x.Pools) != 1 || x.Pools[0].Obstacle != scheduling.ObstacleLimit || len(x.Pools[0].Hosts) != 1 {
		t.Fatalf("explained as %+v", x)
	}
	h := x.Pools[0].Hosts[0]
	if h.Reason != "" || h.InstanceType != "c1.2VCPU-4GB" || h.View == nil || !h.View.Fits || h.View.Lacks != "" {
		t.Errorf("host %+v with view %+v, want room for c1.2VCPU-4GB", h, h.View)
	}
}

func TestExplainPodsThatNeedNothing(t *testing.T) {
	pod := func(more, spec string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%s}\nspec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]%s}\n---\n", more, spec)
	}
	joining := nodeSince(time.Minute, ", taints: [{key: node.cilium.io/agent-not-ready, effect: NoSchedule}]", ready)
	startup := "requirements: []\n      startupTaints: [{key: node.cilium.io/agent-not-ready, effect: NoSchedule}]"
	tests := []struct {
		name, manifests string
		pool            string
		kept            bool
		state           scheduling.PodState
		want            string
	}{
		{"on a node", pod("", ", nodeName: general-2000") + fmt.Sprintf(node2000, "", ""), "", true, scheduling.PodHasNode, "it is bound to node general-2000"},
		{"gets a VM", pod("", ""), "", false, scheduling.PodNeedsVM, "it needs a new VM: c1.2VCPU-4GB of NodePool general on lab/"},
		{"ended", strings.Replace(pod("", ""), "spec:", "status: {phase: Succeeded}\nspec:", 1), "", false, scheduling.PodIgnored, "it has finished: its phase is Succeeded"},
		{"with gates", pod("", ", schedulingGates: [{name: example.com/wait}]"), "", false, scheduling.PodIgnored, "it has scheduling gates: example.com/wait"},
		{"of a DaemonSet", pod(", ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u}]", ""), "", false, scheduling.PodIgnored, "it belongs to a DaemonSet"},
		{"a VM is on its way", pod("", ""), "", true, scheduling.PodWaits, "VM general-2000 has room for it, but numaform gives the VM no join data (metadata of type none in ProxmoxNodeClass shared)"},
		{"a node has room", pod("", "") + fmt.Sprintf(node2000, "", ""), "", true, scheduling.PodWaits, "node general-2000 has room for it: kube-scheduler should bind it there"},
		{"a startup taint is left", pod("", "") + joining, startup, true, scheduling.PodWaits, "node general-2000 has room for it, but it still has the taint node.cilium.io/agent-not-ready:NoSchedule"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			request := scheduling.Request{ClusterID: "test", Snapshot: lab(), Now: noon()}
			if test.kept {
				request.Existing = append(request.Existing, keptVM(2000, "general", "shared", "xeon", "Shared"))
			}
			pool := nodePool("general", "shared", "")
			if test.pool != "" {
				pool = strings.Replace(pool, "requirements: []", test.pool, 1)
			}
			x, err := load(t, classes, pool, test.manifests).Explain(context.Background(), request, types.NamespacedName{Namespace: "default", Name: "p"})
			if err != nil {
				t.Fatal(err)
			}
			if x.State != test.state || !strings.Contains(x.Summary, test.want) {
				t.Errorf("%s %q, want %s %q", x.State, x.Summary, test.state, test.want)
			}
		})
	}
}

// TestExplainJoining checks the explanation of a pod that waits for a VM with join data.
func TestExplainJoining(t *testing.T) {
	t.Parallel()
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}\n---\n"
	request := scheduling.Request{
		ClusterID: "test", Snapshot: lab(), Now: noon(), Existing: []fleet.VM{keptVM(2000, "general", "shared", "xeon", "Shared")},
	}
	seeded := strings.Replace(classes, "template: {name: debian}", "template: {name: debian}\n  metadata: {type: cdrom}", 1)
	x, err := load(t, seeded, nodePool("general", "shared", ""), pod).Explain(t.Context(), request, types.NamespacedName{Namespace: "default", Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "VM general-2000 has room for it and is joining the cluster: wait until it has joined"; x.State != scheduling.PodWaits || x.Summary != want {
		t.Errorf("%s %q, want %q", x.State, x.Summary, want)
	}
}

// TestExplainOutage checks that a pod whose VM is reserved, or still to be reserved, is
// explained by the condition of its NodePool.
func TestExplainOutage(t *testing.T) {
	t.Parallel()
	const (
		pod     = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}\n---\n"
		message = "waits: the kubernetes state backend has been unreachable since 2026-01-02T03:04:05Z"
	)
	pool := strings.Replace(nodePool("general", "shared", ""), "\nspec:",
		"\nstatus: {conditions: [{type: ScaleUpReady, status: 'False', reason: StateBackendUnreachable, message: '"+message+"', lastTransitionTime: null}]}\nspec:", 1)
	for name, want := range map[string]string{
		"to be reserved": ": the controller reports: " + message,
		"reserved":       "VM general-2000 has room for it, but the controller reports: " + message,
	} {
		request := scheduling.Request{ClusterID: "test", Snapshot: lab(), Now: noon()}
		if name == "reserved" {
			request.Existing = append(request.Existing, keptVM(2000, "general", "shared", "xeon", "Shared"))
		}
		x, err := load(t, classes, pool, pod).Explain(t.Context(), request, types.NamespacedName{Namespace: "default", Name: "p"})
		if err != nil || !strings.HasSuffix(x.Summary, want) {
			t.Errorf("%s: %+v (%v), want %q", name, x, err, want)
		}
	}
}

func TestExplainNoSuchPod(t *testing.T) {
	_, err := load(t, classes).Explain(context.Background(), scheduling.Request{Snapshot: lab()}, types.NamespacedName{Namespace: "a", Name: "b"})
	if err == nil || !strings.Contains(err.Error(), "explaining pod a/b: not found") {
		t.Error(err)
	}
}
