package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of numaform's types and the domain of its labels.
const Group = "numaform.dev"

// KindProxmoxNodeClass is the kind of NodePools' classes.
const KindProxmoxNodeClass = "ProxmoxNodeClass"

// GroupVersion returns the group and version of the types in this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &ProxmoxNodeClass{}, &ProxmoxNodeClassList{}, &ScalePlan{}, &ScalePlanList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}

// Labels of nodes, beside those of Kubernetes and Karpenter.
const (
	// LabelInstanceFamily is the part of the instance type's name before the dot.
	LabelInstanceFamily = Group + "/instance-family"
	// LabelNodeClass is the name of the node's ProxmoxNodeClass.
	LabelNodeClass = Group + "/nodeclass"
	// LabelPlacement is the placement policy of the node's ProxmoxNodeClass.
	LabelPlacement = Group + "/placement"
	// LabelCPUType is the CPU model that the node sees, as Proxmox names it.
	LabelCPUType = Group + "/cpu-type"
	// LabelTemplate is the name of the template that the node was cloned from.
	LabelTemplate = Group + "/template"
	// LabelNUMANodes is the number of NUMA nodes that the node sees.
	LabelNUMANodes = Group + "/numa-nodes"
)

// Annotations of NodeClaims.
const (
	// AnnotationVM names the VM that backs the NodeClaim; the Node has that name too.
	AnnotationVM = Group + "/vm"
	// AnnotationKey is the key of that VM: VMIDs and names come back, keys do not.
	AnnotationKey = Group + "/key"
	// AnnotationClassHash is the hash of what of the ProxmoxNodeClass the VM was made
	// of.
	AnnotationClassHash = Group + "/nodeclass-hash"
	// AnnotationClassHashVersion says how that hash was made: two of different
	// versions say nothing about each other.
	AnnotationClassHashVersion = Group + "/nodeclass-hash-version"
	// AnnotationEvacuated marks a NodeClaim whose host is to be left.
	AnnotationEvacuated = Group + "/evacuated"
)

// Annotations of NodePools: the first two are auto, policy or manual, as docs/approval.md says.
const (
	AnnotationScaleUp   = Group + "/scale-up"
	AnnotationScaleDown = Group + "/scale-down"
	// AnnotationMinNodes is how many nodes of a NodePool consolidation leaves.
	AnnotationMinNodes = Group + "/min-nodes"
)

// FinalizerNodeClass keeps a ProxmoxNodeClass while NodeClaims refer to it.
const FinalizerNodeClass = Group + "/termination"
