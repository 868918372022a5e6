package scheduling

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// price returns a price as the first matching NodeOverlay with a price changes it.
func (all overlays) price(price float64, labels map[string]string) float64 {
	node := scheduling.NewLabelRequirements(labels)
	for _, o := range all {
		if o.price != "" && node.IsCompatible(o.requirements) {
			return cloudprovider.AdjustedPrice(price, o.price)
		}
	}
	return price
}

// Cost is the change of the resources that VMs use, and of their price. A standby VM that
// reserves nothing uses only its disks.
type Cost struct {
	VCPUs     int   `json:"vcpus"`
	MemoryMiB int64 `json:"memory_mib"`
	DiskGiB   int64 `json:"disk_gib"`
	// PerHour is in Currency. If Currency is missing, prices are unknown.
	PerHour  float64 `json:"per_hour,omitempty"`
	Currency string  `json:"currency,omitempty"`
	// UnknownVMs is the number of VMs that are not included, because their size is unknown.
	UnknownVMs int `json:"unknown_vms,omitempty"`
}

// Cost returns the cost of a change: before are the VMs that it removes or changes, as they
// are now, and after are the VMs that it creates or changes, as they will be. A VM without
// a size has the size that its NodePool gives its instance type. Of the request, Cost uses
// Prices, Overlays, Snapshot and Types.
func (c *Cluster) Cost(ctx context.Context, request Request, before, after []fleet.VM) (Cost, error) {
	cost := Cost{Currency: request.Prices.Currency}
	overlays, err := readOverlays(ctx, c.client, request.Overlays && request.Prices.known())
	if err != nil {
		return Cost{}, err
	}
	add := func(sign int, vm fleet.VM) error {
		if vm.VCPUs == 0 {
			p, err := c.findPool(ctx, request, vm.Pool)
			if err != nil {
				return err
			}
			i := -1
			if p != nil && p.class != nil && !p.class.invalid() {
				i = slices.IndexFunc(p.types, func(t InstanceType) bool { return t.Name == vm.InstanceType })
			}
			if i < 0 {
				cost.UnknownVMs++
				return nil
			}
			vm.Spec = p.class.spec(p.Name, &p.types[i], nil)
		}
		if !vm.Reserves() {
			vm.VCPUs, vm.MemoryMiB = 0, 0
		}
		disk := max(vm.DiskGiB, vm.Source.DiskGiB) + sizeOf(vm.DataDisks)
		price := request.Prices.perHour(vm.VCPUs, vm.MemoryMiB, disk)
		if len(overlays) > 0 && vm.Reserves() {
			nodePool := &karpv1.NodePool{}
			if err := c.client.Get(ctx, client.ObjectKey{Name: vm.Pool}, nodePool); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("reading nodepool %s: %w", vm.Pool, err)
			}
			labels := vmLabels(&vm)
			labels[corev1.LabelArchStable] = Arch(request.Snapshot, vm.Host)
			price = overlays.price(price, poolLabels(nodePool, labels))
		}
		cost.VCPUs += sign * vm.VCPUs
		cost.MemoryMiB += int64(sign) * vm.MemoryMiB
		cost.DiskGiB += int64(sign) * disk
		cost.PerHour += float64(sign) * price
		return nil
	}
	for _, vm := range before {
		if err := add(-1, vm); err != nil {
			return Cost{}, err
		}
	}
	for _, vm := range after {
		if err := add(1, vm); err != nil {
			return Cost{}, err
		}
	}
	cost.PerHour = math.Round(cost.PerHour*1e6) / 1e6
	return cost, nil
}

// String returns the cost in one line such as "+0.14 EUR/h (about +102 EUR/month): +6 vCPUs,
// +24 GiB memory, +90 GiB disk", or "" if the change costs and saves nothing.
func (c Cost) String() string { return c.text(true) }

// Short returns the cost like String, but without the resources if the price is known.
func (c Cost) Short() string { return c.text(false) }

func (c Cost) text(all bool) string {
	var parts []string
	part := func(n int64, unit string) {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%+d %s", n, unit))
		}
	}
	if c.VCPUs == 1 || c.VCPUs == -1 {
		part(int64(c.VCPUs), "vCPU")
	} else {
		part(int64(c.VCPUs), "vCPUs")
	}
	if c.MemoryMiB%1024 == 0 {
		part(c.MemoryMiB/1024, "GiB memory")
	} else {
		part(c.MemoryMiB, "MiB memory")
	}
	part(c.DiskGiB, "GiB disk")
	text := strings.Join(parts, ", ")
	if c.Currency != "" && (text != "" || c.PerHour != 0) {
		price := fmt.Sprintf("%s %[2]s/h (about %[3]s %[2]s/month)", amount(c.PerHour), c.Currency, amount(c.PerHour*hoursPerMonth))
		if all && text != "" {
			price += ": " + text
		}
		text = price
	}
	switch vms := topology.Count(c.UnknownVMs, "VM"); {
	case c.UnknownVMs == 0:
		return text
	case text == "":
		return "unknown, because the size of " + vms + " is not known"
	default:
		return text + ", not including " + vms + " of unknown size"
	}
}

// amount formats an amount of money with at least two digits that are not leading zeros.
func amount(x float64) string {
	decimals := 2
	if math.Abs(x) >= 100 {
		decimals = 0
	}
	for rest := math.Abs(x); rest > 0 && rest < 0.1 && decimals < 6; rest *= 10 {
		decimals++
	}
	return fmt.Sprintf("%+.*f", decimals, x)
}
