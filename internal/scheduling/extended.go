package scheduling

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/numaform/numaform/api/v1alpha1"
)

// addExtra adds a further resource to nodes of the type.
func (t *InstanceType) addExtra(name corev1.ResourceName, amount resource.Quantity) {
	if t.Extra == nil {
		t.Extra = corev1.ResourceList{}
	}
	t.Extra[name] = amount
}

// addExtended adds an extended resource, which a device plugin reports on the node.
func (t *InstanceType) addExtended(name corev1.ResourceName, amount resource.Quantity) error {
	if !isExtended(name) {
		return fmt.Errorf("capacity.%s is not known: write cpu, memory, ephemeral-storage, pods, hugepages-1Gi, hugepages-2Mi, "+
			"or an extended resource such as nvidia.com/gpu", name)
	}
	if amount.Sign() <= 0 || amount.MilliValue()%1000 != 0 {
		return fmt.Errorf("capacity.%s %q is not a whole number above 0", name, amount.String())
	}
	t.addExtra(name, amount)
	return nil
}

// isExtended reports whether name is an extended resource, whose domain is not
// Kubernetes' own.
func isExtended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && len(validation.IsQualifiedName(string(name))) == 0
}

// offeredBy reports whether the class offers the type: the type's family must be listed
// if the class lists families. A type with extended resources needs devices, so it is
// offered by a class that passes devices through, or that lists its family.
func (t *InstanceType) offeredBy(spec *v1alpha1.ProxmoxNodeClassSpec) bool {
	if s := spec.Sizing; s != nil && len(s.Families) > 0 {
		return slices.Contains(s.Families, t.Family())
	}
	extended := false
	for name := range t.Extra {
		extended = extended || isExtended(name)
	}
	return !extended || len(spec.PCIDevices) > 0
}

// OnlyExtended explains why a class that lists no families offers no instance type.
const OnlyExtended = "all instance types have extended resources, which come from devices: " +
	"write spec.pciDevices, name their families in spec.sizing.families, or add a type without"

// noTypes returns why a class offers no instance type.
func noTypes(spec *v1alpha1.ProxmoxNodeClassSpec) string {
	if s := spec.Sizing; s != nil && len(s.Families) > 0 {
		return fmt.Sprintf("no instance type is of the families in spec.sizing (%s): correct these", strings.Join(s.Families, ", "))
	}
	return OnlyExtended
}
