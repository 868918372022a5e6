package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// steadyClass creates a NodeClass with the given spec.
func (w *world) steadyClass(name, spec string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %s}
spec:
%s
`, name, spec))
}

// steadyPool creates a NodePool whose nodes are only removed on request. template is
// appended to spec.template.spec, more to spec.
func (w *world) steadyPool(name, class, template, more string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %s}
spec:
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
%s
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %s}
%s
`, name, more, class, template))
}

// anyType contains the requirements of a pool that accepts every instance type.
const anyType = `      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}`

// soundClass returns the required fields of a NodeClass's spec, with seeds.
func soundClass() string {
	return fmt.Sprintf("  template: {name: %s}\n  metadata: {type: cdrom}", testenv.Template)
}

// replicated creates a Deployment, whose pods are re-created after an eviction.
func (w *world) replicated(name string, n int32, cpu string, change ...func(*corev1.PodSpec)) {
	w.t.Helper()
	labels := map[string]string{"app": name}
	spec := corev1.PodSpec{Containers: []corev1.Container{container(cpu, "128Mi")}}
	for _, change := range change {
		change(&spec)
	}
	err := w.api.Create(context.Background(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func container(cpu, memory string) corev1.Container {
	return corev1.Container{Name: "c", Image: "registry.invalid/c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}}}
}

// daemons creates a DaemonSet that tolerates all taints.
func (w *world) daemons(name, cpu string) {
	w.t.Helper()
	labels := map[string]string{"app": name}
	err := w.api.Create(context.Background(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers:  []corev1.Container{container(cpu, "64Mi")},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			}},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// inPool makes a pod select the nodes of a pool.
func inPool(pool string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: pool} }
}

// onHost makes a pod select the nodes on a host.
func onHost(host string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: host} }
}

// tolerant makes a pod tolerate a taint.
func tolerant(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

// evenly spreads pods over the given number of hosts. The Kubernetes scheduler only
// considers hosts that already have nodes, so the number is required.
func evenly(hosts int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		spread(pod)
		pod.Spec.TopologySpreadConstraints[0].MinDomains = &hosts
	}
}

// nodesOf returns the nodes of an app's bound pods, by pod name.
func (w *world) nodesOf(app string) map[string]*corev1.Node {
	w.t.Helper()
	ctx := context.Background()
	var pods corev1.PodList
	if err := w.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": app}); err != nil {
		w.t.Fatal(err)
	}
	nodes := map[string]*corev1.Node{}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == "" || pods.Items[i].DeletionTimestamp != nil {
			continue
		}
		node := &corev1.Node{}
		if err := w.api.Get(ctx, client.ObjectKey{Name: pods.Items[i].Spec.NodeName}, node); err != nil {
			w.t.Fatal(err)
		}
		nodes[pods.Items[i].Name] = node
	}
	return nodes
}

// podsByHost counts an app's pods by the host of their nodes' VMs in Proxmox.
func (w *world) podsByHost(app string) map[string]int {
	w.t.Helper()
	guests := w.ours()
	count := map[string]int{}
	for _, node := range w.nodesOf(app) {
		host := "none: no VM with that name"
		if guest, exists := guests[node.Name]; exists {
			host = w.hostOf(guest.VMID)
		}
		count[host]++
	}
	return count
}

// notified waits for an event about an object whose message contains all of the words.
func (w *world) notified(kind, name string, limit time.Duration, words ...string) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var events corev1.EventList
		if err := w.api.List(ctx, &events); err != nil {
			return err.Error()
		}
		var said []string
		for i := range events.Items {
			event := &events.Items[i]
			if event.InvolvedObject.Kind != kind || event.InvolvedObject.Name != name {
				continue
			}
			if saysAll(event.Message, words) {
				return ""
			}
			said = append(said, event.Reason+": "+event.Message)
		}
		return fmt.Sprintf("no event on %s %s contains %q; events: %s", kind, name, words, strings.Join(said, "\n"))
	})
}

func saysAll(text string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

// holds polls ask for the given time, and fails the test as soon as ask does not return "".
func (w *world) holds(long time.Duration, ask func(ctx context.Context) string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if answer := ask(context.Background()); answer != "" {
			w.t.Fatalf("did not last for %s: %s", long, answer)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// TestConstraints checks the nodes on which pods with several kinds of scheduling
// constraints run when they are created at once.
func TestConstraints(t *testing.T) {
	w := newWorld(t, worldConfig{hosts: threeHosts(t)})
	w.start()
	w.steadyClass("plain", soundClass())
	w.steadyPool("workers", "plain", anyType, "")
	// This pool has the highest weight, but a taint that most pods do not tolerate.
	w.steadyPool("batch", "plain", anyType+"\n      taints: [{key: dedicated, value: batch, effect: NoSchedule}]", "  weight: 50")
	w.steadyPool("small", "plain", `      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [c1.1VCPU-2GB, c1.2VCPU-4GB]}`, "")
	w.daemons("agent", "300m")
	w.volume("data", "pve-2")

	w.pods("web", 6, "500m", "256Mi", evenly(3))
	w.pods("there", 2, "500m", "256Mi", onHost("pve-3"))
	w.pods("job", 1, "500m", "256Mi", inPool("batch"), tolerant("dedicated", "batch"))
	w.pods("stray", 1, "500m", "256Mi", inPool("batch"))
	w.pods("tight", 1, "900m", "256Mi", inPool("small")) // without the agent, it would fit a c1.1VCPU-2GB, which has 970m
	w.pods("disk", 1, "500m", "256Mi", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})
	w.budget("guarded")
	w.replicated("guarded", 1, "500m")
	for app, n := range map[string]int{"web": 6, "there": 2, "job": 1, "tight": 1, "disk": 1, "guarded": 1} {
		w.running(app, n, 4*time.Minute)
	}
	w.initialized(time.Minute)

	for app, want := range map[string]map[string]int{
		"web": {"pve-1": 2, "pve-2": 2, "pve-3": 2}, "there": {"pve-3": 2}, "disk": {"pve-2": 1},
	} {
		if diff := cmp.Diff(want, w.podsByHost(app)); diff != "" {
			t.Errorf("pods of %s by host (-want +got):\n%s", app, diff)
		}
	}
	for _, node := range w.nodesOf("tight") {
		if got := node.Labels[corev1.LabelInstanceTypeStable]; got != "c1.2VCPU-4GB" {
			t.Errorf("the pod that does not fit beside the agent is on a %s, want the larger c1.2VCPU-4GB", got)
		}
	}
	w.agentsRunEverywhere("agent")
	w.onlyTheTolerantAreOn("batch", "job")
	w.notified("Pod", "stray-00", time.Minute, "does not tolerate its taint dedicated=batch:NoSchedule")
	w.aBudgetKeepsTheNode("guarded")
}

// volume creates a bound volume that only nodes on one host can use.
func (w *world) volume(name, host string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  csi: {driver: csi.proxmox.invalid, volumeHandle: %[1]s}
  claimRef: {namespace: default, name: %[1]s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: topology.kubernetes.io/zone, operator: In, values: [%[2]s]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Gi}}
`, name, host))
}

// budget creates a PodDisruptionBudget that prevents the eviction of an app's pods.
func (w *world) budget(app string) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: %[1]s, namespace: default}
spec:
  maxUnavailable: 0
  selector: {matchLabels: {app: %[1]s}}
`, app))
}

// agentsRunEverywhere waits until a pod of a DaemonSet runs on each node.
func (w *world) agentsRunEverywhere(app string) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		var nodes corev1.NodeList
		var pods corev1.PodList
		err := errors.Join(w.api.List(ctx, &nodes), w.api.List(ctx, &pods, client.MatchingLabels{"app": app}))
		if err != nil {
			return err.Error()
		}
		for i := range nodes.Items {
			runs := slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
				return pod.Spec.NodeName == nodes.Items[i].Name && pod.Status.Phase == corev1.PodRunning
			})
			if !runs {
				return fmt.Sprintf("no pod of DaemonSet %s runs on %s", app, nodes.Items[i].Name)
			}
		}
		return ""
	})
}

// onlyTheTolerantAreOn checks that a pool has one node, that the node has the taint
// dedicated=batch, and that it runs only an app's pods and the agents.
func (w *world) onlyTheTolerantAreOn(pool, app string) {
	w.t.Helper()
	ctx := context.Background()
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := errors.Join(w.api.List(ctx, &nodes, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}), w.api.List(ctx, &pods)); err != nil {
		w.t.Fatal(err)
	}
	if len(nodes.Items) != 1 {
		w.t.Errorf("pool %s has %d nodes, want one", pool, len(nodes.Items))
	}
	for i := range nodes.Items {
		tainted := slices.ContainsFunc(nodes.Items[i].Spec.Taints, func(taint corev1.Taint) bool { return taint.ToString() == "dedicated=batch:NoSchedule" })
		if !tainted {
			w.t.Errorf("node %s has taints %v", nodes.Items[i].Name, nodes.Items[i].Spec.Taints)
		}
		for j := range pods.Items {
			pod := &pods.Items[j]
			if pod.Spec.NodeName == nodes.Items[i].Name && pod.Labels["app"] != app && pod.Labels["app"] != "agent" {
				w.t.Errorf("pod %s is on %s of pool %s, whose taint it does not tolerate", pod.Name, pod.Spec.NodeName, pool)
			}
		}
	}
}

// lastSeen records the pods of an app that were on a node when Proxmox received a request
// to stop or delete the node's VM.
type lastSeen struct {
	// mu guards the fields below.
	mu    sync.Mutex
	calls int
	found []string
}

// witness records an app's pods on a node at each request to stop or delete the node's VM.
func (w *world) witness(vmid int, app, node string) *lastSeen {
	seen := &lastSeen{}
	look := func(ctx context.Context, call pvesim.Call) {
		var pods corev1.PodList
		err := w.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": app})
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.calls++
		if err != nil {
			seen.found = append(seen.found, err.Error())
		}
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName == node {
				seen.found = append(seen.found, fmt.Sprintf("%s at %s %s", pods.Items[i].Name, call.Method, call.Path))
			}
		}
	}
	for method, path := range map[string]string{
		"POST": fmt.Sprintf("^/nodes/[^/]+/qemu/%d/status/(shutdown|stop)$", vmid), "DELETE": fmt.Sprintf("^/nodes/[^/]+/qemu/%d$", vmid),
	} {
		w.t.Cleanup(w.proxmox.AddFault(pvesim.Fault{Method: method, Path: path, Hit: look}))
	}
	return seen
}

// take returns the number of requests to stop or delete the VM, and the pods that were on
// its node.
func (s *lastSeen) take() (int, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, slices.Clone(s.found)
}

// aBudgetKeepsTheNode deletes the node of a pod with a budget. It checks that node, pod and
// VM remain for ten seconds, that they are deleted once the budget is deleted, and that no
// pod was on the node when its VM was stopped.
func (w *world) aBudgetKeepsTheNode(app string) {
	w.t.Helper()
	ctx := context.Background()
	var node *corev1.Node
	for _, node = range w.nodesOf(app) {
	}
	vm := w.ours()[node.Name]
	seen := w.witness(vm.VMID, app, node.Name)
	if err := w.api.Delete(ctx, node); err != nil {
		w.t.Fatal(err)
	}
	w.notified("Node", node.Name, time.Minute, "drain")
	w.holds(10*time.Second, func(ctx context.Context) string {
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return err.Error()
		}
		guest, exists := w.proxmox.Guest(vm.VMID)
		calls, _ := seen.take()
		var pods corev1.PodList
		if err := w.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": app}); err != nil {
			return err.Error()
		}
		stays := slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == node.Name && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning
		})
		if !stays || !exists || !guest.Running || calls > 0 {
			return fmt.Sprintf("pod exists: %t, VM exists: %t, VM runs: %t, requests to stop it: %d", stays, exists, guest.Running, calls)
		}
		return ""
	})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app}}
	if err := w.api.Delete(ctx, budget); err != nil {
		w.t.Fatal(err)
	}
	w.nothingLeftOf(node.Name, vm.VMID, 2*time.Minute)
	w.running(app, 1, 2*time.Minute)
	if calls, found := seen.take(); calls == 0 || len(found) > 0 {
		w.t.Errorf("%d requests to stop the VM, with pods protected by a budget on its node: %v", calls, found)
	}
}

// nothingLeftOf waits until a node, its claim, its VM and its file are deleted.
func (w *world) nothingLeftOf(name string, vmid int, limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var left []string
		key := client.ObjectKey{Name: name}
		for kind, object := range map[string]client.Object{"node": &corev1.Node{}, "nodeclaim": &karpv1.NodeClaim{}} {
			if err := w.api.Get(ctx, key, object); !apierrors.IsNotFound(err) {
				left = append(left, fmt.Sprintf("%s (%v)", kind, err))
			}
		}
		if _, exists := w.proxmox.Guest(vmid); exists {
			left = append(left, "VM")
		}
		files, err := w.leftInBackend(ctx)
		if err != nil {
			return err.Error()
		}
		if slices.ContainsFunc(files, func(file string) bool { return strings.Contains(file, name) }) {
			left = append(left, "file")
		}
		if len(left) > 0 {
			slices.Sort(left)
			return fmt.Sprintf("not deleted with %s: %s", name, strings.Join(left, ", "))
		}
		return ""
	})
}
