package scheduling

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30

	// defaultDiskGiB is a node's disk size if neither class, type nor template sets one.
	defaultDiskGiB = 30
)

// InstanceType is a size of VM. Each NodeClass offers it on its own hosts.
type InstanceType struct {
	// Name is <family>.<size>, such as c1.4VCPU-8GB.
	Name string
	// CapacityType is Karpenter's: on-demand, spot or reserved.
	CapacityType string
	VCPUs        int
	MemoryMiB    int64
	// ReportedMiB is the part of MemoryMiB that the Node reports; 0 means an estimate.
	ReportedMiB int64
	// DiskGiB is the minimum disk size of a node; 0 means the NodeClass's.
	DiskGiB int64
	Pods    int64
	// Extra are further resources of a node, such as hugepages-2Mi or nvidia.com/gpu.
	Extra    corev1.ResourceList
	Overhead Overhead
	// Price is relative, unless a decision knows prices.
	Price float64
}

// Overhead is the part of a node's resources that pods cannot use. Kubelet must be
// configured with the same values.
type Overhead struct {
	KubeReserved      corev1.ResourceList
	SystemReserved    corev1.ResourceList
	EvictionThreshold corev1.ResourceList
	// EvictionPercent are thresholds as a percentage of the node's resource.
	EvictionPercent map[corev1.ResourceName]float64 `json:"-"`
}

// Family returns the part of the name before the first dot.
func (t *InstanceType) Family() string {
	family, _, _ := strings.Cut(t.Name, ".")
	return family
}

// DefaultInstanceTypes returns the types that apply if no file defines others: 1, 2, 4, 8
// or 16 vCPUs, with 2 (c1), 3 (t1), 4 (s1) or 8 (m1) GiB for each vCPU.
func DefaultInstanceTypes() []InstanceType {
	var types []InstanceType
	for _, vcpus := range []int{1, 2, 4, 8, 16} {
		for _, family := range []struct {
			name   string
			factor int
		}{{"c1", 2}, {"t1", 3}, {"s1", 4}, {"m1", 8}} {
			memoryGiB := int64(vcpus * family.factor)
			types = append(types, newType(fmt.Sprintf("%s.%dVCPU-%dGB", family.name, vcpus, memoryGiB), vcpus, memoryGiB*1024))
		}
	}
	return types
}

// typesOrDefault returns the types, or DefaultInstanceTypes if types is nil.
func typesOrDefault(types []InstanceType) []InstanceType {
	if types == nil {
		return DefaultInstanceTypes()
	}
	return types
}

// newType returns a type with the defaults for its size.
func newType(name string, vcpus int, memoryMiB int64) InstanceType {
	return InstanceType{
		Name:         name,
		CapacityType: karpv1.CapacityTypeOnDemand,
		VCPUs:        vcpus,
		MemoryMiB:    memoryMiB,
		Pods:         defaultPods(memoryMiB / 1024),
		Overhead:     defaultOverhead(vcpus, memoryMiB/1024),
		Price:        price(vcpus, memoryMiB, karpv1.CapacityTypeOnDemand),
	}
}

func defaultPods(memoryGiB int64) int64 {
	switch {
	case memoryGiB <= 1:
		return 32
	case memoryGiB <= 2:
		return 64
	}
	return 110
}

func defaultOverhead(vcpus int, memoryGiB int64) Overhead {
	cpu, memory := int64(100), int64(384)
	switch {
	case vcpus < 2:
		cpu = 20
	case vcpus < 4:
		cpu = 50
	}
	switch {
	case memoryGiB < 2:
		memory = 192
	case memoryGiB < 4:
		memory = 256
	}
	return Overhead{
		KubeReserved:      resourceList(cpu, memory),
		SystemReserved:    resourceList(10, 64),
		EvictionThreshold: corev1.ResourceList{corev1.ResourceMemory: quantity(100 * mebibyte)},
	}
}

func resourceList(milliCPU, memoryMiB int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: quantity(memoryMiB * mebibyte),
	}
}

func quantity(bytes int64) resource.Quantity { return *resource.NewQuantity(bytes, resource.BinarySI) }

// price returns the relative price of a size: a vCPU costs as much as 25 GiB of memory, and spot
// costs half as much as other capacity types.
func price(vcpus int, memoryMiB int64, capacityType string) float64 {
	full := 0.025*float64(vcpus) + 0.001*float64(memoryMiB)/1024
	if capacityType == karpv1.CapacityTypeSpot {
		return full / 2
	}
	return full
}

// guestDiskMiB returns the size of a guest's root file system in MiB: the disk without the
// firmware partitions, and without ext4's journal, its inodes of 256 bytes for each 16 KiB,
// the copies of its group descriptors, which have room for a larger disk, and about 9 KiB for
// each group of 128 MiB, mostly bitmaps.
func guestDiskMiB(diskGiB int64) int64 {
	return diskGiB*1024 - diskGiB*1024/64 - (9*diskGiB+127)/128 - 220
}

// capacity returns the capacity of the Node of a VM with this type.
//
// The guest's kernel reports less memory than the VM has: its image and 64 bytes for each
// page are not included. The estimate errs on the low side, because a pod that does not fit
// its new node requests another one.
func (t *InstanceType) capacity(diskGiB int64) corev1.ResourceList {
	memoryMiB := cmp.Or(t.ReportedMiB, t.MemoryMiB-t.MemoryMiB/50-96)
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(t.VCPUs), resource.DecimalSI),
		corev1.ResourceMemory:           quantity(memoryMiB * mebibyte),
		corev1.ResourcePods:             *resource.NewQuantity(t.Pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: quantity(guestDiskMiB(diskGiB) * mebibyte),
	}
	for name, amount := range t.Extra {
		list[name] = amount.DeepCopy()
	}
	return list
}

// allocatable returns what pods can use: kubelet subtracts huge pages from the memory,
// and so does Karpenter.
func (t *InstanceType) allocatable(diskGiB int64) corev1.ResourceList {
	list := resources.Subtract(t.capacity(diskGiB), t.overhead(diskGiB).Total())
	pages := int64(0)
	for name, amount := range t.Extra {
		if isHugePages(name) {
			pages += amount.Value()
		}
	}
	if pages > 0 {
		list[corev1.ResourceMemory] = quantity(max(0, list.Memory().Value()-pages))
	}
	return list
}

// with returns the type with further resources.
func (t InstanceType) with(extra corev1.ResourceList) InstanceType {
	if len(extra) == 0 {
		return t
	}
	all := corev1.ResourceList{}
	maps.Copy(all, t.Extra)
	maps.Copy(all, extra)
	t.Extra = all
	return t
}

// TypeOf returns a VM's type as nodes of the class have it. If types is nil, it uses
// DefaultInstanceTypes.
func TypeOf(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) InstanceType {
	return typeOf(vm, typesOrDefault(types)).forClass(&nc.Spec)
}

// typeOf returns a VM's type, or one with the VM's size if no type has its name and size.
func typeOf(vm *fleet.VM, types []InstanceType) InstanceType {
	t := InstanceType{
		VCPUs:     vm.VCPUs,
		MemoryMiB: vm.MemoryMiB,
		Pods:      defaultPods(vm.MemoryMiB / 1024),
		Overhead:  defaultOverhead(vm.VCPUs, vm.MemoryMiB/1024),
	}
	i := slices.IndexFunc(types, func(t InstanceType) bool {
		return t.Name == vm.InstanceType && t.VCPUs == vm.VCPUs && t.MemoryMiB == vm.MemoryMiB
	})
	if i >= 0 {
		t = types[i]
	}
	if t.Name != vm.InstanceType || t.CapacityType != vm.CapacityType {
		t.Name = vm.InstanceType
		t.CapacityType = vm.CapacityType
		t.DiskGiB = vm.DiskGiB
		t.Price = price(vm.VCPUs, vm.MemoryMiB, vm.CapacityType)
	}
	return t
}

// GuestPages returns how many huge pages of 2 MiB and of 1 GiB the guest of a class's VM
// must reserve, so that its Node has the predicted resources. If types is nil, it uses
// DefaultInstanceTypes.
func GuestPages(nc *v1alpha1.ProxmoxNodeClass, vm *fleet.VM, types []InstanceType) (of2Mi, of1Gi int64) {
	t := TypeOf(nc, vm, types)
	small, large := t.Extra[guestPages2Mi], t.Extra[guestPages1Gi]
	return small.Value() / (2 * mebibyte), large.Value() / gibibyte
}

// typeFile is one entry of karpenter-provider-proxmox's instance types file.
type typeFile struct {
	Name         string              `json:"name"`
	Capacity     corev1.ResourceList `json:"capacity"`
	CapacityType string              `json:"capacitytype"`
	Overhead     *Overhead           `json:"overhead,omitempty"`
	// Offerings are null in generated files: the topology provides the hosts.
	Offerings []json.RawMessage `json:"offerings,omitempty"`
}

// maxMistakes limits how many mistakes of a file are reported at once.
const maxMistakes = 20

// ParseInstanceTypes parses an instance types file of karpenter-provider-proxmox: a JSON
// list of name, capacity, capacitytype and overhead.
func ParseInstanceTypes(data []byte) ([]InstanceType, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	var entries []typeFile
	if err := decoder.Decode(&entries); err != nil {
		return nil, fmt.Errorf("parsing instance types: %s: must be a JSON list of name, capacity, capacitytype and overhead", describeDecodeError(err))
	}
	if decoder.More() {
		return nil, errors.New("parsing instance types: unexpected data after the list: remove it")
	}
	if len(entries) == 0 {
		return nil, errors.New("parsing instance types: the list is empty: add a type, or use no file")
	}
	var types []InstanceType
	var errs []error
	names := map[string]int{}
	for i := range entries {
		t, err := entries[i].instanceType()
		if first, twice := names[entries[i].Name]; twice && err == nil {
			err = fmt.Errorf("has the same name as entry %d: names must be unique", first)
		}
		names[entries[i].Name] = i
		if err != nil {
			errs = append(errs, fmt.Errorf("parsing instance types: entry %d (%.80q): %w", i, entries[i].Name, err))
			if len(errs) == maxMistakes {
				break
			}
			continue
		}
		types = append(types, t)
	}
	return types, errors.Join(errs...)
}

func (f *typeFile) instanceType() (InstanceType, error) {
	var none InstanceType
	if problems := validation.IsValidLabelValue(f.Name); f.Name == "" || len(problems) > 0 {
		return none, errors.New("name must be a valid label value, such as c1.4VCPU-8GB")
	}
	if len(f.Offerings) > 0 {
		return none, errors.New("offerings are not supported, because numaform reads the hosts from Proxmox: remove them")
	}
	if isFlexible(f.Name) {
		return none, fmt.Errorf("family %s is reserved for Flexible sizing: choose another", flexibleFamily)
	}
	capacityType := cmp.Or(f.CapacityType, karpv1.CapacityTypeOnDemand)
	if !slices.Contains([]string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot, karpv1.CapacityTypeReserved}, capacityType) {
		return none, fmt.Errorf("capacitytype %q must be on-demand, spot or reserved", capacityType)
	}
	cpu := f.Capacity[corev1.ResourceCPU]
	if cpu.MilliValue()%1000 != 0 || cpu.Sign() <= 0 {
		return none, fmt.Errorf("capacity.cpu %q must be a positive whole number", cpu.String())
	}
	memory := f.Capacity[corev1.ResourceMemory]
	if memory.Value() < leastMemory {
		return none, fmt.Errorf("capacity.memory %q must be at least 512Mi", memory.String())
	}

	t := InstanceType{Name: f.Name, CapacityType: capacityType, VCPUs: int(cpu.Value()), MemoryMiB: memory.Value() / mebibyte}
	t.Pods = defaultPods(t.MemoryMiB / 1024)
	t.Price = price(t.VCPUs, t.MemoryMiB, t.CapacityType)
	t.Overhead = defaultOverhead(t.VCPUs, t.MemoryMiB/1024)
	if f.Overhead != nil {
		t.Overhead = *f.Overhead
	}
	if err := t.setResources(f.Capacity); err != nil {
		return none, err
	}
	return t, nil
}

// setResources sets the resources of a type's capacity other than CPU and memory.
func (t *InstanceType) setResources(capacity corev1.ResourceList) error {
	withoutPages := t.MemoryMiB * mebibyte
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		amount := capacity[name]
		switch {
		case name == corev1.ResourceCPU || name == corev1.ResourceMemory:
			continue
		case name == corev1.ResourcePods:
			t.Pods = amount.Value()
			continue
		case name == corev1.ResourceEphemeralStorage:
			t.DiskGiB = (amount.Value() + gibibyte - 1) / gibibyte
			continue
		case isHugePages(name):
			size := map[corev1.ResourceName]int64{guestPages2Mi: 2 * mebibyte, guestPages1Gi: gibibyte}[name]
			if size == 0 || amount.Sign() < 0 || amount.Value()%size != 0 {
				return fmt.Errorf("capacity.%s %q is not supported: set hugepages-2Mi to a multiple of 2Mi, or hugepages-1Gi to a multiple of 1Gi", name, amount.String())
			}
			withoutPages -= amount.Value()
		case !isExtended(name):
			return fmt.Errorf("capacity.%s is not supported: must be cpu, memory, ephemeral-storage, pods, hugepages-1Gi, hugepages-2Mi, "+
				"or an extended resource such as nvidia.com/gpu", name)
		case amount.Sign() <= 0 || amount.MilliValue()%1000 != 0:
			return fmt.Errorf("capacity.%s %q must be a positive whole number", name, amount.String())
		}
		if t.Extra == nil {
			t.Extra = corev1.ResourceList{}
		}
		t.Extra[name] = amount
	}
	if withoutPages < leastMemory {
		return errors.New("its huge pages leave less than 512Mi of capacity.memory: lower them, or raise capacity.memory")
	}
	return nil
}

// The huge pages that a type may have in its guests, independent of the host's huge
// pages.
const (
	guestPages2Mi = corev1.ResourceHugePagesPrefix + "2Mi"
	guestPages1Gi = corev1.ResourceHugePagesPrefix + "1Gi"
)

// leastMemory is the minimum memory of a guest in bytes, not counting huge pages.
const leastMemory = 512 * mebibyte

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isExtended reports whether name is an extended resource, which a device plugin reports
// on the node: its domain is not Kubernetes' own.
func isExtended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && len(validation.IsQualifiedName(string(name))) == 0
}
