package scheduling

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// The huge pages that a type may have in its guests, independent of the host's huge
// pages.
const (
	guestPages2Mi = corev1.ResourceHugePagesPrefix + "2Mi"
	guestPages1Gi = corev1.ResourceHugePagesPrefix + "1Gi"
)

// leastMemory is the minimum of a guest's memory outside of huge pages.
const leastMemory = 512 * mebibyte

// checkPages returns an error if a type's huge pages are invalid.
func (t *InstanceType) checkPages() error {
	left := t.MemoryMiB * mebibyte
	for _, name := range slices.Sorted(maps.Keys(t.Extra)) {
		if !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			continue
		}
		size := map[corev1.ResourceName]int64{guestPages2Mi: 2 * mebibyte, guestPages1Gi: gibibyte}[name]
		amount := t.Extra[name]
		if size == 0 || amount.Sign() < 0 || amount.Value()%size != 0 {
			return fmt.Errorf("capacity.%s %q is no number of whole pages: write hugepages-2Mi or hugepages-1Gi, in multiples of that", name, amount.String())
		}
		left -= amount.Value()
	}
	if left < leastMemory {
		return errors.New("its huge pages leave less than 512Mi of capacity.memory: lower them")
	}
	return nil
}

// pages returns how much of a guest's memory is in huge pages, in bytes.
func (t *InstanceType) pages() int64 {
	sum := int64(0)
	for name, amount := range t.Extra {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			sum += amount.Value()
		}
	}
	return sum
}

// GuestPages returns how many huge pages of 2 MiB and of 1 GiB the guest of a class's VM
// must reserve, so that its Node has the predicted resources. If types is nil, it uses
// DefaultInstanceTypes.
func GuestPages(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) (of2Mi, of1Gi int64) {
	t := TypeOf(nc, vm, types)
	small, large := t.Extra[guestPages2Mi], t.Extra[guestPages1Gi]
	return small.Value() / (2 * mebibyte), large.Value() / gibibyte
}
