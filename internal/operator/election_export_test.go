package operator

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/store"
)

// Release gives up the leader's Lease.
var Release = release

// WatchLeader waits until another run than identity holds the leader's Lease.
func WatchLeader(ctx context.Context, kube kubernetes.Interface, identity string) error {
	return (&leadership{kube: kube, namespace: "numaform", identity: identity}).watch(ctx)
}

// LeadersStore returns a store in which only the leader begins changes.
func LeadersStore(kept store.Store, kube kubernetes.Interface, identity string) store.Store {
	return leadersStore{kept, &leadership{kube: kube, namespace: "numaform", identity: identity}}
}
