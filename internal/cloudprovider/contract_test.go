package cloudprovider_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/garbagecollection"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpstate "sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	numaform "github.com/numaform/numaform/internal/scheduling"
)

// These tests run Karpenter's own controllers with the cloud provider: a test that fails
// after an upgrade shows which part of DESIGN.md is no longer true.

type quiet struct{}

func (quiet) Publish(...events.Event) {}

func karpenterContext(t *testing.T) context.Context {
	t.Helper()
	ctx := log.IntoContext(t.Context(), logr.Discard())
	return options.ToContext(ctx, &options.Options{IgnoreDRARequests: true, PreferencePolicy: options.PreferencePolicyRespect})
}

// lifecycleOf runs Karpenter's lifecycle controller for a NodeClaim a few times, and
// returns the resulting NodeClaim, or nil if it was deleted.
func (w *world) lifecycleOf(t *testing.T, name string) *karpv1.NodeClaim {
	t.Helper()
	ctx := karpenterContext(t)
	controller := lifecycle.NewController(w.clock, w.client, w.CloudProvider, quiet{}, nodepoolhealth.NewState(), nil)
	for range 3 {
		c := w.readClaim(t, name)
		if c == nil {
			return nil
		}
		if _, err := controller.Reconcile(ctx, c); err != nil {
			t.Logf("reconciling: %v", err)
		}
	}
	return w.readClaim(t, name)
}

func (w *world) readClaim(t *testing.T, name string) *karpv1.NodeClaim {
	t.Helper()
	c := &karpv1.NodeClaim{}
	err := w.client.Get(t.Context(), client.ObjectKey{Name: name}, c)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) make(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := w.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// TestContractLaunchDeletesWhatCannotBeMade checks that a NodeClaim is deleted at once if
// its VM will not be created or its class does not exist, and that anything temporary is
// retried.
func TestContractLaunchDeletesWhatCannotBeMade(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(t *testing.T, w *world)
		c    *karpv1.NodeClaim
		gone bool
	}{
		{"unknown VM", func(*testing.T, *world) {}, claimOf(vm(pve1, 2000)), true},
		{"no room", func(*testing.T, *world) {}, claim("x", in(corev1.LabelTopologyZone, "pve-9")), true},
		{"no class", func(t *testing.T, w *world) { w.editClass(t, nil) }, claim("x"), true},
		{"class not judged", func(t *testing.T, w *world) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) { nc.Status.Conditions = nil })
		}, claim("x"), false},
		{"fleet not read", func(_ *testing.T, w *world) { w.fleet.unread = true }, claimOf(vm(pve1, 2000)), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			test.edit(t, w)
			test.c.Status = karpv1.NodeClaimStatus{}
			w.make(t, test.c)
			c := w.lifecycleOf(t, test.c.Name)
			if (c == nil) != test.gone {
				t.Errorf("gone is %t, want %t: %+v", c == nil, test.gone, c)
			}
			if c != nil && !c.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsUnknown() {
				t.Errorf("launched is %v", c.StatusConditions().Get(karpv1.ConditionTypeLaunched))
			}
		})
	}
}

// TestContractLaunchKeepsWhatCreateReturns checks that the NodeClaim gets the fields that
// Create returns, including annotations, and that returned labels are added to the
// NodeClaim's own.
func TestContractLaunchKeepsWhatCreateReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	made := claim("x")
	made.Labels["custom"], made.Annotations = "kept", map[string]string{"own": "kept"}
	w.make(t, made)
	c := w.lifecycleOf(t, "x")
	if c == nil || !c.StatusConditions().IsTrue(karpv1.ConditionTypeLaunched) {
		t.Fatalf("claim is %+v", c)
	}
	if c.Annotations[v1alpha1.AnnotationVM] != "workers-2100" || c.Annotations[v1alpha1.AnnotationKey] != string(numaform.KeyOf(made.UID)) ||
		c.Annotations[v1alpha1.AnnotationClassHash] == "" || c.Annotations["own"] != "kept" {
		t.Errorf("annotations are %v", c.Annotations)
	}
	if c.Labels[corev1.LabelTopologyZone] == "" || c.Labels[corev1.LabelArchStable] != "amd64" || c.Labels["custom"] != "kept" {
		t.Errorf("labels are %v", c.Labels)
	}
	if c.Status.ProviderID != "proxmox://lab/2100" || c.Status.ImageID == "" || c.Status.Allocatable.Cpu().IsZero() {
		t.Errorf("status is %+v", c.Status)
	}
}

// TestContractDeleteIsCalledUntilNotFound checks that Delete is called until it reports
// that the VM does not exist, and that the NodeClaim remains until then.
func TestContractDeleteIsCalledUntilNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.make(t, claim("x"))
	c := w.lifecycleOf(t, "x")
	if err := w.client.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c = w.lifecycleOf(t, "x"); c == nil || len(w.fleet.removed) == 0 {
		t.Fatalf("claim is %v, removed %v", c, w.fleet.removed)
	}
	w.fleet.states[0].Phase = scaler.PhaseRemoving
	if c = w.lifecycleOf(t, "x"); c == nil {
		t.Fatal("the claim is gone before its VM")
	}
	w.fleet.states = nil
	if c = w.lifecycleOf(t, "x"); c != nil {
		t.Errorf("claim is still %+v", c.Status)
	}
}

// registered returns a NodeClaim with a Node that has joined.
func (w *world) registered(t *testing.T, ready corev1.ConditionStatus) *karpv1.NodeClaim {
	t.Helper()
	c := w.launch(t)
	conditions := c.StatusConditions()
	for _, name := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		conditions.SetTrue(name)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "workers-2000", Labels: c.Labels}}
	node.Spec.ProviderID = c.Status.ProviderID
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	status := c.Status
	w.make(t, node, c)
	c.Status = status
	if err := w.client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestContractGarbageCollection checks that Karpenter's garbage collection deletes the
// NodeClaim of a VM that was deleted manually, but no NodeClaim of a VM whose host is down.
func TestContractGarbageCollection(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		ready corev1.ConditionStatus
		edit  func(w *world)
		gone  bool
	}{
		{"as it should be", corev1.ConditionTrue, func(*world) {}, false},
		{"deleted by hand", corev1.ConditionUnknown, func(w *world) { w.snapshot.Hosts[0].Guests = nil }, true},
		{"deleted by hand, it seems, but the Node is ready", corev1.ConditionTrue, func(w *world) { w.snapshot.Hosts[0].Guests = nil }, false},
		{"host down", corev1.ConditionUnknown, func(w *world) { down(&w.snapshot.Hosts[0]) }, false},
		{"no file wants it", corev1.ConditionUnknown, func(w *world) { w.fleet.states = nil }, false},
		{"neither a file nor a guest", corev1.ConditionUnknown, func(w *world) { w.fleet.states, w.snapshot.Hosts[0].Guests = nil, nil }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			c := w.registered(t, test.ready)
			w.clock.Step(time.Hour)
			test.edit(w)
			if _, err := garbagecollection.NewController(w.clock, w.client, w.CloudProvider).Reconcile(karpenterContext(t)); err != nil {
				t.Fatal(err)
			}
			if gone := w.readClaim(t, c.Name) == nil; gone != test.gone {
				t.Errorf("gone is %t, want %t", gone, test.gone)
			}
		})
	}
}

// TestContractLiveTypesDoNotDrift checks that a full host, an unavailable offering or a
// type that no longer exists does not replace a node. An hour after a node's creation,
// Karpenter checks whether its type and offering are still among the pool's.
func TestContractLiveTypesDoNotDrift(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(t *testing.T, w *world)
		want string
	}{
		{"as it should be", func(*testing.T, *world) {}, ""},
		{"host full", func(_ *testing.T, w *world) {
			w.fleet.states = append(w.fleet.states, state(vm(pve1, 2001), scaler.PhaseMade))
		}, ""},
		{"host down", func(_ *testing.T, w *world) { down(&w.snapshot.Hosts[0]) }, ""},
		{"type is no more", func(_ *testing.T, w *world) {
			w.config.Types = w.config.Types[:1]
			w.CloudProvider = cloudprovider.New(w.config)
		}, ""},
		{"class not ready", func(t *testing.T, w *world) {
			w.editClass(t, func(nc *v1alpha1.ProxmoxNodeClass) {
				nc.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, "TemplateNotFound", "no template")
			})
		}, ""},
		{"type of no VM of the fleet", func(_ *testing.T, w *world) {
			w.fleet.states = nil
			w.config.Types = w.config.Types[:1]
			w.CloudProvider = cloudprovider.New(w.config)
		}, "InstanceTypeNotFound"},
		{"evacuated", func(_ *testing.T, w *world) { w.evacuated = append(w.evacuated, pve1) }, "HostEvacuated"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			w.config.Types = numaform.DefaultInstanceTypes()
			c := w.registered(t, corev1.ConditionTrue)
			w.clock.Step(2 * time.Hour)
			test.edit(t, w)
			controller := disruption.NewController(w.clock, w.client, w.CloudProvider)
			if _, err := controller.Reconcile(karpenterContext(t), w.readClaim(t, c.Name)); err != nil {
				t.Fatal(err)
			}
			drifted := w.readClaim(t, c.Name).StatusConditions().Get(karpv1.ConditionTypeDrifted)
			got := ""
			if drifted.IsTrue() {
				got = drifted.Reason
			}
			if got != test.want {
				t.Errorf("drifted by %q, want %q", got, test.want)
			}
		})
	}
}

// TestContractPodsMaySelectByOurLabels checks that Karpenter's own simulations place pods
// that select by our labels.
func TestContractPodsMaySelectByOurLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	ctx := karpenterContext(t)
	np := &karpv1.NodePool{}
	if err := w.client.Get(ctx, client.ObjectKey{Name: "workers"}, np); err != nil {
		t.Fatal(err)
	}
	types, err := w.GetInstanceTypes(ctx, np)
	if err != nil {
		t.Fatal(err)
	}
	its := map[string][]*karpenter.InstanceType{"workers": types}
	cluster := karpstate.NewCluster(clock.RealClock{}, w.client, w.CloudProvider)
	for selects, want := range map[[2]string]int{
		{v1alpha1.LabelPlacement, "Shared"}: 1, {v1alpha1.LabelPlacement, "Dedicated"}: 0,
		{v1alpha1.LabelCPUType, "host"}: 1, {v1alpha1.LabelCPUType, "x86-64-v3"}: 0,
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "a"}}
		p.Spec.NodeSelector = map[string]string{selects[0]: selects[1]}
		topology, err := scheduling.NewTopology(ctx, w.client, cluster, nil, []*karpv1.NodePool{np}, its, []*corev1.Pod{p})
		if err != nil {
			t.Fatal(err)
		}
		s := scheduling.NewScheduler(ctx, w.client, []*karpv1.NodePool{np}, cluster, nil, topology, its, nil, quiet{}, clock.RealClock{}, nil, nil)
		results, err := s.Solve(ctx, []*corev1.Pod{p})
		if err != nil || len(results.NewNodeClaims) != want {
			t.Errorf("%v: %d nodes, %v; want %d", selects, len(results.NewNodeClaims), err, want)
		}
	}
}
