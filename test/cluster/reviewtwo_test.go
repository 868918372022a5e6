package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
)

// TestPullRequestsOfTwoControllers suspends the leader while its pull request waits, until a
// controller on another machine has taken over, and resumes it right before the merge. The resumed
// controller would renew its Lease only minutes later, but exits at once. Each change is made
// once, and has one pull request.
func TestPullRequestsOfTwoControllers(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, worldConfig{hosts: largeHosts(t)})
	v := w.withGitea()
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 2, "2", "2Gi")
	plan := w.pending(v1alpha1.ScaleUp, late)
	request := w.opened(v, late)

	suspended := w.controller
	before := w.leaderAfter("")
	w.signal(suspended, syscall.SIGSTOP)
	t.Cleanup(func() {
		_ = suspended.command.Process.Kill() // it may have exited
		<-suspended.done
		suspended.log.stop()
	})
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "numaform-controller"}}
	if err := w.api.Delete(t.Context(), lease); err != nil { // as if it had expired
		t.Fatal(err)
	}
	w.replicaConfig("second")
	w.args = append(w.args, "--config", "second.yaml")
	w.env = append(slices.Clone(w.env), "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "state-of-second"))
	w.start()
	w.leaderAfter(before)
	v.approve(request)
	w.waits(plan, "approved by ann: waits for a person who merges it")
	if now := w.opened(v, late); now.Number != request.Number || now.HeadSHA != request.HeadSHA {
		t.Errorf("after the change of the leader, the pull request is %+v, not %+v", now, request)
	}
	w.signal(suspended, syscall.SIGCONT)
	resumed := time.Now()
	v.merge(request, "squash")
	select {
	case <-suspended.done:
		t.Logf("the resumed controller exited after %s: %v", time.Since(resumed), suspended.err)
	case <-time.After(late):
		t.Error("the resumed controller did not exit")
	}
	if !suspended.log.contains("leader election lost: ") {
		t.Errorf("the resumed controller does not report the new leader:\n%s", suspended.log.tail())
	}
	w.running("web", 2, late)
	w.applied(plan.Name, "ann")
	w.madeOnce(v, plan)

	w.pods("more", 2, "6", "4Gi")
	another := w.pending(v1alpha1.ScaleUp, late)
	next := w.opened(v, late, request)
	v.approve(next)
	v.merge(next, "merge")
	w.running("more", 2, late)
	w.applied(another.Name, "ann")
	w.madeOnce(v, plan, another)
}

// madeOnce checks that the changes of plans, and nothing else, were made, each once and with one
// pull request, and that this remains so.
func (w *world) madeOnce(v *village, plans ...*v1alpha1.ScalePlan) {
	w.t.Helper()
	vms, applies := 0, 0
	for _, plan := range plans {
		vms += len(plan.Spec.VMs)
		applies += len(plan.Spec.Hosts)
	}
	w.remains(20*time.Second, func(ctx context.Context) string {
		applied := 0
		for _, n := range w.engineRuns("apply") {
			applied += n
		}
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		if made := w.everMade(); made != vms || len(w.ours()) != vms || len(claims.Items) != vms || applied != applies {
			return fmt.Sprintf("%d VMs were created, %d exist, and %d nodeclaims, want %d; %d plans of hosts were applied, want %d",
				made, len(w.ours()), len(claims.Items), vms, applied, applies)
		}
		return ""
	})
	var requests []struct {
		Number int
		State  string
	}
	v.call(v.ops, http.MethodGet, fleetRepository+"/pulls?state=all", nil, &requests)
	if len(requests) != len(plans) {
		w.t.Errorf("the pull requests are %+v, want one for each of %d plans", requests, len(plans))
	}
}
