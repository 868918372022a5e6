// Package v1alpha1 contains numaform's API types: ProxmoxNodeClass, which configures the VMs
// of NodePools, and ScalePlan. The types are validated only by their markers: the
// CustomResourceDefinitions are generated from the markers, and package crd applies the
// definitions to manifests on disk.
//
// +kubebuilder:object:generate=true
// +groupName=numaform.dev
package v1alpha1
