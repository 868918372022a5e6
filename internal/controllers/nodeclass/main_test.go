package nodeclass_test

import (
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	karpenter := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(plane.Cluster(t).Config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// recorder records events.
type recorder struct {
	// mu guards the field below.
	mu   sync.Mutex
	kept []events.Event
}

func (r *recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, published...)
}

// take returns the reasons of the events since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var reasons []string
	for _, event := range r.kept {
		reasons = append(reasons, event.Reason)
	}
	r.kept = nil
	return reasons
}

// messages returns the messages of all events with a reason.
func (r *recorder) messages(reason string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var messages []string
	for _, event := range r.kept {
		if event.Reason == reason {
			messages = append(messages, event.Message)
		}
	}
	return messages
}

// agentAt is the time at which hosts were read, and their agents last published.
var agentAt = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// lab returns two hosts of one region; only pve-1 has the template.
func lab() *topology.Snapshot {
	machine := topology.Machine{MemoryMiB: 64 << 10, NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: 64 << 10, HugePages: map[int]int64{1 << 20: 2}}}}
	for id := range 8 {
		machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Online: true, Core: id / 2})
	}
	machine = machine.WithSource(topology.SourceCollected)
	host := func(name topology.HostName) topology.Host {
		return topology.Host{
			Region: "lab", Name: name, Online: true, Machine: machine, ReadAt: agentAt,
			Agent: &topology.Agent{Version: "1.2.3", At: agentAt, Isolation: "enforce", Clusters: []string{"test"}, MaxPinnedPercent: 90},
			Storages: []topology.Storage{
				{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "images"}},
				{Name: "zfs", Type: "zfspool", Active: true, Content: []string{"images"}},
				{Name: "backup", Type: "dir", Active: true, Content: []string{"backup"}},
				{Name: "off", Type: "dir", Content: []string{"images"}},
			},
			Templates: []topology.Template{{VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 8, Storage: "local"}},
		}
	}
	bare := host("pve-2")
	bare.Templates = nil
	return &topology.Snapshot{
		Regions: []topology.Region{{Name: "lab", Quorate: true, Pools: []string{"workers"}}},
		Hosts:   []topology.Host{host("pve-1"), bare},
	}
}

// eventually waits until a condition holds, and fails with its last message.
func eventually(t *testing.T, holds func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-ticker.C:
		}
	}
}
