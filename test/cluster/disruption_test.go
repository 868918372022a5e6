package cluster_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// largeHosts returns two hosts of 80 CPUs each.
func largeHosts(t *testing.T) []topology.Host {
	t.Helper()
	return []topology.Host{
		testenv.Host(t, "pve-1", "xeon-6230-2s-snc2", 9001),
		testenv.Host(t, "pve-2", "xeon-6230-2s-snc2", 9002),
	}
}

// poolConfig configures a NodePool for the disruption tests.
type poolConfig struct {
	name string
	// class is added to the spec of the NodeClass, and requirements to the requirements of
	// the NodePool, both in YAML flow style.
	class, requirements string
	// template is a line of the NodeClaims' spec. budgets is the number or percentage of
	// nodes that may be disrupted at a time.
	template, budgets string
}

// pool creates a NodePool and its NodeClass.
func (w *world) pool(c poolConfig) {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec: {template: {name: %[2]s}, metadata: {type: cdrom}%[3]s}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}%[4]s]
      %[5]s
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 2s
    budgets: [{nodes: %[6]q}]
`, c.name, testenv.Template, c.class, c.requirements, c.template, c.budgets))
}

// deployment creates a Deployment of n pods of one size.
func (w *world) deployment(name string, n int32, cpu string, change ...func(*corev1.PodSpec)) {
	w.t.Helper()
	labels := map[string]string{"app": name}
	object := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "c", Image: "registry.invalid/c",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("256Mi"),
					}},
				}}},
			},
		},
	}
	for _, change := range change {
		change(&object.Spec.Template.Spec)
	}
	if err := w.api.Create(context.Background(), object); err != nil {
		w.t.Fatal(err)
	}
}

// alone makes each pod of an app require a separate node.
func alone(app string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			}},
		}}
	}
}

// on makes pods run only on nodes with a label.
func on(key, value string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{key: value} }
}

// patch changes an object with a merge patch.
func (w *world) patch(object client.Object, name, text string) {
	w.t.Helper()
	object.SetName(name)
	if _, namespaced := object.(*appsv1.Deployment); namespaced {
		object.SetNamespace("default")
	}
	if err := w.api.Patch(context.Background(), object, client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
		w.t.Fatal(err)
	}
}

// numaform runs a command as an administrator of the cluster.
func (w *world) numaform(args ...string) {
	w.t.Helper()
	command := exec.Command(binary, append(args, "--kubeconfig", w.plane.Kubeconfig)...)
	command.Env = testenv.CleanEnv()
	if out, err := command.CombinedOutput(); err != nil {
		w.t.Fatalf("numaform %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// runningPods returns the running pods of an app that are not being deleted, by name.
func (w *world) runningPods(ctx context.Context, app string) (map[string]*corev1.Pod, error) {
	var list corev1.PodList
	err := w.api.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{"app": app})
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		if runs(&list.Items[i]) {
			pods[list.Items[i].Name] = &list.Items[i]
		}
	}
	return pods, err
}

func runs(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp.IsZero()
}

// comesTo waits until n pods of an app run, and the numbers of nodes, NodeClaims and VMs
// each equal nodes.
func (w *world) comesTo(app string, n, nodes int, limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		pods, err := w.runningPods(ctx, app)
		if err != nil {
			return err.Error()
		}
		var list corev1.NodeList
		var claims karpv1.NodeClaimList
		for _, objects := range []client.ObjectList{&list, &claims} {
			if err := w.api.List(ctx, objects); err != nil {
				return err.Error()
			}
		}
		if len(pods) != n || len(list.Items) != nodes || len(claims.Items) != nodes {
			return fmt.Sprintf("%d pods of %d run; %d nodes, %d nodeclaims, want %d", len(pods), n, len(list.Items), len(claims.Items), nodes)
		}
		if vms := len(w.ours()); vms != nodes {
			return fmt.Sprintf("%d VMs, want %d", vms, nodes)
		}
		return ""
	})
}

// remains fails the test if ask returns anything but "" within the time.
func (w *world) remains(limit time.Duration, ask func(ctx context.Context) string) {
	w.t.Helper()
	ticker, end := time.NewTicker(500*time.Millisecond), time.NewTimer(limit)
	defer ticker.Stop()
	defer end.Stop()
	for {
		if problem := ask(context.Background()); problem != "" {
			w.t.Fatalf("%s\n%s", problem, w.controller.log.tail())
		}
		select {
		case <-ticker.C:
		case <-end.C:
			return
		}
	}
}

// vmids returns the VMIDs of the VMs, by name.
func (w *world) vmids() map[string]int {
	w.t.Helper()
	ids := map[string]int{}
	for name, guest := range w.ours() {
		ids[name] = guest.VMID
	}
	return ids
}

// same returns a check that reports changes of the VMs.
func (w *world) same(want map[string]int) func(context.Context) string {
	return func(context.Context) string {
		if diff := cmp.Diff(want, w.vmids()); diff != "" {
			return "the VMs changed (-want +got):\n" + diff
		}
		return ""
	}
}

// everMade returns the number of VMs that have been cloned so far.
func (w *world) everMade() int {
	made := map[string]bool{}
	for _, call := range w.proxmox.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/clone") && call.Status == http.StatusOK {
			made[call.Params["newid"]] = true
		}
	}
	return len(made)
}

// tally records the minimum and maximum number of matching objects, as seen by a watch.
type tally struct {
	// mu guards the fields below.
	mu          sync.Mutex
	met         map[types.UID]bool
	least, most int
}

// tally counts the objects of a watch that match a condition.
func (w *world) tally(watcher watch.Interface, err error, meets func(any) bool) *tally {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	c, done := &tally{met: map[types.UID]bool{}}, make(chan struct{})
	w.t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			if object, ok := event.Object.(client.Object); ok {
				c.take(object.GetUID(), event.Type != watch.Deleted && meets(event.Object))
			}
		}
	}()
	return c
}

func (c *tally) take(id types.UID, meets bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.met, id)
	if meets {
		c.met[id] = true
	}
	c.least, c.most = min(c.least, len(c.met)), max(c.most, len(c.met))
}

// restart resets the bounds, and returns the current number of objects.
func (c *tally) restart() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.least, c.most = len(c.met), len(c.met)
	return len(c.met)
}

func (c *tally) bounds() (least, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.least, c.most
}

// disrupted counts the NodeClaims whose nodes are being replaced or drained. As in
// Karpenter's budgets, a claim does not count once its node is drained and its VM is being
// deleted.
func (w *world) disrupted() *tally {
	w.t.Helper()
	api, err := client.NewWithWatch(w.plane.Config, client.Options{Scheme: newScheme(w.t)})
	if err != nil {
		w.t.Fatal(err)
	}
	watcher, err := api.Watch(context.Background(), &karpv1.NodeClaimList{})
	return w.tally(watcher, err, func(object any) bool {
		claim, ok := object.(*karpv1.NodeClaim)
		if !ok || claim.StatusConditions().IsTrue(karpv1.ConditionTypeInstanceTerminating) {
			return false
		}
		return !claim.DeletionTimestamp.IsZero() || claim.StatusConditions().IsTrue(karpv1.ConditionTypeDisruptionReason)
	})
}

// up waits until n pods of an app run, and counts its running pods from then on.
func (w *world) up(app string, n int) *tally {
	w.t.Helper()
	watcher, err := w.plane.Client(w.t).CoreV1().Pods("default").Watch(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	c := w.tally(watcher, err, func(object any) bool {
		pod, ok := object.(*corev1.Pod)
		return ok && runs(pod)
	})
	w.eventually(time.Minute, func(context.Context) string {
		if now := c.restart(); now != n {
			return fmt.Sprintf("%d pods of %s run, want %d", now, app, n)
		}
		return ""
	})
	return c
}

// oneAtATime checks that nodes were disrupted one by one, and that at most one pod was down
// at a time.
func (w *world) oneAtATime(disrupted, up *tally, pods int) {
	w.t.Helper()
	if _, most := disrupted.bounds(); most != 1 {
		w.t.Errorf("up to %d nodes were disrupted at a time, want 1 by the budget", most)
	}
	if least, _ := up.bounds(); least < pods-1 {
		w.t.Errorf("only %d of %d pods ran at some time, want at least %d", least, pods, pods-1)
	}
}

// nodesIn returns the nodes of a NodePool.
func (w *world) nodesIn(pool string) []corev1.Node {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.api.List(context.Background(), &nodes, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
		w.t.Fatal(err)
	}
	return nodes.Items
}

// fewest returns the minimum number of nodes like those of a NodePool that fit n pods, each
// of which requests milliCPU. All pods and nodes are equal, so the best packing fills every
// node but the last. All nodes have the same price, so it is also the cheapest.
func (w *world) fewest(pool string, n int, milliCPU int64) int {
	w.t.Helper()
	each := int64(math.MaxInt64)
	for _, node := range w.nodesIn(pool) {
		each = min(each, node.Status.Allocatable.Cpu().MilliValue()/milliCPU)
	}
	return int(math.Ceil(float64(n) / float64(each)))
}

// usedBy checks that the pods of an app, each with this CPU request, request about 40 % of
// the CPU of each node of a NodePool.
func (w *world) usedBy(pool, app string, milliCPU int) {
	w.t.Helper()
	running, err := w.runningPods(context.Background(), app)
	if err != nil {
		w.t.Fatal(err)
	}
	on := map[string]int{}
	for _, pod := range running {
		on[pod.Spec.NodeName]++
	}
	for _, node := range w.nodesIn(pool) {
		used := float64(on[node.Name]*milliCPU) / float64(node.Status.Allocatable.Cpu().MilliValue())
		if math.Round(used*10) != 4 {
			w.t.Errorf("node %s has %d pods: %.0f %% used, want about 40 %%", node.Name, on[node.Name], 100*used)
		}
	}
}

// TestConsolidation checks that consolidation packs the pods of ten nodes, each of which is
// about 40 percent used, onto the fewest nodes, and replaces another node with a smaller
// and cheaper one, but not with the smallest, which a NodeOverlay makes expensive. Without
// pods, a NodePool keeps its minimum number of nodes, and more while a CapacityBuffer
// requests room.
func TestConsolidation(t *testing.T) {
	enginetest.Nightly(t)
	const nodes, pods, milliCPU = 10, 20, 770
	w := newWorld(t, worldConfig{
		hosts: largeHosts(t), args: []string{"--feature-gates", "CapacityBuffer=true,NodeOverlay=true"},
		values: map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}},
	})
	w.start()
	w.dear("c1.1VCPU-2GB")
	w.pool(poolConfig{
		name: "alike", budgets: "100%",
		requirements: ", {key: node.kubernetes.io/instance-type, operator: In, values: [c1.4VCPU-8GB]}",
	})
	w.pool(poolConfig{name: "any", budgets: "100%"})
	alike, free := on(karpv1.NodePoolLabelKey, "alike"), on(karpv1.NodePoolLabelKey, "any")
	w.pods("holder", nodes, "50m", "32Mi", func(pod *corev1.Pod) { alone("holder")(&pod.Spec); alike(&pod.Spec) })
	w.pods("big", 1, "3", "256Mi", func(pod *corev1.Pod) { free(&pod.Spec) })
	w.deployment("small", 1, "300m", free)
	w.running("holder", nodes, 4*time.Minute)
	w.running("small", 1, time.Minute)
	w.initialized(time.Minute)
	w.deployment("web", pods, fmt.Sprintf("%dm", milliCPU), alike)
	w.comesTo("web", pods, nodes+1, 2*time.Minute)
	w.usedBy("alike", "web", milliCPU)
	optimum := w.fewest("alike", pods, milliCPU)
	if size := w.nodesIn("any")[0].Labels[corev1.LabelInstanceTypeStable]; optimum != 4 || size != "c1.4VCPU-8GB" {
		t.Fatalf("the optimum is %d nodes, and the node to replace has type %s: adjust the test's numbers", optimum, size)
	}

	for _, app := range []string{"holder", "big"} {
		if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default"), client.MatchingLabels{"app": app}); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually(5*time.Minute, func(ctx context.Context) string {
		if left := w.nodesIn("any"); len(left) != 1 || left[0].Labels[corev1.LabelInstanceTypeStable] != "t1.1VCPU-3GB" {
			return fmt.Sprintf("%d nodes exist for the small pod, or its node is too large", len(left))
		}
		return ""
	})
	w.running("small", 1, time.Minute)
	w.comesTo("web", pods, optimum+1, 5*time.Minute)
	// In two more rounds, provisioning does not revert the consolidation, and consolidation
	// does not continue.
	kept := w.vmids()
	w.remains(20*time.Second, w.same(kept))
	if made := w.everMade(); made != nodes+2 {
		t.Errorf("%d VMs were created, want %d and a smaller one: moved pods fit on existing nodes", made, nodes+1)
	}
	w.keepsTwo("alike", "web")
	w.buffers("alike", "web", 12, 3)
}

// TestDrift checks that a change of the tags replaces no node, and that a change of the
// disk's size replaces all nodes, one at a time as required by the budget.
func TestDrift(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "1", class: ", bootDevice: {size: 40G}"})
	w.deployment("web", 2, "300m", alone("web"))
	w.comesTo("web", 2, 2, 3*time.Minute)
	w.initialized(time.Minute)

	first := w.vmids()
	w.patch(&v1alpha1.ProxmoxNodeClass{}, "workers", `{"spec":{"tags":["blue"]}}`)
	w.patch(&appsv1.Deployment{}, "web", `{"spec":{"replicas":3}}`)
	w.comesTo("web", 3, 3, 2*time.Minute)
	w.initialized(time.Minute)
	second := w.vmids()
	w.allHaveTag(first, "blue")
	// The check lasts longer than a disruption round.
	w.remains(15*time.Second, w.same(second))

	disrupted, up := w.disrupted(), w.up("web", 3)
	w.patch(&v1alpha1.ProxmoxNodeClass{}, "workers", `{"spec":{"bootDevice":{"size":"48G"}}}`)
	w.eventually(5*time.Minute, func(ctx context.Context) string {
		for name := range w.ours() {
			if _, old := second[name]; old {
				return "VM " + name + " still exists"
			}
		}
		return ""
	})
	w.comesTo("web", 3, 3, time.Minute)
	w.oneAtATime(disrupted, up, 3)
	for name, guest := range w.ours() {
		config, _ := w.proxmox.Guest(guest.VMID)
		if disk := config.Config["scsi0"]; !strings.Contains(disk, "size=48G") {
			t.Errorf("VM %s has the disk %q, want one of 48G", name, disk)
		}
	}
	if made := w.everMade(); made != 6 {
		t.Errorf("%d VMs were created, want 3 and a replacement for each", made)
	}
}

// allHaveTag waits until all VMs have a tag, and checks that no VM was replaced: running
// VMs get the tag in place.
func (w *world) allHaveTag(before map[string]int, tag string) {
	w.t.Helper()
	w.eventually(time.Minute, func(context.Context) string {
		for name, vmid := range w.vmids() {
			guest, _ := w.proxmox.Guest(vmid)
			if !slices.Contains(strings.Split(guest.Config["tags"], ";"), tag) {
				return fmt.Sprintf("VM %s has tags %q, want %s among them", name, guest.Config["tags"], tag)
			}
		}
		return ""
	})
	now := w.vmids()
	for name, vmid := range before {
		guest, _ := w.proxmox.Guest(vmid)
		if now[name] != vmid || !guest.Running {
			w.t.Errorf("VM %s has VMID %d and runs: %t, want %d, running: only tags changed", name, now[name], guest.Running, vmid)
		}
	}
}

// TestExpiryAndGracePeriod checks that a node is replaced after it expires, and that a
// deleted node, whose pod a PodDisruptionBudget protects, remains until its grace period
// ends.
func TestExpiryAndGracePeriod(t *testing.T) {
	enginetest.Nightly(t)
	const grace = 25 * time.Second
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.pool(poolConfig{name: "short", budgets: "100%", template: "expireAfter: 60s"})
	w.pool(poolConfig{name: "stubborn", budgets: "100%", template: "terminationGracePeriod: " + grace.String()})
	w.deployment("web", 1, "300m", on(karpv1.NodePoolLabelKey, "short"))
	w.deployment("db", 1, "300m", on(karpv1.NodePoolLabelKey, "stubborn"), func(spec *corev1.PodSpec) {
		spec.TerminationGracePeriodSeconds = new(int64(2))
	})
	w.manifest(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {namespace: default, name: db}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: db}}}
`)
	w.running("web", 1, 3*time.Minute)
	w.running("db", 1, time.Minute)
	expiring, stubborn := w.onlyClaim("short"), w.onlyClaim("stubborn")
	before, err := w.runningPods(context.Background(), "db")
	if err != nil {
		t.Fatal(err)
	}

	if err := w.api.Delete(context.Background(), stubborn); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	w.remains(grace/2, func(ctx context.Context) string {
		now, err := w.runningPods(ctx, "db")
		if err != nil {
			return err.Error()
		}
		for name := range before {
			if now[name] == nil {
				return fmt.Sprintf("pod %s stopped %s after the deletion of its node, although its PDB forbids eviction", name, time.Since(asked))
			}
		}
		return ""
	})
	w.hasGone(stubborn, 2*time.Minute)
	if took := time.Since(asked); took < grace-3*time.Second {
		t.Errorf("node %s was deleted after %s, although its grace period is %s", stubborn.Status.NodeName, took, grace)
	}
	w.running("db", 1, time.Minute)

	w.hasGone(expiring, 3*time.Minute)
	if life := time.Since(expiring.CreationTimestamp.Time); life < 60*time.Second {
		t.Errorf("node %s was deleted after %s, before it expired", expiring.Status.NodeName, life)
	}
	w.running("web", 1, time.Minute)
}

// onlyClaim returns the only NodeClaim of a NodePool.
func (w *world) onlyClaim(pool string) *karpv1.NodeClaim {
	w.t.Helper()
	var claims karpv1.NodeClaimList
	if err := w.api.List(context.Background(), &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
		w.t.Fatal(err)
	}
	if len(claims.Items) != 1 {
		w.t.Fatalf("NodePool %s has %d nodeclaims, want one", pool, len(claims.Items))
	}
	return &claims.Items[0]
}

// hasGone waits until a NodeClaim, its Node and its VM are deleted.
func (w *world) hasGone(claim *karpv1.NodeClaim, limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		for _, object := range []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}} {
			name := claim.Name
			if _, node := object.(*corev1.Node); node {
				name = claim.Status.NodeName
			}
			if err := w.api.Get(ctx, client.ObjectKey{Name: name}, object); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Sprintf("%T %s still exists (%v)", object, name, err)
			}
		}
		if _, exists := w.ours()[claim.Annotations[v1alpha1.AnnotationVM]]; exists {
			return "its VM still exists"
		}
		return ""
	})
}

// TestEvacuate checks that the VM of an evacuated host is replaced on another host, that
// the evacuated host gets no new VMs, and that it gets VMs again after the evacuation.
func TestEvacuate(t *testing.T) {
	enginetest.Nightly(t)
	const host = "pve-1"
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "1"})
	w.pool(poolConfig{name: "first", budgets: "1", class: ", hosts: [pve-1]"})
	w.deployment("web", 2, "300m", alone("web"), on(karpv1.NodePoolLabelKey, "workers"), spreadIfPossible("web"))
	w.comesTo("web", 2, 2, 3*time.Minute)
	w.initialized(time.Minute)
	if diff := cmp.Diff([]string{"pve-1", "pve-2"}, w.hostsWithVMs()); diff != "" {
		t.Fatalf("hosts with VMs (-want +got):\n%s", diff)
	}
	disrupted, up := w.disrupted(), w.up("web", 2)

	w.numaform("evacuate", host)
	w.marked(host)
	w.eventually(3*time.Minute, func(ctx context.Context) string {
		if slices.Contains(w.hostsWithVMs(), host) {
			return "VMs are still on the host"
		}
		return ""
	})
	w.comesTo("web", 2, 2, time.Minute)
	w.oneAtATime(disrupted, up, 2)
	made := w.everMade()
	if made != 3 {
		t.Errorf("%d VMs were created, want 2 and a replacement", made)
	}
	w.pods("pinned", 1, "300m", "256Mi", func(pod *corev1.Pod) { on(karpv1.NodePoolLabelKey, "first")(&pod.Spec) })
	w.remains(12*time.Second, func(context.Context) string {
		if now := w.everMade(); now != made {
			return fmt.Sprintf("%d VMs were created, want %d: a node was created on the evacuated host", now, made)
		}
		return ""
	})

	w.numaform("evacuate", host, "--end")
	w.marked()
	w.running("pinned", 1, 2*time.Minute)
	if diff := cmp.Diff([]string{"pve-1", "pve-2"}, w.hostsWithVMs()); diff != "" {
		t.Errorf("hosts with VMs (-want +got):\n%s", diff)
	}
}

// marked waits until exactly the NodeClaims on the given hosts have the annotation that
// makes them drifted. Karpenter checks drift when a NodeClaim changes, and every 5 minutes.
func (w *world) marked(hosts ...string) {
	w.t.Helper()
	w.eventually(30*time.Second, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			host := claims.Items[i].Labels[corev1.LabelTopologyZone]
			if _, marked := claims.Items[i].Annotations[v1alpha1.AnnotationEvacuated]; marked != slices.Contains(hosts, host) {
				return fmt.Sprintf("nodeclaim %s on %s is marked as drifted: %t", claims.Items[i].Name, host, marked)
			}
		}
		return ""
	})
}

// spreadIfPossible makes pods prefer different hosts.
func spreadIfPossible(app string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}
	}
}

// TestPause checks that numaform, if it is paused while a VM is being cloned, completes the
// clone and starts nothing else. It also checks that, if the state backend is down when
// numaform resumes, events and the NodePool report the outage, and the next VM is not
// created until the outage ends.
func TestPause(t *testing.T) {
	w := newWorld(t, worldConfig{
		hosts: largeHosts(t), delays: pvesim.Delays{Clone: 8 * time.Second}, states: testenv.HTTPState(t),
	})
	w.start()
	w.pool(poolConfig{name: "workers", budgets: "100%"})
	w.pods("early", 1, "700m", "256Mi")
	w.eventually(2*time.Minute, func(context.Context) string {
		if w.everMade() == 0 {
			return "no VM is being cloned"
		}
		return ""
	})
	w.numaform("pause")
	w.eventually(30*time.Second, func(context.Context) string {
		if !w.controller.log.contains("received a request to pause or resume") {
			return "the controller did not read the pause request"
		}
		return ""
	})
	if out, err := (&scene{world: w}).numaform("status"); err != nil || !strings.Contains(out, "by admin: the controller starts no changes") {
		t.Errorf("status does not show the pause (%v):\n%s", err, out)
	}
	w.pods("late", 1, "1700m", "256Mi") // too large for the node of the other pod
	w.eventually(2*time.Minute, func(context.Context) string {
		for _, guest := range w.proxmox.Guests() {
			if guest.Running {
				return ""
			}
		}
		return "the VM that was being cloned does not run"
	})
	w.remains(12*time.Second, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		if made := w.everMade(); made != 1 || len(claims.Items) != 1 {
			return fmt.Sprintf("%d VMs were created and %d nodeclaims exist while numaform is paused, want one of each", made, len(claims.Items))
		}
		return ""
	})
	w.nothingHeld()
	w.states.Refuse("GET", "POST", "LOCK", "UNLOCK")
	w.numaform("resume")
	w.outageIsReported("late", "workers")
	if made := w.everMade(); made != 1 {
		t.Errorf("%d VMs were created before and during the outage, want 1", made)
	}
	w.states.Refuse()
	w.running("early", 1, 2*time.Minute)
	w.running("late", 1, 2*time.Minute)
	w.scalesUp("workers")
	if made := w.everMade(); made != 2 {
		t.Errorf("%d VMs were created, want 2", made)
	}
}

// nothingHeld waits until the backend contains no lock.
func (w *world) nothingHeld() {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		left, err := w.leftInBackend(ctx)
		if err != nil {
			return err.Error()
		}
		left = slices.DeleteFunc(left, func(what string) bool { return !strings.HasPrefix(what, "lock ") })
		return strings.Join(left, ", ")
	})
}
