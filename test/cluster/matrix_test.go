package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/testenv"
)

// slowBoot is the boot time of VMs. It allows an upgrade while a VM boots.
const slowBoot = 40 * time.Second

// TestMatrixOfTheController checks that nodes remain, no VM is replaced, and a change that
// is pending approval is not lost, if the controller and chart of the baseline are upgraded
// while a VM is joining, then downgraded, and upgraded again.
func TestMatrixOfTheController(t *testing.T) {
	enginetest.Nightly(t)
	baseline := testenv.Baseline(t)
	w := newWorld(t, worldConfig{
		chart: filepath.Join(baseline, "charts", "numaform"), program: filepath.Join(baseline, "numaform"),
		guests: func(c *guestsim.Config) { c.Boot = slowBoot },
	})
	w.start()
	w.steadyClass("plain", soundClass())
	w.steadyPool("workers", "plain", anyType, "")
	w.pods("web", 1, "500m", "1Gi", in("workers"))
	w.running("web", 1, 3*time.Minute)
	w.approvals("held")
	w.pods("asked", 1, "500m", "1Gi", in("held"))
	plan := w.pending(v1alpha1.ScaleUp, time.Minute)

	w.pods("late", 1, "3", "1Gi", in("workers"))
	w.eventually(2*time.Minute, func(context.Context) string {
		if boots := w.booting(); boots != 1 {
			return fmt.Sprintf("%d VMs boot, want one", boots)
		}
		return ""
	})
	before := w.vmids()
	w.upgrade(testenv.Chart{}, binary)
	w.running("late", 1, 3*time.Minute)
	w.initialized(time.Minute)
	if problem := w.same(before)(context.Background()); problem != "" {
		t.Error(problem)
	}

	alice := w.as("alice", "numaform-approver")
	if err := w.api.Get(context.Background(), client.ObjectKeyFromObject(plan), plan); err != nil {
		// A plan in the other format is replaced by a new plan for the same pods.
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	plan = w.pending(v1alpha1.ScaleUp, 2*time.Minute)
	if err := approve(alice, plan, "alice", plan.Spec.PlanHash); err != nil {
		t.Fatal(err)
	}
	w.running("asked", 1, 3*time.Minute)
	after := w.vmids()
	for name, vmid := range before {
		if after[name] != vmid {
			t.Errorf("VM %s had VMID %d, and has %d", name, vmid, after[name])
		}
	}
	if len(after) != len(before)+1 || w.everMade() != len(after) {
		t.Errorf("VMs %v after %v, and %d were created in total", after, before, w.everMade())
	}

	// After the downgrade, the older controller changes nothing, or does not start.
	w.upgrade(testenv.Chart{Dir: filepath.Join(baseline, "charts", "numaform")}, filepath.Join(baseline, "numaform"))
	w.remains(20*time.Second, w.same(after))
	w.allReady(len(after))
	w.upgrade(testenv.Chart{}, binary)
	w.remains(10*time.Second, w.same(after))
	w.allReady(len(after))
}

// in makes a pod run only on nodes of a pool.
func in(pool string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: pool} }
}

// approvals creates a NodePool whose changes require approval.
func (w *world) approvals(name string) {
	w.t.Helper()
	w.steadyPool(name, "plain", anyType, "")
	w.patch(&karpv1.NodePool{}, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"manual",%q:"manual"}}}`,
		v1alpha1.AnnotationScaleUp, v1alpha1.AnnotationScaleDown))
}

// booting returns the number of running VMs without a Node.
func (w *world) booting() int {
	w.t.Helper()
	count := 0
	for _, guest := range w.proxmox.Guests() {
		if !guest.Running || guest.VMID < 2000 || guest.VMID > 2999 {
			continue
		}
		err := w.api.Get(context.Background(), client.ObjectKey{Name: guest.Config["name"]}, &corev1.Node{})
		if apierrors.IsNotFound(err) {
			count++
		} else if err != nil {
			w.t.Fatal(err)
		}
	}
	return count
}

// upgrade replaces the installed chart with another, as helm does, and starts another
// program.
func (w *world) upgrade(chart testenv.Chart, program string) {
	w.t.Helper()
	w.stop(syscall.SIGTERM)
	w.uninstall()
	w.install(chart)
	w.program = program
	w.controller = w.startProcess()
}

// uninstall deletes the roles and bindings of the installed chart, because helm deletes
// those that the next chart lacks.
func (w *world) uninstall() {
	w.t.Helper()
	for _, object := range w.granted {
		err := w.api.Delete(context.Background(), object)
		if err != nil && !apierrors.IsNotFound(err) {
			w.t.Fatal(err)
		}
	}
}

// allReady checks that exactly the given number of Nodes is ready.
func (w *world) allReady(want int) {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.api.List(context.Background(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	ready := 0
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if ready != want {
		w.t.Errorf("%d of %d Nodes are ready, want %d", ready, len(nodes.Items), want)
	}
}
