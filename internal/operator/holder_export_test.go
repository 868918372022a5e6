package operator

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HolderGone reports, for a controller on the machine self in namespace numaform, whether
// the holders of locks on host are dead, and returns the proof.
func HolderGone(ctx context.Context, pods client.Reader, self, host string) (proof string, gone bool) {
	return holders{pods: pods, namespace: "numaform", host: func() (string, error) { return self, nil }}.gone(ctx, host)
}
