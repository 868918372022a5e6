package topology

import "fmt"

// Load is the load of a host as Proxmox measures it, in bands: each value is the lower end
// of a band, so that small changes of the load do not change decisions.
type Load struct {
	CPUPercent    int `json:"cpu_percent"`
	MemoryPercent int `json:"memory_percent"`
}

// The width of the bands, and how far a value must leave its band before it gets another,
// in percent.
const (
	loadBand  = 5
	loadSlack = 2
)

// NewLoad returns the bands of a measured load, given as parts of 1. A value that is within
// loadSlack of its band in known, the previous load, keeps this band; known may be nil.
func NewLoad(cpu, memory float64, known *Load) *Load {
	if known == nil {
		known = &Load{CPUPercent: Unknown, MemoryPercent: Unknown}
	}
	return &Load{CPUPercent: band(cpu, known.CPUPercent), MemoryPercent: band(memory, known.MemoryPercent)}
}

func band(part float64, known int) int {
	percent := min(max(part*100, 0), 100)
	if known != Unknown && percent >= float64(known-loadSlack) && percent < float64(known+loadBand+loadSlack) {
		return known
	}
	return int(percent) / loadBand * loadBand
}

// check returns an error if a recorded load is not in percent. No load is correct.
func (l *Load) check() error {
	if l == nil || min(l.CPUPercent, l.MemoryPercent) >= 0 && max(l.CPUPercent, l.MemoryPercent) <= 100 {
		return nil
	}
	return fmt.Errorf("load has cpu_percent %d and memory_percent %d: must be 0 to 100", l.CPUPercent, l.MemoryPercent)
}
