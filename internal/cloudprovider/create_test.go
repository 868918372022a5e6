package cloudprovider_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

func TestCreateFindsTheVMOfItsClaim(t *testing.T) {
	t.Parallel()
	for _, phase := range []scaler.Phase{scaler.PhaseReserved, scaler.PhaseMaking, scaler.PhaseMade} {
		w := newWorld(t, class, pool)
		w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), phase)}
		w.snapshot.Hosts[0].Arch = "arm64"
		created, err := w.Create(t.Context(), claimOf(vm(pve1, 2000)))
		if err != nil {
			t.Fatalf("%s: %v", phase, err)
		}
		want := map[string]string{
			corev1.LabelHostname: "workers-2000", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "arm64",
			corev1.LabelTopologyRegion: "lab", corev1.LabelTopologyZone: "pve-1", corev1.LabelInstanceTypeStable: "c1.4VCPU-8GB",
			karpv1.CapacityTypeLabelKey: "on-demand", karpv1.NodePoolLabelKey: "workers", "numaform.dev/proxmoxnodeclass": "shared",
			v1alpha1.LabelInstanceFamily: "c1", v1alpha1.LabelNodeClass: "shared", v1alpha1.LabelPlacement: "Shared", v1alpha1.LabelNUMANodes: "1",
			v1alpha1.LabelCPUType: "host", v1alpha1.LabelTemplate: "debian",
		}
		if diff := cmp.Diff(want, created.Labels); diff != "" {
			t.Errorf("%s: labels differ:\n%s", phase, diff)
		}
		if created.Status.ProviderID != "proxmox://lab/2000" || created.Status.ImageID != "lab/pve-1/9001" {
			t.Errorf("%s: status is %+v", phase, created.Status)
		}
		if cpu, free := created.Status.Capacity.Cpu(), created.Status.Allocatable.Cpu(); cpu.Value() != 4 || free.Cmp(*cpu) >= 0 || free.IsZero() {
			t.Errorf("%s: %s CPUs, of which pods have %s", phase, cpu, free)
		}
		if len(w.fleet.asked) > 0 {
			t.Errorf("%s: reserved %v", phase, w.fleet.asked)
		}
	}
}

// TestCreateRefusesVMsThatWillNotCome checks that Create refuses a NodeClaim whose VM will
// not become its node, and reserves no other VM.
func TestCreateRefusesVMsThatWillNotCome(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, want string
		phase      scaler.Phase
		err        error
		standby    bool
	}{
		{name: "never woken", phase: scaler.PhaseMade, standby: true, want: "is still a standby VM"},
		{name: "unknown", want: "was reserved but never created"},
		{name: "failed", phase: scaler.PhaseFailed, err: errors.New("clone failed"), want: "could not be created: clone failed"},
		{name: "held", phase: scaler.PhasePendingApproval, err: &scaler.PendingApprovalError{Host: pve1}, want: "is pending approval"},
		{name: "removing", phase: scaler.PhaseRemoving, want: "is being removed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			if test.phase != "" {
				s := state(vm(pve1, 2000), test.phase)
				s.Err = test.err
				s.VM.Standby = test.standby
				w.fleet.states = []scaler.VMState{s}
			}
			_, err := w.Create(t.Context(), claimOf(vm(pve1, 2000)))
			if !karpenter.IsInsufficientCapacityError(err) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "workers-2000") {
				t.Errorf("error is %v, want InsufficientCapacity with %q", err, test.want)
			}
			if len(w.fleet.asked) > 0 {
				t.Errorf("reserved %v", w.fleet.asked)
			}
		})
	}
}

// TestCreateWaitsForTheFleet checks that after a restart, no NodeClaim is refused before
// the fleet has been read.
func TestCreateWaitsForTheFleet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.fleet.unread = true
	for _, c := range []*karpv1.NodeClaim{claimOf(vm(pve1, 2000)), claim("workers-x")} {
		_, err := w.Create(t.Context(), c)
		if err == nil || karpenter.IsInsufficientCapacityError(err) || karpenter.IsNodeClassNotReadyError(err) {
			t.Errorf("error is %v, want one that is tried again", err)
		}
	}
}

func TestCreatePlacesClaimsOfKarpenter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	c := claim("workers-x", in(corev1.LabelInstanceTypeStable, "s1.4VCPU-16GB", "c1.4VCPU-8GB", "c1.1VCPU-2GB"),
		in(corev1.LabelTopologyZone, "pve-2"), in(karpv1.CapacityTypeLabelKey, "on-demand"))
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("3")}
	created, err := w.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.fleet.asked) != 1 {
		t.Fatalf("reserved %v", w.fleet.asked)
	}
	asked := w.fleet.asked[0]
	if asked.Key != scheduling.KeyOf(c.UID) || asked.Placement.Host != pve2 || asked.Spec.InstanceType != "c1.4VCPU-8GB" || asked.Spec.Demand.Pods != 3 {
		t.Errorf("asked for %+v", asked)
	}
	want := map[string]string{
		v1alpha1.AnnotationVM: "workers-2100", v1alpha1.AnnotationKey: string(asked.Key),
		v1alpha1.AnnotationClassHashVersion: scheduling.ClassHashVersion,
	}
	if hash := created.Annotations[v1alpha1.AnnotationClassHash]; hash == "" {
		t.Error("the claim does not say of what class it is")
	} else {
		want[v1alpha1.AnnotationClassHash] = hash
	}
	if diff := cmp.Diff(want, created.Annotations); diff != "" {
		t.Errorf("annotations differ:\n%s", diff)
	}

	// A repeated call, with or without what Create returned, returns the same VM.
	again, err := w.Create(t.Context(), c)
	if err != nil || again.Status.ProviderID != created.Status.ProviderID {
		t.Errorf("asked again: %v, %v", again, err)
	}
	c.Annotations = created.Annotations
	if again, err = w.Create(t.Context(), c); err != nil || again.Status.ProviderID != created.Status.ProviderID {
		t.Errorf("asked with its annotations: %v, %v", again, err)
	}
	if len(w.fleet.asked) != 1 {
		t.Errorf("reserved %d times", len(w.fleet.asked))
	}
}

func TestCreateSaysWhyNothingFits(t *testing.T) {
	t.Parallel()
	large := in(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB")
	tests := []struct {
		name string
		edit func(w *world)
		c    *karpv1.NodeClaim
		want string
	}{
		{"no such type", func(*world) {}, claim("x", in(corev1.LabelInstanceTypeStable, "huge")), "no instance type"},
		{"other zone", func(*world) {}, claim("x", in(corev1.LabelTopologyZone, "pve-9")), "no instance type"},
		{"full", func(w *world) {
			w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), scaler.PhaseReserved), state(vm(pve2, 2001), scaler.PhaseRemoving)}
		}, claim("x", large), "no host has room: c1.8VCPU-16GB"},
		{"closed", func(w *world) {
			w.config.Unavailable.Mark(scheduling.OfferingSelector{Host: pve1}, epoch.Add(time.Minute))
			w.evacuated = []topology.HostID{pve2}
		}, claim("x"), "no host has room"},
		{"no pool", func(*world) {}, func() *karpv1.NodeClaim {
			c := claim("x")
			c.Labels[karpv1.NodePoolLabelKey] = "gone"
			return c
		}(), `NodePool "gone" does not exist or has no ProxmoxNodeClass`},
		{"no VMID", func(w *world) {
			w.fleet.err = &fleet.RangeExhaustedError{Region: "lab"}
		}, claim("x"), "widen vmid_range"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			test.edit(w)
			_, err := w.Create(t.Context(), test.c)
			if !karpenter.IsInsufficientCapacityError(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want InsufficientCapacity with %q", err, test.want)
			}
		})
	}
}

// TestCreateCountsTheRoomOfFailedVMs checks that a failed VM uses room on its host only if
// it has a file, because only then is it retried there.
func TestCreateCountsTheRoomOfFailedVMs(t *testing.T) {
	t.Parallel()
	for _, filed := range []bool{true, false} {
		w := newWorld(t, class, pool)
		failed := []scaler.VMState{state(vm(pve1, 2000), scaler.PhaseFailed), state(vm(pve2, 2001), scaler.PhaseFailed)}
		failed[0].Filed, failed[1].Filed = filed, filed
		w.fleet.states = failed
		_, err := w.Create(t.Context(), claim("x", in(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB")))
		if full := karpenter.IsInsufficientCapacityError(err); full != filed || (!full && err != nil) {
			t.Errorf("with files %t: %v", filed, err)
		}
	}
}

// TestCreateGoesWhereThereIsRoom checks that full hosts and unavailable offerings are
// skipped.
func TestCreateGoesWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), scaler.PhaseMaking)}
	if _, err := w.Create(t.Context(), claim("a", in(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB"))); err != nil {
		t.Fatal(err)
	}
	w.config.Unavailable.Mark(scheduling.OfferingSelector{NodePool: "workers", InstanceType: "c1.1VCPU-2GB"}, epoch.Add(time.Minute))
	if _, err := w.Create(t.Context(), claim("b", in(corev1.LabelInstanceTypeStable, "c1.1VCPU-2GB", "c1.2VCPU-4GB"))); err != nil {
		t.Fatal(err)
	}
	a, b := w.fleet.asked[0], w.fleet.asked[1]
	if a.Placement.Host != pve2 || b.Placement.Host != pve1 || b.Spec.InstanceType != "c1.2VCPU-4GB" {
		t.Errorf("placed on %s and, as %s, on %s", a.Placement.Host, b.Spec.InstanceType, b.Placement.Host)
	}
}

// TestHeldVMsTakeNoRoom checks that a VM that is pending approval uses no room until it is
// placed again.
func TestHeldVMsTakeNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), scaler.PhasePendingApproval), state(vm(pve2, 2001), scaler.PhasePendingApproval)}
	if _, err := w.Create(t.Context(), claim("a", in(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB"))); err != nil {
		t.Error(err)
	}
}

func TestCreateNeedsAReadyClass(t *testing.T) {
	t.Parallel()
	isUnknown := func(err error) bool {
		var create *karpenter.CreateError
		return errors.As(err, &create) && create.ConditionReason == cloudprovider.ReasonClassUnknown
	}
	tests := []struct {
		name, want string
		edit       func(*v1alpha1.ProxmoxNodeClass)
		is         func(error) bool
	}{
		{"not ready", "is not ready", func(nc *v1alpha1.ProxmoxNodeClass) {
			nc.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, "TemplateNotFound", "no template")
		}, karpenter.IsNodeClassNotReadyError},
		{"not judged", "has not been evaluated yet", func(nc *v1alpha1.ProxmoxNodeClass) {
			nc.Status.Conditions = nil
		}, isUnknown},
		{"invalid", "spec.template", func(nc *v1alpha1.ProxmoxNodeClass) {
			nc.Spec.Template = v1alpha1.TemplateReference{}
		}, karpenter.IsNodeClassNotReadyError},
		{"missing", `ProxmoxNodeClass "shared" does not exist: create it`, nil, karpenter.IsNodeClassNotReadyError},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			w.editClass(t, test.edit)
			_, err := w.Create(t.Context(), claim("x"))
			if !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
			if len(w.fleet.asked) > 0 {
				t.Errorf("reserved %v", w.fleet.asked)
			}
		})
	}
}

// locker counts its calls.
type locker struct{ held, taken int }

func (l *locker) Lock()   { l.held++; l.taken++ }
func (l *locker) Unlock() { l.held-- }

// TestPlacingIsOneStep checks that the lock is held from reading the VMs until one is
// reserved.
func TestPlacingIsOneStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, class, pool)
	l := &locker{}
	w.config.Placing = l
	during := 0
	w.config.Snapshot = func(context.Context) (*topology.Snapshot, error) {
		during = max(during, l.held)
		return w.snapshot, nil
	}
	provider := cloudprovider.New(w.config)
	if _, err := provider.Create(t.Context(), claim("x")); err != nil {
		t.Fatal(err)
	}
	if l.taken != 1 || l.held != 0 || during != 1 {
		t.Errorf("taken %d times, %d times while looking, still held %d times", l.taken, during, l.held)
	}
}
