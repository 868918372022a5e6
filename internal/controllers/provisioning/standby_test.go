package provisioning_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/provisioning"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// standbyWorld returns a controller with a standby buffer of the given number of replicas,
// each of 1500m CPU. The snapshot has a guest for each VM that was created; the guests of
// standby VMs are stopped.
func standbyWorld(t *testing.T, replicas int32, pool string) *world {
	t.Helper()
	w := newWorld(t, nil, pool)
	w.writer.made = map[fleet.Key]bool{}
	cache := w.buffer(t, replicas)
	w.patchBuffer(t, func(b *autoscalingv1beta1.CapacityBuffer) {
		strategy := v1alpha1.StandbyStrategy
		b.Spec.ProvisioningStrategy = &strategy
	})
	var template corev1.PodTemplate
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "three"}, &template); err != nil {
		t.Fatal(err)
	}
	template.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1500m")
	if err := w.client.Update(t.Context(), &template); err != nil {
		t.Fatal(err)
	}
	w.judge(t, cache)
	w.config.Virtual = cache.GetAll
	w.config.Snapshot = func(context.Context) (*topology.Snapshot, error) {
		snapshot := lab()
		for _, vm := range w.writer.wanted {
			if w.writer.made[vm.Key] {
				snapshot.Hosts[0].Guests = append(snapshot.Hosts[0].Guests, topology.Guest{
					VMID: int(vm.VMID), Name: vm.Name, Key: string(vm.Key), ClusterID: "test", VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, Running: !vm.Standby,
				})
			}
		}
		return snapshot, nil
	}
	w.Controller = provisioning.New(w.config)
	return w
}

func (w *world) patchBuffer(t *testing.T, change func(*autoscalingv1beta1.CapacityBuffer)) {
	t.Helper()
	b := &autoscalingv1beta1.CapacityBuffer{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "spare"}, b); err != nil {
		t.Fatal(err)
	}
	change(b)
	if err := w.client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// make marks all VMs as created.
func (w *world) make() {
	for i := range w.writer.wanted {
		w.writer.made[w.writer.wanted[i].Key] = true
	}
}

// pend creates a pending pod.
func (w *world) pend(t *testing.T, name, cpu string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
	if err := w.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func (w *world) step(d time.Duration) { w.config.Clock.(*testclock.FakeClock).Step(d) }

// TestStandbyBuffer checks that a buffer has two standby VMs, that one is woken for a pod and
// replaced afterwards, and that they are removed some time after the buffer was deleted.
func TestStandbyBuffer(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 2, poolOfTwo)
	w.provision(t, 0, "False RequiresNewCapacity: 2 of 2 replicas need new standby VMs")
	if len(w.writer.wanted) != 2 || !w.writer.wanted[0].Standby || w.writer.wanted[0].Reserve {
		t.Fatalf("VMs are %+v", w.writer.wanted)
	}
	w.provision(t, 0, "True FitsExistingCapacity: all 2 replicas have standby VMs, created or in progress")

	// A VM that is not created yet cannot be woken.
	w.make()
	w.pend(t, "comes", "1")
	w.provision(t, 1, "False RequiresNewCapacity: 1 of 2 replicas need new standby VMs")
	claim := w.claims(t)[0]
	if len(w.writer.woken) != 1 || len(w.writer.wanted) != 2 || claim.Annotations[v1alpha1.AnnotationKey] != string(w.writer.woken[0]) {
		t.Fatalf("woken %v for claim %v; %d VMs, want 2: the wake comes before the refill", w.writer.woken, claim.Annotations, len(w.writer.wanted))
	}
	if claim.Annotations[v1alpha1.AnnotationClassHash] == "" {
		t.Error("the claim has no hash of its class")
	}
	w.make()
	for range 2 {
		w.provision(t, 0, "False RequiresNewCapacity: 1 of 2 replicas need new standby VMs")
		if len(w.writer.wanted) != 2 {
			t.Fatalf("%d VMs: the next wake waits for a clone", len(w.writer.wanted))
		}
		w.step(15 * time.Second)
	}
	w.provision(t, 0, "False RequiresNewCapacity: 1 of 2 replicas need new standby VMs")
	if len(w.writer.wanted) != 3 || !w.writer.wanted[2].Standby || len(w.writer.woken) != 1 {
		t.Fatalf("%d VMs, woken %v: want another standby VM", len(w.writer.wanted), w.writer.woken)
	}
	w.make()

	b := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "spare"}}
	if err := w.client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := w.Provision(asOperator(t)); err != nil {
			t.Fatal(err)
		}
		if len(w.writer.removed) > 0 {
			t.Fatalf("removed %v at once", w.writer.removed)
		}
		w.step(40 * time.Second)
	}
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	if len(w.writer.removed) != 2 {
		t.Errorf("removed %v, want both standby VMs", w.writer.removed)
	}
}

// TestRefillWaitsForItsPool checks that a wake delays only the standby VMs of its NodePool.
// Other NodePools' VMs could be part of a ScalePlan that waits for approval, and each wake
// would change that ScalePlan.
func TestRefillWaitsForItsPool(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 1, poolOfTwo)
	d := &scheduling.Decision{New: []scheduling.Placed{
		{NodePool: "woken"}, {NodePool: "woken", Standby: true}, {NodePool: "other"}, {NodePool: "other", Standby: true},
	}}
	d.Woken = []scheduling.Woken{{VM: fleet.VM{Spec: fleet.Spec{Pool: "woken"}}}}
	ready := []scheduling.Placed{d.New[0], d.New[2], d.New[3]}
	if diff := cmp.Diff(ready, w.Refill(d)); diff != "" {
		t.Errorf("with the wake (-want +got):\n%s", diff)
	}
	d.Woken = nil
	w.step(29 * time.Second)
	if diff := cmp.Diff(ready, w.Refill(d)); diff != "" {
		t.Errorf("29 seconds later (-want +got):\n%s", diff)
	}
	w.step(time.Second)
	if diff := cmp.Diff(d.New, w.Refill(d)); diff != "" {
		t.Errorf("30 seconds later (-want +got):\n%s", diff)
	}
}

// TestWakesAtAPause checks that a standby VM is woken before a burst is complete, unless
// another pod of the burst needs a new VM: the change of that VM contains the whole burst.
func TestWakesAtAPause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		pods  []string
		woken int
	}{
		{name: "no pod"},
		{name: "one pod for the standby VM", pods: []string{"1"}, woken: 1},
		{name: "and one that needs a new VM", pods: []string{"1", "1500m"}},
		{name: "and one that fits nowhere", pods: []string{"1", "900"}, woken: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := standbyWorld(t, 1, poolOfTwo)
			if _, err := w.Provision(asOperator(t)); err != nil {
				t.Fatal(err)
			}
			w.make()
			for i, cpu := range c.pods {
				w.pend(t, fmt.Sprintf("comes-%d", i), cpu)
			}
			waits, err := w.ProvisionAtPause(asOperator(t))
			if err != nil {
				t.Fatal(err)
			}
			if waits != (c.woken == 0) {
				t.Errorf("the batch waits for its end: %t, after %d wakes", waits, c.woken)
			}
			if len(w.writer.woken) != c.woken || len(w.claims(t)) != c.woken || len(w.writer.wanted) != 1 {
				t.Fatalf("woken %v, %d claims, %d VMs: want %d woken and no new VM", w.writer.woken, len(w.claims(t)), len(w.writer.wanted), c.woken)
			}
			if _, err := w.Provision(asOperator(t)); err != nil {
				t.Fatal(err)
			}
			if len(c.pods) > 0 && len(w.writer.woken) != 1 {
				t.Errorf("woken %v once the burst is complete, want one", w.writer.woken)
			}
		})
	}
}

// TestWakesOnNoBusyHost checks that a pod gets a new VM on another host if the host of the
// standby VM is busy.
func TestWakesOnNoBusyHost(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 1, poolOfTwo)
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	w.make()
	alone := w.config.Snapshot
	w.config.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
		snapshot, err := alone(ctx)
		other := lab().Hosts[0]
		other.Name = "pve-2"
		snapshot.Hosts = append(snapshot.Hosts, other)
		return snapshot, err
	}
	w.config.BusyHosts = func() (busy, removing []topology.HostID) {
		return []topology.HostID{w.writer.wanted[0].Host}, nil
	}
	w.Controller = provisioning.New(w.config)
	w.pend(t, "comes", "1500m")
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	if len(w.writer.woken) != 0 || len(w.writer.wanted) != 2 || w.writer.wanted[1].Standby || w.writer.wanted[1].Host.Host != "pve-2" {
		t.Errorf("woken %v, VMs are %+v: want a new node on pve-2", w.writer.woken, w.writer.wanted)
	}
}

// TestStandbyBufferFlaps checks that no VM is removed while a buffer is repeatedly deleted
// and created.
func TestStandbyBufferFlaps(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 1, poolOfTwo)
	w.provision(t, 0, "False RequiresNewCapacity: 1 of 1 replicas need new standby VMs")
	w.make()
	strategies := []string{autoscalingv1beta1.ActiveProvisioningStrategy, v1alpha1.StandbyStrategy}
	for i := range 8 {
		w.patchBuffer(t, func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.ProvisioningStrategy = &strategies[i%2] })
		if _, err := w.Provision(asOperator(t)); err != nil {
			t.Fatal(err)
		}
		w.step(40 * time.Second)
	}
	if len(w.writer.removed) != 0 {
		t.Errorf("removed %v", w.writer.removed)
	}
}

// TestLargeStandbyBuffer checks that a standby buffer with too many replicas gets no VMs,
// although its status says that it is ready.
func TestLargeStandbyBuffer(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, provisioning.MaxReplicas+1, poolOfTwo)
	if _, err := w.Provision(asOperator(t)); err != nil {
		t.Fatal(err)
	}
	if len(w.writer.wanted) != 0 {
		t.Errorf("%d VMs for a buffer with too many replicas", len(w.writer.wanted))
	}
}

// resize sets the replicas of the buffer, and decides now and two minutes later.
func (w *world) resize(t *testing.T, replicas int32) {
	t.Helper()
	w.patchBuffer(t, func(b *autoscalingv1beta1.CapacityBuffer) { b.Spec.Replicas = &replicas })
	w.judge(t, virtualpods.NewVirtualPodCache(w.client))
	for range 2 {
		if _, err := w.Provision(asOperator(t)); err != nil {
			t.Fatal(err)
		}
		w.make()
		w.step(2 * time.Minute)
	}
}

// TestFreezeKeepsStandby checks that no standby VM is removed or replaced while a freeze window
// blocks removals, so that a buffer that shrinks and grows gets no further VMs, and that
// removals and replacements continue after it.
func TestFreezeKeepsStandby(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 2, poolOfTwo)
	w.writer.removing = true
	frozen := true
	w.config.RemovalsFrozen = func() bool { return frozen }
	w.Controller = provisioning.New(w.config)
	for _, replicas := range []int32{2, 1, 2} {
		w.resize(t, replicas)
	}
	if len(w.writer.wanted) != 2 || len(w.writer.removed) != 0 {
		t.Fatalf("%d VMs, removed %v: want both VMs", len(w.writer.wanted), w.writer.removed)
	}
	w.writer.wanted[0].CPUType = "kvm64"
	w.resize(t, 2)
	if len(w.writer.wanted) != 2 || len(w.writer.removed) != 0 {
		t.Fatalf("%d VMs, removed %v: want no replacement of the outdated VM", len(w.writer.wanted), w.writer.removed)
	}
	frozen = false
	w.resize(t, 2)
	if len(w.writer.wanted) != 3 || len(w.writer.removed) != 1 || w.writer.removed[0] != w.writer.wanted[0].Key {
		t.Errorf("%d VMs, removed %v after the freeze, want one replacement of %s", len(w.writer.wanted), w.writer.removed, w.writer.wanted[0].Key)
	}
}

// TestPendingRemovalKeepsStandby checks that no standby VM is removed from a host where an
// earlier removal waits.
func TestPendingRemovalKeepsStandby(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 3, poolOfTwo)
	w.writer.removing = true
	for _, replicas := range []int32{3, 2} {
		w.resize(t, replicas)
	}
	if len(w.writer.wanted) != 3 || len(w.writer.removed) != 1 {
		t.Fatalf("%d VMs, removed %v: want 3 and one removed", len(w.writer.wanted), w.writer.removed)
	}
	w.resize(t, 1)
	if len(w.writer.removed) != 1 {
		t.Errorf("removed %v, although the first removal waits", w.writer.removed)
	}
	w.resize(t, 2)
	if len(w.writer.wanted) != 3 {
		t.Errorf("%d VMs: want no further VM", len(w.writer.wanted))
	}
}

// TestStandbyBufferReserves checks that a buffer's annotation numaform.dev/reserve decides
// whether its standby VMs reserve their resources, and that they reserve nothing if the
// value is invalid.
func TestStandbyBufferReserves(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"true": true, "false": false, "perhaps": false} {
		w := standbyWorld(t, 1, poolOfTwo)
		w.patchBuffer(t, func(b *autoscalingv1beta1.CapacityBuffer) {
			b.Annotations = map[string]string{v1alpha1.AnnotationReserve: value}
		})
		if _, err := w.Provision(asOperator(t)); err != nil {
			t.Fatal(err)
		}
		if len(w.writer.wanted) != 1 || w.writer.wanted[0].Reserve != want {
			t.Errorf("%s: VMs are %+v", value, w.writer.wanted)
		}
		if told := w.told(provisioning.ReasonInvalidReserve); (told > 0) != (value == "perhaps") {
			t.Errorf("%s: %d events", value, told)
		}
	}
}

// TestRenamedStandbyIsReported checks that the condition of a buffer reports a standby VM that
// was renamed in Proxmox, and that pods wake the other one.
func TestRenamedStandbyIsReported(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 2, poolOfTwo)
	w.provision(t, 0, "False RequiresNewCapacity: 2 of 2 replicas need new standby VMs")
	w.make()
	read := w.config.Snapshot
	w.config.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
		snapshot, err := read(ctx)
		for i := range snapshot.Hosts {
			for j := range snapshot.Hosts[i].Guests {
				if guest := &snapshot.Hosts[i].Guests[j]; guest.Key == string(w.writer.wanted[0].Key) {
					guest.Name = "accounting"
				}
			}
		}
		return snapshot, err
	}
	w.Controller = provisioning.New(w.config)
	w.provision(t, 0, `False RequiresNewCapacity: 1 of 2 replicas have standby VMs that cannot be started: VM workers-2000: it was renamed to "accounting" in Proxmox: `+
		"to rename it back, run qm set 2000 --name workers-2000 on host pve-1")
	w.pend(t, "comes", "1")
	w.provision(t, 1, "False RequiresNewCapacity: 1 of 2 replicas need new standby VMs")
	if len(w.writer.woken) != 1 || w.writer.woken[0] != w.writer.wanted[1].Key {
		t.Errorf("woken %v, want %s", w.writer.woken, w.writer.wanted[1].Key)
	}
}

// TestStandbyNameTaken checks that a standby VM whose name a user's NodeClaim has is neither
// woken nor removed, that pods wake another one, and that the buffer's condition reports it.
func TestStandbyNameTaken(t *testing.T) {
	t.Parallel()
	w := standbyWorld(t, 2, poolOfTwo)
	w.provision(t, 0, "False RequiresNewCapacity: 2 of 2 replicas need new standby VMs")
	w.make()
	w.claim(t, w.writer.wanted[0].Name, nil)
	w.provision(t, 0, "False RequiresNewCapacity: 1 of 2 replicas have standby VMs that cannot be started: VM workers-2000: "+
		"another NodeClaim has the name of its NodeClaim: delete NodeClaim workers-2000, or run numaform remove workers-2000")
	w.pend(t, "comes", "1")
	w.provision(t, 1, "False RequiresNewCapacity: 1 of 2 replicas need new standby VMs")
	if len(w.writer.woken) != 1 || w.writer.woken[0] != w.writer.wanted[1].Key || len(w.writer.removed) != 0 {
		t.Errorf("woken %v, removed %v: want only %s woken", w.writer.woken, w.writer.removed, w.writer.wanted[1].Key)
	}
}

// TestPinnedStandbyReserves checks that the annotation numaform.dev/reserve is ignored if
// CPUs are pinned.
func TestPinnedStandbyReserves(t *testing.T) {
	t.Parallel()
	pinned := strings.Replace(poolOfTwo, "spec: {template: {name: debian}}", "spec: {template: {name: debian}, placement: {policy: Dedicated, pinWith: Affinity}}", 1)
	const ignored = `; annotation numaform.dev/reserve: "false" is ignored, because the standby VMs have pinned CPUs: ` +
		"remove the annotation, or use a class with the policy Shared or NUMA"
	w := standbyWorld(t, 1, pinned)
	w.patchBuffer(t, func(b *autoscalingv1beta1.CapacityBuffer) {
		b.Annotations = map[string]string{v1alpha1.AnnotationReserve: "false"}
	})
	w.provision(t, 0, "False RequiresNewCapacity: 1 of 1 replicas need new standby VMs"+ignored)
	if len(w.writer.wanted) != 1 || !w.writer.wanted[0].Reserve {
		t.Errorf("VMs are %+v, want one that reserves its CPUs", w.writer.wanted)
	}
	w.make()
	w.provision(t, 0, "True FitsExistingCapacity: all 1 replicas have standby VMs, created or in progress"+ignored)
}

// TestOutdatedStandby checks that standby VMs are replaced one at a time. The old VM is
// removed after the new one was created, or before if there is no room for both.
func TestOutdatedStandby(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := poolOfTwo
			if full {
				pool = strings.Replace(pool, "\nspec:\n  template:", "\nspec:\n  limits: {cpu: 4}\n  template:", 1)
			}
			w := standbyWorld(t, 2, pool)
			w.provision(t, 0, "False RequiresNewCapacity: 2 of 2 replicas need new standby VMs")
			w.make()
			for i := range w.writer.wanted {
				w.writer.wanted[i].CPUType = "kvm64"
			}
			first := w.writer.wanted[0].Key
			for range 2 {
				if _, err := w.Provision(asOperator(t)); err != nil {
					t.Fatal(err)
				}
				if len(w.writer.wanted) != 2 || len(w.writer.removed) != 0 {
					t.Fatalf("%d VMs, removed %v at once", len(w.writer.wanted), w.writer.removed)
				}
				w.step(31 * time.Second)
			}
			for range 3 {
				if _, err := w.Provision(asOperator(t)); err != nil {
					t.Fatal(err)
				}
				if made := len(w.writer.wanted) - 2; full && made != 0 || !full && (made != 1 || len(w.writer.removed) != 0) {
					t.Fatalf("made %d, removed %v", made, w.writer.removed)
				}
			}
			w.make()
			if _, err := w.Provision(asOperator(t)); err != nil {
				t.Fatal(err)
			}
			if len(w.writer.removed) == 0 || w.writer.removed[0] != first {
				t.Errorf("removed %v, want %s first", w.writer.removed, first)
			}
			for _, key := range w.writer.removed {
				if key != first {
					t.Errorf("removed %s at the same time", key)
				}
			}
		})
	}
}
