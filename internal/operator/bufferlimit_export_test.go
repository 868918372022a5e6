package operator

import "sigs.k8s.io/controller-runtime/pkg/client"

// LimitBuffers returns the client for Karpenter's code for CapacityBuffers.
func LimitBuffers(c client.Client) client.Client { return bufferLimit{c} }
