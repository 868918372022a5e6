package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

func TestReservedFor(t *testing.T) {
	vm := &fleet.VM{Spec: fleet.Spec{InstanceType: "c1.4VCPU-8GB", VCPUs: 4, MemoryMiB: 8192}}
	odd := &fleet.VM{Spec: fleet.Spec{InstanceType: "gone.1", VCPUs: 1, MemoryMiB: 1024}}
	disk := func(more map[string]string) map[string]string {
		all := map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%",
		}
		for key, value := range more {
			all[key] = value
		}
		return all
	}
	system := map[string]string{"cpu": "10m", "memory": "64Mi"}
	tests := []struct {
		name, spec string
		vm         *fleet.VM
		want       scheduling.Reserved
	}{
		{
			"the type's", `{template: {name: t}}`, vm,
			scheduling.Reserved{KubeReserved: map[string]string{"cpu": "100m", "memory": "384Mi"}, SystemReserved: system, EvictionHard: disk(nil), MaxPods: 110},
		},
		{
			"a type that is gone", `{template: {name: t}}`, odd,
			scheduling.Reserved{KubeReserved: map[string]string{"cpu": "20m", "memory": "192Mi"}, SystemReserved: system, EvictionHard: disk(nil), MaxPods: 32},
		},
		{
			"the class', key by key",
			`{template: {name: t}, kubelet: {maxPods: 20, kubeReserved: {cpu: "1", pid: "100"}, systemReserved: {ephemeral-storage: 1Gi},
				evictionHard: {memory.available: 5%, nodefs.inodesFree: 1%}}}`, vm,
			scheduling.Reserved{
				KubeReserved:   map[string]string{"cpu": "1", "memory": "384Mi", "pid": "100"},
				SystemReserved: map[string]string{"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
				EvictionHard:   disk(map[string]string{"memory.available": "5%", "nodefs.inodesFree": "1%"}), MaxPods: 20,
			},
		},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, scheduling.ReservedFor(nodeClass(t, test.spec), test.vm, nil)); diff != "" {
			t.Errorf("%s: reserved differs:\n%s", test.name, diff)
		}
	}
}

func TestForClass(t *testing.T) {
	types := scheduling.DefaultInstanceTypes()
	nc := nodeClass(t, `{template: {name: t}, memoryOverheadMiB: 500, sizing: {families: [m1]},
		kubelet: {maxPods: 9, kubeReserved: {cpu: 300m}, evictionHard: {memory.available: 5%, nodefs.available: 3Gi}}}`)
	tuned := scheduling.ForClass(nc, types)
	for i := range tuned {
		got := tuned[i]
		if got.ReportedMiB != got.MemoryMiB-500 || got.Pods != 9 || got.Overhead.KubeReserved.Cpu().String() != "300m" ||
			got.Overhead.KubeReserved.Memory().IsZero() || got.Overhead.EvictionPercent[corev1.ResourceMemory] != 5 ||
			got.Overhead.EvictionThreshold.StorageEphemeral().String() != "3Gi" {
			t.Errorf("%s is %+v", got.Name, got)
		}
		if _, both := got.Overhead.EvictionThreshold[corev1.ResourceMemory]; both {
			t.Errorf("%s has two thresholds of memory", got.Name)
		}
	}
	if diff := cmp.Diff(scheduling.DefaultInstanceTypes(), types); diff != "" {
		t.Errorf("the operator's types changed:\n%s", diff)
	}
	offered := scheduling.OfferedBy(nc, types)
	if len(offered) != 5 || offered[0].Family() != "m1" {
		t.Errorf("offered are %+v, want five of family m1", offered)
	}
}

// TestClassDecidesWhatPodsGet checks that a pod that just fits with the class's
// reservations is placed, and one that is minimally larger is not: on new VMs and on
// joining ones.
func TestClassDecidesWhatPodsGet(t *testing.T) {
	const class = `{template: {name: debian}, memoryOverheadMiB: 192, kubelet: {
		kubeReserved: {cpu: 500m, memory: 500Mi}, systemReserved: {cpu: 500m, memory: 500Mi}, evictionHard: {memory.available: 1Gi}}}`
	types := []scheduling.InstanceType{{Name: "x.large", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 8192, Pods: 110}}
	// Pods get 8192 - 192 - 500 - 500 - 1024 MiB of memory and 3 CPUs.
	for memory, want := range map[string]int{"5976Mi": 1, "5977Mi": 0} {
		c := load(t, classManifest(class), nodePool("general", "c", ""), deployment("a", 1, "3", memory, ""))
		request := scheduling.Request{ClusterID: "test", Snapshot: lab(), Types: types}
		d, err := c.Decide(t.Context(), request)
		if err != nil || len(d.New) != want {
			t.Fatalf("%s: new are %+v (%v), want %d", memory, d.New, err, want)
		}
		if request.Existing = keep(nil, d); want == 0 {
			request.Existing = append(request.Existing, keptVM(2000, "general", "c", "xeon", fleet.PolicyShared))
			request.Existing[0].InstanceType = "x.large"
		}
		if d, err = c.Decide(t.Context(), request); err != nil || len(d.New) != 0 || len(d.InFlight) != want {
			t.Errorf("%s: on VMs on their way are %+v, new %+v (%v); want %d", memory, d.InFlight, d.New, err, want)
		}
	}
}

func TestFamilies(t *testing.T) {
	pods := deployment("a", 1, "1", "1Gi", "")
	d := decide(t, load(t, classManifest(`{template: {name: debian}, sizing: {families: [m1, s1]}}`), nodePool("general", "c", ""), pods), lab())
	if len(d.New) != 1 || d.New[0].Spec.InstanceType != "s1.2VCPU-8GB" {
		t.Errorf("new are %+v, refused %v; want the cheapest of s1 and m1", d.New, d.Refused)
	}
	d = decide(t, load(t, classManifest(`{template: {name: debian}, sizing: {families: [z9]}}`), nodePool("general", "c", ""), pods), lab())
	if len(d.Refused) != 1 || !strings.Contains(d.Refused[0].Reason, "no instance type belongs to the families in spec.sizing (z9)") {
		t.Errorf("new are %+v, refused %v", d.New, d.Refused)
	}
}

func TestSeedStorage(t *testing.T) {
	for spec, want := range map[string]string{
		`{template: {tags: [new]}}`:                                          "",
		`{template: {tags: [new]}, metadata: {type: cdrom}}`:                 fleet.AnySeedStorage,
		`{template: {tags: [new]}, metadata: {type: cdrom, storage: local}}`: "local",
	} {
		d := decide(t, load(t, classManifest(spec), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")), imaged())
		if len(d.New) != 1 || d.New[0].Spec.SeedStorage != want {
			t.Errorf("%s: new are %+v, refused %v; want seeds on %q", spec, d.New, d.Refused, want)
		}
	}
}

// TestEvictionPercent checks that a percentage applies to the capacity that the node
// reports: 8000 MiB of memory, and the size of the file system on a disk of 100 GiB.
func TestEvictionPercent(t *testing.T) {
	const class = `{template: {name: debian}, memoryOverheadMiB: 192, bootDevice: {size: 100G}, kubelet: {
		evictionHard: {memory.available: 25%, nodefs.available: 50%}}}`
	types := []scheduling.InstanceType{{Name: "x.large", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 8192, Pods: 110}}
	for requests, want := range map[string]int{"6000Mi, ephemeral-storage: 50286Mi": 1, "6001Mi": 0, "1Gi, ephemeral-storage: 50287Mi": 0} {
		c := load(t, classManifest(class), nodePool("general", "c", ""), deployment("a", 1, "1", requests, ""))
		d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Types: types})
		if err != nil || len(d.New) != want {
			t.Errorf("%s: new are %+v, refused %v (%v), want %d", requests, d.New, d.Refused, err, want)
		}
	}
}

// TestGuestDisk checks that a Node is predicted to have no more ephemeral storage than its
// file system has, and not much less. The sizes in MiB are from ext4 on Debian's cloud
// image, as mke2fs and resize2fs 1.47 create it: see usableDisk in test/sim/guestsim.
func TestGuestDisk(t *testing.T) {
	for disk, actual := range map[int64]int64{8: 7860, 10: 9876, 30: 30032, 100: 100582, 256: 257820, 1024: 1031910} {
		vm := fleet.VM{Spec: fleet.Spec{InstanceType: "x.large", VCPUs: 2, MemoryMiB: 4096, DiskGiB: disk}}
		capacity := scheduling.Launched(vm, nil).Status.Capacity
		if got := capacity.StorageEphemeral().Value() >> 20; got > actual || got < actual-30 {
			t.Errorf("a disk of %d GiB is predicted to have %d MiB, but it has %d", disk, got, actual)
		}
	}
}
