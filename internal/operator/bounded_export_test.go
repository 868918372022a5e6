package operator

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Bounded returns a manager that limits the work of controllers in a cluster with the
// number of Nodes that nodes returns, and the pods that a reader reads.
func Bounded(m manager.Manager, clk clock.PassiveClock, nodes func() int, pods client.Reader) manager.Manager {
	return bounded{m, &objectPace{clock: clk, nodes: nodes}, pods}
}
