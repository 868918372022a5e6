package scheduling

import "github.com/numaform/numaform/fleet"

// hoursPerMonth converts prices per month to prices per hour.
const hoursPerMonth = 730

// Prices are the prices of the resources that VMs use, as numaform.yaml configures them. The
// zero value means that they are unknown: the prices of instance types are then relative and
// have no currency.
type Prices struct {
	// Currency is a code or symbol such as EUR.
	Currency      string  `yaml:"currency"`
	VCPUHour      float64 `yaml:"vcpu_hour"`
	MemoryGiBHour float64 `yaml:"memory_gib_hour"`
	// DiskGiBMonth is for a month of 730 hours; 0 means that disks cost nothing.
	DiskGiBMonth float64 `yaml:"disk_gib_month"`
}

func (p Prices) known() bool { return p.Currency != "" }

func (p Prices) perHour(vcpus int, memoryMiB, diskGiB int64) float64 {
	return p.VCPUHour*float64(vcpus) + p.MemoryGiBHour*float64(memoryMiB)/1024 + p.DiskGiBMonth*float64(diskGiB)/hoursPerMonth
}

// price returns the price of a type's nodes without NodeOverlays.
func (c *class) price(t *InstanceType) float64 {
	if !c.prices.known() {
		return t.Price
	}
	return c.prices.perHour(t.VCPUs, t.MemoryMiB, c.disk(t)+sizeOf(c.base.DataDisks))
}

func sizeOf(disks []fleet.DataDisk) int64 {
	total := int64(0)
	for _, d := range disks {
		total += d.SizeGiB
	}
	return total
}
