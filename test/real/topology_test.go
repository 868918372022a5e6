package real_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// numaHost returns a host with nodes NUMA nodes of the same size.
func numaHost(t *testing.T, name topology.HostName, template, nodes, cpusPerNode int) topology.Host {
	t.Helper()
	host := testenv.Host(t, name, "nuc-i7-1165g7-4c8t", template)
	machine := &host.Machine
	machine.CPUs, machine.NUMANodes, machine.MemoryMiB = nil, nil, 0
	for node := range nodes {
		machine.NUMANodes = append(machine.NUMANodes, topology.NUMANode{ID: node, MemoryMiB: 16 << 10})
		machine.MemoryMiB += 16 << 10
		for range cpusPerNode {
			id := len(machine.CPUs)
			machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Online: true, NUMANode: node, Socket: node, Core: id, L3: node})
		}
	}
	return host
}

// numaPool is a pool whose kubelets assign CPUs of one NUMA node to each container.
const numaPool = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: workers}
spec:
  template: {name: ` + testenv.Template + `}
  clone: linked
  metadata: {type: cdrom}
  placement: {policy: NUMA}
  kubelet: {cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}
      requirements: []
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
`

// TestTopologyManager checks that the NUMA nodes in guests are as planned, and that the
// Topology Manager of kubelet admits and rejects pods as the planned NUMA nodes predict.
func TestTopologyManager(t *testing.T) {
	enginetest.Nightly(t)
	hosts := []topology.Host{numaHost(t, "one", 9001, 1, 8), numaHost(t, "two", 9002, 2, 2)}
	w := newWorld(t, hosts, `[{"name": "n1.4VCPU-2GB", "capacity": {"cpu": "4", "memory": "2Gi", "ephemeral-storage": "8Gi"}}]`)
	w.manifest(numaPool)
	w.checkTopologyManager("two", 2)
	w.checkTopologyManager("one", 1)
}

// checkTopologyManager starts a VM on a host, which gives it this number of NUMA nodes, and
// runs pods of different sizes in it.
func (w *world) checkTopologyManager(host string, nodes int) {
	w.t.Helper()
	w.began = time.Now()
	first := "first-" + host
	w.pod(first, "100m", "64Mi", func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: host} })
	vmid, node := w.launched(first)
	claim := w.registered(vmid, node)
	w.ready(node)
	w.runs(first, vmid)
	cells := w.cells(vmid)
	if len(cells) != nodes {
		w.t.Fatalf("VM %d has the NUMA nodes %v, want %d", vmid, cells, nodes)
	}
	w.numaIsAsPlanned(vmid, node, cells)
	outcomes := map[bool]int{}
	for i, containers := range [][]string{
		{"1"}, {"2"}, {"3"}, {"500m"}, {"1500m"}, {"2500m"}, {"1", "1"}, {"1", "2"}, {"2", "1"}, {"1", "1", "1"},
	} {
		name := fmt.Sprintf("case-%s-%d", host, i)
		w.pod(name, containers[0], "16Mi", func(pod *corev1.Pod) { guaranteed(pod, node, containers) })
		predicted := admitted(cells, containers)
		outcomes[predicted]++
		if got, why := w.outcome(name); got != predicted {
			w.t.Errorf("pod with CPUs %v on NUMA nodes %v: admitted is %t, predicted %t: %s", containers, cells, got, predicted, why)
		} else {
			w.t.Logf("pod with CPUs %v on NUMA nodes %v: admitted is %t, as predicted", containers, cells, got)
		}
		w.deletePod(name)
		w.eventually(joinLimit, func(ctx context.Context) string {
			if err := w.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &corev1.Pod{}); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Sprintf("pod %s is not deleted: %v", name, err)
			}
			return ""
		})
	}
	if nodes > 1 && outcomes[false] == 0 || outcomes[true] == 0 {
		w.t.Errorf("the cases do not tell anything: predictions %v", outcomes)
	}
	w.deletePod(first)
	if err := w.api.Delete(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
	w.nothingIsLeft(vmid)
}

// cells returns the CPUs of the NUMA nodes in a VM's configuration, by NUMA node. Without NUMA
// nodes in the configuration, all CPUs are on one.
func (w *world) cells(vmid int) []topology.CPUSet {
	w.t.Helper()
	guest, _ := w.proxmox.Guest(vmid)
	var cells []topology.CPUSet
	for i := 0; guest.Config[fmt.Sprintf("numa%d", i)] != ""; i++ {
		text := guest.Config[fmt.Sprintf("numa%d", i)]
		cpus := regexp.MustCompile(`cpus=([0-9;-]+)`).FindStringSubmatch(text)
		if cpus == nil {
			w.t.Fatalf("numa%d of VM %d is %s", i, vmid, text)
		}
		set, err := topology.ParseCPUSet(strings.ReplaceAll(cpus[1], ";", ","))
		if err != nil {
			w.t.Fatal(err)
		}
		cells = append(cells, set)
	}
	if cells == nil {
		cores, err := strconv.Atoi(guest.Config["cores"])
		if err != nil {
			w.t.Fatal(err)
		}
		all, err := topology.ParseCPUSet(fmt.Sprintf("0-%d", cores-1))
		if err != nil {
			w.t.Fatal(err)
		}
		cells = append(cells, all)
	}
	return cells
}

// numaIsAsPlanned checks the NUMA nodes in the guest, and the label of its node.
func (w *world) numaIsAsPlanned(vmid int, name string, cells []topology.CPUSet) {
	w.t.Helper()
	seen := strings.Fields(w.inGuest(vmid, "cat /sys/devices/system/node/node*/cpulist"))
	var planned []string
	for _, cell := range cells {
		planned = append(planned, cell.String())
	}
	if !slices.Equal(seen, planned) {
		w.t.Errorf("the guest of VM %d has the NUMA nodes %v, want %v", vmid, seen, planned)
	}
	var node corev1.Node
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		w.t.Fatal(err)
	}
	if got := node.Labels["numaform.dev/numa-nodes"]; got != strconv.Itoa(len(cells)) {
		w.t.Errorf("node %s has the label numaform.dev/numa-nodes=%q, want %d", name, got, len(cells))
	}
	w.stage("the guest has the NUMA nodes %v", seen)
}

// guaranteed gives a pod containers with these CPUs as requests and limits, on a node.
func guaranteed(pod *corev1.Pod, node string, containers []string) {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	one := pod.Spec.Containers[0]
	pod.Spec.Containers = nil
	for i, cpu := range containers {
		one.Name = fmt.Sprintf("c%d", i)
		one.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("16Mi")}
		one.Resources.Limits = one.Resources.Requests
		pod.Spec.Containers = append(pod.Spec.Containers, one)
	}
}

// admitted predicts whether the Topology Manager with the policy single-numa-node admits a
// guaranteed pod: each container with whole CPUs must fit into the free CPUs of one NUMA
// node. The CPU Manager reserves the first CPU for the system.
func admitted(cells []topology.CPUSet, containers []string) bool {
	free := make([]int, len(cells))
	for i, cell := range cells {
		free[i] = cell.Size()
		if cell.Contains(0) {
			free[i]--
		}
	}
	for _, text := range containers {
		cpu := resource.MustParse(text)
		if cpu.MilliValue()%1000 != 0 {
			continue // it shares the CPUs that are not assigned
		}
		i := slices.IndexFunc(free, func(n int) bool { return int64(n) >= cpu.Value() })
		if i < 0 {
			return false
		}
		free[i] -= int(cpu.Value())
	}
	return true
}

// outcome waits until kubelet has started a pod or rejected it, and reports which.
func (w *world) outcome(name string) (ran bool, why string) {
	w.t.Helper()
	w.eventually(joinLimit, func(ctx context.Context) string {
		var pod corev1.Pod
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &pod); err != nil {
			return err.Error()
		}
		switch pod.Status.Phase {
		case corev1.PodRunning:
			ran = true
			return ""
		case corev1.PodFailed:
			why = pod.Status.Reason + ": " + pod.Status.Message
			if pod.Status.Reason != "TopologyAffinityError" {
				w.t.Errorf("pod %s: %s", name, why)
			}
			return ""
		}
		return fmt.Sprintf("pod %s is %s: %v", name, pod.Status.Phase, pod.Status.Conditions)
	})
	return ran, why
}
