package topology_test

import (
	"testing"

	"github.com/numaform/numaform/topology"
)

// TestLoadInBands checks that a load is rounded down to a band, and that it keeps its band
// until it has clearly left it.
func TestLoadInBands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		known int
		part  float64
		want  int
	}{
		{topology.Unknown, 0, 0},
		{topology.Unknown, 0.049, 0},
		{topology.Unknown, 0.05, 5},
		{topology.Unknown, 0.94, 90},
		{topology.Unknown, 1, 100},
		{topology.Unknown, -1, 0},
		{topology.Unknown, 7, 100},
		{90, 0.95, 90},
		{90, 0.969, 90},
		{90, 0.971, 95},
		{95, 0.931, 95},
		{95, 0.929, 90},
		{95, 0.2, 20},
		{100, 0.985, 100},
		{100, 0.97, 95},
		{0, 0.06, 0},
		{0, 0.08, 5},
	} {
		known := &topology.Load{CPUPercent: test.known, MemoryPercent: test.known}
		if got := *topology.NewLoad(test.part, test.part, known); got.CPUPercent != test.want || got.MemoryPercent != test.want {
			t.Errorf("load %v after %d: %+v, want %d", test.part, test.known, got, test.want)
		}
	}
	if got := *topology.NewLoad(0.42, 0.99, nil); got != (topology.Load{CPUPercent: 40, MemoryPercent: 95}) {
		t.Errorf("load without a previous one: %+v", got)
	}
}
