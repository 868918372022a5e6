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
