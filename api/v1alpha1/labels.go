package v1alpha1

// Labels of nodes, beside those of Kubernetes and Karpenter.
const (
	// LabelInstanceFamily is the part of the instance type's name before the dot.
	LabelInstanceFamily = Group + "/instance-family"
	// LabelNodeClass is the name of the node's ProxmoxNodeClass.
	LabelNodeClass = Group + "/nodeclass"
	// LabelPlacement is the placement policy of the node's ProxmoxNodeClass.
	LabelPlacement = Group + "/placement"
	// LabelNUMANodes is the number of NUMA nodes that the node sees.
	LabelNUMANodes = Group + "/numa-nodes"
)

// AnnotationVM names, on a NodeClaim, the VM that backs it.
const AnnotationVM = Group + "/vm"
