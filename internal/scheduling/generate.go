package scheduling

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TypeOptions select instance types to generate.
type TypeOptions struct {
	// VCPUs and Factors are the numbers of vCPUs, and of GiB of memory for each vCPU. There is
	// a type for each combination.
	VCPUs, Factors []int
	// DiskGiB is the size of the boot disk; 0 leaves it to the class.
	DiskGiB int
	// Kubelet, System and Eviction select parts of the overhead. If none is selected, the
	// types have none, and a reader of the file uses its defaults.
	Kubelet, System, Eviction bool
}

// The largest sizes of generated types, larger than any host.
const (
	maxTypeVCPUs  = 1024
	maxTypeFactor = 256
	maxTypeDisk   = 1 << 20
)

// GenerateTypes returns an instance type for each combination of the options, with the names
// and overheads of DefaultInstanceTypes.
func GenerateTypes(o TypeOptions) ([]InstanceType, error) {
	if o.DiskGiB < 0 || o.DiskGiB > maxTypeDisk {
		return nil, fmt.Errorf("--storage %d: must be from 0 to %d GiB", o.DiskGiB, maxTypeDisk)
	}
	var types []InstanceType
	names := map[string]bool{}
	for _, vcpus := range o.VCPUs {
		if vcpus < 1 || vcpus > maxTypeVCPUs {
			return nil, fmt.Errorf("--cpus %d: must be from 1 to %d vCPUs", vcpus, maxTypeVCPUs)
		}
		for _, factor := range o.Factors {
			if factor < 1 || factor > maxTypeFactor {
				return nil, fmt.Errorf("--memfactor %d: must be from 1 to %d GiB for each vCPU", factor, maxTypeFactor)
			}
			memoryGiB := int64(vcpus * factor)
			t := newType(fmt.Sprintf("%s.%dVCPU-%dGB", familyOf(factor), vcpus, memoryGiB), vcpus, memoryGiB*1024)
			t.DiskGiB = int64(o.DiskGiB)
			if !o.Kubelet {
				t.Overhead.KubeReserved = nil
			}
			if !o.System {
				t.Overhead.SystemReserved = nil
			}
			if !o.Eviction {
				t.Overhead.EvictionThreshold = nil
			}
			if !names[t.Name] {
				types = append(types, t)
			}
			names[t.Name] = true
		}
	}
	return types, nil
}

// familyOf returns the family of types with this many GiB of memory for each vCPU.
func familyOf(factor int) string {
	if family, ok := map[int]string{2: "c1", 3: "t1", 4: "s1", 8: "m1", 16: "x1"}[factor]; ok {
		return family
	}
	return "e1"
}

// FormatInstanceTypes returns an instance types file that ParseInstanceTypes reads.
func FormatInstanceTypes(types []InstanceType) ([]byte, error) {
	entries := make([]typeFile, len(types))
	for i := range types {
		t := &types[i]
		capacity := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(t.VCPUs), resource.DecimalSI),
			corev1.ResourceMemory: quantity(t.MemoryMiB * mebibyte),
			corev1.ResourcePods:   *resource.NewQuantity(t.Pods, resource.DecimalSI),
		}
		if t.DiskGiB > 0 {
			capacity[corev1.ResourceEphemeralStorage] = quantity(t.DiskGiB * gibibyte)
		}
		maps.Copy(capacity, t.Extra)
		entries[i] = typeFile{Name: t.Name, Capacity: capacity, CapacityType: t.CapacityType}
		if t.Overhead.KubeReserved != nil || t.Overhead.SystemReserved != nil || t.Overhead.EvictionThreshold != nil {
			entries[i].Overhead = &t.Overhead
		}
	}
	return json.MarshalIndent(entries, "", "  ")
}
