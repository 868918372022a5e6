package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
)

// TestRelease checks that a run releases only its own Lease, which then has no holder.
func TestRelease(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct{ holder, want string }{
		"its own":       {holder: "us_1", want: ""},
		"another run's": {holder: "us_2", want: "us_2"},
		"none":          {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "numaform", "numaform-controller", client.CoreV1(), client.CoordinationV1(),
				resourcelock.ResourceLockConfig{Identity: "us_1"})
			if err != nil {
				t.Fatal(err)
			}
			if tt.holder != "" {
				record := resourcelock.LeaderElectionRecord{HolderIdentity: tt.holder, LeaseDurationSeconds: 30, RenewTime: metav1.NewTime(now), LeaderTransitions: 3}
				if err := lock.Create(t.Context(), record); err != nil {
					t.Fatal(err)
				}
			}
			if err := operator.Release(t.Context(), lock, testclock.NewFakePassiveClock(now)); err != nil {
				t.Fatal(err)
			}
			if tt.holder == "" {
				return
			}
			record, _, err := lock.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if record.HolderIdentity != tt.want || record.LeaderTransitions != 3 {
				t.Errorf("got %+v, want the holder %q", record, tt.want)
			}
		})
	}
}

// leaseOf returns the leader's Lease with a holder.
func leaseOf(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "numaform", Name: "numaform-controller"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

// TestDeposed checks that a leader notices when another run holds the Lease, also if it cannot
// confirm this at once, and only then.
func TestDeposed(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(leaseOf("us_1"))
	watching := make(chan struct{})
	client.PrependWatchReactor("leases", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watch, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		close(watching)
		return true, watch, err
	})
	refused := 0
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		refused++
		return refused == 1, nil, apierrors.NewServiceUnavailable("restarting")
	})
	ended := make(chan error, 1)
	go func() { ended <- operator.WatchLeader(t.Context(), client, "us_1") }()
	<-watching

	leases := client.CoordinationV1().Leases("numaform")
	_, renewed := leases.Update(t.Context(), leaseOf("us_1"), metav1.UpdateOptions{})
	deleted := leases.Delete(t.Context(), "numaform-controller", metav1.DeleteOptions{})
	_, released := leases.Create(t.Context(), leaseOf(""), metav1.CreateOptions{})
	_, elected := leases.Update(t.Context(), leaseOf("us_2"), metav1.UpdateOptions{})
	if err := errors.Join(renewed, deleted, released, elected); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || err.Error() != "leader election lost: us_2 now holds Lease numaform/numaform-controller" {
		t.Errorf("got %v", err)
	}
	if refused < 2 {
		t.Errorf("the Lease was read %d times, want another read after the one that failed", refused)
	}
}

// TestOutdatedLease checks that a new leader continues if its first list of the Lease is older
// than its election, and that it ends without an error.
func TestOutdatedLease(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(leaseOf("us_2"))
	client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &coordinationv1.LeaseList{Items: []coordinationv1.Lease{*leaseOf("us_1")}}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		cancel()
		return false, nil, nil
	})
	if err := operator.WatchLeader(ctx, client, "us_2"); err != nil {
		t.Error(err)
	}
}

// begins counts the changes that begin.
type begins struct {
	store.Store
	n int
}

func (b *begins) Begin(context.Context, store.Revision, generator.Files, audit.Change) error {
	b.n++
	return nil
}

// TestOnlyTheLeaderBegins checks that a run records no change while another one is the leader,
// or while it cannot know.
func TestOnlyTheLeaderBegins(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		holder string
		fails  bool
		want   string
	}{
		"leader":       {holder: "us_1"},
		"renewed soon": {},
		"deposed":      {holder: "us_2", want: "us_2 now holds Lease numaform/numaform-controller"},
		"unknown":      {holder: "us_1", fails: true, want: "restarting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			if tt.holder != "" {
				client = fake.NewClientset(leaseOf(tt.holder))
			}
			client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return tt.fails, nil, apierrors.NewServiceUnavailable("restarting")
			})
			kept := &begins{}
			err := operator.LeadersStore(kept, client, "us_1").Begin(t.Context(), "", nil, audit.Change{})
			switch {
			case tt.want == "" && (err != nil || kept.n != 1):
				t.Errorf("%d changes began, %v, want 1", kept.n, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || kept.n != 0):
				t.Errorf("%d changes began, %v, want none, and %q", kept.n, err, tt.want)
			}
		})
	}
}
