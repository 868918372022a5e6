package operator

import (
	"context"

	"github.com/awslabs/operatorpkg/reconciler"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/topology"
)

// Evacuation returns a controller that marks the NodeClaims on hosts.
func Evacuation(api client.Client, clk clock.PassiveClock, hosts func() []topology.HostID) interface {
	Reconcile(ctx context.Context) (reconciler.Result, error)
} {
	return &evacuation{client: api, clock: clk, hosts: hosts}
}
