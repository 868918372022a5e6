// Package metrics tells Prometheus what numaform knows and does: VMs by host and
// phase, what is free of each NUMA node, how long plans and applies take, how Proxmox
// answers. Karpenter's own metrics stand beside them. It decides nothing. Start at
// Register; docs/metrics.md lists every metric.
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

// namespace begins the names of numaform's metrics.
const namespace = "numaform"

// Labels of metrics. Nothing that grows with the number of VMs, pods or changes is
// one.
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

// Config is what Register needs.
type Config struct {
	// VMs returns the VMs of the fleet's writer, from memory.
	VMs func() []scaler.VMState
	// Snapshot returns what Proxmox is like now, from memory if it can.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
	// Closed returns the offers that are not made for now.
	Closed func() []scheduling.Offer
	// Orphans returns how many guests with our marker nobody wants, by host.
	Orphans func() map[topology.HostID]int
	// Kproximate adds kproximate's metrics under their own names, for dashboards that
	// were made for it. Nodes are read from Client then.
	Kproximate bool
	Client     client.Reader
	// Clock is the real one by default.
	Clock clock.PassiveClock
}

// Register adds all metrics to a registry, and returns what to tell of events.
func Register(registry prometheus.Registerer, config Config) (*Observer, error) {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Closed == nil {
		config.Closed = func() []scheduling.Offer { return nil }
	}
	if config.Orphans == nil {
		config.Orphans = func() map[topology.HostID]int { return nil }
	}
	observer := newObserver(config)
	collectors := append(observer.collectors(), newInventory(config))
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

// describe makes the description of a metric that is read when it is asked for.
func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// gauge sends the value of a metric.
func gauge(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}
