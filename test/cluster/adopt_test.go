package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// kppNodes is the number of Nodes of karpenter-provider-proxmox in TestAdopt.
const kppNodes = 20

// kpp is a cluster of karpenter-provider-proxmox: Nodes with NodeClaims, VMs and a pod each.
type kpp struct {
	*world
	// guests are the VMs, nodes the Nodes and pods the UIDs of the pods, before the adoption.
	guests map[int]pvesim.GuestState
	nodes  map[string]*corev1.Node
	pods   map[string]string
}

// newKPP creates the cluster as karpenter-provider-proxmox leaves it: the VMs are clones with
// its options (pkg/providers/instance/instance_utils.go), and the Nodes have the finalizer
// and the owner that Karpenter gives them.
func newKPP(t *testing.T, nodes int) *kpp {
	t.Helper()
	w := newWorld(t, worldConfig{})
	k := &kpp{world: w, guests: map[int]pvesim.GuestState{}, nodes: map[string]*corev1.Node{}, pods: map[string]string{}}
	w.pool(poolConfig{name: "workers", budgets: "1"})
	ctx, cancel := context.WithCancel(context.Background())
	for i := range nodes {
		vmid := 2101 + i
		k.node(vmid, fmt.Sprintf("default-k%d", vmid), []string{"pve-1", "pve-2"}[i%2], 9001+i%2)
	}
	w.eventually(time.Minute, func(ctx context.Context) string {
		for name := range k.nodes {
			node := &corev1.Node{}
			if err := k.api.Get(ctx, client.ObjectKey{Name: name}, node); err != nil || len(node.Spec.Taints) > 0 {
				return fmt.Sprintf("node %s is not ready: %v %v", name, node.Spec.Taints, err)
			}
		}
		return ""
	})
	// No kubelet runs in these VMs, so the test renews the Leases of their Nodes.
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			for name := range k.nodes {
				k.heartbeat(ctx, name)
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return k
}

func (k *kpp) heartbeat(ctx context.Context, node string) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: node}}
	seconds := int32(40)
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now()}}
	existing := &coordinationv1.Lease{}
	if k.api.Get(ctx, client.ObjectKeyFromObject(lease), existing) == nil {
		lease.ResourceVersion = existing.ResourceVersion
		_ = k.api.Update(ctx, lease) // repeated soon
		return
	}
	_ = k.api.Create(ctx, lease)
}

func (k *kpp) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

// status changes the status of an object, whatever controllers changed meanwhile.
func (k *kpp) status(object client.Object, change func()) {
	k.t.Helper()
	stored, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		k.t.Fatalf("%T is no object", object)
	}
	change()
	k.must(k.api.Status().Patch(context.Background(), object, client.MergeFrom(stored)))
}

// runs reports a pod as running, as a kubelet does.
func (k *kpp) runs(pod *corev1.Pod) {
	k.t.Helper()
	k.status(pod, func() {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	})
}

func (k *kpp) node(vmid int, name, host string, template int) {
	ctx := context.Background()
	testenv.ForeignVM(k.t, k.proxmox, host, template, vmid, map[string]string{
		"name": name, "cores": "2", "sockets": "1", "cpu": "host,flags=+aes", "memory": "1024", "balloon": "0", "numa": "1",
		"numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind",
		"net0":  fmt.Sprintf("virtio=BC:24:11:00:10:%02X,bridge=vmbr0,firewall=1,queues=2", vmid-2100),
		"scsi0": ",discard=on,iothread=1,size=8G,ssd=1", "scsihw": "virtio-scsi-single", "boot": "order=scsi0", "ostype": "l26", "serial0": "socket",
		"vga": "serial0", "ide2": "none,media=cdrom", "smbios1": fmt.Sprintf("uuid=8c1f1c3e-64a3-4b73-b0a8-0f5d4d0d%04d,sku=dDEu,base64=1", vmid),
		"tags": "karpenter", "description": "Karpenter managed instance, class=default, capacity-type=on-demand",
	})
	k.guests[vmid], _ = k.proxmox.Guest(vmid)

	providerID := fmt.Sprintf("proxmox://%s/%d", testenv.Region, vmid)
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "default"}, Finalizers: []string{karpv1.TerminationFinalizer}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: "karpenter.proxmox.sinextra.dev", Kind: "ProxmoxNodeClass", Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"default"}}},
		},
	}
	k.must(k.api.Create(ctx, claim))
	k.status(claim, func() { claim.Status.NodeName, claim.Status.ProviderID = name, providerID })

	block := true
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{karpv1.TerminationFinalizer},
			Labels: map[string]string{
				karpv1.NodePoolLabelKey: "default", corev1.LabelInstanceTypeStable: "t1.2VCPU-1GB", corev1.LabelTopologyRegion: string(testenv.Region),
				corev1.LabelTopologyZone: host, karpv1.CapacityTypeLabelKey: "on-demand", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
				corev1.LabelHostname: name, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
				"karpenter.proxmox.sinextra.dev/instance-family": "t1", "team": "blue",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: name, UID: claim.UID, BlockOwnerDeletion: &block}},
		},
		Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	k.must(k.api.Create(ctx, node))
	k.status(node, func() {
		node.Status.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("8Gi"),
		}
		node.Status.Allocatable = node.Status.Capacity
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	})
	k.heartbeat(ctx, name)
	k.nodes[name] = node
}

// podOn runs a pod on a node. It fills the node and forbids its eviction, so consolidation
// keeps the node.
func (k *kpp) podOn(name string) {
	ctx := context.Background()
	zero := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "on-" + name, Labels: map[string]string{"app": "kpp"}, Annotations: map[string]string{"karpenter.sh/do-not-disrupt": "true"}},
		Spec: corev1.PodSpec{
			NodeName: name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{Name: "c", Image: "registry.invalid/c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")},
			}}},
		},
	}
	k.must(k.api.Create(ctx, pod))
	k.runs(pod)
	k.pods[pod.Name] = string(pod.UID)
}

// adopt runs numaform adopt as an administrator, and returns its output.
func (k *kpp) adopt(args ...string) (string, error) {
	command := exec.Command(binary, append([]string{"adopt", "--config", "numaform.yaml", "--nodepool", "workers", "--kubeconfig", k.plane.Kubeconfig}, args...)...)
	command.Dir = k.dir
	command.Env = append(testenv.CleanEnv(), "NUMAFORM_STATE_DIR="+filepath.Join(k.dir, "cli-state"))
	out, err := command.CombinedOutput()
	return string(out), err
}

// leads renews or gives up the Lease of karpenter-provider-proxmox.
func (k *kpp) leads(leads bool) error {
	ctx := context.Background()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "proxmox-karpenter-leader-election"}}
	err := client.IgnoreNotFound(k.api.Delete(ctx, lease))
	if err != nil || !leads {
		return err
	}
	holder, seconds := "kpp-0", int32(600)
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now()}}
	return k.api.Create(ctx, lease)
}

// undisturbed returns a check that reports evicted pods, changed Nodes, and VMs that changed
// otherwise than by an adoption.
func (k *kpp) undisturbed(ctx context.Context) string {
	var pods corev1.PodList
	if err := k.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": "kpp"}); err != nil {
		return err.Error()
	}
	uids := map[string]string{}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp.IsZero() {
			uids[pods.Items[i].Name] = string(pods.Items[i].UID)
		}
	}
	if diff := cmp.Diff(k.pods, uids); diff != "" {
		return "pods were evicted:\n" + diff
	}
	for name, before := range k.nodes {
		node := &corev1.Node{}
		if err := k.api.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return err.Error()
		}
		labels := maps.Clone(before.Labels)
		labels[karpv1.NodePoolLabelKey] = node.Labels[karpv1.NodePoolLabelKey]
		for key, want := range labels {
			if node.Labels[key] != want {
				return fmt.Sprintf("label %s of node %s is %q, want %q", key, name, node.Labels[key], want)
			}
		}
		if node.UID != before.UID || node.Spec.ProviderID != before.Spec.ProviderID || !node.DeletionTimestamp.IsZero() || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
			return fmt.Sprintf("node %s is %+v", name, node.Spec)
		}
	}
	for vmid, before := range k.guests {
		after, exists := k.proxmox.Guest(vmid)
		if !exists || !after.Running || len(after.Pending)+len(after.Delete) > 0 {
			return fmt.Sprintf("VM %d is %+v", vmid, after)
		}
		want := maps.Clone(before.Config)
		want["description"], want["tags"] = after.Config["description"], after.Config["tags"]
		if diff := cmp.Diff(want, after.Config); diff != "" {
			return fmt.Sprintf("VM %d changed:\n%s", vmid, diff)
		}
	}
	return ""
}

// adopted returns the number of VMs with the fleet's marker, and of NodeClaims of numaform and
// of karpenter-provider-proxmox.
func (k *kpp) adopted() (vms, ours, theirs int) {
	k.t.Helper()
	for vmid := range k.guests {
		if guest, _ := k.proxmox.Guest(vmid); strings.HasPrefix(guest.Config["description"], "numaform/1 cluster="+clusterID) {
			vms++
		}
	}
	var claims karpv1.NodeClaimList
	k.must(k.api.List(context.Background(), &claims))
	for i := range claims.Items {
		if claims.Items[i].Spec.NodeClassRef.Group == "numaform.dev" {
			ours++
		} else {
			theirs++
		}
	}
	return vms, ours, theirs
}

var digestPattern = regexp.MustCompile(`--approve ([0-9a-f]{64})`)

// TestAdopt adopts 20 running nodes of karpenter-provider-proxmox, which starts again in the
// middle: the adoption stops, and a later run completes it. No pod is evicted, and no VM
// restarted or replaced, also not by the controller that then manages the nodes. At the end,
// the nodes are replaced one by one.
func TestAdopt(t *testing.T) {
	k := newKPP(t, kppNodes)
	for name := range k.nodes {
		k.podOn(name)
	}
	k.must(k.leads(true))
	if out, err := k.adopt(); err == nil || !strings.Contains(out, "is held by kpp-0") {
		t.Fatalf("adopted beside another autoscaler: %v\n%s", err, out)
	}
	k.must(k.leads(false))

	// Without an approval, nothing happens.
	out, err := k.adopt("--auto-approve")
	match := digestPattern.FindStringSubmatch(out)
	if err == nil || match == nil || !strings.Contains(out, "import 20 VMs") {
		t.Fatalf("adopted without approval: %v\n%s", err, out)
	}
	if vms, ours, theirs := k.adopted(); vms+ours > 0 || theirs != kppNodes {
		t.Fatalf("%d VMs, %d NodeClaims and %d others", vms, ours, theirs)
	}

	// The other autoscaler starts as soon as the first VM has a marker.
	stop := make(chan struct{})
	started := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				started <- errors.New("no VM was adopted")
				return
			case <-ticker.C:
			}
			for _, call := range k.proxmox.Calls() {
				if call.Method == "PUT" && strings.HasSuffix(call.Path, "/config") {
					started <- k.leads(true)
					return
				}
			}
		}
	}()
	out, err = k.adopt("--approve", match[1])
	close(stop)
	if failed := <-started; failed != nil || err == nil || !strings.Contains(out, "another autoscaler runs") {
		t.Fatalf("adopted beside another autoscaler: %v, %v\n%s", failed, err, out)
	}
	if vms, ours, theirs := k.adopted(); vms == 0 || ours > 0 || theirs != kppNodes {
		t.Errorf("%d VMs, %d NodeClaims and %d others", vms, ours, theirs)
	}
	if problem := k.undisturbed(context.Background()); problem != "" {
		t.Fatal(problem)
	}
	k.must(k.leads(false))

	// The next run completes the adoption.
	for range 3 {
		if out, err = k.adopt("--auto-approve"); err == nil {
			break
		}
		if match = digestPattern.FindStringSubmatch(out); match == nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err = k.adopt("--approve", match[1]); err == nil {
			break
		}
	}
	if vms, ours, theirs := k.adopted(); err != nil || vms != kppNodes || ours != kppNodes || theirs != 0 {
		t.Fatalf("%d VMs, %d NodeClaims and %d others: %v\n%s", vms, ours, theirs, err, out)
	}
	if problem := k.undisturbed(context.Background()); problem != "" {
		t.Fatal(problem)
	}

	// The controller manages the nodes and leaves them as they are.
	k.start()
	k.remains(90*time.Second, k.undisturbed)
	if made := k.everMade(); made != kppNodes {
		t.Errorf("%d VMs were created", made-kppNodes)
	}
	if vms, ours, _ := k.adopted(); vms != kppNodes || ours != kppNodes {
		t.Errorf("%d VMs, %d NodeClaims", vms, ours)
	}
}

// TestAdoptReplace adopts three nodes, and replaces them under a budget of one: one node is
// disrupted at a time, and at most one pod is down.
func TestAdoptReplace(t *testing.T) {
	k := newKPP(t, 3)
	k.deployment("app", 3, "1500m", alone("app"), func(spec *corev1.PodSpec) {
		zero := int64(0)
		spec.TerminationGracePeriodSeconds = &zero
	})
	// No kubelet runs on the nodes before they are replaced.
	k.eventually(time.Minute, func(ctx context.Context) string {
		var pods corev1.PodList
		if err := k.api.List(ctx, &pods, client.InNamespace("default")); err != nil {
			return err.Error()
		}
		running := 0
		for i := range pods.Items {
			pod := &pods.Items[i]
			if k.nodes[pod.Spec.NodeName] == nil {
				continue
			}
			running++
			if pod.Status.Phase == corev1.PodRunning {
				continue
			}
			k.runs(pod)
		}
		if running != 3 {
			return fmt.Sprintf("%d pods run", running)
		}
		return ""
	})
	out, err := k.adopt("--replace")
	match := digestPattern.FindStringSubmatch(out)
	if err == nil || match == nil {
		t.Fatalf("adopted without approval: %v\n%s", err, out)
	}
	if out, err = k.adopt("--replace", "--approve", match[1]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	disrupted, up := k.disrupted(), k.up("app", 3)
	k.start()
	k.eventually(6*time.Minute, func(context.Context) string {
		for vmid := range k.guests {
			if _, exists := k.proxmox.Guest(vmid); exists {
				return fmt.Sprintf("VM %d still exists", vmid)
			}
		}
		return ""
	})
	k.comesTo("app", 3, 3, 2*time.Minute)
	k.oneAtATime(disrupted, up, 3)
}
