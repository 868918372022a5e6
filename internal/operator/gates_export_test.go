package operator

import (
	"context"
)

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
