package placement

import (
	"bytes"
	_ "embed" // for the test data
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"strconv"
)

//go:embed testdata/huawei-east-1-flavors.csv
var huaweiCSV []byte

// Flavor is a size of VM and its frequency.
type Flavor struct {
	VCPUs     int
	MemoryMiB int64
	Share     float64
}

// Mix is a distribution of VM sizes.
type Mix struct {
	Name    string
	Flavors []Flavor
}

// Mixes returns the two mixes of the tables.
func Mixes() ([]Mix, error) {
	huawei, err := readFlavors(huaweiCSV)
	if err != nil {
		return nil, fmt.Errorf("reading the huawei mix: %w", err)
	}
	return []Mix{{Name: "huawei", Flavors: huawei}, K8sNodes()}, nil
}

// K8sNodes returns sizes typical of Kubernetes nodes.
func K8sNodes() Mix {
	return Mix{Name: "k8s-nodes", Flavors: []Flavor{
		{2, 4 * gib, 0.20},
		{4, 8 * gib, 0.20},
		{4, 16 * gib, 0.10},
		{6, 12 * gib, 0.05},
		{8, 16 * gib, 0.15},
		{8, 32 * gib, 0.10},
		{12, 24 * gib, 0.05},
		{16, 32 * gib, 0.10},
		{24, 48 * gib, 0.02},
		{32, 64 * gib, 0.03},
	}}
}

// readFlavors reads lines of vCPUs, GiB and share, after comments and a header.
func readFlavors(data []byte) ([]Flavor, error) {
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	var flavors []Flavor
	for _, row := range rows[1:] {
		vcpus, errV := strconv.Atoi(row[0])
		memory, errM := strconv.ParseInt(row[1], 10, 64)
		share, errS := strconv.ParseFloat(row[2], 64)
		if errV != nil || errM != nil || errS != nil {
			return nil, fmt.Errorf("row %v: must be vCPUs, GiB and share", row)
		}
		flavors = append(flavors, Flavor{VCPUs: vcpus, MemoryMiB: memory * gib, Share: share})
	}
	return flavors, nil
}

// On returns the flavors that fit into one NUMA node and into half of the machine's usable
// resources. The result can be empty.
func (x Mix) On(m *Machine) []Flavor {
	cpus, memory := m.Usable()
	var fit []Flavor
	for _, f := range x.Flavors {
		if f.VCPUs <= cpus/2 && f.MemoryMiB <= memory/2 && fitsNode(m, f) {
			fit = append(fit, f)
		}
	}
	return fit
}

// fitsNode reports whether the flavor fits into an empty NUMA node.
func fitsNode(m *Machine, f Flavor) bool {
	for _, n := range m.Nodes {
		if f.VCPUs <= len(n.CPUs) && f.MemoryMiB <= n.MemoryMiB {
			return true
		}
	}
	return false
}

// draws is the random source of a run.
type draws struct {
	sizes, leavers *rand.Rand
	flavors        []Flavor
	total          float64
	next           int
}

// newDraws returns the random source for a seed. Sizes and departures use separate
// sequences, so that the sizes are the same for every placer.
func newDraws(flavors []Flavor, seed uint64) *draws {
	d := &draws{
		flavors: flavors,
		sizes:   rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // must be repeatable
		leavers: rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // as above
	}
	for _, f := range flavors {
		d.total += f.Share
	}
	return d
}

// draw returns the next VM.
func (d *draws) draw() VM {
	at, x := 0, d.sizes.Float64()*d.total
	for x >= d.flavors[at].Share && at < len(d.flavors)-1 {
		x -= d.flavors[at].Share
		at++
	}
	d.next++
	return VM{ID: d.next, VCPUs: d.flavors[at].VCPUs, MemoryMiB: d.flavors[at].MemoryMiB}
}

// pick returns the index of the VM, of n, that leaves.
func (d *draws) pick(n int) int { return d.leavers.IntN(n) }
