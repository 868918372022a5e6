package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// KubeletConfiguration is the part of the kubelet configuration that a class can set.
// An unset field means the kubelet's default. For systemReserved, kubeReserved and
// evictionHard, a key that is not set means the value of the instance type.
//
// +kubebuilder:validation:XValidation:rule="!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent",message="must be below imageGCHighThresholdPercent",fieldPath=".imageGCLowThresholdPercent"
// +kubebuilder:validation:XValidation:rule="has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || self.imageGCLowThresholdPercent < 85",message="must be below imageGCHighThresholdPercent, by default 85",fieldPath=".imageGCLowThresholdPercent"
// +kubebuilder:validation:XValidation:rule="!has(self.imageGCHighThresholdPercent) || has(self.imageGCLowThresholdPercent) || self.imageGCHighThresholdPercent > 80",message="must be above imageGCLowThresholdPercent, by default 80",fieldPath=".imageGCHighThresholdPercent"
// +kubebuilder:validation:XValidation:rule="!has(self.shutdownGracePeriodCriticalPods) || (has(self.shutdownGracePeriod) && duration(self.shutdownGracePeriodCriticalPods) <= duration(self.shutdownGracePeriod))",message="is part of shutdownGracePeriod: set shutdownGracePeriod to at least as much",fieldPath=".shutdownGracePeriodCriticalPods"
// +kubebuilder:validation:XValidation:rule="!has(self.cpuCFSQuotaPeriod) || !has(self.cpuCFSQuota) || self.cpuCFSQuota",message="has no effect without cpuCFSQuota: remove it, or set cpuCFSQuota to true",fieldPath=".cpuCFSQuotaPeriod"
type KubeletConfiguration struct {
	// CPUManagerPolicy is none or static. With static, containers of Guaranteed pods that
	// request whole CPUs get exclusive CPUs.
	// +optional
	// +kubebuilder:validation:Enum=none;static
	CPUManagerPolicy string `json:"cpuManagerPolicy,omitempty"`

	// CPUCFSQuota enforces the CPU limits of containers. Unset means true.
	// +optional
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`

	// CPUCFSQuotaPeriod is the period over which CPU limits are enforced, from 1ms to 1s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(us|ms|s))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('1s')",message="is not a duration from 1ms to 1s"
	CPUCFSQuotaPeriod *metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`

	// TopologyManagerPolicy is none, best-effort, restricted or single-numa-node.
	// It has an effect only if the VM has several NUMA nodes.
	// +optional
	// +kubebuilder:validation:Enum=none;best-effort;restricted;single-numa-node
	TopologyManagerPolicy string `json:"topologyManagerPolicy,omitempty"`

	// TopologyManagerScope is container or pod.
	// +optional
	// +kubebuilder:validation:Enum=container;pod
	TopologyManagerScope string `json:"topologyManagerScope,omitempty"`

	// ImageGCHighThresholdPercent is the disk usage at which the removal of images begins.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`

	// ImageGCLowThresholdPercent is the disk usage at which the removal of images ends.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ImageGCLowThresholdPercent *int32 `json:"imageGCLowThresholdPercent,omitempty"`

	// ShutdownGracePeriod is the time for which a node that shuts down waits for its pods.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="is not a positive duration such as 30s"
	ShutdownGracePeriod *metav1.Duration `json:"shutdownGracePeriod,omitempty"`

	// ShutdownGracePeriodCriticalPods is the part of shutdownGracePeriod that is reserved
	// for critical pods.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$')",message="is not a positive duration such as 30s"
	ShutdownGracePeriodCriticalPods *metav1.Duration `json:"shutdownGracePeriodCriticalPods,omitempty"`

	// AllowedUnsafeSysctls are the unsafe sysctls, or patterns ending in *, that pods may
	// set.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*([./]?[*])?$')",message="is not a sysctl such as net.core.somaxconn or net.core.*"
	// +listType=set
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`

	// ClusterDNS are the IP addresses of the cluster's DNS. Empty means join.cluster_dns
	// of numaform's configuration, or else the address of the Service kube-dns.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="contains an entry that is not an IP address"
	// +listType=atomic
	ClusterDNS []string `json:"clusterDNS,omitempty"`

	// MaxPods is the maximum number of pods on a node. Unset means the value of the instance
	// type.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxPods *int32 `json:"maxPods,omitempty"`

	// FailSwapOn prevents the kubelet from starting while swap is enabled. Unset means true.
	// +optional
	FailSwapOn *bool `json:"failSwapOn,omitempty"`

	// SystemReserved are the resources reserved for the guest's system daemons: cpu, memory,
	// ephemeral-storage or pid.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="contains an unknown key: use cpu, memory, ephemeral-storage or pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, isQuantity(self[k]) && sign(quantity(self[k])) >= 0)",message="contains a value that is not a quantity of 0 or more, such as 100m or 256Mi"
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`

	// KubeReserved are the resources reserved for the kubelet and the container runtime: cpu,
	// memory, ephemeral-storage or pid.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="contains an unknown key: use cpu, memory, ephemeral-storage or pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, isQuantity(self[k]) && sign(quantity(self[k])) >= 0)",message="contains a value that is not a quantity of 0 or more, such as 100m or 256Mi"
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`

	// EvictionHard are the thresholds below which pods are evicted, each a quantity or a
	// percentage, by signal: memory.available, nodefs.available, nodefs.inodesFree,
	// imagefs.available, imagefs.inodesFree or pid.available.
	// +optional
	// +kubebuilder:validation:MaxProperties=6
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['memory.available', 'nodefs.available', 'nodefs.inodesFree', 'imagefs.available', 'imagefs.inodesFree', 'pid.available'])",message="contains an unknown signal: use memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree or pid.available"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].endsWith('%') ? self[k].matches('^([0-9]|[1-9][0-9])([.][0-9]+)?%$') : isQuantity(self[k]) && sign(quantity(self[k])) >= 0)",message="contains a value that is neither a quantity such as 100Mi nor a percentage below 100 such as 5%"
	EvictionHard map[string]ReservedQuantity `json:"evictionHard,omitempty"`
}

// ReservedQuantity is a quantity or, for eviction thresholds, also a percentage.
//
// +kubebuilder:validation:MaxLength=32
type ReservedQuantity string
