package operator

import (
	"context"
)

// Repairs names the controllers that replace nodes with these feature gates.
func Repairs(gates string) ([]string, error) {
	o, err := karpenterOptions(&ControllerSettings{FeatureGates: gates})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, controller := range new(core).repairs(o.ToContext(context.Background())) {
		if named, ok := controller.(interface{ Name() string }); ok {
			names = append(names, named.Name())
		}
	}
	return names, nil
}
