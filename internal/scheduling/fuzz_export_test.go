package scheduling

import "sigs.k8s.io/controller-runtime/pkg/client"

// Decode reads the text of a manifest as it is: no defaults, no workloads replaced.
func Decode(text []byte) ([]client.Object, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return decodeAll(scheme, "fuzz.yaml", text)
}
