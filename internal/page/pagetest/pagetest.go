// Package pagetest has fleets of any size, and an API server that accepts two tokens, for tests
// of the web page.
package pagetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// Now is the time of all fixed values.
var Now = time.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC)

// Tokens that the API server knows: Reader may read the page, Stranger may not.
const (
	Reader   = "token-of-a-reader"
	Stranger = "token-of-a-stranger"
)

// API is an API server that reviews tokens.
type API struct {
	*fake.Clientset
	// mu guards reviews.
	mu      sync.Mutex
	reviews int
	// Down makes all requests fail.
	Down bool
}

// NewAPI returns an API server that knows Reader and Stranger.
func NewAPI() *API {
	api := &API{Clientset: fake.NewClientset()}
	api.PrependReactor("create", "tokenreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		api.mu.Lock()
		defer api.mu.Unlock()
		api.reviews++
		if api.Down {
			return true, nil, apierrors.NewServiceUnavailable("etcd is down")
		}
		review := action.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		user := map[string]string{Reader: "alice", Stranger: "mallory"}[review.Spec.Token]
		return true, &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
			Authenticated: user != "", User: authenticationv1.UserInfo{Username: user, Groups: []string{"people"}},
		}}, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		spec := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).Spec
		allowed := spec.User == "alice" && spec.NonResourceAttributes != nil && *spec.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/numaform/", Verb: "get"}
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: allowed}}, nil
	})
	return api
}

// Reviews returns the number of reviewed tokens.
func (a *API) Reviews() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reviews
}

// Fleet is a fleet for the page.
type Fleet struct {
	ClusterID string
	Fleet     fleet.Fleet
	Snapshot  topology.Snapshot
	History   []audit.Entry
	Plans     []v1alpha1.ScalePlan
	Waits     []page.Wait
	Paused    bool
}

// Data returns what the page shows.
func (f *Fleet) Data() *page.Data {
	data := &page.Data{
		Fleet: &f.Fleet, Snapshot: &f.Snapshot, History: f.History, Waits: f.Waits, Paused: f.Paused,
		Status: status.New(f.ClusterID, &f.Fleet, &f.Snapshot, f.History),
	}
	data.Status.AddPending(f.Plans)
	for i := range f.Plans {
		plan := f.Plans[i]
		plan.Spec.Diff = ""
		data.Plans = append(data.Plans, plan)
	}
	return data
}

// Plan returns a ScalePlan by its name.
func (f *Fleet) Plan(_ context.Context, name string) (*v1alpha1.ScalePlan, error) {
	for i := range f.Plans {
		if f.Plans[i].Name == name {
			return &f.Plans[i], nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "scaleplans"}, name)
}

// New returns a fleet with a number of VMs on a number of hosts, whose changes wait, failed and
// succeeded, and whose VMs are in each state.
func New(hosts, vms int) *Fleet {
	machine, err := machines.Load("xeon-4108-2s-smt")
	if err != nil {
		panic(err)
	}
	f := &Fleet{ClusterID: "prod", Snapshot: topology.Snapshot{Regions: []topology.Region{{Name: "homelab"}}}}
	for i := range hosts {
		f.Snapshot.Hosts = append(f.Snapshot.Hosts, topology.Host{
			Region: "homelab", Name: topology.HostName(fmt.Sprintf("pve%03d", i+1)), Online: i != 4, Machine: machine,
			ReservedCPUs: topology.CPUs(0, 16), ReservedMemoryMiB: 1024, ReadAt: Now,
			Guests: []topology.Guest{{VMID: 100 + i, Name: "gateway", Kind: topology.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512}},
		})
	}
	for i := range vms {
		host := &f.Snapshot.Hosts[i%hosts]
		vmid := 2000 + i
		vm := fleet.VM{Key: fleet.Key(fmt.Sprintf("%032d", vmid)), VMID: fleet.VMID(vmid), Name: fmt.Sprintf("workers-%d", vmid)}
		vm.Pool, vm.NodeClass, vm.InstanceType, vm.VCPUs, vm.MemoryMiB, vm.Policy = "workers", "dedicated", "s1.4VCPU-8GB", 4, 8<<10, fleet.PolicyDedicated
		vm.Host = host.ID()
		switch core := 1 + 2*(i/hosts); {
		case core+1 < 16:
			vm.CPUs = topology.CPUs(core, core+1, core+16, core+17)
			vm.Cells = []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(core / 8), MemoryMiB: 8 << 10, Policy: topology.NUMABind}}
		default:
			vm.Pool, vm.NodeClass, vm.Policy = "batch", "shared", fleet.PolicyShared
		}
		guest := topology.Guest{
			VMID: vmid, Name: vm.Name, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8 << 10,
			Pins: vm.CPUs, NUMA: vm.Cells, ClusterID: f.ClusterID, Key: string(vm.Key),
		}
		switch i % 50 {
		case 7:
			vm.Standby, guest.Running = true, false
		case 11:
			guest.Running = false
		case 13:
			guest.VCPUs = 6
		}
		f.Fleet.VMs = append(f.Fleet.VMs, vm)
		if i%50 != 17 { // this one is missing
			host.Guests = append(host.Guests, guest)
		}
	}
	f.addChanges(60)
	f.addPlans()
	return f
}

// addChanges adds changes to the history, one an hour.
func (f *Fleet) addChanges(count int) {
	for i := range count {
		began := Now.Add(-time.Duration(count-i) * time.Hour)
		vm, host := &f.Fleet.VMs[i%len(f.Fleet.VMs)], &f.Snapshot.Hosts[i%len(f.Snapshot.Hosts)]
		change := audit.Change{
			ID: began.Format("20060102T150405Z") + fmt.Sprintf("-%010x", i), Time: began, ClusterID: f.ClusterID, Kind: audit.KindScaleUp,
			Actor: "controller/numaform", Version: "1.4.0", Why: "3 pods need new nodes", Added: []fleet.VM{*vm},
			Hosts: []audit.HostPlan{{
				Host: host.ID(), PlanSHA256: strings.Repeat("5a", 32), PlanDigest: strings.Repeat("c0", 32),
				Create:  []guard.Target{{Address: "module." + vm.Name + ".proxmox_virtual_environment_vm.node"}},
				Verdict: guard.Verdict{Decision: guard.Allow},
			}},
		}
		change.Added[0].Reason = "the fullest host that has room; 2 whole cores of one L3 cache on NUMA node 0"
		entry := audit.Entry{
			Change: change, Outcome: &audit.Outcome{Duration: 42 * time.Second, Hosts: []audit.Ended{{Host: host.ID(), Duration: 40 * time.Second}}},
			Verified: true, OutcomeVerified: true,
		}
		switch i % 10 {
		case 3:
			entry.Change.Kind, entry.Change.Why = audit.KindScaleDown, "node workers-2003 was empty for 10m"
		case 9:
			entry.Outcome.Hosts[0].Error = "host " + host.ID().String() + ": creating workers-2009: timeout while waiting for the clone: the storage local-lvm is full: free space on it, or set storage in the ProxmoxNodeClass"
		}
		f.History = append(f.History, entry)
	}
}

func (f *Fleet) addPlans() {
	plan := func(name string, phase v1alpha1.ScalePlanPhase, age time.Duration) v1alpha1.ScalePlan {
		host := f.Snapshot.Hosts[0].ID().String()
		return v1alpha1.ScalePlan{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(Now.Add(-age))},
			Spec: v1alpha1.ScalePlanSpec{
				ClusterID: f.ClusterID, Direction: v1alpha1.ScaleUp, NodePools: []string{"workers"}, RequestedBy: "provisioning",
				Why: "2 pods need new nodes", Summary: "2 to create on " + host, Cost: "+8 vCPUs, +16 GiB of memory, +60 GiB of disk",
				PlanHash: strings.Repeat("3f2a", 16), Hosts: []v1alpha1.ScalePlanHost{{Host: host}},
				Reasons:   []string{"NodePool workers has numaform.dev/scale-up: manual"},
				Verdict:   v1alpha1.ScalePlanVerdict{Decision: v1alpha1.VerdictNeedsApproval},
				ExpiresAt: metav1.NewTime(Now.Add(24 * time.Hour)),
				VMs: []v1alpha1.ScalePlanVM{
					{Action: v1alpha1.ScalePlanCreate, Name: "workers-9001", Host: host, NodePool: "workers", InstanceType: "s1.4VCPU-8GB", Reason: "the fullest host that has room", Pods: []string{"shop/web-0", "shop/web-1"}},
					{Action: v1alpha1.ScalePlanCreate, Host: host, NodePool: "workers", InstanceType: "s1.4VCPU-8GB", Pods: []string{"shop/web-2"}},
				},
				Diff: Diff(host),
			},
			Status: v1alpha1.ScalePlanStatus{Phase: phase},
		}
	}
	f.Plans = []v1alpha1.ScalePlan{
		plan("workers-up-1c0e", v1alpha1.ScalePlanApplied, 50*time.Hour),
		plan("workers-down-77aa", v1alpha1.ScalePlanRejected, 20*time.Hour),
		plan("workers-up-3f2a", v1alpha1.ScalePlanPending, time.Hour),
	}
	f.Plans[1].Spec.Reject, f.Plans[1].Spec.RejectedBy = "after the release", "bob"
	f.Waits = []page.Wait{{
		NodePool: "workers", Reason: v1alpha1.ReasonPendingApproval, Since: Now.Add(-time.Hour),
		Message: "2 VMs wait for the approval of ScalePlan workers-up-3f2a: to review it, run numaform plans workers-up-3f2a",
	}}
}

// Diff returns the text of a plan that creates, changes and deletes VMs on a host.
func Diff(host string) string {
	return "# Host " + host + `
guard: NeedsApproval
  NeedsApproval  NodePool workers has numaform.dev/scale-up: manual

  # module.workers-9001.proxmox_virtual_environment_vm.node will be created
  + resource "proxmox_virtual_environment_vm" "node" {
      + name      = "workers-9001"
      + node_name = "pve001"
      + cpu {
          + affinity = "1-2,17-18"
          + cores    = 4
        }
    }

  # module.workers-2000.proxmox_virtual_environment_vm.node will be updated in-place
  ~ resource "proxmox_virtual_environment_vm" "node" {
      ~ tags = [
          - "old",
          + "new",
        ]
    }

  # module.workers-2001.proxmox_virtual_environment_vm.node will be destroyed
  - resource "proxmox_virtual_environment_vm" "node" {
      - name = "workers-2001" -> null
    }

Plan: 1 to add, 1 to change, 1 to destroy.
`
}
