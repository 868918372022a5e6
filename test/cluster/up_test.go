package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// threeHosts returns a small machine and two large ones.
func threeHosts(t *testing.T) []topology.Host {
	t.Helper()
	return append(testenv.Hosts(t), testenv.Host(t, "pve-3", "xeon-4108-2s-smt", 9003))
}

// spread makes the scheduler spread pods over hosts.
func spread(pod *corev1.Pod) {
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
	}}
}

// TestUpAndDown checks that a scale-up from zero to 20 running pods on three hosts plans
// and applies each host once, that nodes and pins are as planned, and that nothing is left
// after the scale-down to zero.
func TestUpAndDown(t *testing.T) {
	// On a busy machine, creating all pods takes more than a second.
	w := newWorld(t, worldConfig{hosts: threeHosts(t), args: []string{"--batch-idle-duration=5s", "--batch-max-duration=30s"}})
	w.start()
	w.classAndPool("workers", "  placement: {policy: Dedicated, pinWith: HostAgent}", "")
	w.pods("web", 20, "500m", "1Gi", spread)
	w.running("web", 20, 3*time.Minute)
	w.initialized(time.Minute)
	w.nodesAreAsPlanned()
	touched := w.hostsWithVMs()
	if len(touched) != 3 {
		t.Errorf("VMs on %v, want on all three hosts", touched)
	}
	one := map[string]int{}
	for _, host := range touched {
		one[host] = 1
	}
	for _, command := range []string{"plan", "apply"} {
		if diff := cmp.Diff(one, w.engineRuns(command)); diff != "" {
			t.Errorf("runs of %s, one for each host touched (-want +got):\n%s", command, diff)
		}
	}
	w.pinsAreExclusive()
	w.pinsAreInEffect()
	if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft(4 * time.Minute)
}

// initialized waits until all NodeClaims are initialized.
func (w *world) initialized(limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			if !claims.Items[i].StatusConditions().IsTrue(karpv1.ConditionTypeInitialized) {
				return "not initialized: " + claims.Items[i].Name
			}
		}
		return ""
	})
}

// nodesAreAsPlanned checks that each node matches its NodeClaim and its VM.
func (w *world) nodesAreAsPlanned() {
	w.t.Helper()
	ctx := context.Background()
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	if err := w.api.List(ctx, &nodes); err != nil {
		w.t.Fatal(err)
	}
	if err := w.api.List(ctx, &claims); err != nil {
		w.t.Fatal(err)
	}
	guests := w.ours()
	if len(nodes.Items) != len(claims.Items) || len(nodes.Items) != len(guests) {
		w.t.Errorf("%d nodes, %d nodeclaims, %d VMs", len(nodes.Items), len(claims.Items), len(guests))
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		guest, exists := guests[node.Name]
		j := slices.IndexFunc(claims.Items, func(c karpv1.NodeClaim) bool { return c.Status.NodeName == node.Name })
		if !exists || j < 0 {
			w.t.Errorf("node %s has no VM or no nodeclaim", node.Name)
			continue
		}
		claim := &claims.Items[j]
		if want := fleet.ProviderID(testenv.Region, fleet.VMID(guest.VMID)); node.Spec.ProviderID != want || claim.Status.ProviderID != want {
			w.t.Errorf("node %s has provider id %q, its claim %q, want %q", node.Name, node.Spec.ProviderID, claim.Status.ProviderID, want)
		}
		host := w.hostOf(guest.VMID)
		for key, want := range map[string]string{
			corev1.LabelTopologyRegion: string(testenv.Region), corev1.LabelTopologyZone: host,
			karpv1.NodePoolLabelKey: claim.Labels[karpv1.NodePoolLabelKey], corev1.LabelInstanceTypeStable: claim.Labels[corev1.LabelInstanceTypeStable],
			karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
		} {
			if got := node.Labels[key]; got != want || got == "" {
				w.t.Errorf("node %s has label %s=%q, want %q", node.Name, key, got, want)
			}
		}
		w.allocatableIsAsPredicted(node, claim)
	}
}

// allocatableIsAsPredicted checks that a node's allocatable resources match the prediction
// within 1 %.
func (w *world) allocatableIsAsPredicted(node *corev1.Node, claim *karpv1.NodeClaim) {
	w.t.Helper()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		promised, got := claim.Status.Allocatable[name], node.Status.Allocatable[name]
		off := got.AsApproximateFloat64()/promised.AsApproximateFloat64() - 1
		if math.Abs(off) > 0.01 || math.IsNaN(off) {
			w.t.Errorf("node %s has %s %s allocatable, predicted %s: off by %.2f %%", node.Name, name, got.String(), promised.String(), 100*off)
		}
	}
}

// hostOf returns the host of a guest.
func (w *world) hostOf(vmid int) string {
	for _, guest := range w.proxmox.Guests() {
		if guest.VMID == vmid {
			return guest.Host
		}
	}
	return ""
}

// hostsWithVMs returns the hosts that have VMs of the fleet, sorted.
func (w *world) hostsWithVMs() []string {
	var hosts []string
	for _, guest := range w.ours() {
		hosts = append(hosts, w.hostOf(guest.VMID))
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// pinsAreExclusive checks that each VM has pins, as many as cores if it has one socket, and
// that no two VMs share a pinned CPU.
func (w *world) pinsAreExclusive() {
	w.t.Helper()
	owner := map[string]string{}
	for _, guest := range w.proxmox.Guests() {
		marker, ok := fleet.ParseMarker(guest.Config["description"])
		if !ok || marker.ClusterID != clusterID {
			continue
		}
		if fmt.Sprint(len(marker.Pins)) != guest.Config["cores"] && guest.Config["sockets"] == "1" {
			w.t.Errorf("VM %d has pins %v and %s cores", guest.VMID, marker.Pins, guest.Config["cores"])
		}
		if len(marker.Pins) == 0 {
			w.t.Errorf("VM %d has no pins", guest.VMID)
		}
		for _, cpu := range marker.Pins {
			at := fmt.Sprintf("%s CPU %d", guest.Host, cpu)
			if other, taken := owner[at]; taken {
				w.t.Errorf("%s is pinned by %s and %s", at, other, guest.Config["name"])
			}
			owner[at] = guest.Config["name"]
		}
	}
}

// pinsAreInEffect checks that the agents of the hosts pin each vCPU to its CPU.
func (w *world) pinsAreInEffect() {
	w.t.Helper()
	for _, guest := range w.proxmox.Guests() {
		marker, ok := fleet.ParseMarker(guest.Config["description"])
		if !ok || marker.ClusterID != clusterID {
			continue
		}
		if threads, _ := hostagent.Threads(w.proxmox, guest.VMID); !slices.Equal(threads.Pins(), marker.Pins) {
			w.t.Errorf("VM %d declares %v, but its vCPUs run on %v: %+v", guest.VMID, marker.Pins, threads.VCPUs, threads.Refused)
		}
	}
}

// nothingIsLeft waits until all nodes, NodeClaims, VMs, files, tokens, seeds, certificate
// requests and locks are deleted.
func (w *world) nothingIsLeft(limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		for _, check := range []func(context.Context) ([]string, error){w.leftInCluster, w.leftInProxmox, w.leftInBackend} {
			left, err := check(ctx)
			if err != nil {
				return err.Error()
			}
			if len(left) > 0 {
				return "left: " + strings.Join(left, ", ")
			}
		}
		return ""
	})
}

func (w *world) leftInCluster(ctx context.Context) (left []string, err error) {
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	var tokens, records corev1.SecretList
	var requests certificatesv1.CertificateSigningRequestList
	for _, list := range []client.ObjectList{&nodes, &claims, &requests} {
		if err := w.api.List(ctx, list); err != nil {
			return nil, err
		}
	}
	err = errors.Join(
		w.api.List(ctx, &tokens, client.InNamespace(metav1.NamespaceSystem)),
		w.api.List(ctx, &records, client.InNamespace(namespace), client.HasLabels{jointoken.Label}),
	)
	if err != nil {
		return nil, err
	}
	for i := range records.Items {
		left = append(left, "record of join tokens "+records.Items[i].Name)
	}
	for i := range nodes.Items {
		left = append(left, "node "+nodes.Items[i].Name)
	}
	for i := range claims.Items {
		left = append(left, "nodeclaim "+claims.Items[i].Name)
	}
	for i := range requests.Items {
		if len(requests.Items[i].Status.Conditions) == 0 {
			left = append(left, "certificate request "+requests.Items[i].Name)
		}
	}
	for i := range tokens.Items {
		if tokens.Items[i].Type == corev1.SecretTypeBootstrapToken {
			left = append(left, "token "+tokens.Items[i].Name)
		}
	}
	return left, nil
}

func (w *world) leftInProxmox(ctx context.Context) (left []string, err error) {
	for name := range w.ours() {
		left = append(left, "VM "+name)
	}
	if len(left) > 0 {
		return left, nil
	}
	snapshot, err := w.reader.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for i := range snapshot.Hosts {
		seeds, err := w.reader.Seeds(ctx, snapshot.Hosts[i].Name)
		if err != nil {
			return nil, err
		}
		for _, seed := range seeds {
			left = append(left, "seed "+seed.Volume)
		}
	}
	return left, nil
}

// leftInBackend returns the remaining node files in the fleet's ConfigMaps, and the
// remaining locks.
func (w *world) leftInBackend(ctx context.Context) (left []string, err error) {
	var maps corev1.ConfigMapList
	if err := w.api.List(ctx, &maps, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for i := range maps.Items {
		for name := range maps.Items[i].Data {
			if strings.Contains(name, "node-") && strings.HasSuffix(name, ".tf") {
				left = append(left, "file "+name)
			}
		}
	}
	var leases coordinationv1.LeaseList
	if err := w.api.List(ctx, &leases, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for i := range leases.Items {
		holder := leases.Items[i].Spec.HolderIdentity
		if leases.Items[i].Name != "numaform-controller" && holder != nil && *holder != "" {
			left = append(left, "lock "+leases.Items[i].Name)
		}
	}
	if w.states != nil {
		for name := range w.states.Locks() {
			left = append(left, "lock "+name)
		}
	}
	return left, nil
}
