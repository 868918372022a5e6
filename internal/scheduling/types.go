package scheduling

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
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
	// ReportedMiB is the part of it that the Node reports; 0 means an estimate.
	ReportedMiB int64
	// DiskGiB is the minimum disk size of a node; 0 means the NodeClass's.
	DiskGiB int64
	Pods    int64
	// Extra are further resources of a node, such as hugepages-2Mi or nvidia.com/gpu.
	Extra    corev1.ResourceList
	Overhead Overhead
	Price    float64
}

// Overhead is what pods cannot use of a node; kubelet must be configured the same.
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

// DefaultInstanceTypes returns the types if no file defines others: 1 to 16 vCPUs with 2
// (c1), 3 (t1), 4 (s1) or 8 (m1) GiB for each.
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

// newType returns a type with the defaults for its size.
func newType(name string, vcpus int, memoryMiB int64) InstanceType {
	return InstanceType{
		Name: name, CapacityType: karpv1.CapacityTypeOnDemand, VCPUs: vcpus, MemoryMiB: memoryMiB,
		Pods: defaultPods(memoryMiB / 1024), Overhead: defaultOverhead(vcpus, memoryMiB/1024),
		Price: price(vcpus, memoryMiB, karpv1.CapacityTypeOnDemand),
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

// price makes a vCPU 25 times as expensive as a GiB of memory, and spot half as
// expensive.
func price(vcpus int, memoryMiB int64, capacityType string) float64 {
	full := 0.025*float64(vcpus) + 0.001*float64(memoryMiB)/1024
	if capacityType == karpv1.CapacityTypeSpot {
		return full / 2
	}
	return full
}

// guestMemoryMiB returns the total memory that a guest's kernel reports, without its
// image and 64 bytes for each page. It underestimates rather than overestimates, because
// a pod that does not fit its new node requests another one.
func guestMemoryMiB(memoryMiB int64) int64 { return memoryMiB - memoryMiB/50 - 96 }

// guestDiskMiB returns the size of a guest's root file system: the disk without the
// partitions for firmware and journal, and without ext4's inodes, 256 bytes for each 16
// KiB.
func guestDiskMiB(diskGiB int64) int64 { return diskGiB*1024 - diskGiB*1024/64 - 192 }

// capacity returns the capacity of the Node of such a VM.
func (t *InstanceType) capacity(diskGiB int64) corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(t.VCPUs), resource.DecimalSI),
		corev1.ResourceMemory:           quantity(cmp.Or(t.ReportedMiB, guestMemoryMiB(t.MemoryMiB)) * mebibyte),
		corev1.ResourcePods:             *resource.NewQuantity(t.Pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: quantity(guestDiskMiB(diskGiB) * mebibyte),
	}
	for name, amount := range t.Extra {
		list[name] = amount.DeepCopy()
	}
	return list
}

// typeFile is one entry of karpenter-provider-proxmox' instance types file.
type typeFile struct {
	Name         string              `json:"name"`
	Capacity     corev1.ResourceList `json:"capacity"`
	CapacityType string              `json:"capacitytype"`
	Overhead     *Overhead           `json:"overhead"`
	// Offerings are null in generated files: the topology provides the hosts.
	Offerings []json.RawMessage `json:"offerings"`
}

// maxFaults limits how many faults of a file are reported at once.
const maxFaults = 20

// ParseInstanceTypes parses an instance types file of karpenter-provider-proxmox: a JSON
// list of name, capacity, capacitytype and overhead.
func ParseInstanceTypes(data []byte) ([]InstanceType, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	var entries []typeFile
	if err := decoder.Decode(&entries); err != nil {
		return nil, fmt.Errorf("parsing instance types: %s: want a list in JSON of name, capacity, capacitytype and overhead", describeDecodeError(err))
	}
	if decoder.More() {
		return nil, errors.New("parsing instance types: something follows the list")
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
			err = fmt.Errorf("has the name of entry %d: names are unique", first)
		}
		names[entries[i].Name] = i
		if err != nil {
			errs = append(errs, fmt.Errorf("parsing instance types: entry %d (%.80q): %w", i, entries[i].Name, err))
			if len(errs) == maxFaults {
				break
			}
			continue
		}
		types = append(types, t)
	}
	return types, errors.Join(errs...)
}

func (f *typeFile) instanceType() (InstanceType, error) {
	if problems := validation.IsValidLabelValue(f.Name); f.Name == "" || len(problems) > 0 {
		return InstanceType{}, errors.New("name is not a label value, such as c1.4VCPU-8GB")
	}
	if len(f.Offerings) > 0 {
		return InstanceType{}, errors.New("offerings are not read: hosts are known by the topology; remove them")
	}
	if isFlexible(f.Name) {
		return InstanceType{}, fmt.Errorf("family %s is that of Flexible sizing: choose another", flexibleFamily)
	}
	t := InstanceType{Name: f.Name, CapacityType: f.CapacityType}
	if t.CapacityType == "" {
		t.CapacityType = karpv1.CapacityTypeOnDemand
	}
	if !slices.Contains([]string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot, karpv1.CapacityTypeReserved}, t.CapacityType) {
		return InstanceType{}, fmt.Errorf("capacitytype %q is none of on-demand, spot and reserved", t.CapacityType)
	}
	if err := t.readCapacity(f.Capacity); err != nil {
		return InstanceType{}, err
	}
	if err := t.checkPages(); err != nil {
		return InstanceType{}, err
	}
	if f.Overhead != nil {
		t.Overhead = *f.Overhead
	}
	t.Price = price(t.VCPUs, t.MemoryMiB, t.CapacityType)
	return t, nil
}

func (t *InstanceType) readCapacity(capacity corev1.ResourceList) error {
	cpu := capacity[corev1.ResourceCPU]
	if cpu.MilliValue()%1000 != 0 || cpu.Sign() <= 0 {
		return fmt.Errorf("capacity.cpu %q is not a whole number of vCPUs", cpu.String())
	}
	memory := capacity[corev1.ResourceMemory]
	if memory.Value() < 512*mebibyte {
		return fmt.Errorf("capacity.memory %q is less than 512Mi", memory.String())
	}
	t.VCPUs, t.MemoryMiB = int(cpu.Value()), memory.Value()/mebibyte
	t.Pods = defaultPods(t.MemoryMiB / 1024)
	for name, amount := range capacity {
		switch {
		case name == corev1.ResourceCPU || name == corev1.ResourceMemory:
		case name == corev1.ResourcePods:
			t.Pods = amount.Value()
		case name == corev1.ResourceEphemeralStorage:
			t.DiskGiB = (amount.Value() + gibibyte - 1) / gibibyte
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			t.addExtra(name, amount)
		default:
			if err := t.addExtended(name, amount); err != nil {
				return err
			}
		}
	}
	return nil
}
