package metrics

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// patience is how long a scrape waits for Proxmox or the API server.
const patience = 5 * time.Second

// mebibyte is the planner's unit of memory, in bytes.
const mebibyte = 1 << 20

// phaseStandby is the phase of standby VMs that were created, in numaform_vms.
const phaseStandby = "standby"

// inventory collects the current state at each scrape.
type inventory struct {
	config   Config
	failures *failures

	failed, vms, waiting, pending, glass, up, all, cpus, memory, floating, orphans, closed, read, notifications *prometheus.Desc
}

func newInventory(config Config, failures *failures) *inventory {
	return &inventory{
		config:   config,
		failures: failures,
		failed: describe("vm_failures_total", "VMs that could not be created or woken, vanished or conflicted with another guest, since the start of the controller.",
			labelRegion, labelHost),
		vms: describe("vms", "VMs of the fleet, by their current or planned host and their phase.",
			labelRegion, labelHost, labelPhase),
		waiting: describe("waiting_vms", "VMs whose creation, wake or removal waits, by the reason of their events.",
			labelReason),
		pending: describe("pending_scaleplans", "ScalePlans that wait for an operator's decision, by their direction.",
			labelDirection),
		glass: describe("break_glass_approvals_total", "Changes that began by a break-glass approval, since the start of the controller."),
		up: describe("host_up", "Whether nodes can be placed on the host: 1, or 0 if it is offline, faulty or without quorum.",
			labelRegion, labelHost),
		all: describe("host_cpus", "CPUs of a NUMA node that are not reserved for the host.",
			labelRegion, labelHost, labelNUMA),
		cpus: describe("host_free_cpus", "CPUs of a NUMA node that are neither reserved for the host nor pinned by any guest.",
			labelRegion, labelHost, labelNUMA),
		memory: describe("host_free_memory_bytes", "Memory of a NUMA node that neither the host nor any guest uses, including desired VMs.",
			labelRegion, labelHost, labelNUMA),
		floating: describe("host_floating_vcpus", "vCPUs of guests that are not pinned and share the free CPUs.",
			labelRegion, labelHost),
		orphans: describe("orphaned_vms", "Guests that have the marker of this numaform installation but are not in any file of the fleet.",
			labelRegion, labelHost),
		closed: describe("closed_offerings", "Offerings that are temporarily unavailable because of a failure or an evacuation; an empty label means any.",
			labelNodePool, labelRegion, labelHost),
		notifications: describe("notifications_total", "Attempts to send notifications, by the type of their target and their result.",
			labelType, labelResult),
		read: describe("proxmox_readable", "Whether a region of Proxmox could be read: 1, or 0 if its known state may be outdated.",
			labelRegion),
	}
}

// Describe sends the descriptions of all metrics.
func (i *inventory) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{i.failed, i.vms, i.waiting, i.pending, i.glass, i.up, i.all, i.cpus, i.memory, i.floating, i.orphans, i.closed, i.read, i.notifications} {
		out <- desc
	}
}

// Collect sends the values of all metrics.
func (i *inventory) Collect(out chan<- prometheus.Metric) {
	states := i.config.VMs()
	type vmLabels struct {
		host  topology.HostID
		phase scaler.Phase
	}
	vms := map[vmLabels]int{}
	for _, state := range states {
		phase := state.Phase
		if state.VM.Standby && phase == scaler.PhaseMade {
			phase = phaseStandby
		}
		vms[vmLabels{host: state.VM.Host, phase: phase}]++
	}
	for at, count := range vms {
		gauge(out, i.vms, float64(count), string(at.host.Region), string(at.host.Host), string(at.phase))
	}

	i.collectWaiting(out, states)

	pending := i.config.Pending()
	for _, direction := range []v1alpha1.ScaleDirection{v1alpha1.ScaleUp, v1alpha1.ScaleDown} {
		gauge(out, i.pending, float64(pending[direction]), strings.ToLower(string(direction)))
	}

	out <- prometheus.MustNewConstMetric(i.glass, prometheus.CounterValue, float64(i.config.BreakGlass()))

	// Instance types are not a label, because there may be hundreds.
	type offeringLabels struct {
		pool string
		host topology.HostID
	}
	closed := map[offeringLabels]int{}
	for _, offering := range i.config.Unavailable() {
		closed[offeringLabels{pool: offering.NodePool, host: offering.Host}]++
	}
	for at, count := range closed {
		gauge(out, i.closed, float64(count), at.pool, string(at.host.Region), string(at.host.Host))
	}
	for attempt, count := range i.config.Notifications() {
		out <- prometheus.MustNewConstMetric(i.notifications, prometheus.CounterValue, float64(count), attempt.Type, string(attempt.Result))
	}
	for host, count := range i.config.Orphans() {
		gauge(out, i.orphans, float64(count), string(host.Region), string(host.Host))
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	snapshot, err := i.config.Snapshot(ctx)
	var hosts []topology.Host
	if err == nil {
		hosts = snapshot.Hosts
	}
	for host, count := range i.failures.of(hosts) {
		out <- prometheus.MustNewConstMetric(i.failed, prometheus.CounterValue, float64(count), string(host.Region), string(host.Host))
	}
	unread := i.config.Unread()
	if err != nil && len(unread) == 0 {
		unread = i.config.Regions
	}
	for _, region := range i.config.Regions {
		readable := 1.0
		if slices.Contains(unread, region) {
			readable = 0
		}
		gauge(out, i.read, readable, string(region))
	}
	if err == nil {
		i.collectHosts(out, snapshot, states)
	}
}

// collectWaiting sends the numbers of VMs that wait, by reason.
func (i *inventory) collectWaiting(out chan<- prometheus.Metric, states []scaler.VMState) {
	waiting := map[string]int{v1alpha1.ReasonPendingApproval: 0, v1alpha1.ReasonStateBackendUnreachable: 0, v1alpha1.ReasonChangePostponed: 0}
	for i := range states {
		if pending := new(scaler.PendingApprovalError); states[i].Phase == scaler.PhasePendingApproval || errors.As(states[i].Err, &pending) {
			waiting[v1alpha1.ReasonPendingApproval]++
		} else if outage := scaler.OutageOf(&states[i]); outage != nil {
			reason, _ := outage.Cause()
			waiting[reason]++
		}
	}
	for reason, count := range waiting {
		gauge(out, i.waiting, float64(count), reason)
	}
}

// collectHosts sends the free resources as the planner counts them: the resources of
// desired VMs are not free, even before the VMs exist.
func (i *inventory) collectHosts(out chan<- prometheus.Metric, snapshot *topology.Snapshot, states []scaler.VMState) {
	type node struct {
		host topology.HostID
		numa int
	}
	all := map[node]int{}
	for h := range snapshot.Hosts {
		host := &snapshot.Hosts[h]
		for _, cpu := range host.Machine.CPUs {
			if cpu.Online && !host.ReservedCPUs.Contains(cpu.ID) {
				all[node{host.ID(), cpu.NUMANode}]++
			}
		}
	}
	pods, rest := scaler.Places(states)
	for _, room := range planner.New(snapshot, slices.Concat(pods, rest)).Room() {
		region, host := string(room.Host.Region), string(room.Host.Host)
		if room.Problem != "" {
			gauge(out, i.up, 0, region, host)
			continue
		}
		gauge(out, i.up, 1, region, host)
		gauge(out, i.floating, float64(room.Floating), region, host)
		for _, free := range room.Nodes {
			numa := strconv.Itoa(free.NUMANode)
			gauge(out, i.all, float64(all[node{room.Host, free.NUMANode}]), region, host, numa)
			gauge(out, i.cpus, float64(free.CPUs), region, host, numa)
			gauge(out, i.memory, float64(free.MemoryMiB)*mebibyte, region, host, numa)
		}
	}
}
