package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
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
	return newOthers(t, func(k *kpp) {
		for i := range nodes {
			vmid := 2101 + i
			k.node(vmid, fmt.Sprintf("default-k%d", vmid), []string{"pve-1", "pve-2"}[i%2], 9001+i%2)
		}
	})
}

// newOthers creates a cluster with the nodes of other autoscalers that create creates.
func newOthers(t *testing.T, create func(k *kpp)) *kpp {
	t.Helper()
	w := newWorld(t, worldConfig{region: convertedRegion(t)})
	k := &kpp{world: w, guests: map[int]pvesim.GuestState{}, nodes: map[string]*corev1.Node{}, pods: map[string]string{}}
	w.pool(poolConfig{name: "workers", budgets: "1"})
	ctx, cancel := context.WithCancel(context.Background())
	create(k)
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

// kppRegion is a region as the documentation of karpenter-provider-proxmox names it.
const kppRegion = "Region-1"

// convertedRegion returns the region of numaform.yaml that numaform convert creates for the
// cluster. It must be the one of the Nodes' providerIDs, which never change.
func convertedRegion(t *testing.T) topology.RegionName {
	t.Helper()
	dir := t.TempDir()
	theirs := "clusters:\n- {region: " + kppRegion + ", url: 'https://192.0.2.1:8006/api2/json', token_id: a@pve!b, token_secret: c}\n"
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, "convert", "kpp", "-f", "config.yaml", "--out", "converted")
	command.Dir, command.Env = dir, testenv.CleanEnv()
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	config, err := operator.Load(filepath.Join(dir, "converted", "numaform.yaml"), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	return config.Clusters[0].Region
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

// node creates a VM, its Node and its NodeClaim.
func (k *kpp) node(vmid int, name, host string, template int) {
	ctx := context.Background()
	k.vm(vmid, host, template, map[string]string{
		"name": name, "cores": "2", "sockets": "1", "cpu": "host,flags=+aes", "memory": "1024", "balloon": "0", "numa": "1",
		"numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind",
		"net0":  fmt.Sprintf("virtio=BC:24:11:00:10:%02X,bridge=vmbr0,firewall=1,queues=2", vmid-2100),
		"scsi0": ",discard=on,iothread=1,size=8G,ssd=1", "scsihw": "virtio-scsi-single", "boot": "order=scsi0", "ostype": "l26", "serial0": "socket",
		"vga": "serial0", "ide2": "none,media=cdrom", "smbios1": fmt.Sprintf("uuid=8c1f1c3e-64a3-4b73-b0a8-0f5d4d0d%04d,sku=dDEu,base64=1", vmid),
		"tags": "karpenter", "description": "Karpenter managed instance, class=default, capacity-type=on-demand",
	})

	providerID := fmt.Sprintf("proxmox://%s/%d", kppRegion, vmid)
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
	k.register(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{karpv1.TerminationFinalizer},
			Labels: map[string]string{
				karpv1.NodePoolLabelKey: "default", corev1.LabelInstanceTypeStable: "t1.2VCPU-1GB", corev1.LabelTopologyRegion: kppRegion,
				corev1.LabelTopologyZone: host, karpv1.CapacityTypeLabelKey: "on-demand",
				karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
				"karpenter.proxmox.sinextra.dev/instance-family": "t1", "team": "blue",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: name, UID: claim.UID, BlockOwnerDeletion: &block}},
		},
		Spec: corev1.NodeSpec{ProviderID: providerID},
	})
}

// vm creates a VM of another tool.
func (k *kpp) vm(vmid int, host string, template int, config map[string]string) {
	k.t.Helper()
	testenv.ForeignVM(k.t, k.proxmox, host, template, vmid, config)
	k.guests[vmid], _ = k.proxmox.Guest(vmid)
}

// register creates a Node as its kubelet does.
func (k *kpp) register(node *corev1.Node) {
	k.t.Helper()
	for key, value := range map[string]string{corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", corev1.LabelHostname: node.Name} {
		node.Labels[key] = value
	}
	k.must(k.api.Create(context.Background(), node))
	k.status(node, func() {
		node.Status.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("8Gi"),
		}
		node.Status.Allocatable = node.Status.Capacity
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	})
	k.heartbeat(context.Background(), node.Name)
	k.nodes[node.Name] = node
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

// command returns the command numaform adopt as an administrator runs it.
func (k *kpp) command(args ...string) *exec.Cmd {
	command := exec.Command(binary, append([]string{"adopt", "--config", "numaform.yaml", "--nodepool", "workers", "--kubeconfig", k.plane.Kubeconfig}, args...)...)
	command.Dir = k.dir
	command.Env = append(testenv.CleanEnv(), "NUMAFORM_STATE_DIR="+filepath.Join(k.dir, "cli-state"))
	return command
}

// adopt runs numaform adopt, and returns its output.
func (k *kpp) adopt(args ...string) (string, error) {
	out, err := k.command(args...).CombinedOutput()
	return string(out), err
}

// locked is part of the message if the controller holds the fleet's lock for a moment.
const locked = "another numaform is changing this fleet"

// complete runs numaform adopt until it succeeds, with an approval of each plan that it
// reports, and checks that all nodes are adopted and undisturbed.
func (k *kpp) complete() {
	k.t.Helper()
	var out string
	var err error
	approve := []string{"--auto-approve"}
	for range 30 {
		if out, err = k.adopt(approve...); err == nil {
			break
		}
		if strings.Contains(out, locked) {
			continue
		}
		match := digestPattern.FindStringSubmatch(out)
		if match == nil {
			k.t.Fatalf("%v\n%s", err, out)
		}
		approve = []string{"--approve", match[1]}
	}
	if vms, ours, theirs := k.adopted(); err != nil || vms != len(k.guests) || ours != len(k.guests) || theirs != 0 {
		k.t.Fatalf("%d VMs, %d NodeClaims and %d others: %v\n%s", vms, ours, theirs, err, out)
	}
	if problem := k.undisturbed(context.Background()); problem != "" {
		k.t.Fatal(problem)
	}
}

// stays checks that the controller manages the nodes and leaves them as they are, and that
// it has created that many VMs in total.
func (k *kpp) stays(created int) {
	k.t.Helper()
	k.remains(90*time.Second, k.undisturbed)
	if made := k.everMade() - len(k.guests); made != created {
		k.t.Errorf("%d VMs were created, want %d", made, created)
	}
	if vms, ours, theirs := k.adopted(); vms != len(k.guests) || ours != len(k.guests) || theirs != 0 {
		k.t.Errorf("%d VMs, %d NodeClaims and %d others", vms, ours, theirs)
	}
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
		providerID := before.Spec.ProviderID
		if providerID == "" { // an adoption sets it
			providerID = node.Spec.ProviderID
		}
		if node.UID != before.UID || node.Spec.ProviderID != providerID || !node.DeletionTimestamp.IsZero() || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
			return fmt.Sprintf("node %s is %+v", name, node.Spec)
		}
	}
	for vmid, before := range k.guests {
		after, exists := k.proxmox.Guest(vmid)
		if !exists || !after.Running || len(after.Pending)+len(after.Delete) > 0 {
			return fmt.Sprintf("VM %d is %+v", vmid, after)
		}
		want := maps.Clone(before.Config)
		for _, option := range []string{"description", "tags"} {
			delete(want, option)
			if value, has := after.Config[option]; has {
				want[option] = value
			}
		}
		if diff := cmp.Diff(want, after.Config); diff != "" {
			return fmt.Sprintf("VM %d changed:\n%s", vmid, diff)
		}
	}
	return ""
}

// adopted returns the number of VMs of the cluster with the fleet's marker, and of their
// NodeClaims of numaform and of karpenter-provider-proxmox.
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
		switch claim := &claims.Items[i]; {
		case claim.Spec.NodeClassRef.Group != v1alpha1.Group:
			theirs++
		case k.nodes[claim.Annotations[v1alpha1.AnnotationVM]] != nil:
			ours++
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

	k.complete()
	k.start()
	k.stays(0)
}

// TestAdoptBesideController adopts nodes while numaform's controller runs and creates a node
// of its own: no pod is evicted and no VM restarted or replaced, and the controller then
// creates and removes nodes beside the adopted ones.
func TestAdoptBesideController(t *testing.T) {
	enginetest.Nightly(t)
	const nodes = 5
	k := newKPP(t, nodes)
	for name := range k.nodes {
		k.podOn(name)
	}
	k.start()
	k.deployment("web", 1, "900m", alone("web"))
	k.running("web", 1, 3*time.Minute)
	k.patch(&appsv1.Deployment{}, "web", `{"spec":{"replicas":2}}`)
	k.complete()
	k.comesTo("web", 2, nodes+2, 3*time.Minute)
	k.stays(2)
	k.patch(&appsv1.Deployment{}, "web", `{"spec":{"replicas":3}}`)
	k.comesTo("web", 3, nodes+3, 3*time.Minute)
	k.patch(&appsv1.Deployment{}, "web", `{"spec":{"replicas":0}}`)
	k.comesTo("web", 0, nodes, 5*time.Minute)
	k.stays(3)
}

// kubernetesNode returns a Node as a kubelet without a cloud provider registers it, with the
// labels of another autoscaler.
func kubernetesNode(name, providerID string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

// TestAdoptOthers adopts a node of kproximate and a node of KubeNodeSmith, which have neither
// NodeClaims nor providerIDs: their VMs have the names of the Nodes. Nodes with providerIDs
// that name no VM are refused, because Kubernetes never changes a providerID.
func TestAdoptOthers(t *testing.T) {
	// kproximate/scaler/proxmox.go, newKpNodeName and renderNodeLabels; kproximate/config/config.go, the parameters of SetVmConfig.
	const kpx, onK3s = "kp-node-6c0f1ad2-7d4e-4b5f-9a37-2f0a4c1d9b01", "kp-node-6c0f1ad2-7d4e-4b5f-9a37-2f0a4c1d9b02"
	kpxVM := func(name, mac string) map[string]string {
		return map[string]string{
			"name": name, "cores": "2", "memory": "1024", "balloon": "0", "onboot": "1", "ipconfig0": "ip=dhcp", "scsihw": "virtio-scsi-pci",
			"scsi0": ",size=8G", "net0": "virtio=" + mac + ",bridge=vmbr0",
		}
	}
	// internal/provider/proxmox/proxmox.go, buildVirtualMachineOptions: memory, cores, tags and
	// networks; the other options are from the user's NodeSmithProvider.
	const kns, byName = "small-x7k2p", "small-q9z4m"
	knsVM := func(name, mac string) map[string]string {
		return map[string]string{
			"name": name, "cores": "2", "memory": "1024", "tags": "nodesmith-managed", "cpu": "host", "scsihw": "virtio-scsi-single", "boot": "order=scsi0;net0",
			"scsi0": ",size=8G", "net0": "virtio=" + mac + ",bridge=vmbr0",
		}
	}
	k := newOthers(t, func(k *kpp) {
		k.vm(2101, "pve-1", 9001, kpxVM(kpx, "BC:24:11:00:20:01"))
		k.register(kubernetesNode(kpx, "", map[string]string{"kpNodeTemplateName": testenv.Template}))
		k.vm(2102, "pve-2", 9002, kpxVM(onK3s, "BC:24:11:00:20:02"))
		k.register(kubernetesNode(onK3s, "k3s://"+onK3s, map[string]string{"kpNodeTemplateName": testenv.Template}))
		k.vm(2103, "pve-2", 9002, knsVM(kns, "02:00:00:00:20:03"))
		k.register(kubernetesNode(kns, "", map[string]string{"topology.kubenodesmith.io/pool": "small", "kubenodesmith.io/nodeclaim": kns}))
		k.vm(2104, "pve-1", 9001, knsVM(byName, "02:00:00:00:20:04"))
		k.register(kubernetesNode(byName, "proxmox://"+byName, map[string]string{"topology.kubenodesmith.io/pool": "small", "kubenodesmith.io/nodeclaim": byName}))
	})
	for name := range k.nodes {
		k.podOn(name)
	}
	if out, err := k.adopt(); err == nil || !strings.Contains(out, "name the Nodes to adopt") {
		t.Errorf("adopted nodes that were not requested: %v\n%s", err, out)
	}
	out, err := k.adopt(kpx, onK3s, kns, byName)
	if err == nil || strings.Contains(out, "--approve") {
		t.Errorf("adopted nodes with other providerIDs: %v\n%s", err, out)
	}
	for _, node := range []string{onK3s, byName} {
		if !strings.Contains(out, "node "+node+" cannot be adopted: its providerID") || !strings.Contains(out, "run kubectl drain") {
			t.Errorf("the refusal of %s is missing:\n%s", node, out)
		}
	}

	out, err = k.adopt(kpx, kns)
	match := digestPattern.FindStringSubmatch(out)
	if err == nil || match == nil {
		t.Fatalf("adopted without approval: %v\n%s", err, out)
	}
	if out, err = k.adopt(kpx, kns, "--approve", match[1]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	k.start()
	k.remains(90*time.Second, k.undisturbed)
	if vms, ours, theirs := k.adopted(); vms != 2 || ours != 2 || theirs != 0 {
		t.Errorf("%d VMs, %d NodeClaims and %d others", vms, ours, theirs)
	}
	for name, vmid := range map[string]int{kpx: 2101, kns: 2103} {
		node := &corev1.Node{}
		k.must(k.api.Get(context.Background(), client.ObjectKey{Name: name}, node))
		if want := fmt.Sprintf("proxmox://%s/%d", kppRegion, vmid); node.Spec.ProviderID != want || len(node.OwnerReferences) != 1 {
			t.Errorf("node %s has providerID %q, want %q, and owners %v", name, node.Spec.ProviderID, want, node.OwnerReferences)
		}
	}

	// numaform changes neither a VM that was given back nor its Node.
	k.stop(syscall.SIGTERM)
	k.giveBack(kns, 2103)
	k.start()
	k.remains(90*time.Second, k.undisturbed)
	if vms, ours, _ := k.adopted(); vms != 1 || ours != 1 {
		t.Errorf("%d VMs and %d NodeClaims remain", vms, ours)
	}
}

// giveBack gives an adopted VM back with the commands of docs/adopt.md.
func (k *kpp) giveBack(name string, vmid int) {
	k.t.Helper()
	ctx := context.Background()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "adopt.md"))
	k.must(err)
	merge := func(object client.Object, patch string) {
		k.t.Helper()
		if !strings.Contains(string(page), "-p '"+patch+"'") {
			k.t.Errorf("docs/adopt.md has no command with the patch %s", patch)
		}
		k.must(k.api.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("workers-%d", vmid)}}
	merge(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, `{"metadata":{"ownerReferences":null,"finalizers":null,"labels":{"karpenter.sh/nodepool":null}}}`)
	merge(claim, `{"metadata":{"finalizers":null}}`)
	k.must(k.api.Delete(ctx, claim))

	before := k.guests[vmid]
	k.must(k.proxmox.PutGuest(pvesim.Guest{VMID: vmid, Host: before.Host, Running: true, Config: maps.Clone(before.Config)}))
	var fleet corev1.ConfigMapList
	k.must(k.api.List(ctx, &fleet, client.InNamespace(namespace)))
	deleted := false
	for i := range fleet.Items {
		if _, has := fleet.Items[i].Data["node-"+name+".tf"]; has {
			delete(fleet.Items[i].Data, "node-"+name+".tf")
			k.must(k.api.Update(ctx, &fleet.Items[i]))
			deleted = true
		}
	}
	if !deleted {
		k.t.Errorf("no ConfigMap has the file of %s", name)
	}
}

// TestAdoptReplace adopts nodes, and replaces them under a budget of one: one node is
// disrupted at a time, and at most one pod is down. make nightly replaces 20 nodes.
func TestAdoptReplace(t *testing.T) {
	n := 3
	if enginetest.EveryCase() {
		n = kppNodes
	}
	k := newKPP(t, n)
	k.deployment("app", int32(n), "1500m", alone("app"), func(spec *corev1.PodSpec) {
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
		if running != n {
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

	disrupted, up := k.disrupted(), k.up("app", n)
	k.start()
	k.eventually(2*time.Minute*time.Duration(n), func(context.Context) string {
		for vmid := range k.guests {
			if _, exists := k.proxmox.Guest(vmid); exists {
				return fmt.Sprintf("VM %d still exists", vmid)
			}
		}
		return ""
	})
	k.comesTo("app", n, n, 2*time.Minute)
	k.oneAtATime(disrupted, up, n)
	if made := k.everMade(); made != 2*n {
		t.Errorf("%d VMs were created for %d nodes", made-n, n)
	}
}
