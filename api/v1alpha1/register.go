package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of numaform's types and the domain of its labels.
const Group = "numaform.dev"

// KindProxmoxNodeClass is the kind of the node classes of NodePools.
const KindProxmoxNodeClass = "ProxmoxNodeClass"

// GroupVersion returns the group and version of the types in this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &ProxmoxNodeClass{}, &ProxmoxNodeClassList{}, &ScalePlan{}, &ScalePlanList{}, &ProxmoxTemplate{}, &ProxmoxTemplateList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}

// Labels of nodes, in addition to the labels of Kubernetes and Karpenter.
const (
	// LabelInstanceFamily is the part of the instance type's name before the first dot.
	LabelInstanceFamily = Group + "/instance-family"
	// LabelNodeClass is the name of the node's ProxmoxNodeClass.
	LabelNodeClass = Group + "/nodeclass"
	// LabelPlacement is the placement policy of the node's ProxmoxNodeClass.
	LabelPlacement = Group + "/placement"
	// LabelCPUType is the CPU type of the node, as Proxmox names it.
	LabelCPUType = Group + "/cpu-type"
	// LabelTemplate is the name of the template from which the node was cloned.
	LabelTemplate = Group + "/template"
	// LabelNUMANodes is the number of NUMA nodes of the guest.
	LabelNUMANodes = Group + "/numa-nodes"
)

// NodeLabels returns the labels of numaform's group that nodes have.
func NodeLabels() []string {
	return []string{LabelInstanceFamily, LabelNodeClass, LabelPlacement, LabelCPUType, LabelTemplate, LabelNUMANodes}
}

// Annotations of NodeClaims.
const (
	// AnnotationVM is the name of the NodeClaim's VM and of its Node.
	AnnotationVM = Group + "/vm"
	// AnnotationKey is the key of the NodeClaim's VM. Keys are never reused, unlike VMIDs and
	// names.
	AnnotationKey = Group + "/key"
	// AnnotationReplace on a NodeClaim requests that its node is replaced within the
	// disruption budgets of its NodePool, if it is "true".
	AnnotationReplace = Group + "/replace"
	// AnnotationClassHash is the hash of the ProxmoxNodeClass from which the VM was created.
	AnnotationClassHash = Group + "/nodeclass-hash"
	// AnnotationClassHashVersion is the version of the hash. Hashes of different versions
	// cannot be compared.
	AnnotationClassHashVersion = Group + "/nodeclass-hash-version"
	// AnnotationEvacuated marks a NodeClaim whose host is being evacuated.
	AnnotationEvacuated = Group + "/evacuated"
)

// Annotations of NodeClaims and Nodes that identify the change that created or woke their
// VM.
const (
	// AnnotationChange is the ID of the change in the fleet's history, and AnnotationCommit
	// the commit that contains it, if the fleet is in git.
	AnnotationChange = Group + "/change"
	AnnotationCommit = Group + "/commit"
	// AnnotationPlanSHA256 identifies the plan, as in the log, and AnnotationPlanDigest its
	// changes.
	AnnotationPlanSHA256 = Group + "/plan-sha256"
	AnnotationPlanDigest = Group + "/plan-digest"
	// AnnotationVerdict is the guard's decision about the plan, and AnnotationApprover is who
	// approved it, if that was necessary.
	AnnotationVerdict  = Group + "/verdict"
	AnnotationApprover = Group + "/approver"
	// AnnotationHostCPUs are the host CPUs that the VM owns, if it is pinned.
	AnnotationHostCPUs = Group + "/host-cpus"
)

// Annotations of NodePools. The values of the first two are auto, policy or manual: see
// docs/approval.md.
const (
	AnnotationScaleUp   = Group + "/scale-up"
	AnnotationScaleDown = Group + "/scale-down"
	// AnnotationMinNodes is the minimum number of nodes of a NodePool after consolidation.
	AnnotationMinNodes = Group + "/min-nodes"
)

// NodePoolAnnotations returns the annotations of numaform's group on NodePools.
func NodePoolAnnotations() []string {
	return []string{AnnotationScaleUp, AnnotationScaleDown, AnnotationMinNodes}
}

// NodeClassAnnotations returns the annotations of numaform's group on ProxmoxNodeClasses.
func NodeClassAnnotations() []string {
	return []string{AnnotationClassHash, AnnotationClassHashVersion}
}

// StandbyStrategy is the provisioningStrategy of CapacityBuffers that use stopped VMs.
const StandbyStrategy = Group + "/standby"

// AnnotationReserve is true or false on a CapacityBuffer with StandbyStrategy: whether its
// stopped VMs reserve their CPUs and memory. VMs with pinned CPUs always do.
const AnnotationReserve = Group + "/reserve"

// FinalizerNodeClass prevents the deletion of a ProxmoxNodeClass while NodeClaims refer to it.
const FinalizerNodeClass = Group + "/termination"
