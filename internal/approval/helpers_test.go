package approval_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/signature"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

const template = "debian"

// The hosts of all tests.
var (
	pve1 = topology.HostID{Region: "lab", Host: "pve-1"}
	pve2 = topology.HostID{Region: "lab", Host: "pve-2"}
)

// bench is a test's environment: the real API server, the real engine and provider, and
// its own clock.
type bench struct {
	*testing.T

	client client.Client
	clock  *clocktesting.FakePassiveClock
	vms    vms
	events recorded
	paused bool
	// unset is the mode of NodePools without an annotation; empty means the default.
	unset approval.Mode
	// fault is an API call that fails, such as "list NodePoolList", or "Proxmox" for every
	// snapshot; empty means none.
	fault string
	// updated is called once, after the next update of a status; it can be nil.
	updated func()
	// again is set when another decision is requested.
	again bool
	// may are the VMs that the last Up returned.
	may []scheduling.Placed
	// policy and freezes are part of the configuration.
	policy    signature.Policy
	freezes   freeze.Windows
	dir       string
	scaler    *dryScaler
	approvals *approval.Approvals
}

// vms is a fleet of VMs in given phases.
type vms []scaler.VMState

func (v *vms) Synced() bool { return true }

func (v *vms) VMs() []scaler.VMState { return slices.Clone(*v) }

// recorded are the published events.
type recorded []events.Event

func (r *recorded) Publish(published ...events.Event) { *r = append(*r, published...) }

// dryScaler counts dry plans, and can return prepared ones.
type dryScaler struct {
	*scaler.Scaler

	plans int
	// during is called during each dry plan, if set.
	during func()
	plan   func(change *scaler.Change) []scaler.RootPlan
}

func (s *dryScaler) Plan(ctx context.Context, change *scaler.Change) ([]scaler.RootPlan, error) {
	s.plans++
	if s.during != nil {
		s.during()
	}
	if s.plan != nil {
		return s.plan(change), nil
	}
	return s.Scaler.Plan(ctx, change)
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	group := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(group, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, group)
	return scheme
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newBench returns a bench with an empty cluster and a fleet of the given VMs.
func newBench(t *testing.T, rules guard.Rules, fleetVMs ...fleet.VM) *bench {
	t.Helper()
	b := &bench{T: t, client: newClient(t, plane.Cluster(t).Config), clock: clocktesting.NewFakePassiveClock(time.Now())}
	for _, kind := range []client.Object{&v1alpha1.ScalePlan{}, &karpv1.NodePool{}} {
		if err := b.client.DeleteAllOf(t.Context(), kind); err != nil {
			t.Fatal(err)
		}
	}
	b.plant(rules, fleetVMs...)
	return b
}

// newFleet restarts the bench with another fleet.
func newFleet(b *bench, fleetVMs ...fleet.VM) *bench {
	b.Helper()
	b.plant(guard.DefaultRules(), fleetVMs...)
	return b
}

// plant sets the bench's fleet.
func (b *bench) plant(rules guard.Rules, fleetVMs ...fleet.VM) {
	b.Helper()
	t := b.T
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "fleet")
	config := scaler.Config{
		ClusterID: "test", Store: store.NewSealed(store.NewDirectory(dir), store.FileVault(filepath.Join(t.TempDir(), "key")), "test"), Dir: dir, StateDir: dir + "-state", Backend: fleet.Backend{Type: "local"},
		Engine: engine, PluginDir: testenv.PluginDir(t), Rules: rules,
		Regions: []scaler.Region{{Name: "lab", Endpoint: "https://pve-1.example:8006/", VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2999}}},
	}
	writeFleet(t, config, fleetVMs)
	b.dir = dir
	b.scaler = &dryScaler{Scaler: scaler.New(config)}
	b.restart()
}

// restart replaces the approvals, which loses their state in memory.
func (b *bench) restart() {
	b.approvals = approval.New(approval.Config{
		Client: faulty{b.client, b}, Namespace: "default", Scaler: b.scaler, Clock: b.clock, Events: &b.events, Unset: b.unset,
		Snapshot: func(context.Context) (*topology.Snapshot, error) {
			if b.fault == "Proxmox" {
				return nil, errAPI
			}
			return snapshot(), nil
		},
		Cost: func(ctx context.Context, before, after []fleet.VM) (scheduling.Cost, error) {
			prices := scheduling.Prices{Currency: "EUR", VCPUHour: 0.01, MemoryGiBHour: 0.002, DiskGiBMonth: 0.073}
			return scheduling.FromObjects(nil).Cost(ctx, scheduling.Request{Snapshot: snapshot(), Prices: prices}, before, after)
		},
		ClusterID: "test", Freezes: b.freezes, Pictures: true,
		Signatures: func() (signature.Policy, error) { return b.policy, nil },

		Paused: func() bool { return b.paused },
		Taken:  func(context.Context) (map[topology.RegionName][]fleet.VMID, error) { return nil, nil },
		Decide: func() { b.again = true },
	})
	b.approvals.Watch(&b.vms)
}

// state gives pve-1 a Terraform state without resources.
func (b *bench) state(lineage string, serial int) {
	b.Helper()
	dir := filepath.Join(b.dir, filepath.FromSlash(generator.RootDir(pve1)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	content := fmt.Sprintf(`{"version":4,"terraform_version":"1.9.0","serial":%d,"lineage":%q,"outputs":{},"resources":[]}`, serial, lineage)
	if err := os.WriteFile(filepath.Join(dir, "terraform.tfstate"), []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
}

func writeFleet(t *testing.T, config scaler.Config, vms []fleet.VM) {
	t.Helper()
	if len(vms) == 0 {
		return
	}
	f := fleet.Fleet{
		ClusterID: config.ClusterID, Backend: config.Backend, VMs: vms,
		Regions: []fleet.Region{{Name: "lab", Endpoint: config.Regions[0].Endpoint}},
	}
	f.Hosts = f.AllHosts()
	f.Sort()
	files, err := generator.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.NewDirectory(config.Dir).Write(files); err != nil {
		t.Fatal(err)
	}
}

func snapshot() *topology.Snapshot {
	s := &topology.Snapshot{Regions: []topology.Region{{Name: "lab", Quorate: true}}}
	for i, id := range []topology.HostID{pve1, pve2} {
		s.Hosts = append(s.Hosts, topology.Host{
			Region: id.Region, Name: id.Host, Online: true,
			Templates: []topology.Template{{VMID: 9001 + i, Name: template, DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm"}},
		})
	}
	return s
}

// placed returns a new VM for pods, placed on a host.
func placed(pool string, host topology.HostID, memory int64, pods ...string) scheduling.Placed {
	p := scheduling.Placed{
		NodePool: pool,
		Spec: fleet.Spec{
			Pool: pool, NodeClass: "shared", InstanceType: "s1.2VCPU-4GB", CapacityType: "on-demand",
			VCPUs: 2, MemoryMiB: memory, Policy: fleet.PolicyShared, Overcommit: 1, Template: template, Clone: fleet.CloneLinked,
			CPUType: "host", Hosts: []topology.HostID{pve1, pve2}, Demand: fleet.Demand{Pods: len(pods)},
		},
		Placement: fleet.Placement{Host: host, Reason: strings.TrimSpace("for " + strings.Join(pods, ", "))},
	}
	for _, pod := range pods {
		p.Pods = append(p.Pods, types.NamespacedName{Namespace: "default", Name: pod})
	}
	return p
}

// made returns the state of the VM that was reserved or created for p.
func made(p scheduling.Placed, id fleet.VMID, phase scaler.Phase, err error) scaler.VMState {
	key := fleet.Key(strings.Repeat("0", 28) + string(rune('a'+int(id)%6)) + "fff")
	return scaler.VMState{Phase: phase, Err: err, VM: fleet.VM{
		Key: key, VMID: id, Name: fleet.NodeName(p.NodePool, id), Spec: p.Spec, Placement: p.Placement,
	}}
}

// pool creates a NodePool with the modes.
func (b *bench) pool(name, up, down string) *karpv1.NodePool {
	b.Helper()
	pool := &karpv1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: "shared"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
				Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"},
			}},
		}}},
	}
	for annotation, mode := range map[string]string{v1alpha1.AnnotationScaleUp: up, v1alpha1.AnnotationScaleDown: down} {
		if mode != "" {
			pool.Annotations[annotation] = mode
		}
	}
	if err := b.client.Create(b.Context(), pool); err != nil {
		b.Fatal(err)
	}
	return pool
}

// up requests VMs, again if they had to be planned first, and returns how many may be
// created.
func (b *bench) up(placed ...scheduling.Placed) int {
	b.Helper()
	b.again = false
	may, err := b.approvals.Up(b.Context(), snapshot(), placed)
	if err == nil {
		err = b.approvals.Draft(b.Context())
	}
	if err == nil && b.again {
		if may, err = b.approvals.Up(b.Context(), snapshot(), placed); err == nil {
			err = b.approvals.Draft(b.Context())
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	b.may = may
	return len(may)
}

// create adds a VM to the fleet for the first VM that the last Up returned.
func (b *bench) create(id fleet.VMID, phase scaler.Phase) {
	b.Helper()
	b.vms = append(b.vms, made(b.may[0], id, phase, nil))
	if err := b.approvals.Created(b.Context(), b.may[0].ScalePlan, []fleet.VM{b.vms[len(b.vms)-1].VM}); err != nil {
		b.Fatal(err)
	}
}

// wantApprover compares the approver of the bench's nth VM.
func (b *bench) wantApprover(n int, want string) {
	b.Helper()
	if got, err := b.approvals.ApproverOf(b.Context(), b.vms[n].VM.Key, b.clock.Now()); err != nil || got != want {
		b.Errorf("approver of %s is %q (%v), want %q", b.vms[n].VM.Name, got, err, want)
	}
}

// want requests VMs, and checks how many of them may be created.
func (b *bench) want(want int, placed ...scheduling.Placed) {
	b.Helper()
	if got := b.up(placed...); got != want {
		b.Fatalf("%d VMs may be made, want %d", got, want)
	}
}

func (b *bench) settle() {
	b.Helper()
	if _, err := b.approvals.Reconcile(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// plans returns the ScalePlans of a phase; "" returns all.
func (b *bench) plans(phase v1alpha1.ScalePlanPhase) []v1alpha1.ScalePlan {
	b.Helper()
	var list v1alpha1.ScalePlanList
	if err := b.client.List(b.Context(), &list); err != nil {
		b.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(plan v1alpha1.ScalePlan) bool { return phase != "" && plan.Status.Phase != phase })
}

// undecided returns the ScalePlans that are pending approval.
func (b *bench) undecided() []v1alpha1.ScalePlan {
	b.Helper()
	return slices.DeleteFunc(b.plans(v1alpha1.ScalePlanPending), func(plan v1alpha1.ScalePlan) bool { return plan.Spec.Approve != "" })
}

// plan returns the only ScalePlan in a phase.
func (b *bench) plan(phase v1alpha1.ScalePlanPhase) *v1alpha1.ScalePlan {
	b.Helper()
	plans := b.plans(phase)
	if len(plans) != 1 {
		all := []string{}
		for _, plan := range b.plans("") {
			all = append(all, plan.Name+" "+string(plan.Status.Phase)+" "+plan.Status.Result)
		}
		b.Fatalf("%d plans are %s, want 1: %q", len(plans), phase, all)
	}
	return &plans[0]
}

// say changes a plan's spec as an operator does to decide on it.
func (b *bench) say(plan *v1alpha1.ScalePlan, change func(spec *v1alpha1.ScalePlanSpec)) error {
	before := plan.DeepCopy()
	change(&plan.Spec)
	return b.client.Patch(b.Context(), plan, client.MergeFrom(before))
}

func (b *bench) approve(plan *v1alpha1.ScalePlan) {
	b.Helper()
	if err := b.say(plan, func(spec *v1alpha1.ScalePlanSpec) { spec.Approve, spec.ApprovedBy = spec.PlanHash, "alice" }); err != nil {
		b.Fatal(err)
	}
}
