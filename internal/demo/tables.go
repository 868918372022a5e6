package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// clusterID is the clusterID of the quickstart.
const clusterID = "quickstart"

// nodeRow is a Node with its VM.
type nodeRow struct {
	name, host, size string
	ready            string
	// cores are the VM's cores, numa the NUMA nodes of the host that its memory is bound
	// to, pins the host CPUs that its vCPUs are pinned to.
	cores, numa string
	pins        cpuset.CPUSet
	pods        int
}

// ours returns the guests in Proxmox with the fleet's marker, by name.
func (w *world) ours() map[string]pvesim.GuestState {
	found := map[string]pvesim.GuestState{}
	for _, guest := range w.Sim.Guests() {
		if marker, ok := fleet.ParseMarker(guest.Config["description"]); ok && marker.ClusterID == clusterID {
			found[guest.Config["name"]] = guest
		}
	}
	return found
}

// nodes returns the nodes once all pods run and all nodes are initialized. Until then, it
// returns what is missing.
func (w *world) nodes(ctx context.Context) (rows []nodeRow, missing string, err error) {
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	if err := w.api.List(ctx, pods); err != nil {
		return nil, "", err
	}
	if err := w.api.List(ctx, nodes); err != nil {
		return nil, "", err
	}
	on, running := map[string]int{}, 0
	for i := range pods.Items {
		if pods.Items[i].Status.Phase == corev1.PodRunning {
			on[pods.Items[i].Spec.NodeName]++
			running++
		}
	}
	if running < wantedPods {
		return nil, fmt.Sprintf("%d of %d pods run", running, wantedPods), nil
	}
	guests := w.ours()
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if node.Labels["karpenter.sh/initialized"] != "true" {
			return nil, "node " + node.Name + " is not initialized", nil
		}
		guest, ok := guests[node.Name]
		if !ok {
			return nil, "", fmt.Errorf("node %s has no VM in Proxmox", node.Name)
		}
		row := rowOf(node, &guest)
		row.pods = on[node.Name]
		pins, err := w.pins(&guest)
		if err != nil {
			return nil, "", err
		}
		row.pins = cpuset.New(pins...)
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b nodeRow) int { return strings.Compare(a.host+" "+a.name, b.host+" "+b.name) })
	return rows, "", nil
}

var hostNodes = regexp.MustCompile(`hostnodes=([0-9;-]+)`)

func rowOf(node *corev1.Node, guest *pvesim.GuestState) nodeRow {
	row := nodeRow{
		name: node.Name, host: guest.Host, size: node.Labels[corev1.LabelInstanceTypeStable], cores: guest.Config["cores"], ready: "NotReady",
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			row.ready = "Ready"
		}
	}
	var numa []string
	for _, key := range slices.Sorted(maps.Keys(guest.Config)) {
		if bound := hostNodes.FindStringSubmatch(guest.Config[key]); bound != nil && strings.HasPrefix(key, "numa") {
			numa = append(numa, bound[1])
		}
	}
	row.numa = cmp.Or(strings.Join(numa, ","), "-")
	return row
}

// exclusive returns an error if a node does not have as many pinned CPUs as cores, or
// shares one with another node.
func exclusive(nodes []nodeRow) error {
	taken := map[string]cpuset.CPUSet{}
	for i := range nodes {
		node := &nodes[i]
		if fmt.Sprint(node.pins.Size()) != node.cores {
			return fmt.Errorf("node %s has %s cores, but its pinned CPUs are %q", node.name, node.cores, node.pins)
		}
		if both := taken[node.host].Intersection(node.pins); !both.IsEmpty() {
			return fmt.Errorf("node %s shares CPUs %s of host %s with another node", node.name, both, node.host)
		}
		taken[node.host] = taken[node.host].Union(node.pins)
	}
	return nil
}

// table prints rows below their headers.
func table(out io.Writer, rows ...[]string) error {
	fmt.Fprintln(out)
	_, err := fmt.Fprint(out, term.Of(out, nil, "never").Table(2, rows))
	return err
}

func printNodes(out io.Writer, nodes []nodeRow) error {
	rows := [][]string{{"NODE", "STATUS", "HOST", "TYPE", "CPUS", "HOST CPUS", "NUMA", "PODS"}}
	for i := range nodes {
		n := &nodes[i]
		rows = append(rows, []string{n.name, n.ready, n.host, n.size, n.cores, n.pins.String(), n.numa, fmt.Sprint(n.pods)})
	}
	return table(out, rows...)
}

func printPods(out io.Writer, pods []corev1.Pod) error {
	count := map[string]int{}
	for i := range pods {
		count[string(pods[i].Status.Phase)]++
	}
	rows := [][]string{{"PODS", "STATUS"}}
	for _, phase := range slices.Sorted(maps.Keys(count)) {
		rows = append(rows, []string{fmt.Sprint(count[phase]), phase})
	}
	return table(out, rows...)
}

func printHosts(out io.Writer, hosts []topology.Host) error {
	rows := [][]string{{"HOST", "MODEL", "CPUS", "NUMA NODES", "MEMORY"}}
	for i := range hosts {
		m := &hosts[i].Machine
		rows = append(rows, []string{
			string(hosts[i].Name), m.Model, fmt.Sprint(len(m.CPUs)), fmt.Sprint(len(m.NUMANodes)), fmt.Sprintf("%d GiB", m.MemoryMiB>>10),
		})
	}
	return table(out, rows...)
}
