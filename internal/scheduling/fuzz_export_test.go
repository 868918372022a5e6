package scheduling

import "sigs.k8s.io/controller-runtime/pkg/client"

// NewDecode returns a function that decodes a manifest without setting defaults or
// replacing workloads.
func NewDecode() (func(text []byte) ([]client.Object, error), error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return func(text []byte) ([]client.Object, error) { return decodeAll(scheme, "fuzz.yaml", text) }, nil
}
