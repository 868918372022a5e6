package operator_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/operator"
)

// TestStaticAddressesExample checks that the example's class is valid, and that its region
// has the pools of the class.
func TestStaticAddressesExample(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "examples", "static-addresses")
	config, err := operator.Load(filepath.Join(dir, "numaform.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "nodeclass.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := yaml.UnmarshalStrict(text, class); err != nil {
		t.Fatal(err)
	}
	if err := crd.Validate(class); err != nil {
		t.Error(err)
	}
	var pools []string
	for _, pool := range config.Clusters[0].AddressPools {
		pools = append(pools, pool.Name)
	}
	for _, network := range class.Spec.Networks {
		for _, name := range network.AddressPools {
			if !slices.Contains(pools, name) {
				t.Errorf("pool %s is not among %v", name, pools)
			}
		}
	}
	if string(config.Clusters[0].Region) != class.Spec.Region || len(class.Spec.Networks) != 2 {
		t.Errorf("region %s, networks %v", class.Spec.Region, class.Spec.Networks)
	}
}
