package cloudprovider_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

const clusterID = "test"

var (
	pve1  = topology.HostID{Region: "lab", Host: "pve-1"}
	pve2  = topology.HostID{Region: "lab", Host: "pve-2"}
	epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// TestMain prepares Karpenter as the operator does.
func TestMain(m *testing.M) {
	if err := v1alpha1.AddToScheme(clientgo.Scheme); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	karpv1.WellKnownLabels.Insert(scheduling.WellKnownLabels()...)
	os.Exit(m.Run())
}

// host returns a Proxmox host with 8 CPUs and 32 GiB.
func host(id topology.HostID, template int) topology.Host {
	h := topology.Host{
		Region: id.Region, Name: id.Host, Online: true,
		Machine:   topology.Machine{MemoryMiB: 32 << 10, Sources: map[topology.Fact]topology.Source{}},
		Templates: []topology.Template{{VMID: template, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "local"}},
		Storages:  []topology.Storage{{Name: "local", Type: "dir", Active: true}},
	}
	for _, fact := range []topology.Fact{topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory} {
		h.Sources[fact] = topology.SourceCollected
	}
	h.NUMANodes = []topology.NUMANode{{ID: 0, MemoryMiB: h.MemoryMiB}}
	for id := range 8 {
		h.CPUs = append(h.CPUs, topology.CPU{ID: id, Online: true, Core: id % 4})
	}
	return h
}

func lab() *topology.Snapshot {
	return &topology.Snapshot{
		Regions: []topology.Region{{Name: "lab", Version: "9.0.3", Quorate: true}},
		Hosts:   []topology.Host{host(pve1, 9001), host(pve2, 9002)},
	}
}

const class = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec: {template: {name: debian}}
---
`

const pool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers, uid: pool-uid}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64, arm64]}]
---
`

// fakeFleet is a writer that creates nothing.
type fakeFleet struct {
	unread bool
	states []scaler.VMState
	// copied counts the calls of States.
	copied   int
	asked    []scaler.Request
	removed  []fleet.Key
	err      error
	snapshot *topology.Snapshot
}

func (f *fakeFleet) States(context.Context) ([]scaler.VMState, error) {
	if f.unread {
		return nil, scaler.ErrNotRead
	}
	f.copied++
	return slices.Clone(f.states), nil
}

func (f *fakeFleet) PlacesDigest(context.Context) (uint64, error) {
	if f.unread {
		return 0, scaler.ErrNotRead
	}
	return scaler.PlacesDigest(f.states), nil
}

func (f *fakeFleet) State(_ context.Context, key fleet.Key) (state scaler.VMState, exists bool, err error) {
	if f.unread {
		return state, false, scaler.ErrNotRead
	}
	i := slices.IndexFunc(f.states, func(state scaler.VMState) bool { return state.VM.Key == key })
	if i < 0 {
		return state, false, nil
	}
	return f.states[i], true, nil
}

func (f *fakeFleet) Ensure(_ context.Context, requests []scaler.Request) ([]fleet.VM, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.asked = append(f.asked, requests...)
	var vms []fleet.VM
	for _, r := range requests {
		if len(r.Key) != 32 {
			return nil, fmt.Errorf("key %q would not be found in a marker", r.Key)
		}
		id := fleet.VMID(2100 + len(f.states))
		vm := fleet.VM{Key: r.Key, VMID: id, Name: fleet.NodeName(r.Spec.Pool, id), Spec: r.Spec, Placement: r.Placement}
		vm.Source = fleet.Source{VMID: fleet.VMID(f.snapshot.Host(r.Placement.Host).Templates[0].VMID), DiskGiB: 10}
		f.states = append(f.states, scaler.VMState{VM: vm, Phase: scaler.PhaseReserved, Since: epoch})
		vms = append(vms, vm)
	}
	return vms, nil
}

func (f *fakeFleet) Remove(keys ...fleet.Key) { f.removed = append(f.removed, keys...) }

// world is a cloud provider with everything that it reads.
type world struct {
	config   cloudprovider.Config
	fleet    *fakeFleet
	clock    *testclock.FakeClock
	snapshot *topology.Snapshot
	client   client.Client
	// evacuated are the hosts being evacuated.
	evacuated []topology.HostID
	*cloudprovider.CloudProvider
}

func newWorld(t *testing.T, manifests ...string) *world {
	t.Helper()
	w := &world{fleet: &fakeFleet{}, clock: testclock.NewFakeClock(epoch), snapshot: lab()}
	w.fleet.snapshot = w.snapshot
	w.client = newClient(t, manifests)
	w.config = cloudprovider.Config{
		ClusterID: clusterID, Client: w.client, Fleet: w.fleet, Cluster: scheduling.FromClient(w.client), Clock: w.clock,
		Snapshot:    func(context.Context) (*topology.Snapshot, error) { return w.snapshot, nil },
		Unavailable: cloudprovider.NewUnavailableOfferings(w.clock),
		Evacuated:   func() []topology.HostID { return w.evacuated },
		Recent: func(ctx context.Context) (*topology.Snapshot, error) {
			snapshot, err := w.config.Snapshot(ctx)
			if err != nil {
				return nil, err
			}
			once := *snapshot // so that nothing is remembered for it
			return &once, nil
		},
		Placing: &sync.Mutex{},
	}
	w.CloudProvider = cloudprovider.New(w.config)
	return w
}

// newClient returns a fake client with the objects: these tests do not depend on watches or
// validation.
func newClient(t *testing.T, manifests []string) client.Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := scheduling.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(clientgo.Scheme).WithObjects(objects...).
		WithStatusSubresource(&karpv1.NodeClaim{}, &karpv1alpha1.NodeOverlay{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		WithIndex(&karpv1.NodeClaim{}, scheduling.FieldKeyOfUID, func(o client.Object) []string { return []string{scheduling.IndexKeyOfUID(o)} }).
		WithIndex(&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).
		Build()
}

// editClass changes the class, or deletes it.
func (w *world) editClass(t *testing.T, edit func(*v1alpha1.ProxmoxNodeClass)) {
	t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{}
	err := w.client.Get(t.Context(), client.ObjectKey{Name: "shared"}, nc)
	switch {
	case err != nil:
	case edit == nil:
		err = w.client.Delete(t.Context(), nc)
	default:
		edit(nc)
		err = w.client.Update(t.Context(), nc)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// vm returns a VM of the pool.
func vm(at topology.HostID, id fleet.VMID) fleet.VM {
	return fleet.VM{
		Key: fleet.Key(fmt.Sprintf("%032x", int(id))), VMID: id, Name: fleet.NodeName("workers", id),
		Spec: fleet.Spec{
			Pool: "workers", NodeClass: "shared", InstanceType: "c1.4VCPU-8GB", CapacityType: "on-demand",
			VCPUs: 4, MemoryMiB: 8192, Policy: fleet.PolicyShared, Overcommit: 1, Template: "debian", Clone: fleet.CloneFull, CPUType: "host", DiskGiB: 30,
		},
		Placement: fleet.Placement{Host: at, Reason: "a test"},
		Source:    fleet.Source{VMID: map[topology.HostID]fleet.VMID{pve1: 9001, pve2: 9002}[at], DiskGiB: 10},
	}
}

// guest returns the guest of a VM.
func guest(vm fleet.VM) topology.Guest {
	return topology.Guest{
		VMID: int(vm.VMID), Name: vm.Name, Kind: topology.GuestVM, Running: true,
		VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, ClusterID: clusterID, Key: string(vm.Key),
	}
}

// down takes a host offline: of its guests, only the VMIDs are known.
func down(h *topology.Host) {
	h.Online, h.Problem = false, "is offline: start it"
	for i := range h.Guests {
		h.Guests[i].ClusterID, h.Guests[i].Key, h.Guests[i].Name = "", "", ""
	}
}

func state(vm fleet.VM, phase scaler.Phase) scaler.VMState {
	return scaler.VMState{VM: vm, Phase: phase, Since: epoch}
}

// claimOf returns the NodeClaim that provisioning created for a VM.
func claimOf(vm fleet.VM) *karpv1.NodeClaim {
	claim := claim(vm.Name)
	claim.Annotations = map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)}
	claim.Status.ProviderID = fleet.ProviderID(vm.Host.Region, vm.VMID)
	return claim
}

// claim returns a NodeClaim created by Karpenter itself.
func claim(name string, requirements ...karpv1.NodeSelectorRequirementWithMinValues) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid of " + name), CreationTimestamp: metav1.Time{Time: epoch},
			Labels: map[string]string{karpv1.NodePoolLabelKey: "workers"},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "shared"},
			Requirements: requirements,
		},
	}
}

func in(key string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
	return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}
