package scheduling_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// euros are prices with which a VM of 4 vCPUs, 8 GiB and 30 GiB of disk costs 0.086 per hour.
var euros = scheduling.Prices{Currency: "EUR", VCPUHour: 0.01, MemoryGiBHour: 0.005, DiskGiBMonth: 0.146}

// TestPricesOfInstanceTypes checks the prices of offerings, which NodeOverlays adjust.
func TestPricesOfInstanceTypes(t *testing.T) {
	t.Parallel()
	const size = "c1.4VCPU-8GB"
	withData := strings.Replace(classes, "template: {name: debian}", "template: {name: debian}\n  dataDisks: [{size: 10Gi}]", 1)
	flexible := strings.Replace(classes, "template: {name: debian}", "template: {name: debian}\n  sizing: {policy: Flexible}", 1)
	spot := scheduling.DefaultInstanceTypes()
	for i := range spot {
		spot[i].CapacityType = karpv1.CapacityTypeSpot
	}
	onXeon := overlay("dear", fmt.Sprintf(onZone, "xeon"), `  priceAdjustment: "+50%"`)
	for _, test := range []struct {
		name, classes, overlays, typeName, zone string
		request                                 scheduling.Request
		want                                    float64
	}{
		{name: "unknown", classes: classes, typeName: size, zone: "xeon", want: 4*0.025 + 8*0.001},
		{name: "known", classes: classes, typeName: size, zone: "xeon", request: scheduling.Request{Prices: euros}, want: 0.086},
		{name: "a data disk", classes: withData, typeName: size, zone: "xeon", request: scheduling.Request{Prices: euros}, want: 0.088},
		{name: "spot costs the same", classes: classes, typeName: size, zone: "xeon", request: scheduling.Request{Prices: euros, Types: spot}, want: 0.086},
		{name: "an overlay", classes: classes, overlays: onXeon, typeName: size, zone: "xeon", request: scheduling.Request{Prices: euros, Overlays: true}, want: 0.129},
		{name: "an overlay of another host", classes: classes, overlays: onXeon, typeName: size, zone: "ryzen", request: scheduling.Request{Prices: euros, Overlays: true}, want: 0.086},
		{name: "a Flexible size", classes: flexible, typeName: "flex.4VCPU-8GB", zone: "xeon", request: scheduling.Request{Prices: euros}, want: 0.086},
		{
			name: "a live VM of a type that is not offered", classes: classes, typeName: size, zone: "xeon", want: 0.086,
			request: scheduling.Request{Prices: euros, Types: spot[:1], Existing: []fleet.VM{keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, test.classes, nodePool("general", "shared", ""), test.overlays)
			test.request.ClusterID, test.request.Snapshot = "test", lab()
			pool := &karpv1.NodePool{}
			pool.Name = "general"
			types, err := c.InstanceTypes(t.Context(), test.request, pool)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range types {
				for _, o := range it.Offerings {
					if it.Name != test.typeName || o.Zone() != test.zone {
						continue
					}
					if math.Abs(o.Price-test.want) > 1e-9 {
						t.Errorf("it costs %g, want %g", o.Price, test.want)
					}
					return
				}
			}
			t.Errorf("%s is not offered on %s", test.typeName, test.zone)
		})
	}
}

// TestPricesDecide checks that a type is chosen by its price: if only memory costs
// something, the type with the least memory, not the one with the fewest vCPUs.
func TestPricesDecide(t *testing.T) {
	t.Parallel()
	c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 1, "500m", "5Gi", ""))
	for want, prices := range map[string]scheduling.Prices{
		"m1.1VCPU-8GB": {},
		"t1.2VCPU-6GB": {Currency: "EUR", VCPUHour: 0.0001, MemoryGiBHour: 1},
	} {
		d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Prices: prices})
		if err != nil || len(d.New) != 1 || d.New[0].Spec.InstanceType != want {
			t.Errorf("prices %+v: got %+v (%v), want a %s", prices, d, err, want)
		}
	}
}
