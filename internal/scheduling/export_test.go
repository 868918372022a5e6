package scheduling

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Shape returns the smallest size of a Flexible class with the needed resources, and
// false if even the largest is too small.
func Shape(nc *v1alpha1.ProxmoxNodeClass, needed corev1.ResourceList) (InstanceType, bool) {
	gib, _ := nc.Spec.BootDevice.SizeGiB()
	return (&class{fields: &nc.Spec, diskGiB: gib}).smallestSize(needed)
}

// Allocatable returns what pods can use of the node of a type with a disk.
func Allocatable(t InstanceType, diskGiB int64) corev1.ResourceList { return t.allocatable(diskGiB) }

// ReadKinds returns the kinds that a manifest may contain, and ClusterKinds the ones of them
// that have no namespace.
func ReadKinds() []string    { return readKinds() }
func ClusterKinds() []string { return clusterKinds() }
