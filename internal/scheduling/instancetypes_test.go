package scheduling_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// offersOf returns the offerings of a type, with brackets for unavailable ones.
func offersOf(t *testing.T, types []*cloudprovider.InstanceType, name string) string {
	t.Helper()
	i := slices.IndexFunc(types, func(it *cloudprovider.InstanceType) bool { return it.Name == name })
	if i < 0 {
		return "none"
	}
	var offers []string
	for _, o := range types[i].Offerings {
		text := o.Zone() + " " + o.CapacityType()
		if !o.Available {
			text = "(" + text + ")"
		}
		offers = append(offers, text)
	}
	slices.Sort(offers)
	return strings.Join(offers, ", ")
}

func TestInstanceTypes(t *testing.T) {
	t.Parallel()
	const name = "c1.4VCPU-8GB"
	live := func(host string, edit func(*fleet.VM)) []fleet.VM {
		vm := keptVM(2000, "general", "shared", host, fleet.PolicyShared)
		if edit != nil {
			edit(&vm)
		}
		return []fleet.VM{vm}
	}
	fill := func(host string) []fleet.VM {
		vm := keptVM(2001, "other", "shared", host, fleet.PolicyShared)
		vm.VCPUs = 22
		return []fleet.VM{vm}
	}
	all := "epyc on-demand, ryzen on-demand, xeon on-demand"
	tests := []struct {
		name    string
		request scheduling.Request
		edit    func(*topology.Snapshot)
		want    string
	}{
		{name: "nothing lives", want: all},
		{name: "a VM lives, and more have room", request: scheduling.Request{Existing: live("ryzen", nil)}, want: all},
		{name: "a host is full", request: scheduling.Request{Existing: fill("ryzen")}, want: "epyc on-demand, xeon on-demand"},
		{
			name: "a VM lives on a host that is full", request: scheduling.Request{Existing: slices.Concat(live("ryzen", nil), fill("ryzen"))},
			want: "(ryzen on-demand), epyc on-demand, xeon on-demand",
		},
		{
			name: "a VM lives where offers are closed", request: scheduling.Request{Existing: live("ryzen", nil), Unavailable: []scheduling.OfferingSelector{{Host: hostID("ryzen")}}},
			want: "(ryzen on-demand), epyc on-demand, xeon on-demand",
		},
		{
			name: "a VM lives on a host that is down", request: scheduling.Request{Existing: live("ryzen", nil)},
			edit: func(s *topology.Snapshot) { s.Hosts[1].Online = false }, want: "(ryzen on-demand), epyc on-demand, xeon on-demand",
		},
		{name: "a VM lives on a host that is no more", request: scheduling.Request{Existing: live("mars", nil)}, want: "(mars on-demand), " + all},
		{
			name: "a VM lives of a type that is no more", request: scheduling.Request{Existing: live("ryzen", nil), Types: scheduling.DefaultInstanceTypes()[:1]},
			want: "(ryzen on-demand)",
		},
		{
			name: "a VM lives of another capacity type", request: scheduling.Request{Existing: live("ryzen", func(vm *fleet.VM) { vm.CapacityType = "spot" })},
			want: "(ryzen spot), " + all,
		},
		{name: "another pool's VM lives", request: scheduling.Request{
			Types:    scheduling.DefaultInstanceTypes()[:1],
			Existing: live("ryzen", func(vm *fleet.VM) { vm.Pool = "other" }),
		}, want: "none"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.request.Snapshot = lab()
			if test.edit != nil {
				test.edit(test.request.Snapshot)
			}
			types, err := load(t, classes, nodePool("general", "shared", "")).InstanceTypes(t.Context(), test.request, parsePool(t, "metadata: {name: general}"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, offersOf(t, types, name)); diff != "" {
				t.Errorf("offers differ:\n%s", diff)
			}
			for _, vm := range test.request.Existing {
				if vm.Pool == "general" {
					checkLive(t, types, vm)
				}
			}
		})
	}
}

// checkLive checks that a live VM's type has what Karpenter needs: a price, and an offering
// with the node's labels.
func checkLive(t *testing.T, types []*cloudprovider.InstanceType, vm fleet.VM) {
	t.Helper()
	i := slices.IndexFunc(types, func(it *cloudprovider.InstanceType) bool { return it.Name == vm.InstanceType })
	if price, ok := types[i].OfferingPrice(string(vm.Host.Host), vm.CapacityType); !ok || price <= 0 {
		t.Errorf("the price of %s on %s is %f, %t", vm.InstanceType, vm.Host, price, ok)
	}
	if allocatable := types[i].Allocatable(); allocatable.Cpu().IsZero() {
		t.Errorf("%s has nothing for pods", vm.InstanceType)
	}
}

// TestInstanceTypesKnowTheZonesOfLiveVMs checks that a full host is still a domain over
// which pods are spread, and a host that is down is not.
func TestInstanceTypesKnowTheZonesOfLiveVMs(t *testing.T) {
	t.Parallel()
	for _, online := range []bool{true, false} {
		snapshot := lab()
		snapshot.Hosts[1].Online = online
		vm := keptVM(2000, "general", "shared", "ryzen", fleet.PolicyShared)
		types, err := load(t, classes, nodePool("general", "shared", "")).InstanceTypes(t.Context(), scheduling.Request{
			Snapshot: snapshot, Existing: []fleet.VM{vm}, Unavailable: []scheduling.OfferingSelector{{Host: hostID("ryzen")}},
		}, parsePool(t, "metadata: {name: general}"))
		if err != nil {
			t.Fatal(err)
		}
		if known := types[0].Requirements.Get(corev1.LabelTopologyZone).Has("ryzen"); known != online {
			t.Errorf("online is %t, and the zone is known: %t", online, known)
		}
	}
}

func TestInstanceTypesOfNoUse(t *testing.T) {
	t.Parallel()
	var notReady *scheduling.ClassNotReadyError
	request := scheduling.Request{Snapshot: lab()}
	general := &karpv1.NodePool{}
	general.Name = "general"
	if _, err := load(t, nodePool("general", "shared", "")).InstanceTypes(t.Context(), request, general); !errors.As(err, &notReady) {
		t.Errorf("without a class: %v", err)
	}
	if types, err := load(t, classes).InstanceTypes(t.Context(), request, general); err == nil {
		t.Errorf("without the pool: %d types", len(types))
	}
	if types, err := load(t, classes, nodePool("general", "shared", "")).InstanceTypes(t.Context(), scheduling.Request{}, general); err == nil {
		t.Errorf("without a snapshot: %d types", len(types))
	}
}
