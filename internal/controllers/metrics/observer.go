package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// Observer receives events and updates metrics. It is safe for concurrent use.
type Observer struct {
	plans, applies, waits *prometheus.HistogramVec
	guards                prometheus.Histogram
	decisions             *prometheus.HistogramVec
	queued                prometheus.Gauge
	drifted               *prometheus.GaugeVec
	requests              *prometheus.HistogramVec
	answers               *prometheus.CounterVec
	locks                 *locks
}

var _ scaler.Observer = (*Observer)(nil)

// engineBuckets range from a plan of a few VMs to the clone of a large disk.
func engineBuckets() []float64 {
	return []float64{0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800}
}

// callBuckets range from a fast response of Proxmox to its timeout.
func callBuckets() []float64 {
	return []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
}

// guardBuckets are for pure computation.
func guardBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1}
}

func newObserver(config Config) *Observer {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: name, Help: help, Buckets: buckets,
		}, labels)
	}
	return &Observer{
		plans:   histogram("plan_duration_seconds", "How long the engine took to plan a host.", engineBuckets(), labelRegion),
		applies: histogram("apply_duration_seconds", "How long the engine took to apply a plan to a host.", engineBuckets(), labelRegion, labelResult),
		waits:   histogram("queue_duration_seconds", "How long a request waited until a change took it.", engineBuckets(), labelRegion),
		guards: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "guard_duration_seconds", Help: "How long the guard took to judge a change.", Buckets: guardBuckets(),
		}),
		decisions: histogram("decision_duration_seconds", "How long the parts of a decision about pods took: solve is what nodes they want, place is where those go.",
			guardBuckets(), labelPart),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "queue_length", Help: "VMs that are asked to come or go and that no change has taken yet.",
		}),
		drifted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "drifted_vms", Help: "VMs that are not as their file says, by what can be done about it.",
		}, []string{labelClass}),
		requests: histogram("proxmox_request_duration_seconds", "How long Proxmox took to answer a request.", callBuckets(),
			labelRegion, labelMethod, labelPath),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "proxmox_requests_total", Help: "Requests to Proxmox by the HTTP status of the answer; 0 means none came.",
		}, []string{labelRegion, labelMethod, labelPath, labelCode}),
		locks: newLocks(config),
	}
}

func (o *Observer) collectors() []prometheus.Collector {
	return []prometheus.Collector{o.plans, o.applies, o.waits, o.guards, o.decisions, o.queued, o.drifted, o.requests, o.answers, o.locks}
}

// PlanDone records that a host was planned, or why it could not be.
func (o *Observer) PlanDone(shard fleet.Shard, took time.Duration, err error) {
	o.locks.note(shard, err)
	o.plans.WithLabelValues(string(shard.Region)).Observe(took.Seconds())
}

// ApplyDone records that a plan was applied to a host, or how that failed.
func (o *Observer) ApplyDone(shard fleet.Shard, took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	o.locks.note(shard, err)
	o.applies.WithLabelValues(string(shard.Region), result).Observe(took.Seconds())
}

// QueueDone records that a request has become part of a change.
func (o *Observer) QueueDone(shard fleet.Shard, waited time.Duration) {
	o.waits.WithLabelValues(string(shard.Region)).Observe(waited.Seconds())
}

// Queued records how many VMs wait to be created or removed.
func (o *Observer) Queued(vms int) { o.queued.Set(float64(vms)) }

// GuardDone records that the guard has checked a change.
func (o *Observer) GuardDone(took time.Duration) { o.guards.Observe(took.Seconds()) }

// DecisionTimed records how long a part of a decision took.
func (o *Observer) DecisionTimed(part scheduling.Part, took time.Duration) {
	o.decisions.WithLabelValues(string(part)).Observe(took.Seconds())
}

// Drifted records the result of the last comparison of the fleet with Proxmox.
func (o *Observer) Drifted(found []scaler.ShardDrift) {
	counts := map[scaler.DriftClass]int{}
	for _, shard := range found {
		for _, vm := range shard.VMs {
			counts[vm.Class]++
		}
	}
	for _, class := range scaler.DriftClasses() {
		if class != scaler.DriftNone {
			o.drifted.WithLabelValues(strings.ReplaceAll(string(class), " ", "_")).Set(float64(counts[class]))
		}
	}
}

// Request returns the callback for each request of a region's client.
func (o *Observer) Request(region topology.RegionName) func(method, path string, code int, took time.Duration) {
	return func(method, path string, code int, took time.Duration) {
		o.requests.WithLabelValues(string(region), method, path).Observe(took.Seconds())
		o.answers.WithLabelValues(string(region), method, path, strconv.Itoa(code)).Inc()
	}
}
