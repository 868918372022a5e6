package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/adopt"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

// kppClaim returns a NodeClaim of karpenter-provider-proxmox.
func kppClaim(name, providerID string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "default"}, Finalizers: []string{karpv1.TerminationFinalizer},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: "karpenter.proxmox.sinextra.dev", Kind: "ProxmoxNodeClass", Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"default"}}},
		},
		Status: karpv1.NodeClaimStatus{NodeName: name, ProviderID: providerID},
	}
}

// world is a cluster with one Node of karpenter-provider-proxmox.
type world struct {
	client.WithWatch
	t    *testing.T
	name string
	vmid int
	node *corev1.Node
	kpp  *karpv1.NodeClaim
}

func newWorld(t *testing.T, vmid int) *world {
	t.Helper()
	base, err := scheduling.NewClient(plane.Cluster(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(plane.Cluster(t).Config, client.Options{Scheme: base.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{WithWatch: c, t: t, vmid: vmid, name: fmt.Sprintf("default-x%d", vmid)}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Name = "shared"
	class.Spec.Template.Name = "debian"
	pool := &karpv1.NodePool{}
	pool.Name = "workers"
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "shared"}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}}}
	pool.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoExecute}}
	pool.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: "network", Effect: corev1.TaintEffectNoExecute}}
	w.create(class)
	w.create(pool)

	providerID := fmt.Sprintf("proxmox://lab/%d", vmid)
	w.kpp = kppClaim(w.name, providerID)
	status := w.kpp.Status
	w.create(w.kpp)
	w.kpp.Status = status
	if err := w.Status().Update(t.Context(), w.kpp); err != nil {
		t.Fatal(err)
	}
	block := true
	w.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: w.name, Finalizers: []string{karpv1.TerminationFinalizer},
			Labels: map[string]string{
				karpv1.NodePoolLabelKey: "default", corev1.LabelInstanceTypeStable: "t1.4vcpu-4gb", corev1.LabelTopologyRegion: "lab",
				corev1.LabelTopologyZone: "rack-1", karpv1.CapacityTypeLabelKey: "spot", corev1.LabelArchStable: "amd64", corev1.LabelHostname: w.name,
				karpv1.NodeRegisteredLabelKey: "true", "karpenter.proxmox.sinextra.dev/instance-family": "t1", "team": "blue",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: w.kpp.Name, UID: w.kpp.UID, BlockOwnerDeletion: &block}},
		},
		Spec: corev1.NodeSpec{ProviderID: providerID},
	}
	w.create(w.node)
	w.node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
	w.node.Status.Allocatable = w.node.Status.Capacity
	if err := w.Status().Update(t.Context(), w.node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, object := range []client.Object{&karpv1.NodeClaim{}, &karpv1.NodeClaim{}, &corev1.Node{}} {
			_ = w.DeleteAllOf(context.Background(), object)
		}
		for _, name := range []string{w.name, fmt.Sprintf("workers-%d", vmid)} {
			for _, object := range []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}} {
				object.SetName(name)
				_ = w.Patch(context.Background(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
			}
		}
	})
	return w
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.Create(context.Background(), object); err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
}

// find returns the Node as a candidate, and its VM.
func (w *world) find() (*adopt.Candidate, *fleet.VM) {
	w.t.Helper()
	found, err := adopt.Find(w.t.Context(), w, nil, "workers")
	if err != nil || len(found) != 1 || found[0].Node.Name != w.name {
		w.t.Fatalf("found %+v, %v", found, err)
	}
	return &found[0], w.describe(&found[0])
}

func (w *world) describe(candidate *adopt.Candidate) *fleet.VM {
	w.t.Helper()
	snapshot := &topology.Snapshot{Regions: []topology.Region{{Name: "lab", Quorate: true}}, Hosts: []topology.Host{{
		Region: "lab", Name: "pve-1", Online: true,
		Guests: []topology.Guest{{VMID: w.vmid, Name: w.name, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 4096, Pins: topology.CPUs(4, 5, 6, 7)}},
	}}}
	host, guest, err := candidate.Guest(snapshot)
	if err != nil {
		w.t.Fatal(err)
	}
	vm, err := candidate.VM("prod", host, &guest, &proxmox.Identity{Name: w.name, UUID: "u", MACs: []string{"M"}, CPUType: "host", Tags: []string{"numaform-prod", "karpenter", "numaform"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return &vm
}

// wantMoved checks that the Node is numaform's, as it was, and that the other NodeClaim is
// gone.
func (w *world) wantMoved(replace bool) {
	w.t.Helper()
	ctx := w.t.Context()
	claim, node := &karpv1.NodeClaim{}, &corev1.Node{}
	if err := w.Get(ctx, client.ObjectKey{Name: fmt.Sprintf("workers-%d", w.vmid)}, claim); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Get(ctx, client.ObjectKey{Name: w.name}, node); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Get(ctx, client.ObjectKeyFromObject(w.kpp), &karpv1.NodeClaim{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("the other NodeClaim: %v", err)
	}
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, "Ready"} {
		if !claim.StatusConditions().Get(condition).IsTrue() {
			w.t.Errorf("%s is not true: %+v", condition, claim.Status.Conditions)
		}
	}
	if claim.Status.NodeName != w.name || claim.Status.ProviderID != w.node.Spec.ProviderID || !claim.Status.Capacity.Cpu().Equal(resource.MustParse("4")) {
		w.t.Errorf("status is %+v", claim.Status)
	}
	if len(claim.Spec.Taints)+len(claim.Spec.StartupTaints) > 0 {
		w.t.Errorf("a registration would add taints: %+v", claim.Spec)
	}
	for key, want := range map[string]string{
		corev1.LabelInstanceTypeStable: "t1.4vcpu-4gb", karpv1.CapacityTypeLabelKey: "spot", corev1.LabelTopologyZone: "pve-1", karpv1.NodePoolLabelKey: "workers",
		corev1.LabelHostname: w.name, corev1.LabelArchStable: "amd64",
	} {
		if claim.Labels[key] != want {
			w.t.Errorf("label %s of the NodeClaim is %q, want %q", key, claim.Labels[key], want)
		}
	}
	if got := claim.Annotations[v1alpha1.AnnotationReplace] == "true"; got != replace {
		w.t.Errorf("replace is %t", got)
	}
	if claim.Annotations[v1alpha1.AnnotationClassHash] == "" || claim.Annotations[v1alpha1.AnnotationVM] != w.name {
		w.t.Errorf("annotations are %v", claim.Annotations)
	}

	for key, want := range w.node.Labels {
		if key == karpv1.NodePoolLabelKey {
			want = "workers"
		}
		if node.Labels[key] != want {
			w.t.Errorf("label %s of the Node was %q, and is %q", key, want, node.Labels[key])
		}
	}
	if len(node.OwnerReferences) != 1 || node.OwnerReferences[0].UID != claim.UID {
		w.t.Errorf("owners are %+v", node.OwnerReferences)
	}
	if !slices.Equal(node.Spec.Taints, w.node.Spec.Taints) || node.Spec.Unschedulable || !node.DeletionTimestamp.IsZero() || len(node.Finalizers) != 1 || node.UID != w.node.UID {
		w.t.Errorf("node is %+v", node)
	}
}

func permitted(context.Context) error { return nil }

var errKilled = errors.New("killed")

// TestHandover moves a Node. It is repeated with a failure before each write, and completed:
// in between, the Node always has an owner that exists, and the other NodeClaim never waits
// for its finalizer.
func TestHandover(t *testing.T) {
	for n := 0; ; n++ {
		w := newWorld(t, 2100+n)
		writes := 0
		kill := func() error {
			if writes++; writes > n {
				return errKilled
			}
			return nil
		}
		killed := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
				if err := kill(); err != nil {
					return err
				}
				return c.Create(ctx, object, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
				if err := kill(); err != nil {
					return err
				}
				return c.Delete(ctx, object, options...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				if err := kill(); err != nil {
					return err
				}
				return c.Patch(ctx, object, patch, options...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				if err := kill(); err != nil {
					return err
				}
				return c.SubResource(sub).Patch(ctx, object, patch, options...)
			},
		})
		candidate, vm := w.find()
		err := adopt.Handover(t.Context(), killed, candidate, vm, true, permitted)
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("killed at write %d: %v", n, err)
		}
		w.safe()
		if err == nil {
			if n != 6 {
				t.Errorf("a handover makes %d writes", n)
			}
			w.wantMoved(true)
			return
		}
		// A new run of the command finds the Node again, also without its NodeClaim.
		again, err := adopt.Find(t.Context(), w, []string{w.name}, "workers")
		if err != nil || len(again) != 1 {
			t.Fatalf("killed at write %d: found %+v, %v", n, again, err)
		}
		if err := adopt.Handover(t.Context(), w, &again[0], w.describe(&again[0]), true, permitted); err != nil {
			t.Fatalf("killed at write %d: %v", n, err)
		}
		w.wantMoved(true)
		for _, object := range []client.Object{w.node, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("workers-%d", w.vmid)}}} {
			if err := w.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				t.Fatal(err)
			}
			if err := w.Delete(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestHandoverBesideOthers changes each object right before the first write to it, as kubelet
// and the controllers of a cluster do.
func TestHandoverBesideOthers(t *testing.T) {
	w := newWorld(t, 2400)
	changed := map[string]bool{}
	change := func(ctx context.Context, object client.Object) error {
		name := fmt.Sprintf("%T %s", object, object.GetName())
		if changed[name] {
			return nil
		}
		changed[name] = true
		other := object.DeepCopyObject().(client.Object)
		return w.Patch(ctx, other, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"example.org/changed":"true"}}}`)))
	}
	beside := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := change(ctx, object); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := change(ctx, object); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
	candidate, vm := w.find()
	if err := adopt.Handover(t.Context(), beside, candidate, vm, false, permitted); err != nil {
		t.Fatal(err)
	}
	w.wantMoved(false)
	if len(changed) != 3 {
		t.Errorf("changed %v, want the Node and both NodeClaims", changed)
	}
}

// safe checks that Kubernetes keeps the Node: an owner exists, and nothing is being deleted.
func (w *world) safe() {
	w.t.Helper()
	node := &corev1.Node{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: w.name}, node); err != nil {
		w.t.Fatal(err)
	}
	var claims karpv1.NodeClaimList
	if err := w.List(w.t.Context(), &claims); err != nil {
		w.t.Fatal(err)
	}
	owned := false
	for _, claim := range claims.Items {
		owned = owned || len(node.OwnerReferences) == 1 && node.OwnerReferences[0].UID == claim.UID
		if !claim.DeletionTimestamp.IsZero() {
			w.t.Errorf("NodeClaim %s is being deleted with finalizers %v", claim.Name, claim.Finalizers)
		}
	}
	if !owned || !node.DeletionTimestamp.IsZero() {
		w.t.Errorf("node is %+v", node)
	}
}

// TestHandoverStops starts the other autoscaler between the steps: its NodeClaim stays.
func TestHandoverStops(t *testing.T) {
	w := newWorld(t, 2200)
	candidate, vm := w.find()
	calls := 0
	err := adopt.Handover(t.Context(), w, candidate, vm, false, func(context.Context) error {
		if calls++; calls > 1 {
			return errKilled
		}
		return nil
	})
	if !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	w.safe()
	if err := w.Get(t.Context(), client.ObjectKeyFromObject(w.kpp), &karpv1.NodeClaim{}); err != nil {
		t.Errorf("the other NodeClaim: %v", err)
	}
	candidate, vm = w.find()
	if err := adopt.Handover(t.Context(), w, candidate, vm, false, permitted); err != nil {
		t.Fatal(err)
	}
	w.wantMoved(false)
}

// TestCheckStopped checks when another autoscaler counts as running.
func TestCheckStopped(t *testing.T) {
	w := newWorld(t, 2300)
	now := time.Now()
	check := func(want string) {
		t.Helper()
		err := adopt.CheckStopped(t.Context(), w, now)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	check("")
	holder, seconds := "kpp-0", int32(15)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "proxmox-karpenter-leader-election"}}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now.Add(-14 * time.Second)}}
	w.create(lease)
	check("Lease kube-system/proxmox-karpenter-leader-election is held by kpp-0")
	now = now.Add(2 * time.Second)
	check("")
	now = now.Add(-2 * time.Second)
	empty := ""
	lease.Spec.HolderIdentity = &empty
	if err := w.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	check("")

	replicas := int32(1)
	labels := map[string]string{"app": "x"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kproximate"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "ghcr.io/jedrw/kproximate-controller:1"}}}},
	}}
	w.create(deployment)
	check("kubectl scale --namespace kube-system deployment kproximate --replicas 0")
	replicas = 0
	deployment.Spec.Replicas = &replicas
	if err := w.Update(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	check("")
}

// TestHandoverOfOwn returns a Node of numaform to the fleet: its VM keeps the key of its marker.
// Its NodeClaim stays if it still exists, whatever its name, and is created otherwise.
func TestHandoverOfOwn(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	for n, name := range []string{"", "workers-x7k2p", "another VM's", "leaving"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2500+n)
			if err := w.Patch(t.Context(), w.kpp, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				t.Fatal(err)
			}
			if err := w.Delete(t.Context(), w.kpp); err != nil {
				t.Fatal(err)
			}
			claim := kppClaim(strings.ToLower(strings.NewReplacer("'", "", " ", "-").Replace(name)), w.node.Spec.ProviderID)
			claim.Labels[karpv1.NodePoolLabelKey] = "workers"
			claim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "shared"}
			claim.Annotations = map[string]string{v1alpha1.AnnotationKey: key}
			if name == "another VM's" {
				claim.Annotations[v1alpha1.AnnotationKey] = strings.Repeat("f", 32)
			}
			if name != "" {
				status := claim.Status
				status.NodeName = w.name
				w.create(claim)
				claim.Status = status
				if err := w.Status().Update(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = w.Patch(context.Background(), claim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				})
			}
			if name == "leaving" {
				if err := w.Delete(t.Context(), claim); err != nil {
					t.Fatal(err)
				}
			}
			found, err := adopt.Find(t.Context(), w, []string{w.name}, "workers")
			if name == "leaving" {
				if err == nil || !strings.Contains(err.Error(), "being deleted") {
					t.Errorf("found %+v, %v", found, err)
				}
				return
			}
			if err != nil || len(found) != 1 {
				t.Fatalf("found %+v, %v", found, err)
			}
			vm, err := found[0].VM("prod", topology.HostID{Region: "lab", Host: "pve-1"},
				&topology.Guest{VMID: w.vmid, Name: w.name, Running: true, VCPUs: 4, MemoryMiB: 4096, ClusterID: "prod", Key: key}, &proxmox.Identity{Name: w.name, CPUType: "host"})
			if err != nil || vm.Key != key {
				t.Fatalf("the VM is %+v, %v", vm, err)
			}
			err = adopt.Handover(t.Context(), w, &found[0], &vm, false, permitted)
			if name == "another VM's" {
				if err == nil || !strings.Contains(err.Error(), "belongs to another VM") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var claims karpv1.NodeClaimList
			if err := w.List(t.Context(), &claims); err != nil {
				t.Fatal(err)
			}
			var of []string
			for i := range claims.Items {
				if claims.Items[i].Status.ProviderID == w.node.Spec.ProviderID {
					of = append(of, claims.Items[i].Name)
				}
			}
			want := name
			if want == "" {
				want = fmt.Sprintf("workers-%d", w.vmid)
			}
			if !slices.Equal(of, []string{want}) {
				t.Errorf("the Node has the NodeClaims %v, want %s", of, want)
			}
			node := &corev1.Node{}
			if err := w.Get(t.Context(), client.ObjectKey{Name: w.name}, node); err != nil {
				t.Fatal(err)
			}
			if len(node.OwnerReferences) != 1 || node.OwnerReferences[0].Name != want || node.Annotations[v1alpha1.AnnotationKey] != key || !node.DeletionTimestamp.IsZero() {
				t.Errorf("node is %+v", node)
			}
		})
	}
}

// TestFindRefuses checks the Nodes that are not adopted.
func TestFindRefuses(t *testing.T) {
	w := newWorld(t, 2400)
	for want, edit := range map[string]func(node *corev1.Node){
		"control plane":        func(node *corev1.Node) { node.Labels["node-role.kubernetes.io/control-plane"] = "" },
		"joined completely":    func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{karpv1.UnregisteredNoExecuteTaint} },
		"set --nodepool":       func(node *corev1.Node) { node.Labels[karpv1.NodePoolLabelKey] = "absent" },
		"has no such Node":     func(node *corev1.Node) { node.Name += "-other" },
		"does not name a VM, ": func(node *corev1.Node) { node.Spec.ProviderID = "k3s://" + node.Name },
	} {
		node := w.node.DeepCopy()
		node.ResourceVersion, node.UID, node.OwnerReferences, node.Finalizers = "", "", nil, nil
		node.Name = "named"
		edit(node)
		w.create(node)
		pool := "workers"
		if want == "set --nodepool" {
			pool = ""
		}
		found, err := adopt.Find(t.Context(), w, []string{"named"}, pool)
		if err == nil {
			_, _, err = found[0].Guest(&topology.Snapshot{})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if err := w.Delete(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	candidate, _ := w.find()
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	if _, err := candidate.VM("prod", host, &topology.Guest{VMID: 2400}, &proxmox.Identity{Privileged: []string{"args"}}); err == nil || !strings.Contains(err.Error(), "kubectl drain") {
		t.Errorf("VM with args: %v", err)
	}
	if _, err := candidate.VM("prod", host, &topology.Guest{VMID: 2400}, &proxmox.Identity{NoSCSIHardware: true}); err == nil || !strings.Contains(err.Error(), "qm set 2400 --scsihw lsi") {
		t.Errorf("VM without scsihw: %v", err)
	}
	if _, err := candidate.VM("prod", host, &topology.Guest{VMID: 2400}, &proxmox.Identity{Marker: fleet.Marker{ClusterID: "prod", Pins: []int{4}}}); err == nil || !strings.Contains(err.Error(), "host agent") {
		t.Errorf("VM with pins by the host agent: %v", err)
	}
	if _, _, err := candidate.Guest(&topology.Snapshot{}); err == nil || !strings.Contains(err.Error(), `no region "lab"`) {
		t.Errorf("VM of another region: %v", err)
	}
}
