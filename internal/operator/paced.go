package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	// nodePace is the minimum interval of a paced loop per Node.
	nodePace = time.Second / 50
	// maxPace limits the interval that follows from the number of Nodes.
	maxPace = 2 * time.Minute
)

// loop is a controller of Karpenter that inspects the whole cluster in each round.
type loop interface {
	controller.Controller
	Reconcile(ctx context.Context) (reconciler.Result, error)
}

// paced runs a loop at an interval that grows with the number of Nodes. Karpenter's
// intervals are 5 and 10 seconds for any number of Nodes; with thousands of Nodes, the
// rounds alone would use half of a core in an idle cluster. Up to 250 Nodes, the intervals
// stay the same. The duration of a round does not count, because a round may wait.
type paced struct {
	loop
	name string
	// nodes returns the number of Nodes.
	nodes func() int
}

// Register adds the loop to a manager.
func (p *paced) Register(_ context.Context, m manager.Manager) error {
	err := controllerruntime.NewControllerManagedBy(m).Named(p.name).WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(p))
	if err != nil {
		return fmt.Errorf("registering %s: %w", p.name, err)
	}
	return nil
}

// Reconcile runs a round.
func (p *paced) Reconcile(ctx context.Context) (reconciler.Result, error) {
	result, err := p.loop.Reconcile(ctx)
	if err == nil && !result.Requeue && result.RequeueAfter > time.Second {
		wait := min(time.Duration(p.nodes())*nodePace, maxPace)
		result.RequeueAfter = max(result.RequeueAfter, wait)
	}
	return result, err
}
