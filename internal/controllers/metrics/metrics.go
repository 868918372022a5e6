// Package metrics exports numaform's metrics to Prometheus: VMs by host and phase, the free
// resources of each NUMA node, the duration of plans and applies, and Proxmox's responses.
// Karpenter's own metrics are exported alongside. It makes no decisions. Start at Register;
// docs/metrics.md lists every metric.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// namespace is the prefix of numaform's metrics.
const namespace = "numaform"

// The labels of metrics. The number of their values does not grow with the number of VMs,
// pods or changes.
const (
	labelRegion    = "region"
	labelHost      = "host"
	labelNUMA      = "numa"
	labelPhase     = "phase"
	labelReason    = "reason"
	labelClass     = "class"
	labelPart      = "part"
	labelNodePool  = "nodepool"
	labelMethod    = "method"
	labelPath      = "path"
	labelCode      = "code"
	labelResult    = "result"
	labelDirection = "direction"
	labelType      = "type"
	labelVerdict   = "verdict"
)

// The values of labelResult for applies.
const (
	resultSuccess = "success"
	resultError   = "error"
)

// Config configures Register.
type Config struct {
	// Regions are the regions of the fleet. Their counters exist from the start: an increase
	// is invisible to Prometheus if its series begins with it.
	Regions []topology.RegionName
	// VMs returns the VMs of the fleet's writer, from memory.
	VMs func() []scaler.VMState
	// Snapshot returns the current snapshot of Proxmox, from memory if possible.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Unread returns the regions that did not respond to the last read of the snapshot.
	Unread func() []topology.RegionName
	// Unavailable returns the unavailable offerings.
	Unavailable func() []scheduling.OfferingSelector
	// Orphans returns the number of undesired guests with our marker, by host.
	Orphans func() map[topology.HostID]int
	// Pending returns the number of ScalePlans that wait for a decision.
	Pending func() map[v1alpha1.ScaleDirection]int
	// Notifications returns the number of attempts to send notifications.
	Notifications func() map[notify.Attempt]int
	// BreakGlass returns the number of changes that began by a break-glass approval.
	BreakGlass func() int
	// Kproximate adds kproximate's metrics under their own names, for its dashboards.
	// Client then reads Nodes and Pods.
	Kproximate bool
	Client     client.Reader
	Clock      clock.PassiveClock
}

// Register adds all metrics to a registry, and returns the observer that receives events.
func Register(registry prometheus.Registerer, config Config) (*Observer, error) {
	observer := newObserver(config)
	observer.HistoryRead(true) // the history may never be verified: then no alert must fire
	for _, region := range config.Regions {
		for _, result := range []string{resultSuccess, resultError} {
			observer.applies.WithLabelValues(string(region), result)
		}
	}
	for _, result := range []string{resultSuccess, resultError} {
		observer.putBacks.WithLabelValues(result) // increase() does not see the first value of a new series
	}
	for _, verdict := range []guard.Decision{guard.Allow, guard.NeedsApproval, guard.Deny} {
		observer.guards.WithLabelValues(verdictLabel(verdict))
	}
	collectors := []prometheus.Collector{
		observer.plans, observer.applies, observer.waits, observer.guards, observer.decisions, observer.queued,
		observer.drifted, observer.faults, observer.readable, observer.held, observer.checkpoints, observer.putBacks, observer.requests, observer.answers, observer.locks, newInventory(config, observer.failures),
	}
	if config.Kproximate {
		collectors = append(collectors, newKproximate(config))
	}
	var errs []error
	for _, collector := range collectors {
		errs = append(errs, registry.Register(collector))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return observer, nil
}

// describe returns the description of a metric that is collected at each scrape.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// gauge sends the value of a metric.
func gauge(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// Observer receives events and updates metrics. It is safe for concurrent use.
type Observer struct {
	plans, applies, waits *prometheus.HistogramVec
	guards                *prometheus.HistogramVec
	decisions             *prometheus.HistogramVec
	queued                prometheus.Gauge
	drifted               *prometheus.GaugeVec
	faults                *prometheus.GaugeVec
	readable              prometheus.Gauge
	held, checkpoints     prometheus.Gauge
	putBacks              *prometheus.CounterVec
	requests              *prometheus.HistogramVec
	answers               *prometheus.CounterVec
	locks                 *locks
	failures              *failures
}

var _ scaler.Observer = (*Observer)(nil)

func newObserver(config Config) *Observer {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		}, labels)
	}
	// engineBuckets range from a plan of a few VMs to the clone of a large disk, in
	// seconds.
	engineBuckets := []float64{0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800}
	// callBuckets range from a fast response of Proxmox to its timeout, in seconds.
	callBuckets := []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
	// computeBuckets are for pure computation, in seconds.
	computeBuckets := []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1}
	return &Observer{
		plans:   histogram("plan_duration_seconds", "How long it took to plan a host, with the check of the plan by the guard.", engineBuckets, labelRegion),
		applies: histogram("apply_duration_seconds", "How long it took to apply a plan to a host.", engineBuckets, labelRegion, labelResult),
		waits:   histogram("queue_duration_seconds", "How long the request for a creation or a wake waited to become part of a change.", engineBuckets, labelRegion),
		guards:  histogram("guard_duration_seconds", "How long the guard took to check the plan of a host.", computeBuckets, labelVerdict),
		decisions: histogram("decision_duration_seconds", "How long the parts of a decision about pods took: solve finds the nodes that pods need, place finds their hosts.",
			computeBuckets, labelPart),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "queue_length", Help: "VMs whose requested creation, wake or removal is not part of a change yet.",
		}),
		drifted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "drifted_vms", Help: "VMs that differ from their file, by what can be done about it.",
		}, []string{labelClass}),
		faults: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "history_faults", Help: "Faults of the fleet's history that no user accepted, by kind.",
		}, []string{labelClass}),
		readable: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "history_readable", Help: "Whether the whole history could be read when it was last verified: 1, also before the first time, or 0.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "history_held", Help: "Whether all changes are held because the history was rewritten.",
		}),
		checkpoints: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "history_checkpoint_places", Help: "Places outside the fleet's store that have the latest checkpoint of the history.",
		}),
		putBacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "history_put_backs_total",
			Help: "How often the fleet's branch had lost what numaform wrote to it, and numaform pushed its copy again, by result.",
		}, []string{labelResult}),
		requests: histogram("proxmox_request_duration_seconds", "How long Proxmox took to respond to a request.", callBuckets,
			labelRegion, labelMethod, labelPath),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "proxmox_requests_total", Help: "Requests to Proxmox by the HTTP status of the response; 0 means no response.",
		}, []string{labelRegion, labelMethod, labelPath, labelCode}),
		failures: &failures{count: map[topology.HostID]int{}},
		locks: &locks{
			config: config,
			since:  map[topology.HostID]time.Time{},
			age: describe("state_lock_age_seconds", "Age of the state lock that numaform is waiting for on a host.",
				labelRegion, labelHost),
		},
	}
}

// PlanDone records how long planning a host took, and the state lock that prevented it, if
// any.
func (o *Observer) PlanDone(host topology.HostID, took time.Duration, err error) {
	o.locks.note(host, err)
	o.plans.WithLabelValues(string(host.Region)).Observe(took.Seconds())
}

// ApplyDone records how long an apply to a host took, whether it failed, and the state lock
// that prevented it, if any.
func (o *Observer) ApplyDone(host topology.HostID, took time.Duration, err error) {
	result := resultSuccess
	if err != nil {
		result = resultError
	}
	o.locks.note(host, err)
	o.applies.WithLabelValues(string(host.Region), result).Observe(took.Seconds())
}

// QueueDone records how long a creation or a wake waited until it became part of a change.
func (o *Observer) QueueDone(host topology.HostID, waited time.Duration) {
	o.waits.WithLabelValues(string(host.Region)).Observe(waited.Seconds())
}

// VMFailed records that a VM of a host could not be created or woken.
func (o *Observer) VMFailed(host topology.HostID) {
	o.failures.mu.Lock()
	defer o.failures.mu.Unlock()
	o.failures.count[host]++
}

// failures counts the VMs that failed. A failed VM is soon given up, so a scrape may not
// see it in the phase failed.
type failures struct {
	// mu guards the field below.
	mu    sync.Mutex
	count map[topology.HostID]int
}

// of returns the number of failed VMs of these hosts, and of all others that have any.
func (f *failures) of(hosts []topology.Host) map[topology.HostID]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := maps.Clone(f.count)
	for i := range hosts {
		all[hosts[i].ID()] += 0
	}
	return all
}

// Queued records how many VMs wait to be created, woken or removed.
func (o *Observer) Queued(vms int) { o.queued.Set(float64(vms)) }

// GuardDone records how long the guard took to check the plan of a host, and its verdict.
func (o *Observer) GuardDone(took time.Duration, verdict guard.Decision) {
	o.guards.WithLabelValues(verdictLabel(verdict)).Observe(took.Seconds())
}

// verdictLabel returns the value of a label, such as needs_approval.
func verdictLabel(verdict guard.Decision) string {
	return strings.ReplaceAll(verdict.String(), " ", "_")
}

// DecisionTimed records how long a part of a decision took.
func (o *Observer) DecisionTimed(part scheduling.Part, took time.Duration) {
	o.decisions.WithLabelValues(string(part)).Observe(took.Seconds())
}

// Drifted records the result of the last comparison of the fleet with Proxmox.
func (o *Observer) Drifted(found []scaler.RootDrift) {
	counts := map[scaler.DriftClass]int{}
	for _, host := range found {
		for _, vm := range host.VMs {
			counts[vm.Class]++
		}
	}
	for _, class := range scaler.DriftClasses() {
		if class != scaler.DriftNone {
			o.drifted.WithLabelValues(strings.ReplaceAll(string(class), " ", "_")).Set(float64(counts[class]))
		}
	}
}

// History records the result of the last verification of the fleet's history: whether changes
// are held, and how many other places have its latest checkpoint.
func (o *Observer) History(report *audit.Report, held bool, places int) {
	counts := map[audit.Fault]int{}
	for _, f := range report.Open() {
		counts[f.Fault]++
	}
	for _, fault := range audit.Faults() {
		o.faults.WithLabelValues(string(fault)).Set(float64(counts[fault]))
	}
	o.held.Set(0)
	if held {
		o.held.Set(1)
	}
	o.checkpoints.Set(float64(places))
}

// HistoryRead records whether the last verification of the fleet's history could read it.
func (o *Observer) HistoryRead(readable bool) {
	o.readable.Set(0)
	if readable {
		o.readable.Set(1)
	}
}

// HistoryPutBack records that the fleet's branch had lost what numaform wrote to it, and
// whether numaform could push its copy again.
func (o *Observer) HistoryPutBack(pushed bool) {
	result := resultSuccess
	if !pushed {
		result = resultError
	}
	o.putBacks.WithLabelValues(result).Inc()
}

// Request returns a callback that records each request of a region's client.
func (o *Observer) Request(region topology.RegionName) func(method, path string, code int, took time.Duration) {
	return func(method, path string, code int, took time.Duration) {
		o.requests.WithLabelValues(string(region), method, path).Observe(took.Seconds())
		o.answers.WithLabelValues(string(region), method, path, strconv.Itoa(code)).Inc()
	}
}

// locks provides the age of the locks for which numaform waits: the locks that note
// recorded, and the locks for which VMs wait.
type locks struct {
	config Config
	age    *prometheus.Desc

	// mu guards the field below.
	mu    sync.Mutex
	since map[topology.HostID]time.Time
}

// note records the lock that made a plan or an apply fail, and forgets it after a success.
// A lock of unknown age is not recorded.
func (l *locks) note(host topology.HostID, err error) {
	var locked *state.LockedError
	if !errors.As(err, &locked) && err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if locked != nil && !locked.Created.IsZero() {
		l.since[host] = locked.Created
	} else {
		delete(l.since, host)
	}
}

// Describe sends the description of the metric.
func (l *locks) Describe(out chan<- *prometheus.Desc) { out <- l.age }

// Collect sends the age of each lock.
func (l *locks) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	since := maps.Clone(l.since)
	l.mu.Unlock()
	for _, vm := range l.config.VMs() {
		var locked *state.LockedError
		if errors.As(vm.Err, &locked) && !locked.Created.IsZero() {
			since[vm.VM.Host] = locked.Created
		}
	}
	for host, begin := range since {
		gauge(out, l.age, l.config.Clock.Since(begin).Seconds(), string(host.Region), string(host.Host))
	}
}
