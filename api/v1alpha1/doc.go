// Package v1alpha1 holds numaform's API types: what a user writes about the VMs
// of a NodePool. It knows neither Proxmox nor Karpenter; Validate checks what
// the API server would, so that manifests on disk are judged alike.
//
// +kubebuilder:object:generate=true
// +groupName=numaform.dev
package v1alpha1
