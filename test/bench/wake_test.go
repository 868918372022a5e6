package bench_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// wakes are the measured starts of standby VMs.
var wakes = []struct {
	vms   int
	class class
}{
	{vms: 1},
	{vms: 1, class: class{seeds: true}},
	{vms: 20},
	{vms: 20, class: class{seeds: true}},
}

// clone is the duration of a clone for the direct calls and for new VMs.
const clone = 5 * time.Second

// BenchmarkWake measures the time from a pod to the call that starts its standby VM,
// compared with direct clones on the same hosts. It fails if new VMs would have been started
// earlier.
func BenchmarkWake(b *testing.B) {
	small := lazily(func() *cluster {
		c := newCluster(b, testbed{machine: "xeon-6230-2s-snc2", hosts: 5, buffers: true})
		c.settle()
		return c
	})
	for _, row := range wakes {
		b.Run(fmt.Sprintf("vms=%d/%s", row.vms, row.class.name()), func(b *testing.B) {
			c := small(b)
			f := least(b, func() figures {
				defer c.restoreStandby()
				return c.wake(row.vms, row.class)
			})
			created := c.scaleUp(row.vms, clone, row.class)
			c.restore()
			woken, started := f["pod-to-last-start-s"], created["pod-to-last-start-s"]
			b.Logf("%.2f s from the pods to the last start, %.2f s for new VMs", woken, started)
			if woken > started {
				b.Errorf("%d standby VMs are started after %.2f s, new VMs after %.2f s", row.vms, woken, started)
			}
		})
	}
}

// wake creates pods that need the given number of standby VMs and measures until the last
// VM is started.
func (c *cluster) wake(vms int, class class) figures {
	c.b.Helper()
	c.standby(vms, class)
	c.delay(clone)
	direct := c.direct().create(vms, class)
	c.removeDirect(vms)
	c.quiet()

	c.sim.ResetCalls()
	began, powered := time.Now(), c.poweredOn.Load()
	c.pods(class, "new", vms)
	c.until(fmt.Sprintf("%d VMs are started", vms), 5*time.Minute, func() bool { return c.poweredOn.Load()-powered >= int64(vms) })
	starts := c.calls(began, http.MethodPost, "/status/start")
	if len(starts) != vms {
		c.b.Fatalf("%d starts for %d VMs", len(starts), vms)
	}
	ended := slices.MaxFunc(starts, time.Time.Compare)
	for _, at := range c.calls(began, http.MethodPost, "/clone") {
		if at.Before(ended) {
			c.b.Errorf("a VM is cloned %.2f s before the last start", ended.Sub(at).Seconds())
		}
	}

	f := c.cost(began, ended)
	f["pod-to-last-start-s"] = ended.Sub(began).Seconds()
	f["direct-s"] = direct.Seconds()
	f["x-direct"] = ended.Sub(began).Seconds() / direct.Seconds()
	c.b.Logf("%s", c.table(began))
	return f
}

// standby creates a buffer of standby VMs, one for each pod of the class, and waits until
// they exist.
func (c *cluster) standby(vms int, class class) {
	c.b.Helper()
	c.sim.SetDelays(pvesim.Delays{})
	objects, err := testenv.Decode(fmt.Appendf(nil, `
apiVersion: v1
kind: PodTemplate
metadata: {name: standby, namespace: default}
template:
  metadata: {labels: {app: standby}}
  spec:
    nodeSelector: {karpenter.sh/nodepool: %[1]s}
    topologySpreadConstraints:
    - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: standby}}}
    containers:
    - {name: c, image: registry.invalid/c, resources: {requests: {cpu: 1200m, memory: 4Gi}}}
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: standby, namespace: default}
spec: {provisioningStrategy: numaform.dev/standby, podTemplateRef: {name: standby}, replicas: %[2]d}
`, class.name(), vms))
	if err != nil {
		c.b.Fatal(err)
	}
	for _, object := range objects {
		if err := c.api.Create(context.Background(), object); err != nil {
			c.b.Fatal(err)
		}
	}
	c.until(fmt.Sprintf("%d standby VMs exist", vms), 5*time.Minute, func() bool { return c.stopped() == vms })
	c.quiet()
}

// stopped returns the number of stopped VMs of the controller.
func (c *cluster) stopped() int {
	n := 0
	for _, guest := range c.sim.Guests() {
		if !guest.Running && guest.Config["lock"] == "" && guest.VMID >= 2000 && guest.VMID < 3000 && strings.Contains(guest.Config["description"], "numaform") {
			n++
		}
	}
	return n
}

// restoreStandby deletes the buffer of standby VMs, and the pods and VMs of wake.
func (c *cluster) restoreStandby() {
	c.b.Helper()
	c.sim.SetDelays(pvesim.Delays{})
	buffer := &autoscalingv1beta1.CapacityBuffer{}
	buffer.Namespace, buffer.Name = "default", "standby"
	template := &corev1.PodTemplate{}
	template.Namespace, template.Name = "default", "standby"
	for _, object := range []client.Object{buffer, template} {
		if err := client.IgnoreNotFound(c.api.Delete(context.Background(), object)); err != nil {
			c.b.Fatal(err)
		}
	}
	c.restore()
	c.until("the standby VMs are removed", 5*time.Minute, func() bool { return c.stopped() == 0 })
}
