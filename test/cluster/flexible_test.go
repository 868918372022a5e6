package cluster_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/enginetest"
)

// TestFlexible checks that nodes of flexible size have the predicted capacity, that
// consolidation does not replace them, and that they are deleted with their pods.
func TestFlexible(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: threeHosts(t)})
	w.start()
	w.classAndPool("workers", "  placement: {policy: Dedicated, pinWith: HostAgent}\n  sizing: {policy: Flexible, maxVCPUs: 8}", "")
	w.pods("web", 3, "1300m", "700Mi", spread)
	w.running("web", 3, 3*time.Minute)
	w.initialized(time.Minute)
	w.nodesAreAsPlanned()
	w.pinsAreExclusive()
	w.pinsAreInEffect()
	w.eventually(time.Minute, func(ctx context.Context) string {
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		for i := range claims.Items {
			claim := &claims.Items[i]
			if kind := claim.Labels[corev1.LabelInstanceTypeStable]; !strings.HasPrefix(kind, "flex.") {
				t.Errorf("claim %s is of type %s", claim.Name, kind)
			}
			if !claim.StatusConditions().IsTrue(karpv1.ConditionTypeConsolidatable) {
				return "claim " + claim.Name + " is not consolidatable yet"
			}
		}
		return ""
	})
	w.staysAsItIs(25 * time.Second)
	if err := w.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	w.nothingIsLeft(4 * time.Minute)
}

// staysAsItIs checks that the VMs do not change. Karpenter looks for cheaper nodes every
// ten seconds.
func (w *world) staysAsItIs(all time.Duration) {
	w.t.Helper()
	before := slices.Sorted(maps.Keys(w.ours()))
	ticker, end := time.NewTicker(time.Second), time.NewTimer(all)
	defer ticker.Stop()
	defer end.Stop()
	for {
		select {
		case <-ticker.C:
			if diff := cmp.Diff(before, slices.Sorted(maps.Keys(w.ours()))); diff != "" {
				w.t.Fatalf("VMs (-before +now):\n%s", diff)
			}
		case <-end.C:
			return
		}
	}
}
