package real_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/garbage"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// registrationTimeout is the time after which Karpenter deletes a NodeClaim whose Node has
// not registered, and firstDelay the time after which numaform creates another VM of its
// class.
const (
	registrationTimeout = 15 * time.Minute
	firstDelay          = time.Minute
)

// faultLimit is the time limit for a fault to have its effect. All faults share the machine.
const faultLimit = 12 * time.Minute

// faults is a world whose guests fail. Each fault has its own class and NodePool.
type faults struct {
	*world
	// boots limits how many guests boot at once: on a machine with few CPUs, each of many
	// would need longer to join than it may.
	boots chan struct{}
}

// TestGuestFaults injects faults into guests and their processes, all in one cluster, and
// checks that each of them ends as docs/faults.md says, and that nothing is left in the end.
func TestGuestFaults(t *testing.T) {
	enginetest.Nightly(t)
	hosts := []topology.Host{numaHost(t, "one", 9001, 1, 16), numaHost(t, "two", 9002, 1, 16)}
	w := newWorld(t, hosts, smallType)
	boots := make(chan struct{}, 2)
	t.Run("faults", func(t *testing.T) {
		for _, fault := range []struct {
			name   string
			inject func(f *faults)
		}{
			{"hangs", (*faults).hangsAtBoot},
			{"registering", (*faults).killedDuringRegistration},
			{"during", (*faults).killedDuringJoin},
			{"token", (*faults).tokenExpires},
			{"after", (*faults).killedAfterJoin},
			{"disk", (*faults).diskIsFull},
			{"clock", (*faults).clockIsWrong},
			{"before", (*faults).killedBeforeJoin},
			{"cloudinit", (*faults).cloudInitFails},
			{"kubelet", (*faults).kubeletExits},
		} {
			t.Run(fault.name, func(t *testing.T) {
				t.Parallel()
				copied := *w
				copied.t, copied.began = t, time.Now()
				fault.inject(&faults{world: &copied, boots: boots})
			})
		}
	})
	w.eventually(faultLimit, func(ctx context.Context) string {
		left, err := w.left(ctx)
		if err != nil {
			return err.Error()
		}
		if len(left) > 0 {
			return "left: " + strings.Join(left, ", ")
		}
		return ""
	})
}

// hangsAtBoot pauses a VM right after its start, and waits until it is replaced.
func (f *faults) hangsAtBoot() {
	const name = "hangs"
	f.pool(name, "", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	first := f.launchedIn(name)
	f.signal(first.vmid, syscall.SIGSTOP)
	f.neverJoins(first, registrationTimeout+2*time.Minute, "its VM is running, but its kubelet never reached the API server")
	if lived := time.Since(first.claim.CreationTimestamp.Time); lived < registrationTimeout {
		f.t.Errorf("NodeClaim %s was given up after %s, want %s", first.claim.Name, lived, registrationTimeout)
	}
	gaveUp := time.Now()
	second := f.launchedIn(name, first)
	if delay := second.claim.CreationTimestamp.Sub(gaveUp); delay < firstDelay-15*time.Second {
		f.t.Errorf("the next NodeClaim was created after %s, want about %s", delay, firstDelay)
	}
	f.isGone(first)
	f.runs(name, second.vmid)
	f.deletePod(name)
	f.isGone(second)
}

// killedBeforeJoin kills QEMU while the guest boots.
func (f *faults) killedBeforeJoin() {
	const name = "before"
	booted := f.boot()
	f.pool(name, "", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	vm := f.launchedIn(name)
	f.reaches(vm, "Linux version")
	f.kill(vm.vmid)
	booted()
	f.deletePod(name)
	f.age(vm)
	f.neverJoins(vm, soon+time.Minute, "is not running")
	f.isGone(vm)
}

// killedDuringJoin kills QEMU once kubelet has requested its certificate. The pod runs in
// the next VM.
func (f *faults) killedDuringJoin() {
	const name = "during"
	booted := f.boot()
	f.pool(name, "", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	first := f.launchedIn(name)
	f.eventually(joinLimit, func(ctx context.Context) string {
		requests, err := f.requests(ctx, first.claim.Name)
		if err != nil {
			return err.Error()
		}
		if len(requests) == 0 {
			return "the kubelet of " + first.claim.Name + " has not requested a certificate"
		}
		return ""
	})
	f.kill(first.vmid)
	if err := f.api.Get(f.t.Context(), client.ObjectKey{Name: first.claim.Name}, &corev1.Node{}); err == nil {
		f.t.Errorf("node %s registered before its VM was killed", first.claim.Name)
	}
	f.age(first)
	f.neverJoins(first, soon+time.Minute, "is not running")
	second := f.launchedIn(name, first)
	f.isGone(first)
	f.runs(name, second.vmid)
	booted()
	f.deletePod(name)
	f.isGone(second)
}

// killedDuringRegistration kills QEMU once the Node has registered, before it is ready.
func (f *faults) killedDuringRegistration() {
	const name = "registering"
	booted := f.boot()
	f.pool(name, "", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	first := f.launchedIn(name)
	f.eventually(joinLimit, func(ctx context.Context) string {
		var node corev1.Node
		if err := f.api.Get(ctx, client.ObjectKey{Name: first.claim.Name}, &node); err != nil {
			return err.Error()
		}
		return ""
	})
	f.kill(first.vmid)
	f.unreachable(first.claim.Name)
	f.ageNode(first)
	f.notified(first, garbage.ReasonNeverJoined, soon+time.Minute, "has registered, but was not ready within 15m0s: its VM registering-")
	second := f.launchedIn(name, first)
	f.isGone(first)
	f.runs(name, second.vmid)
	booted()
	f.deletePod(name)
	f.isGone(second)
}

// killedAfterJoin kills QEMU while a pod runs in the guest. The pod's ReplicaSet creates
// another pod, which runs in another VM. The first VM remains stopped until its Node is
// deleted: Karpenter counts a node that is not ready as disrupted, so the default budget of a
// small NodePool does not allow its removal. The other pod of the ReplicaSet stays where it
// is; without any ready node, Kubernetes would evict no pods.
func (f *faults) killedAfterJoin() {
	const name = "after"
	booted := f.boot()
	f.pool(name, "", "")
	f.replicated(name, 2)
	first := f.launchedIn(name)
	other := f.launchedIn(name, first)
	f.replicaRuns(name, first)
	f.replicaRuns(name, other)
	f.kill(first.vmid)
	f.unreachable(first.claim.Name)
	second := f.launchedIn(name, first, other)
	f.replicaRuns(name, second)
	booted()
	if guest, exists := f.proxmox.Guest(first.vmid); !exists || guest.Running {
		f.t.Errorf("the killed VM exists: %t, runs: %t, want it stopped", exists, guest.Running)
	}
	if err := f.api.Delete(f.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: first.claim.Name}}); err != nil {
		f.t.Fatal(err)
	}
	f.stage("node %s is deleted", first.claim.Name)
	f.isGone(first)
	f.replicaRuns(name, other)
	f.deleteReplicas(name)
	f.isGone(second)
	f.isGone(other)
}

// cloudInitFails gives a guest user-data whose first step fails, so that cloud-init writes
// none of kubelet's files.
func (f *faults) cloudInitFails() {
	const name = "cloudinit"
	f.brokenGuest(name, "write_files:\n", "write_files:\n- path: /proc/version/file\n  content: x\n", func(vm *vm) string {
		said := f.inGuest(vm.vmid, "cloud-init status --long || true; ls /var/lib/kubelet || true")
		if !strings.Contains(said, "write_files") && !strings.Contains(said, "write-files") || strings.Contains(said, "config.yaml") {
			return "cloud-init has not failed: " + said
		}
		return ""
	})
}

// kubeletExits gives a guest a kubelet that exits at each start.
func (f *faults) kubeletExits() {
	const name = "kubelet"
	f.brokenGuest(name, "runcmd:\n", "bootcmd:\n- [mount, --bind, /bin/false, /usr/bin/kubelet]\nruncmd:\n", func(vm *vm) string {
		restarts := strings.TrimSpace(f.inGuest(vm.vmid, "systemctl show --property NRestarts --value kubelet"))
		if n, err := strconv.Atoi(restarts); err != nil || n < 2 {
			return "kubelet was restarted " + restarts + " times"
		}
		return ""
	})
}

// brokenGuest starts a VM with numaform's own user-data, in which old is replaced by broken,
// waits until seen, which looks into the guest, returns "", and checks that the VM is removed.
func (f *faults) brokenGuest(name, old, broken string, seen func(vm *vm) string) {
	f.t.Helper()
	booted := f.boot()
	f.userData(name, old, broken)
	f.pool(name, ", templatesRef: {name: "+name+"}", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	vm := f.launchedIn(name)
	f.reaches(vm, "running 'modules:final'")
	f.eventually(joinLimit, func(context.Context) string { return seen(vm) })
	f.stage("the guest of %s fails", vm.claim.Name)
	booted()
	f.deletePod(name)
	f.age(vm)
	f.neverJoins(vm, soon+time.Minute, "its VM is running, but its kubelet never reached the API server")
	f.isGone(vm)
}

// tokenExpires pauses a guest during its boot until its token has expired. The guest does not
// wait for its turn to boot, because its NodeClaim would time out.
func (f *faults) tokenExpires() {
	const name, ttl = "token", 5 * time.Minute
	f.pool(name, "", "  tokenTTL: 5m")
	f.pod(name, "100m", "64Mi", inPool(name))
	vm := f.launchedIn(name)
	f.signal(vm.vmid, syscall.SIGSTOP)
	expires := vm.claim.CreationTimestamp.Add(ttl + 30*time.Second)
	f.eventually(ttl+time.Minute, func(context.Context) string {
		if left := time.Until(expires); left > 0 {
			return fmt.Sprintf("the token expires in %s", left)
		}
		return ""
	})
	f.signal(vm.vmid, syscall.SIGCONT)
	f.eventually(joinLimit, func(ctx context.Context) string {
		requests, err := f.requests(ctx, vm.claim.Name)
		if err != nil {
			return err.Error()
		}
		for i := range requests {
			if len(requests[i].Status.Certificate) > 0 {
				f.t.Fatalf("VM %s got a certificate with an expired token", vm.claim.Name)
			}
			if len(requests[i].Status.Conditions) > 0 {
				f.stage("certificate request of %s: %s", vm.claim.Name, requests[i].Status.Conditions[0].Message)
			}
		}
		said, err := f.tryInGuest(vm.vmid, 2*time.Minute, "journalctl --unit kubelet --no-pager --lines 200")
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(said, "Unauthorized") && !strings.Contains(said, "denied") {
			return "kubelet has not been refused: " + said
		}
		return ""
	})
	f.stage("the kubelet of %s is refused", vm.claim.Name)
	f.deletePod(name)
	f.age(vm)
	f.neverJoins(vm, soon+time.Minute, "its kubelet never reached the API server")
	f.isGone(vm)
}

// clockIsWrong boots a guest whose clock is years behind: kubelet joins once the clock is
// right. Afterwards it kills kubelet, and sets the clock wrong again. The pod and its node
// remain.
func (f *faults) clockIsWrong() {
	const name = "clock"
	booted := f.boot()
	f.userData(name, "runcmd:\n", "bootcmd:\n- [date, --set, '2020-01-01 00:00:00']\nruncmd:\n")
	f.pool(name, ", templatesRef: {name: "+name+"}", "")
	f.pod(name, "100m", "64Mi", inPool(name))
	vm := f.launchedIn(name)
	f.reaches(vm, "running 'modules:final'")
	f.eventually(joinLimit, func(context.Context) string {
		said, err := f.tryInGuest(vm.vmid, 2*time.Minute, "journalctl --unit kubelet --no-pager --lines 200")
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(said, "certificate has expired or is not yet valid") {
			return "kubelet does not report the wrong clock: " + said
		}
		return ""
	})
	f.stage("kubelet of %s reports the wrong clock", vm.claim.Name)
	f.setClock(vm, time.Now())
	f.runs(name, vm.vmid)
	booted()

	for range 3 {
		before := f.heartbeat(vm)
		restarts := f.inGuest(vm.vmid, "systemctl kill --signal KILL kubelet; systemctl show --property NRestarts --value kubelet")
		f.eventually(joinLimit, func(ctx context.Context) string {
			if now := f.inGuest(vm.vmid, "systemctl show --property NRestarts --value kubelet"); now == restarts {
				return "systemd has not restarted kubelet"
			}
			if !f.heartbeat(vm).After(before) {
				return "kubelet has not renewed its lease after its restart"
			}
			return ""
		})
	}
	f.stage("kubelet of %s was killed three times", vm.claim.Name)
	f.ready(vm.claim.Name)

	f.setClock(vm, time.Now().Add(-2*time.Hour))
	f.inGuest(vm.vmid, "systemctl kill --signal KILL kubelet")
	f.unreachable(vm.claim.Name)
	f.setClock(vm, time.Now())
	f.inGuest(vm.vmid, "systemctl restart kubelet")
	f.ready(vm.claim.Name)
	f.runs(name, vm.vmid)
	var claims karpv1.NodeClaimList
	if err := f.api.List(f.t.Context(), &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: name}); err != nil {
		f.t.Fatal(err)
	}
	if len(claims.Items) != 1 || claims.Items[0].UID != vm.claim.UID {
		f.t.Errorf("pool %s has %d NodeClaims, want only the first", name, len(claims.Items))
	}
	f.deletePod(name)
	f.isGone(vm)
}

// diskIsFull fills the disk of a guest in which a pod runs. Kubelet evicts the pod; the
// ReplicaSet's next pod runs in another VM, and the first VM is removed because it is empty.
func (f *faults) diskIsFull() {
	const name = "disk"
	booted := f.boot()
	f.pool(name, "", "")
	f.replicated(name, 1)
	first := f.launchedIn(name)
	f.replicaRuns(name, first)
	f.inGuest(first.vmid, "fallocate --length $(($(df --output=avail --block-size=1 / | tail -1) - 64 * 1024 * 1024)) /var/full")
	f.eventually(faultLimit, func(ctx context.Context) string {
		var node corev1.Node
		if err := f.api.Get(ctx, client.ObjectKey{Name: first.claim.Name}, &node); err != nil {
			return err.Error()
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeDiskPressure && condition.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return "node " + first.claim.Name + " does not report that its disk is full"
	})
	f.stage("node %s reports that its disk is full", first.claim.Name)
	second := f.launchedIn(name, first)
	f.replicaRuns(name, second)
	booted()
	f.isGone(first)
	f.deleteReplicas(name)
	f.isGone(second)
}

// boot waits until another guest may boot. Call booted once it, and any guest that replaces
// it, has.
func (f *faults) boot() (booted func()) {
	select {
	case f.boots <- struct{}{}:
	case <-f.t.Context().Done():
		f.t.FailNow()
	}
	booted = sync.OnceFunc(func() { <-f.boots })
	f.t.Cleanup(booted)
	f.began = time.Now()
	return booted
}

// pool creates a class and a NodePool with this name. metadata are further fields of the
// class's metadata, and spec further fields of its spec.
func (f *faults) pool(name, metadata, spec string) {
	f.t.Helper()
	f.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec:
  template: {name: %[2]s}
  clone: linked
  metadata: {type: cdrom%[3]s}
%[4]s
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements: []
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 5s}
`, name, testenv.Template, metadata, spec))
}

// inPool makes a pod select the nodes of a pool.
func inPool(pool string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: pool} }
}

// userData creates a Secret with numaform's own user-data, in which old is replaced.
func (f *faults) userData(name, old, replacement string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(enginetest.ModuleRoot(f.t), "internal", "bootstrap", "defaults", "user-data.tmpl"))
	if err != nil {
		f.t.Fatal(err)
	}
	if strings.Count(string(text), old) != 1 {
		f.t.Fatalf("user-data.tmpl does not contain %q once", old)
	}
	err = f.api.Create(f.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{"user-data": strings.Replace(string(text), old, replacement, 1)},
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// replicated creates a ReplicaSet of pods in the pool of the same name, each on a node of its
// own. The pods leave a node that is not ready after five seconds.
func (f *faults) replicated(name string, replicas int32) {
	f.t.Helper()
	seconds, labels := int64(5), map[string]string{"app": name}
	spec := corev1.PodSpec{
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
			}},
		}},
		NodeSelector: map[string]string{karpv1.NodePoolLabelKey: name},
		Containers:   []corev1.Container{{Name: "pause", Image: pause, ImagePullPolicy: corev1.PullNever}},
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	err := f.api.Create(f.t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// replicaRuns waits until a pod of a ReplicaSet runs in a VM.
func (f *faults) replicaRuns(name string, vm *vm) {
	f.t.Helper()
	f.eventually(joinLimit, func(ctx context.Context) string {
		var pods corev1.PodList
		if err := f.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": name}); err != nil {
			return err.Error()
		}
		var states []string
		for i := range pods.Items {
			pod := &pods.Items[i]
			ready := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Ready })
			if ready && pod.DeletionTimestamp.IsZero() && pod.Spec.NodeName == vm.claim.Name {
				return ""
			}
			states = append(states, fmt.Sprintf("%s on %q: %s %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Reason))
		}
		return fmt.Sprintf("no pod of %s runs on %s: %s", name, vm.claim.Name, strings.Join(states, ", "))
	})
	f.stage("a pod of %s runs in %s", name, vm.claim.Name)
}

// deleteReplicas deletes a ReplicaSet with its pods.
func (f *faults) deleteReplicas(name string) {
	f.t.Helper()
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := f.api.Delete(f.t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		f.t.Fatal(err)
	}
}

// vm is a VM and the NodeClaim for which it was created.
type vm struct {
	vmid  int
	claim *karpv1.NodeClaim
}

// launchedIn waits until a VM of a pool runs, other than these.
func (f *faults) launchedIn(pool string, others ...*vm) *vm {
	f.t.Helper()
	found := &vm{}
	f.eventually(faultLimit, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := f.api.List(ctx, &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			claim := &claims.Items[i]
			known := slices.ContainsFunc(others, func(other *vm) bool { return other.claim.UID == claim.UID })
			_, vmid, err := fleet.ParseProviderID(claim.Status.ProviderID)
			if known || err != nil {
				continue
			}
			if guest, exists := f.proxmox.Guest(int(vmid)); exists && guest.Running && guest.Config["name"] == claim.Name {
				found.vmid, found.claim = int(vmid), claim
				return ""
			}
		}
		return fmt.Sprintf("no VM of pool %s runs", pool)
	})
	f.stage("VM %d (%s) runs", found.vmid, found.claim.Name)
	return found
}

// reaches waits until a guest has reached a milestone of its boot.
func (f *faults) reaches(vm *vm, text string) {
	f.t.Helper()
	boots := f.milestones(vm.vmid)
	f.eventually(joinLimit, func(context.Context) string {
		boots()
		console, err := f.console(vm.vmid)
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(console, text) {
			return fmt.Sprintf("the console of VM %d does not contain %q", vm.vmid, text)
		}
		return ""
	})
}

// signal sends a signal to the process of a VM.
func (w *world) signal(vmid int, signal syscall.Signal) {
	w.t.Helper()
	guest, _ := w.proxmox.Guest(vmid)
	var current struct{ PID int }
	path := fmt.Sprintf("/nodes/%s/qemu/%d/status/current", guest.Host, vmid)
	if err := w.request(w.t.Context(), http.MethodGet, path, nil, &current); err != nil {
		w.t.Fatal(err)
	}
	if current.PID == 0 {
		w.t.Fatalf("VM %d has no process", vmid)
	}
	if err := syscall.Kill(current.PID, signal); err != nil {
		w.t.Fatal(err)
	}
	w.stage("VM %d got the signal %q", vmid, signal)
}

// kill kills the process of a VM with SIGKILL.
func (f *faults) kill(vmid int) {
	f.t.Helper()
	f.signal(vmid, syscall.SIGKILL)
	f.eventually(time.Minute, func(context.Context) string {
		if guest, _ := f.proxmox.Guest(vmid); guest.Running {
			return fmt.Sprintf("VM %d still runs", vmid)
		}
		return ""
	})
}

// soon is the time that is left to a NodeClaim after age.
const soon = 30 * time.Second

// age lets the time until the timeout of a NodeClaim whose Node has not registered pass,
// except for the last moments.
func (f *faults) age(vm *vm) {
	f.t.Helper()
	f.ageCondition(vm, karpv1.ConditionTypeRegistered)
}

// ageNode makes the same time pass for a NodeClaim whose Node has registered, but is not
// ready.
func (f *faults) ageNode(vm *vm) {
	f.t.Helper()
	f.ageCondition(vm, karpv1.ConditionTypeRegistered)
	f.eventually(time.Minute, func(ctx context.Context) string {
		var node corev1.Node
		if err := f.api.Get(ctx, client.ObjectKey{Name: vm.claim.Name}, &node); err != nil {
			return err.Error()
		}
		for i := range node.Status.Conditions {
			if condition := &node.Status.Conditions[i]; condition.Type == corev1.NodeReady {
				condition.LastTransitionTime = metav1.NewTime(time.Now().Add(soon - registrationTimeout))
			}
		}
		if err := f.api.Status().Update(ctx, &node); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (f *faults) ageCondition(vm *vm, kind string) {
	f.t.Helper()
	f.eventually(time.Minute, func(ctx context.Context) string {
		var claim karpv1.NodeClaim
		if err := f.api.Get(ctx, client.ObjectKeyFromObject(vm.claim), &claim); err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(claim.Status.Conditions, func(c status.Condition) bool { return c.Type == kind })
		if i < 0 {
			return "NodeClaim " + claim.Name + " has no condition " + kind
		}
		claim.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(soon - registrationTimeout))
		if err := f.api.Status().Update(ctx, &claim); err != nil {
			return err.Error()
		}
		return ""
	})
	f.stage("the timeout of NodeClaim %s passes in %s", vm.claim.Name, soon)
}

// neverJoins waits until numaform reports that the Node of a VM never joined, and why.
func (f *faults) neverJoins(vm *vm, limit time.Duration, why string) {
	f.t.Helper()
	f.notified(vm, garbage.ReasonNeverJoined, limit, why)
	requests, err := f.requests(f.t.Context(), vm.claim.Name)
	if err != nil {
		f.t.Fatal(err)
	}
	f.stage("NodeClaim %s has failed after %d certificate requests", vm.claim.Name, len(requests))
}

// notified waits for an event on the NodeClaim of a VM.
func (f *faults) notified(vm *vm, reason string, limit time.Duration, words string) {
	f.t.Helper()
	f.eventually(limit, func(ctx context.Context) string {
		var events corev1.EventList
		if err := f.api.List(ctx, &events); err != nil {
			return err.Error()
		}
		var said []string
		for i := range events.Items {
			event := &events.Items[i]
			if event.InvolvedObject.UID != vm.claim.UID {
				continue
			}
			if event.Reason == reason && strings.Contains(event.Message, words) {
				f.stage("event %s: %s", event.Reason, event.Message)
				return ""
			}
			said = append(said, event.Reason+": "+event.Message)
		}
		return fmt.Sprintf("no event %s on NodeClaim %s contains %q; events:\n%s", reason, vm.claim.Name, words, strings.Join(said, "\n"))
	})
}

// isGone waits until nothing of a VM is left in Kubernetes, in Proxmox and in the fleet.
func (f *faults) isGone(vm *vm) {
	f.t.Helper()
	key := vm.claim.Annotations[v1alpha1.AnnotationKey]
	f.eventually(faultLimit, func(ctx context.Context) string {
		left, err := f.left(ctx)
		if err != nil {
			return err.Error()
		}
		var claim karpv1.NodeClaim
		err = f.api.Get(ctx, client.ObjectKeyFromObject(vm.claim), &claim)
		if client.IgnoreNotFound(err) != nil {
			return err.Error()
		}
		reused := err == nil && claim.UID != vm.claim.UID // by another VM with the same VMID
		left = slices.DeleteFunc(left, func(what string) bool {
			own := strings.HasSuffix(what, jointoken.RecordName(vm.claim.UID)) || strings.Contains(what, fmt.Sprintf("-%d-%s", vm.vmid, key[:8]))
			named := strings.HasSuffix(strings.TrimSuffix(what, ".tf"), vm.claim.Name)
			return !own && (!named || reused)
		})
		if len(left) > 0 {
			return fmt.Sprintf("left of VM %d: %s", vm.vmid, strings.Join(left, ", "))
		}
		return ""
	})
	f.stage("nothing is left of VM %d (%s)", vm.vmid, vm.claim.Name)
}

// unreachable waits until Kubernetes reports that kubelet no longer responds.
func (f *faults) unreachable(node string) {
	f.t.Helper()
	f.becomes(node, corev1.ConditionUnknown, 5*time.Minute)
	f.stage("node %s is unreachable", node)
}

// heartbeat returns when kubelet last renewed its lease, by the clock of its guest.
func (f *faults) heartbeat(vm *vm) (renewed time.Time) {
	f.t.Helper()
	var lease coordinationv1.Lease
	err := f.api.Get(f.t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: vm.claim.Name}, &lease)
	if err != nil || lease.Spec.RenewTime == nil {
		f.t.Fatal(errors.Join(err, fmt.Errorf("node %s has no renewed lease", vm.claim.Name)))
	}
	return lease.Spec.RenewTime.Time
}

// setClock sets the clock of a guest.
func (f *faults) setClock(vm *vm, to time.Time) {
	f.t.Helper()
	f.inGuest(vm.vmid, fmt.Sprintf("date --set @%d", to.Unix()))
	f.stage("the clock of %s is %s", vm.claim.Name, to.UTC().Format(time.RFC3339))
}
