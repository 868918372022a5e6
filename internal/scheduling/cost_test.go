package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

func TestCost(t *testing.T) {
	t.Parallel()
	vm := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	larger := vm
	larger.VCPUs, larger.MemoryMiB = 6, 8192+256
	standby := vm
	standby.Standby = true
	reserved := standby
	reserved.Reserve = true
	grown := vm
	grown.Source.DiskGiB, grown.DataDisks = 50, []fleet.DataDisk{{SizeGiB: 10}, {SizeGiB: 5}}
	sized := fleet.VM{Spec: fleet.Spec{Pool: "general", InstanceType: "c1.2VCPU-4GB"}}
	unsized := fleet.VM{Name: "lost", Spec: fleet.Spec{Pool: "other"}}
	onXeon := overlay("dear", fmt.Sprintf(onZone, "xeon"), `  priceAdjustment: "+50%"`)
	for _, test := range []struct {
		name          string
		overlays      string
		before, after []fleet.VM
		want          string
	}{
		{name: "nothing", want: ""},
		{name: "a creation", after: []fleet.VM{vm}, want: "+0.086 EUR/h (about +62.78 EUR/month): +4 vCPUs, +8 GiB memory, +30 GiB disk"},
		{name: "a removal", before: []fleet.VM{vm, vm}, want: "-0.17 EUR/h (about -126 EUR/month): -8 vCPUs, -16 GiB memory, -60 GiB disk"},
		{name: "a replacement by the same", before: []fleet.VM{vm}, after: []fleet.VM{vm}, want: ""},
		{name: "another size", before: []fleet.VM{vm}, after: []fleet.VM{larger}, want: "+0.021 EUR/h (about +15.51 EUR/month): +2 vCPUs, +256 MiB memory"},
		{name: "a standby VM", after: []fleet.VM{standby}, want: "+0.0060 EUR/h (about +4.38 EUR/month): +30 GiB disk"},
		{name: "a standby VM that reserves", after: []fleet.VM{reserved}, want: "+0.086 EUR/h (about +62.78 EUR/month): +4 vCPUs, +8 GiB memory, +30 GiB disk"},
		{name: "a wake", before: []fleet.VM{standby}, after: []fleet.VM{vm}, want: "+0.080 EUR/h (about +58.40 EUR/month): +4 vCPUs, +8 GiB memory"},
		{name: "a wake of one that reserved", before: []fleet.VM{reserved}, after: []fleet.VM{vm}, want: ""},
		{name: "all disks", after: []fleet.VM{grown}, want: "+0.093 EUR/h (about +67.89 EUR/month): +4 vCPUs, +8 GiB memory, +65 GiB disk"},
		{name: "an overlay", overlays: onXeon, after: []fleet.VM{vm}, want: "+0.13 EUR/h (about +94.17 EUR/month): +4 vCPUs, +8 GiB memory, +30 GiB disk"},
		{name: "no size yet", after: []fleet.VM{sized}, want: "+0.046 EUR/h (about +33.58 EUR/month): +2 vCPUs, +4 GiB memory, +30 GiB disk"},
		{name: "no size at all", before: []fleet.VM{unsized}, want: "unknown, because the size of 1 VM is not known"},
		{name: "some without a size", before: []fleet.VM{unsized, unsized, vm}, want: "-0.086 EUR/h (about -62.78 EUR/month): -4 vCPUs, -8 GiB memory, -30 GiB disk, not including 2 VMs of unknown size"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, classes, nodePool("general", "shared", ""), test.overlays)
			for _, prices := range []scheduling.Prices{euros, {}} {
				cost, err := c.Cost(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Prices: prices, Overlays: true}, test.before, test.after)
				if err != nil {
					t.Fatal(err)
				}
				want := test.want
				if _, resources, priced := strings.Cut(want, ": "); priced && prices.Currency == "" {
					want = resources
				}
				if diff := cmp.Diff(want, cost.String()); diff != "" {
					t.Errorf("prices %+v (-want +got):\n%s", prices, diff)
				}
				if prices.Currency == "" && cost.PerHour != 0 {
					t.Errorf("without prices, it costs %g", cost.PerHour)
				}
			}
		})
	}
}

// TestCostString checks the rounding of amounts.
func TestCostString(t *testing.T) {
	t.Parallel()
	for want, cost := range map[string]scheduling.Cost{
		"+12.35 EUR/h (about +9012 EUR/month): +1 vCPU":         {VCPUs: 1, PerHour: 12.345, Currency: "EUR"},
		"-0.000012 €/h (about -0.0088 €/month): -1 vCPU":        {VCPUs: -1, PerHour: -0.000012, Currency: "€"},
		"+0.00 EUR/h (about +0.00 EUR/month): +1536 MiB memory": {MemoryMiB: 1536, Currency: "EUR"},
		"+0.50 EUR/h (about +365 EUR/month)":                    {PerHour: 0.5, Currency: "EUR"},
		"+2 vCPUs, +30 GiB disk":                                {VCPUs: 2, DiskGiB: 30},
		"":                                                      {Currency: "EUR"},
	} {
		if got := cost.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if cost.Currency != "" {
			want, _, _ = strings.Cut(want, ": ")
		}
		if got := cost.Short(); got != want {
			t.Errorf("in short, got %q, want %q", got, want)
		}
	}
}
