package scheduling_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const (
	notReady    = `, conditions: [{type: Ready, status: "False"}]`
	unreachable = `, conditions: [{type: Ready, status: Unknown}]`
	ready       = `, conditions: [{type: Ready, status: "True"}]`
	starting    = `, taints: [{key: karpenter.sh/unregistered, effect: NoExecute}, {key: node.kubernetes.io/not-ready, effect: NoSchedule}]`
	// anywhere makes pods fit any node, like the pods of a DaemonSet.
	anywhere = "\n      tolerations: [{operator: Exists}]\n"
)

// noon is the time of these decisions.
func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// nodeSince returns node2000 with the given age at noon.
func nodeSince(age time.Duration, spec, status string) string {
	stamp := noon().Add(-age).Format(time.RFC3339)
	return strings.Replace(fmt.Sprintf(node2000, spec, status), "metadata: {", fmt.Sprintf("metadata: {creationTimestamp: %q, ", stamp), 1)
}

// change returns the lab with a modified host xeon.
func change(f func(xeon *topology.Host)) *topology.Snapshot {
	s := lab()
	f(&s.Hosts[2])
	return s
}

func offline() *topology.Snapshot { return change(func(h *topology.Host) { h.Online = false }) }

func vanished() *topology.Snapshot {
	s := lab()
	s.Hosts = s.Hosts[:2]
	return s
}

// guestOf returns VM 2000 as Proxmox lists it.
func guestOf(key string) []topology.Guest {
	return []topology.Guest{{VMID: 2000, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8192, ClusterID: "test", Key: key}}
}

// claim2000 is the NodeClaim of VM 2000, as Karpenter's controllers leave it.
const claim2000 = `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: general-abcde, labels: {karpenter.sh/nodepool: general, node.kubernetes.io/instance-type: c1.4VCPU-8GB}, annotations: {numaform.dev/vm: general-2000}}
spec: {nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}, requirements: []}
%s---
`

const claimStatus = `status: {providerID: "proxmox://lab/2000", capacity: {cpu: 4, memory: 8Gi, pods: 110}, allocatable: {cpu: 4, memory: 8Gi, pods: 110}}
`

type lostTest struct {
	name      string
	snapshot  *topology.Snapshot // nil: all hosts run, and the VM exists
	manifests []string
	pod       string // more of the pod's spec
	limits    string
	gone      bool // VM 2000 is not desired
	want      outcome
}

func (test lostTest) run(t *testing.T) {
	t.Parallel()
	manifests := append([]string{
		classes, nodePool("general", "shared", test.limits), deployment("a", 1, "1", "1Gi", test.pod),
	}, test.manifests...)
	request := scheduling.Request{ClusterID: "test", Snapshot: test.snapshot, Now: noon()}
	if request.Snapshot == nil {
		request.Snapshot = change(func(h *topology.Host) { h.Guests = guestOf("key-2000") })
	}
	if !test.gone {
		request.Existing = []fleet.VM{keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)}
	}
	d, err := load(t, manifests...).Decide(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(test.want, outcomeOf(d)); diff != "" {
		t.Errorf("outcome differs:\n%s\n%+v", diff, d.Refused)
	}
	for _, n := range d.New {
		host := slices.IndexFunc(request.Snapshot.Hosts, func(h topology.Host) bool { return h.ID() == n.Placement.Host })
		if host < 0 || !request.Snapshot.Hosts[host].Online {
			t.Errorf("a VM is made on %s, which does not run", n.Placement.Host)
		}
	}
}

func another() outcome   { return outcome{New: []string{"general c1.2VCPU-4GB"}} }
func onTheNode() outcome { return outcome{Existing: []string{"general-2000 1"}} }
func inFlight() outcome  { return outcome{InFlight: []string{"general-2000 1"}} }

func TestNodesThatFailedTakeNoPods(t *testing.T) {
	old := 24 * time.Hour
	tests := []lostTest{
		{name: "ready", manifests: []string{nodeSince(old, "", ready)}, want: onTheNode()},
		{name: "ready of no age", manifests: []string{fmt.Sprintf(node2000, "", "")}, want: onTheNode()},
		{name: "joining", manifests: []string{nodeSince(time.Minute, starting, notReady)}, want: onTheNode()},
		{name: "joining and cut off for now", manifests: []string{nodeSince(time.Minute, "", unreachable)}, want: onTheNode()},
		{name: "joining for almost too long", manifests: []string{nodeSince(10*time.Minute-time.Second, starting, notReady)}, want: onTheNode()},
		{name: "joining for too long", manifests: []string{nodeSince(10*time.Minute, starting, notReady)}, want: another()},
		{name: "not ready of no age", manifests: []string{fmt.Sprintf(node2000, starting, notReady)}, want: another()},
		{name: "not ready", manifests: []string{nodeSince(old, "", notReady)}, want: another()},
		{name: "unreachable", manifests: []string{nodeSince(old, "", unreachable)}, want: another()},
		{
			name:      "tainted as unreachable",
			manifests: []string{nodeSince(old, `, taints: [{key: node.kubernetes.io/unreachable, effect: NoSchedule}]`, unreachable)},
			want:      another(),
		},
		{name: "startup taint that stays", manifests: []string{nodeSince(old, starting, ready)}, want: another()},
		{name: "cordoned", manifests: []string{nodeSince(old, ", unschedulable: true", ready)}, want: another()},
		{name: "cordoned and not ready", manifests: []string{nodeSince(old, ", unschedulable: true", notReady)}, want: another()},
		{name: "cordoned while it joins", manifests: []string{nodeSince(time.Minute, ", unschedulable: true", notReady)}, want: another()},
		{name: "cordoned and not ours", gone: true, manifests: []string{nodeSince(old, ", unschedulable: true", ready)}, want: another()},
		{name: "ready and not ours", gone: true, manifests: []string{nodeSince(old, "", ready)}, want: onTheNode()},
		{
			name: "with a NodeClaim that never saw it initialized", want: another(),
			manifests: []string{fmt.Sprintf(claim2000, claimStatus), nodeSince(old, starting, notReady)},
		},
		{
			name: "joining with a NodeClaim", want: onTheNode(),
			manifests: []string{fmt.Sprintf(claim2000, claimStatus), nodeSince(time.Minute, starting, notReady)},
		},
		{
			name: "counts against the limit", limits: "  limits: {cpu: 5}", want: outcome{Refused: 1},
			manifests: []string{nodeSince(old, "", notReady)},
		},
		{
			name: "counts against the limit before it said its size", limits: "  limits: {cpu: 5}", want: outcome{Refused: 1},
			manifests: []string{strings.Replace(nodeSince(old, "", notReady), "capacity: {cpu: 4, memory: 8Gi, ephemeral-storage: 30Gi, pods: 110}, ", "", 1)},
		},
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

func TestVMsOnHostsThatDoNotRunTakeNoPods(t *testing.T) {
	old := 24 * time.Hour
	problem := change(func(h *topology.Host) { h.Problem = "cannot be read" })
	unread := change(func(h *topology.Host) { h.Problem, h.Guests = "its region cannot be read now", guestOf("key-2000") })
	down := change(func(h *topology.Host) { h.Online, h.Guests = false, guestOf("key-2000") })
	tests := []lostTest{
		{name: "without a Node, seen on a host that cannot be read", snapshot: unread, want: inFlight()},
		{name: "with a NodeClaim, seen on a host that cannot be read", snapshot: unread, manifests: []string{fmt.Sprintf(claim2000, claimStatus)}, want: outcome{Existing: []string{"general-2000 1"}}},
		{name: "not ready, seen on a host that cannot be read", snapshot: unread, manifests: []string{nodeSince(old, "", notReady)}, want: another()},
		{name: "without a Node, seen on a host that is down", snapshot: down, want: another()},
		{name: "without a Node", want: inFlight()},
		{name: "without a Node, offline", snapshot: offline(), want: another()},
		{name: "without a Node, vanished", snapshot: vanished(), want: another()},
		{name: "without a Node, with a problem", snapshot: problem, want: another()},
		{name: "without a Node, in HA maintenance", snapshot: change(func(h *topology.Host) { h.Maintenance = true }), want: inFlight()},
		{name: "ready, in HA maintenance", snapshot: change(func(h *topology.Host) { h.Maintenance = true }), manifests: []string{nodeSince(old, "", ready)}, want: onTheNode()},
		{name: "not ready, offline", snapshot: offline(), manifests: []string{nodeSince(old, "", notReady)}, want: another()},
		{name: "joining, offline", snapshot: offline(), manifests: []string{nodeSince(time.Minute, starting, notReady)}, want: another()},
		{name: "ready, offline", snapshot: offline(), manifests: []string{nodeSince(old, "", ready)}, want: another()},
		{name: "ready, vanished", snapshot: vanished(), manifests: []string{nodeSince(old, "", ready)}, want: another()},
		{name: "ready, with a problem", snapshot: problem, manifests: []string{nodeSince(old, "", ready)}, want: onTheNode()},
		{name: "a pod that tolerates all, without a Node", snapshot: offline(), pod: anywhere, want: another()},
		{name: "a pod that tolerates all, with a Node", snapshot: offline(), pod: anywhere, manifests: []string{nodeSince(old, "", ready)}, want: another()},
		{name: "with a NodeClaim that knows it", snapshot: offline(), manifests: []string{fmt.Sprintf(claim2000, claimStatus)}, want: another()},
		{name: "with a NodeClaim that names it", snapshot: offline(), manifests: []string{fmt.Sprintf(claim2000, "")}, want: another()},
		{
			name: "with a NodeClaim and a Node", snapshot: offline(), want: another(), pod: anywhere,
			manifests: []string{fmt.Sprintf(claim2000, claimStatus), nodeSince(old, "", ready)},
		},
		{name: "counts against the limit", snapshot: offline(), limits: "  limits: {cpu: 5}", want: outcome{Refused: 1}},
		{
			name: "a Node counts against the limit", snapshot: vanished(), limits: "  limits: {cpu: 5}", want: outcome{Refused: 1},
			manifests: []string{nodeSince(old, "", ready)},
		},
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

func TestVMsCountWhereTheirGuestsAre(t *testing.T) {
	inZone := func(zone string) string {
		return fmt.Sprintf("\n      nodeSelector: {topology.kubernetes.io/zone: %s}\n", zone)
	}
	moved := func(s *topology.Snapshot, key string) *topology.Snapshot {
		s.Hosts[0].Guests = guestOf(key)
		return s
	}
	copying := moved(lab(), "key-2000")
	copying.Hosts[2].Guests = guestOf("key-2000")
	both := moved(offline(), "key-2000")
	both.Hosts[2].Guests = guestOf("key-2000")
	down := moved(lab(), "key-2000")
	down.Hosts[0].Online = false
	tests := []lostTest{
		{name: "its host went, it was moved before", snapshot: moved(offline(), "key-2000"), want: inFlight()},
		{name: "zone of the host that it is on", snapshot: moved(offline(), "key-2000"), pod: inZone("epyc"), want: inFlight()},
		{name: "not the zone of the host that it was on", snapshot: moved(lab(), "key-2000"), pod: inZone("xeon"), want: another()},
		{name: "it was moved to a host that went", snapshot: down, want: another()},
		{name: "seen twice while it moves", snapshot: copying, pod: inZone("xeon"), want: inFlight()},
		{name: "seen twice, one host runs", snapshot: both, pod: inZone("epyc"), want: inFlight()},
		{name: "another guest of that number", snapshot: moved(offline(), "key-7"), want: another()},
		{name: "a guest of nobody of that number", snapshot: moved(offline(), ""), want: another()},
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

// TestVMsThatDoNotExistAreMadeAnew checks that the room of a missing VM counts once: its
// replacement takes its pods, whether or not the VM's Node still exists.
func TestVMsThatDoNotExistAreMadeAnew(t *testing.T) {
	dead := []string{nodeSince(24*time.Hour, "", unreachable)}
	others := func(key, name string) *topology.Snapshot {
		return change(func(h *topology.Host) {
			h.Guests = guestOf(key)
			h.Guests[0].Name = name
			if key == "" {
				h.Guests[0].ClusterID = ""
			}
		})
	}
	down := lab()
	down.Hosts[0].Online, down.Hosts[0].Guests = false, guestOf("")
	tests := []lostTest{
		{name: "never made", snapshot: lab(), want: inFlight()},
		{name: "a stranger has its number", snapshot: others("", "accounting"), want: inFlight()},
		{name: "it left a Node", snapshot: lab(), manifests: dead, want: onTheNode()},
		{name: "a stranger has its number, it left a Node", snapshot: others("", "accounting"), manifests: dead, want: onTheNode()},
		{name: "another VM has its number, it left a Node", snapshot: others("key-7", "general-2000"), manifests: dead, want: onTheNode()},
		{
			name: "it left a Node and a NodeClaim", snapshot: lab(), want: onTheNode(),
			manifests: append([]string{fmt.Sprintf(claim2000, claimStatus)}, dead...),
		},
		{name: "it only lost its marker", snapshot: others("", "general-2000"), manifests: dead, want: another()},
		{name: "it may be on a host that is down", snapshot: down, manifests: dead, want: another()},
		{name: "its host is down", snapshot: offline(), manifests: dead, want: another()},
		{name: "cordoned", snapshot: lab(), manifests: []string{nodeSince(24*time.Hour, ", unschedulable: true", notReady)}, want: another()},
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

func TestPodsSpreadOverHostsThatRun(t *testing.T) {
	c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 6, "1", "1Gi", spread("a", "topology.kubernetes.io/zone")))
	d := decide(t, c, offline(), keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared))
	if diff := cmp.Diff(map[string]int{"epyc": 3, "ryzen": 3}, hostsOf(d)); diff != "" {
		t.Errorf("pods differ by host:\n%s\n%+v", diff, d.Refused)
	}
}

// TestZonesOfDeadNodesStillBindASpread checks that no VM is created for a pod beyond the
// skew: kube-scheduler still counts the zone of a failed Node, so the VM would not help.
func TestZonesOfDeadNodesStillBindASpread(t *testing.T) {
	c := load(t, classes, nodePool("general", "shared", ""), nodeSince(24*time.Hour, "", notReady),
		deployment("a", 6, "1", "1Gi", spread("a", "topology.kubernetes.io/zone")))
	d := decide(t, c, offline(), keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared))
	if diff := cmp.Diff(map[string]int{"epyc": 1, "ryzen": 1}, hostsOf(d)); diff != "" || len(d.Refused) != 4 {
		t.Errorf("pods differ by host:\n%s\n%+v", diff, d.Refused)
	}
	for _, r := range d.Refused {
		if !strings.Contains(r.Reason, "xeon: 0") {
			t.Errorf("reason %q does not name the zone of the dead Node", r.Reason)
		}
	}
}
