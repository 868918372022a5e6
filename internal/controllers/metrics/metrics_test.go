package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/controllers/metrics"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pve1 is the host of these tests' VMs.
func pve1() topology.HostID { return topology.HostID{Region: "lab", Host: "pve-1"} }

// lab returns a host with two NUMA nodes of four CPUs and 16 GiB, and a host that is
// offline.
func lab() *topology.Snapshot {
	machine := topology.Machine{MemoryMiB: 32 << 10}
	for id := range 8 {
		machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Online: true, NUMANode: id / 4, Core: id, L3: id / 4})
	}
	for id := range 2 {
		machine.NUMANodes = append(machine.NUMANodes, topology.NUMANode{ID: id, MemoryMiB: 16 << 10})
	}
	return &topology.Snapshot{
		Regions: []topology.Region{{Name: "lab", Quorate: true}},
		Hosts: []topology.Host{
			{
				Region: "lab", Name: "pve-1", Online: true, Machine: machine, ReservedCPUs: topology.CPUs(0),
				Guests: []topology.Guest{{VMID: 100, Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 1024}},
			},
			{Region: "lab", Name: "pve-2", Machine: machine},
		},
	}
}

func vm(name string, vmid fleet.VMID, cpus ...int) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(name), VMID: vmid, Name: name,
		Spec: fleet.Spec{Pool: "workers", VCPUs: len(cpus), MemoryMiB: 4096, Policy: fleet.PolicyDedicated},
		Placement: fleet.Placement{
			Host: pve1(), CPUs: topology.CPUs(cpus...), VCPUPins: cpus,
			Cells: []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(1), MemoryMiB: 4096}},
		},
	}
}

func states() []scaler.VMState {
	return []scaler.VMState{
		{VM: vm("workers-2000", 2000, 4, 5), Phase: scaler.PhaseMade},
		{VM: vm("workers-2001", 2001, 6), Phase: scaler.PhaseReserved, Err: &state.CommandError{Backend: "pg"}},
		{VM: vm("workers-2002", 2002, 7), Phase: scaler.PhasePendingApproval},
	}
}

func config() metrics.Config {
	return metrics.Config{
		VMs:        states,
		Snapshot:   func(context.Context) (*topology.Snapshot, error) { return lab(), nil },
		Unread:     func() []topology.RegionName { return nil },
		BreakGlass: func() int { return 0 },
		Unavailable: func() []scheduling.OfferingSelector {
			return []scheduling.OfferingSelector{
				{NodePool: "workers", InstanceType: "c1.4VCPU-8GB", Host: pve1()},
				{NodePool: "workers", InstanceType: "c1.2VCPU-4GB", Host: pve1()},
				{NodePool: "batch"},
			}
		},
		Orphans: func() map[topology.HostID]int { return map[topology.HostID]int{pve1(): 2} },
		Pending: func() map[v1alpha1.ScaleDirection]int { return map[v1alpha1.ScaleDirection]int{v1alpha1.ScaleDown: 3} },
		Notifications: func() map[notify.Attempt]int {
			return map[notify.Attempt]int{{Type: notify.Slack, Result: notify.Success}: 5, {Type: notify.Mail, Result: notify.Error}: 2}
		},
		Clock: clocktesting.NewFakePassiveClock(now),
	}
}

func register(t *testing.T, config metrics.Config) (*prometheus.Registry, *metrics.Observer) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	observer, err := metrics.Register(registry, config)
	if err != nil {
		t.Fatal(err)
	}
	return registry, observer
}

func compare(t *testing.T, registry *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	registry, _ := register(t, config())
	// CPU 0 is reserved, CPUs 4, 5 and 6 are pinned or will be, and the VM of CPU 7 is
	// pending approval. Two VMs have 4 GiB each on node 1, and a guest has 1 GiB over both
	// nodes.
	compare(t, registry, `
# HELP numaform_closed_offerings Offerings that are temporarily unavailable because of a failure or an evacuation; an empty label means any.
# TYPE numaform_closed_offerings gauge
numaform_closed_offerings{host="",nodepool="batch",region=""} 1
numaform_closed_offerings{host="pve-1",nodepool="workers",region="lab"} 2
# HELP numaform_host_cpus CPUs of a NUMA node that are not reserved for the host.
# TYPE numaform_host_cpus gauge
numaform_host_cpus{host="pve-1",numa="0",region="lab"} 3
numaform_host_cpus{host="pve-1",numa="1",region="lab"} 4
# HELP numaform_host_floating_vcpus vCPUs of guests that are not pinned and share the free CPUs.
# TYPE numaform_host_floating_vcpus gauge
numaform_host_floating_vcpus{host="pve-1",region="lab"} 2
# HELP numaform_host_free_cpus CPUs of a NUMA node that are neither reserved for the host nor pinned by any guest.
# TYPE numaform_host_free_cpus gauge
numaform_host_free_cpus{host="pve-1",numa="0",region="lab"} 3
numaform_host_free_cpus{host="pve-1",numa="1",region="lab"} 1
# HELP numaform_host_free_memory_bytes Memory of a NUMA node that neither the host nor any guest uses, including desired VMs.
# TYPE numaform_host_free_memory_bytes gauge
numaform_host_free_memory_bytes{host="pve-1",numa="0",region="lab"} 1.6642998272e+10
numaform_host_free_memory_bytes{host="pve-1",numa="1",region="lab"} 8.053063680e+09
# HELP numaform_host_up Whether nodes can be placed on the host: 1, or 0 if it is offline, faulty or without quorum.
# TYPE numaform_host_up gauge
numaform_host_up{host="pve-1",region="lab"} 1
numaform_host_up{host="pve-2",region="lab"} 0
# HELP numaform_orphaned_vms Guests that have the marker of this numaform installation but are not in any file of the fleet.
# TYPE numaform_orphaned_vms gauge
numaform_orphaned_vms{host="pve-1",region="lab"} 2
# HELP numaform_pending_scaleplans ScalePlans that wait for an operator's decision, by their direction.
# TYPE numaform_pending_scaleplans gauge
numaform_pending_scaleplans{direction="down"} 3
numaform_pending_scaleplans{direction="up"} 0
# HELP numaform_vms VMs of the fleet, by their current or planned host and their phase.
# TYPE numaform_vms gauge
numaform_vms{host="pve-1",phase="held",region="lab"} 1
numaform_vms{host="pve-1",phase="made",region="lab"} 1
numaform_vms{host="pve-1",phase="reserved",region="lab"} 1
# HELP numaform_waiting_vms VMs whose creation, wake or removal waits, by the reason of their events.
# TYPE numaform_waiting_vms gauge
numaform_waiting_vms{reason="ChangePostponed"} 0
numaform_waiting_vms{reason="PendingApproval"} 1
numaform_waiting_vms{reason="StateBackendUnreachable"} 1
`,
		"numaform_closed_offerings", "numaform_host_cpus", "numaform_host_floating_vcpus", "numaform_host_free_cpus", "numaform_host_free_memory_bytes",
		"numaform_host_up", "numaform_orphaned_vms", "numaform_pending_scaleplans", "numaform_vms", "numaform_waiting_vms")
}

// TestProxmoxUnreadable checks that each region that cannot be read has the value 0, and that
// a scrape still returns the other metrics: metrics of hosts while a region responds, and metrics
// that do not need Proxmox if a scrape gets no response in time.
func TestProxmoxUnreadable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		failed error
		unread []topology.RegionName
		// lab and far are the values of the regions.
		lab, far int
	}{
		{"both respond", nil, nil, 1, 1},
		{"one region", nil, []topology.RegionName{"far"}, 1, 0},
		{"no response in time", errors.New("timeout"), nil, 0, 0},
		{"no response in time of a region that did not respond before", errors.New("timeout"), []topology.RegionName{"far"}, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := config()
			c.Regions = []topology.RegionName{"lab", "far"}
			c.Unread = func() []topology.RegionName { return tt.unread }
			c.Snapshot = func(context.Context) (*topology.Snapshot, error) { return lab(), tt.failed }
			registry, _ := register(t, c)
			compare(t, registry, fmt.Sprintf(`
# HELP numaform_proxmox_readable Whether a region of Proxmox could be read: 1, or 0 if its known state may be outdated.
# TYPE numaform_proxmox_readable gauge
numaform_proxmox_readable{region="far"} %d
numaform_proxmox_readable{region="lab"} %d
`, tt.far, tt.lab), "numaform_proxmox_readable")
			if count, err := testutil.GatherAndCount(registry, "numaform_vms"); err != nil || count != 3 {
				t.Errorf("%d series of VMs, %v", count, err)
			}
			if count, err := testutil.GatherAndCount(registry, "numaform_host_up"); err != nil || (count > 0) != (tt.failed == nil) {
				t.Errorf("%d series of hosts, %v", count, err)
			}
		})
	}
}

// exercise calls every method of an observer once.
func exercise(observer *metrics.Observer) {
	observer.PlanDone(pve1(), 3*time.Second, nil)
	observer.ApplyDone(pve1(), 20*time.Second, nil)
	observer.ApplyDone(pve1(), 40*time.Second, errors.New("broken"))
	observer.QueueDone(pve1(), time.Second)
	observer.Queued(7)
	observer.GuardDone(2*time.Millisecond, guard.NeedsApproval)
	observer.DecisionTimed(scheduling.PartSolve, 30*time.Millisecond)
	observer.DecisionTimed(scheduling.PartPlace, 4*time.Millisecond)
	observer.History(&audit.Report{}, false, 0)
	observer.Drifted([]scaler.RootDrift{{Host: pve1(), VMs: []scaler.VMDrift{
		{Class: scaler.DriftNone}, {Class: scaler.DriftReplace}, {Class: scaler.DriftReplace}, {Class: scaler.DriftVanished},
	}}})
	observer.PlanDone(pve1(), 0, &state.LockedError{LockInfo: state.LockInfo{ID: "1", Created: now.Add(-90 * time.Second)}})
	request := observer.Request("lab")
	request("GET", "/nodes/{node}/status", 200, 30*time.Millisecond)
	request("GET", "/nodes/{node}/status", 0, 40*time.Second)
}

func TestObserver(t *testing.T) {
	t.Parallel()
	registry, observer := register(t, config())
	exercise(observer)
	compare(t, registry, `
# HELP numaform_drifted_vms VMs that differ from their file, by what can be done about it.
# TYPE numaform_drifted_vms gauge
numaform_drifted_vms{class="foreign_edit"} 0
numaform_drifted_vms{class="moved"} 0
numaform_drifted_vms{class="needs_replacement"} 2
numaform_drifted_vms{class="not_in_the_state"} 0
numaform_drifted_vms{class="repairable"} 0
numaform_drifted_vms{class="stray"} 0
numaform_drifted_vms{class="unknown"} 0
numaform_drifted_vms{class="vanished"} 1
# HELP numaform_proxmox_requests_total Requests to Proxmox by the HTTP status of the response; 0 means no response.
# TYPE numaform_proxmox_requests_total counter
numaform_proxmox_requests_total{code="0",method="GET",path="/nodes/{node}/status",region="lab"} 1
numaform_proxmox_requests_total{code="200",method="GET",path="/nodes/{node}/status",region="lab"} 1
# HELP numaform_queue_length VMs whose requested creation, wake or removal is not part of a change yet.
# TYPE numaform_queue_length gauge
numaform_queue_length 7
# HELP numaform_state_lock_age_seconds Age of the state lock that numaform is waiting for on a host.
# TYPE numaform_state_lock_age_seconds gauge
numaform_state_lock_age_seconds{host="pve-1",region="lab"} 90
`, "numaform_drifted_vms", "numaform_proxmox_requests_total", "numaform_queue_length", "numaform_state_lock_age_seconds")
	sums := histograms(t, registry)
	for name, want := range map[string]float64{
		"numaform_plan_duration_seconds": 3, "numaform_apply_duration_seconds": 60, "numaform_queue_duration_seconds": 1,
		"numaform_guard_duration_seconds": 0.002, "numaform_decision_duration_seconds": 0.034, "numaform_proxmox_request_duration_seconds": 40.03,
	} {
		if got := sums[name]; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s adds up to %v, want %v", name, got, want)
		}
	}
	observer.PlanDone(pve1(), 0, nil)
	if count, err := testutil.GatherAndCount(registry, "numaform_state_lock_age_seconds"); err != nil || count != 0 {
		t.Errorf("%d locks, %v", count, err)
	}
}

// TestCountersBegin checks that the counters of alerts exist before their first event:
// otherwise Prometheus does not see it.
func TestCountersBegin(t *testing.T) {
	t.Parallel()
	c := config()
	c.Regions = []topology.RegionName{"lab", "far"}
	registry, observer := register(t, c)
	if count, err := testutil.GatherAndCount(registry, "numaform_apply_duration_seconds"); err != nil || count != 4 {
		t.Errorf("%d series of applies (%v), want success and error of two regions", count, err)
	}
	compare(t, registry, `
# HELP numaform_vm_failures_total VMs that could not be created or woken, vanished or conflicted with another guest, since the start of the controller.
# TYPE numaform_vm_failures_total counter
numaform_vm_failures_total{host="pve-1",region="lab"} 0
numaform_vm_failures_total{host="pve-2",region="lab"} 0
`, "numaform_vm_failures_total")
	observer.VMFailed(topology.HostID{Region: "far", Host: "pve-9"})
	if count, err := testutil.GatherAndCount(registry, "numaform_vm_failures_total"); err != nil || count != 3 {
		t.Errorf("%d series of failures (%v), want one for each host and the host of the failure", count, err)
	}
	observer.GuardDone(time.Millisecond, guard.Deny)
	if count, err := testutil.GatherAndCount(registry, "numaform_guard_duration_seconds"); err != nil || count != 3 {
		t.Errorf("%d series of checks (%v), want one for each verdict", count, err)
	}
}

// TestSeriesDoNotGrow checks that the number of series does not depend on the number of VMs.
func TestSeriesDoNotGrow(t *testing.T) {
	t.Parallel()
	count := func(vms int) int {
		t.Helper()
		c := kproximate()
		c.VMs = func() []scaler.VMState {
			states := make([]scaler.VMState, vms)
			for i := range states {
				states[i] = scaler.VMState{VM: vm(fmt.Sprintf("workers-%d", i), fleet.VMID(2000+i)), Phase: scaler.PhaseMade}
			}
			return states
		}
		registry, observer := register(t, c)
		exercise(observer)
		for range vms {
			observer.VMFailed(pve1())
		}
		series, err := testutil.GatherAndCount(registry)
		if err != nil {
			t.Fatal(err)
		}
		return series
	}
	if few, many := count(1), count(500); few != many {
		t.Errorf("%d series with one VM, and %d with 500", few, many)
	}
}

// TestLocks checks that a lock is reported while VMs wait for it and, after a plan or an
// apply failed because of it, until the next success on its host.
func TestLocks(t *testing.T) {
	t.Parallel()
	c := config()
	err := fmt.Errorf("applying: %w", &state.LockedError{LockInfo: state.LockInfo{ID: "1", Created: now.Add(-time.Minute)}})
	waiting := err
	c.VMs = func() []scaler.VMState {
		return []scaler.VMState{{VM: vm("a", 2000, 4), Phase: scaler.PhaseRemoving, Err: waiting}}
	}
	registry, observer := register(t, c)
	ages := func(want int) {
		t.Helper()
		if count, err := testutil.GatherAndCount(registry, "numaform_state_lock_age_seconds"); err != nil || count != want {
			t.Errorf("%d locks, want %d; %v", count, want, err)
		}
	}
	ages(1)
	waiting = nil
	ages(0)
	observer.ApplyDone(pve1(), time.Second, err)
	ages(1)
	observer.ApplyDone(pve1(), time.Second, errors.New("something else"))
	ages(1)
	observer.ApplyDone(pve1(), time.Second, nil)
	ages(0)
}

// histograms returns the sums of all histograms, over all labels.
func histograms(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if histogram := metric.GetHistogram(); histogram != nil {
				sums[family.GetName()] += histogram.GetSampleSum()
			}
		}
	}
	return sums
}

func ready(name string, is corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1900m"), "memory": resource.MustParse("3Gi")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}},
		},
	}
}

func pod(name, node, cpu string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("256Mi")},
		}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
}

func kproximate() metrics.Config {
	c := config()
	c.Kproximate = true
	c.Client = fake.NewClientBuilder().WithObjects(
		ready("workers-2000", corev1.ConditionTrue), ready("workers-2001", corev1.ConditionFalse), ready("control-plane", corev1.ConditionTrue),
		pod("a", "workers-2000", "500m", corev1.PodRunning), pod("b", "workers-2000", "250m", corev1.PodRunning),
		pod("done", "workers-2000", "1", corev1.PodSucceeded), pod("elsewhere", "control-plane", "1", corev1.PodRunning),
	).Build()
	return c
}

func TestKproximate(t *testing.T) {
	t.Parallel()
	registry, _ := register(t, kproximate())
	compare(t, registry, `
# HELP cpu_allocatable_total Cores allocatable to pods on ready Nodes.
# TYPE cpu_allocatable_total gauge
cpu_allocatable_total 1.9
# HELP cpu_allocated_total Cores requested by pods on ready Nodes.
# TYPE cpu_allocated_total gauge
cpu_allocated_total 0.75
# HELP cpu_provisioned_total Cores of the VMs whose Nodes are ready.
# TYPE cpu_provisioned_total gauge
cpu_provisioned_total 2
# HELP kpnodes_running Nodes of the fleet that are ready.
# TYPE kpnodes_running gauge
kpnodes_running 1
# HELP kpnodes_total VMs of the fleet that exist.
# TYPE kpnodes_total gauge
kpnodes_total 1
# HELP memory_allocatable_total Memory in bytes allocatable to pods on ready Nodes.
# TYPE memory_allocatable_total gauge
memory_allocatable_total 3.221225472e+09
# HELP memory_allocated_total Memory in bytes requested by pods on ready Nodes.
# TYPE memory_allocated_total gauge
memory_allocated_total 5.36870912e+08
# HELP memory_provisioned_total Memory in bytes of the VMs whose Nodes are ready.
# TYPE memory_provisioned_total gauge
memory_provisioned_total 4.294967296e+09
`, eight()...)
}

// eight returns the names of kproximate's metrics.
func eight() []string {
	return []string{
		"kpnodes_total", "kpnodes_running", "cpu_provisioned_total", "memory_provisioned_total",
		"cpu_allocatable_total", "memory_allocatable_total", "cpu_allocated_total", "memory_allocated_total",
	}
}

func TestKproximateOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	registry, _ := register(t, config())
	if count, err := testutil.GatherAndCount(registry, eight()...); err != nil || count != 0 {
		t.Errorf("%d series, %v", count, err)
	}
}

// TestLint checks that names and help texts pass promtool's rules.
func TestLint(t *testing.T) {
	t.Parallel()
	registry, observer := register(t, config())
	exercise(observer)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestRegisterTwice(t *testing.T) {
	t.Parallel()
	registry, _ := register(t, config())
	if _, err := metrics.Register(registry, config()); err == nil {
		t.Error("the same metrics twice were taken")
	}
}

// TestDocumented checks that docs/metrics.md has exactly one row for each metric, with its
// labels.
func TestDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	c := kproximate()
	c.Regions = []topology.RegionName{"lab"}
	registry, observer := register(t, c)
	exercise(observer)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([a-z, `]*) ?\\|")
	documented := map[string]string{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		documented[match[1]] = match[2] + " " + strings.TrimSpace(strings.ReplaceAll(match[3], "`", ""))
	}
	for _, family := range families {
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		want := strings.ToLower(family.GetType().String()) + " " + strings.Join(labels, ", ")
		if got := documented[family.GetName()]; strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("docs/metrics.md says of %s %q, want %q", family.GetName(), got, want)
		}
		delete(documented, family.GetName())
	}
	for name := range documented {
		t.Errorf("docs/metrics.md has %s, which there is not", name)
	}
}
