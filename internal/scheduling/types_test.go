package scheduling_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

func TestDefaultInstanceTypes(t *testing.T) {
	types := scheduling.DefaultInstanceTypes()
	if len(types) != 20 {
		t.Fatalf("there are %d types, want 20", len(types))
	}
	byName := map[string]scheduling.InstanceType{}
	for _, it := range types {
		byName[it.Name] = it
	}
	tests := []struct {
		name               string
		vcpus              int
		memory, pods       int64
		price              float64
		kubeCPU, kubeMemMi int64
	}{
		{"c1.1VCPU-2GB", 1, 2048, 64, 0.027, 20, 256},
		{"c1.4VCPU-8GB", 4, 8192, 110, 0.108, 100, 384},
		{"t1.2VCPU-6GB", 2, 6144, 110, 0.056, 50, 384},
		{"m1.16VCPU-128GB", 16, 131072, 110, 0.528, 100, 384},
	}
	for _, test := range tests {
		it, ok := byName[test.name]
		if !ok {
			t.Errorf("there is no %s", test.name)
			continue
		}
		if it.VCPUs != test.vcpus || it.MemoryMiB != test.memory || it.Pods != test.pods || it.CapacityType != "on-demand" {
			t.Errorf("%s is %+v", test.name, it)
		}
		if diff := it.Price - test.price; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s costs %v, want %v", test.name, it.Price, test.price)
		}
		kube := it.Overhead.KubeReserved
		if kube.Cpu().MilliValue() != test.kubeCPU || kube.Memory().Value() != test.kubeMemMi<<20 {
			t.Errorf("%s reserves %v for kubelet", test.name, kube)
		}
	}
}

func TestParseInstanceTypes(t *testing.T) {
	types, err := scheduling.ParseInstanceTypes([]byte(`[
	  {"name": "x1.2VCPU-32GB", "capacitytype": "spot", "offerings": null,
	   "capacity": {"cpu": "2", "memory": "32Gi", "ephemeral-storage": "50Gi", "pods": "64", "hugepages-2Mi": "1Gi"},
	   "overhead": {"KubeReserved": {"cpu": "20m", "memory": "384Mi"}, "SystemReserved": null, "EvictionThreshold": null}},
	  {"name": "gpu.4VCPU-16GB", "capacity": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}},
	  {"name": "tiny", "capacity": {"cpu": "1", "memory": "1Gi"}}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	first := types[0]
	if first.Family() != "x1" || first.CapacityType != "spot" || first.VCPUs != 2 || first.MemoryMiB != 32768 || first.DiskGiB != 50 || first.Pods != 64 {
		t.Errorf("first is %+v", first)
	}
	if pages := first.Extra["hugepages-2Mi"]; pages.String() != "1Gi" {
		t.Errorf("huge pages are %s", pages.String())
	}
	if want := (0.025*2 + 0.001*32) / 2; first.Price != want {
		t.Errorf("spot costs %v, want %v", first.Price, want)
	}
	if kube := first.Overhead.KubeReserved.Cpu().String(); kube != "20m" || first.Overhead.SystemReserved != nil {
		t.Errorf("the first type reserves %+v, want its own overhead", first.Overhead)
	}
	if tiny := types[2].Overhead; tiny.KubeReserved.Memory().String() != "192Mi" || tiny.EvictionThreshold.Memory().String() != "100Mi" {
		t.Errorf("a type without overhead reserves %+v, want the defaults of its size", tiny)
	}
	if cards := types[1].Extra["nvidia.com/gpu"]; cards.Value() != 2 {
		t.Errorf("GPUs are %s", cards.String())
	}
	for spec, want := range map[string]string{
		"{template: {name: t}}":                                      "x1.2VCPU-32GB tiny",
		"{template: {name: t}, pciDevices: [{mapping: gpu}]}":        "x1.2VCPU-32GB gpu.4VCPU-16GB tiny",
		"{template: {name: t}, sizing: {families: [gpu]}}":           "gpu.4VCPU-16GB",
		"{template: {name: t}, sizing: {families: [tiny, unknown]}}": "tiny",
	} {
		var names []string
		for _, offered := range scheduling.OfferedBy(nodeClass(t, spec), types) {
			names = append(names, offered.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s offers %s, want %s", spec, got, want)
		}
	}
	if second := types[2]; second.CapacityType != "on-demand" || second.Pods != 32 || second.DiskGiB != 0 {
		t.Errorf("second is %+v", second)
	}
}

func TestParseInstanceTypesRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"no json", `hello`, "parsing instance types: invalid character 'h' looking for beginning of value: must be a JSON list"},
		{"an object", `{}`, "parsing instance types: unexpected object: must be a JSON list of name, capacity, capacitytype and overhead"},
		{"a value in the wrong place", `[{"name":"a","capacity":7}]`, "parsing instance types: unexpected number in capacity: must be a JSON list"},
		{"empty", `[]`, "list is empty"},
		{"trailing", `[{"name":"a","capacity":{"cpu":"1","memory":"1Gi"}}] []`, "unexpected data after the list"},
		{"unknown field", `[{"name":"a","price":1}]`, `unknown field "price"`},
		{"no name", `[{"capacity":{"cpu":"1","memory":"1Gi"}}]`, "name must be a valid label value"},
		{"bad name", `[{"name":"a b","capacity":{"cpu":"1","memory":"1Gi"}}]`, "name must be a valid label value"},
		{"no cpu", `[{"name":"a","capacity":{"memory":"1Gi"}}]`, "capacity.cpu"},
		{"part of a cpu", `[{"name":"a","capacity":{"cpu":"500m","memory":"1Gi"}}]`, `"500m" must be a positive whole number`},
		{"no memory", `[{"name":"a","capacity":{"cpu":"1"}}]`, "capacity.memory"},
		{"part of a gpu", `[{"name":"a","capacity":{"cpu":"1","memory":"1Gi","nvidia.com/gpu":"500m"}}]`, `capacity.nvidia.com/gpu "500m" must be a positive whole number`},
		{"a resource of Kubernetes", `[{"name":"a","capacity":{"cpu":"1","memory":"1Gi","node.kubernetes.io/x":"1"}}]`, "capacity.node.kubernetes.io/x is not supported"},
		{"unknown resource", `[{"name":"a","capacity":{"cpu":"1","memory":"1Gi","gpu":"1"}}]`, "capacity.gpu is not supported"},
		{"unknown capacity type", `[{"name":"a","capacitytype":"cheap","capacity":{"cpu":"1","memory":"1Gi"}}]`, `"cheap" must be on-demand, spot or reserved`},
		{"offerings", `[{"name":"a","offerings":[{}],"capacity":{"cpu":"1","memory":"1Gi"}}]`, "offerings are not supported"},
		{"part of a huge page", `[{"name":"a","capacity":{"cpu":"1","memory":"4Gi","hugepages-1Gi":"1536Mi"}}]`, `capacity.hugepages-1Gi "1536Mi" is not supported: set hugepages-2Mi`},
		{"unknown huge pages", `[{"name":"a","capacity":{"cpu":"1","memory":"4Gi","hugepages-64Ki":"64Ki"}}]`, "is not supported: set hugepages-2Mi to a multiple of 2Mi, or hugepages-1Gi"},
		{"too many huge pages", `[{"name":"a","capacity":{"cpu":"1","memory":"2Gi","hugepages-2Mi":"600Mi","hugepages-1Gi":"1Gi"}}]`, "leave less than 512Mi"},
		{"twice", `[{"name":"a","capacity":{"cpu":"1","memory":"1Gi"}},{"name":"a","capacity":{"cpu":"2","memory":"1Gi"}}]`, "has the same name as entry 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := scheduling.ParseInstanceTypes([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

// TestGuestPages checks that a VM whose type has huge pages reserves them, and that pods
// get only the rest of its memory, while it joins and on its Node.
func TestGuestPages(t *testing.T) {
	types, err := scheduling.ParseInstanceTypes([]byte(`[{"name": "p.4", "capacity": {"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "2Gi", "hugepages-1Gi": "3Gi"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	vm := keptVM(2000, "general", "shared", "epyc", fleet.PolicyShared)
	vm.InstanceType = "p.4"
	nc := nodeClass(t, `{template: {name: debian}}`)
	if small, large := scheduling.GuestPages(nc, &vm, types); small != 1024 || large != 3 {
		t.Errorf("%d and %d pages, want 1024 and 3", small, large)
	}
	status := scheduling.Launched(vm, types).Status
	if pages := status.Allocatable["hugepages-1Gi"]; pages.Value() != 3<<30 {
		t.Errorf("pods have %s of huge pages", pages.String())
	}
	c := load(t, classes, nodePool("general", "shared", ""))
	offered, err := c.InstanceTypes(t.Context(), scheduling.Request{Snapshot: lab(), Types: types}, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}})
	if err != nil {
		t.Fatal(err)
	}
	allocatable := offered[0].Allocatable()
	want, got := allocatable.Memory().Value(), status.Allocatable.Memory().Value()
	if want != got || got > 3<<30 {
		t.Errorf("pods have %d of its memory, and %d are offered: want less than 3 GiB", got, want)
	}
	small := deployment("pages", 3, "1", "600Mi", "")
	small = strings.Replace(small, "memory: 600Mi}", "memory: 600Mi, hugepages-1Gi: 1Gi}, limits: {hugepages-1Gi: 1Gi}", 1)
	if d, err := load(t, classes, nodePool("general", "shared", ""), small).Decide(t.Context(), scheduling.Request{Snapshot: lab(), Types: types}); err != nil || len(d.New) != 1 || len(d.Refused) > 0 {
		t.Errorf("decision is %+v: %v, want one node", d, err)
	}
}

func TestSpotTypeServesSpotOnly(t *testing.T) {
	types, err := scheduling.ParseInstanceTypes([]byte(`[
	  {"name": "c1.4VCPU-8GB", "capacity": {"cpu": "4", "memory": "8Gi"}},
	  {"name": "spot.4VCPU-8GB", "capacitytype": "spot", "capacity": {"cpu": "4", "memory": "8Gi"}}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	for want, selector := range map[string]string{
		"spot.4VCPU-8GB": "", // half the price
		"c1.4VCPU-8GB":   "\n      nodeSelector: {karpenter.sh/capacity-type: on-demand}\n",
	} {
		c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 1, "1", "1Gi", selector))
		d, err := c.Decide(t.Context(), scheduling.Request{Snapshot: lab(), Types: types})
		if err != nil {
			t.Fatal(err)
		}
		if len(d.New) != 1 || d.New[0].Spec.InstanceType != want {
			t.Errorf("new are %+v, want one %s", d.New, want)
		}
		if got := d.New[0].Spec.CapacityType; cmp.Equal(got, "spot") != strings.HasPrefix(want, "spot") {
			t.Errorf("capacity type is %s", got)
		}
	}
}
