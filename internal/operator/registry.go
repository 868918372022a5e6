package operator

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// replacing is a registry in which a collector replaces an older one of the same metrics.
// Some of Karpenter's controllers register metrics when they are created, and they are
// created again after each pause.
type replacing struct{ crmetrics.RegistererGatherer }

// replaceCollectors makes controller-runtime's registry a replacing one. Call it before
// creating any controller.
func replaceCollectors() {
	if _, done := crmetrics.Registry.(replacing); !done {
		crmetrics.Registry = replacing{crmetrics.Registry}
	}
}

// Register adds a collector, replacing one of the same metrics if there is one.
func (r replacing) Register(c prometheus.Collector) error {
	err := r.RegistererGatherer.Register(c)
	var already prometheus.AlreadyRegisteredError
	if !errors.As(err, &already) {
		return err
	}
	r.Unregister(already.ExistingCollector)
	return r.RegistererGatherer.Register(c)
}

// MustRegister is like Register but panics on an error.
func (r replacing) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}
