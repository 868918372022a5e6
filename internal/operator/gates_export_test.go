package operator

import (
	"context"

	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Observability returns the number of controllers that serve Karpenter's metrics.
func Observability(settings *ControllerSettings) (int, error) {
	registry := crmetrics.Registry
	crmetrics.Registry = replacing{registry}
	defer func() { crmetrics.Registry = registry }()
	o, err := karpenterOptions(settings)
	return len(new(core).observability(o.ToContext(context.Background()))), err
}

// Gated returns the names of the controllers that run only with these feature gates.
func Gated(gates string) ([]string, error) {
	o, err := karpenterOptions(&ControllerSettings{FeatureGates: gates})
	if err != nil {
		return nil, err
	}
	var names []string
	ctx := o.ToContext(context.Background())
	for _, controller := range new(core).gated(ctx, nil) {
		if named, ok := controller.(interface{ Name() string }); ok {
			names = append(names, named.Name())
		}
	}
	return names, nil
}
