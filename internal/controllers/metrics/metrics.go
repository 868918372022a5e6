// Package metrics exports numaform's metrics to Prometheus: VMs by host and phase, the free
// resources of each NUMA node, the duration of plans and applies, and Proxmox's responses.
// Karpenter's own metrics are exported alongside. It makes no decisions.
// Start at Register; docs/metrics.md lists every metric.
package metrics

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// namespace is the prefix of numaform's metrics.
const namespace = "numaform"

// The labels of metrics. The number of their values does not grow with the number of VMs,
// pods or changes.
const (
	labelRegion   = "region"
	labelHost     = "host"
	labelNUMA     = "numa"
	labelPhase    = "phase"
	labelClass    = "class"
	labelPart     = "part"
	labelNodePool = "nodepool"
	labelMethod   = "method"
	labelPath     = "path"
	labelCode     = "code"
	labelResult   = "result"
)

// Config configures Register.
type Config struct {
	// VMs returns the VMs of the fleet's writer, from memory.
	VMs func() []scaler.VMState
	// Snapshot returns the current snapshot of Proxmox, from memory if possible.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Unavailable returns the unavailable offerings.
	Unavailable func() []scheduling.OfferingSelector
	// Orphans returns the number of undesired guests with our marker, by host.
	Orphans func() map[topology.HostID]int
	// Kproximate adds kproximate's metrics under their own names, for dashboards made for
	// it. It reads Nodes from Client.
	Kproximate bool
	Client     client.Reader
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

// Register adds all metrics to a registry, and returns the observer that receives events.
func Register(registry prometheus.Registerer, config Config) (*Observer, error) {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Unavailable == nil {
		config.Unavailable = func() []scheduling.OfferingSelector { return nil }
	}
	if config.Orphans == nil {
		config.Orphans = func() map[topology.HostID]int { return nil }
	}
	observer := newObserver(config)
	collectors := []prometheus.Collector{
		observer.plans, observer.applies, observer.waits, observer.guards, observer.decisions, observer.queued,
		observer.drifted, observer.requests, observer.answers, observer.locks, newInventory(config),
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
