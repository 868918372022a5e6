package operator_test

import (
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

func TestEnginesInMemory(t *testing.T) {
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	for _, tt := range []struct {
		limit, resident int64
		want            int
	}{
		{limit: 0, want: 0},
		{limit: 128 * mib, want: 1},
		{limit: 512 * mib, want: 1},
		{limit: gib, want: 1},
		{limit: 2 * gib, resident: 100 * mib, want: 4},
		{limit: 3 * gib, resident: 340 * mib, want: 7},
		{limit: 3 * gib, resident: 1400 * mib, want: 7},
		{limit: 3 * gib, resident: 2000 * mib, want: 4},
		{limit: 3 * gib, resident: 4000 * mib, want: 1},
	} {
		got := operator.EnginesIn(tt.limit, tt.resident)
		if got != tt.want {
			t.Errorf("limit of %d MiB, %d MiB in use: got %d engines, want %d", tt.limit/mib, tt.resident/mib, got, tt.want)
		}
	}
}
