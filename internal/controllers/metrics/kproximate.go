package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/internal/scaler"
)

// kproximate provides the metrics of jedrw/kproximate, with its names and units: cores,
// and bytes.
type kproximate struct {
	config Config

	nodes, running                   *prometheus.Desc
	cpu, cpuAllocatable, cpuRequests *prometheus.Desc
	mem, memAllocatable, memRequests *prometheus.Desc
}

func newKproximate(config Config) *kproximate {
	plain := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &kproximate{
		config:         config,
		nodes:          plain("kpnodes_total", "VMs of the fleet that exist."),
		running:        plain("kpnodes_running", "Nodes of the fleet that are ready."),
		cpu:            plain("cpu_provisioned_total", "Cores of the VMs whose Nodes are ready."),
		mem:            plain("memory_provisioned_total", "Memory in bytes of the VMs whose Nodes are ready."),
		cpuAllocatable: plain("cpu_allocatable_total", "Cores allocatable to pods on ready Nodes."),
		memAllocatable: plain("memory_allocatable_total", "Memory in bytes allocatable to pods on ready Nodes."),
		cpuRequests:    plain("cpu_allocated_total", "Cores requested by pods on ready Nodes."),
		memRequests:    plain("memory_allocated_total", "Memory in bytes requested by pods on ready Nodes."),
	}
}

// Describe sends the descriptions of all metrics.
func (k *kproximate) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		k.nodes, k.running, k.cpu, k.mem, k.cpuAllocatable, k.memAllocatable, k.cpuRequests, k.memRequests,
	} {
		out <- desc
	}
}

// Collect sends the values of all metrics. If the API server does not respond, it omits the
// values that need it.
func (k *kproximate) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	states := k.config.VMs()
	exist := 0
	for _, state := range states {
		if state.VM.Standby {
			continue // kproximate has no standby VMs
		}
		if state.Phase == scaler.PhaseMade || state.Phase == scaler.PhaseRemoving {
			exist++
		}
	}
	gauge(out, k.nodes, float64(exist))
	nodes, err := k.readyNodes(ctx, states)
	if err != nil {
		return
	}
	var cpu int
	var memory int64
	allocatable := corev1.ResourceList{}
	for _, state := range states {
		if node := nodes[state.VM.Name]; node != nil {
			cpu += state.VM.VCPUs
			memory += state.VM.MemoryMiB
			allocatable = resources.Merge(allocatable, node.Status.Allocatable)
		}
	}
	gauge(out, k.running, float64(len(nodes)))
	gauge(out, k.cpu, float64(cpu))
	gauge(out, k.mem, float64(memory)*mebibyte)
	gauge(out, k.cpuAllocatable, cores(allocatable))
	gauge(out, k.memAllocatable, float64(allocatable.Memory().Value()))

	var pods corev1.PodList
	if err := k.config.Client.List(ctx, &pods); err != nil {
		return
	}
	requests := corev1.ResourceList{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if nodes[pod.Spec.NodeName] != nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			requests = resources.Merge(requests, resources.RequestsForPods(pod))
		}
	}
	gauge(out, k.cpuRequests, cores(requests))
	gauge(out, k.memRequests, float64(requests.Memory().Value()))
}

func cores(list corev1.ResourceList) float64 { return float64(list.Cpu().MilliValue()) / 1000 }

// readyNodes returns the ready Nodes of the fleet's VMs, by name.
func (k *kproximate) readyNodes(ctx context.Context, states []scaler.VMState) (map[string]*corev1.Node, error) {
	ours := map[string]bool{}
	for _, state := range states {
		ours[state.VM.Name] = true
	}
	var nodes corev1.NodeList
	if err := k.config.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	ready := map[string]*corev1.Node{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if ours[node.Name] && nodeutils.GetCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue {
			ready[node.Name] = node
		}
	}
	return ready, nil
}
