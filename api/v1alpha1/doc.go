// Package v1alpha1 contains numaform's API types: what a user writes about the VMs of a
// NodePool, and ScalePlans. The markers of the types are the only place that validates them:
// the CustomResourceDefinitions are generated from them, and package crd applies these to
// manifests on disk.
//
// +kubebuilder:object:generate=true
// +groupName=numaform.dev
package v1alpha1
