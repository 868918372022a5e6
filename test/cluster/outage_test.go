package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// outageIsReported waits until the pods of an app and their NodePool report that the state
// backend is down, and checks that nothing reports missing capacity instead.
func (w *world) outageIsReported(app, pool string) {
	w.t.Helper()
	const reason = v1alpha1.ReasonStateBackendUnreachable
	w.eventually(3*time.Minute, func(ctx context.Context) string {
		var events corev1.EventList
		if err := w.api.List(ctx, &events); err != nil {
			return err.Error()
		}
		onPod, onClaim := false, false
		for i := range events.Items {
			event := &events.Items[i]
			if strings.Contains(strings.ToLower(event.Reason+event.Message), "insufficient") {
				w.t.Fatalf("event %s of %s reports missing capacity: %s", event.Reason, event.InvolvedObject.Name, event.Message)
			}
			if event.Reason == reason {
				onPod = onPod || event.InvolvedObject.Kind == "Pod" && strings.HasPrefix(event.InvolvedObject.Name, app+"-") &&
					strings.Contains(event.Message, "numaform's state backend has been unreachable since ")
				onClaim = onClaim || event.InvolvedObject.Kind == "NodeClaim" && strings.Contains(event.Message, "the http state backend ")
			}
		}
		condition, err := w.scaleUpReady(ctx, pool)
		if err != nil {
			return err.Error()
		}
		if !onPod || !onClaim || !condition.IsFalse() || condition.Reason != reason || !strings.Contains(condition.Message, "the http state backend ") {
			return fmt.Sprintf("%s on a pod: %t, on a NodeClaim: %t, on the NodePool: %+v", reason, onPod, onClaim, condition)
		}
		return ""
	})
}

// scalesUp waits until a NodePool reports that nothing blocks new nodes.
func (w *world) scalesUp(pool string) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		condition, err := w.scaleUpReady(ctx, pool)
		if err != nil {
			return err.Error()
		}
		if !condition.IsTrue() {
			return fmt.Sprintf("condition %+v", condition)
		}
		return ""
	})
}

func (w *world) scaleUpReady(ctx context.Context, name string) (*status.Condition, error) {
	var pool karpv1.NodePool
	if err := w.api.Get(ctx, client.ObjectKey{Name: name}, &pool); err != nil {
		return nil, err
	}
	return pool.StatusConditions().Get(v1alpha1.ConditionScaleUpReady), nil
}
