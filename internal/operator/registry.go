package operator

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// replacing is a registry in which a collector takes the place of an older one of the
// same metrics. Some of Karpenter's controllers register theirs when they are made, and
// they are made anew whenever numaform goes on after a pause.
type replacing struct{ crmetrics.RegistererGatherer }

// replaceCollectors makes controller-runtime's registry one that replaces. Call it
// before any controller is made.
func replaceCollectors() {
	if _, done := crmetrics.Registry.(replacing); !done {
		crmetrics.Registry = replacing{crmetrics.Registry}
	}
}

// Register adds a collector, in the place of one of the same metrics if there is one.
func (r replacing) Register(c prometheus.Collector) error {
	err := r.RegistererGatherer.Register(c)
	var already prometheus.AlreadyRegisteredError
	if !errors.As(err, &already) {
		return err
	}
	r.Unregister(already.ExistingCollector)
	return r.RegistererGatherer.Register(c)
}

// MustRegister is Register for what cannot fail but by a programmer's mistake.
func (r replacing) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}
