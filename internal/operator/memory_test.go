package operator_test

import (
	"testing"

	"github.com/numaform/numaform/internal/operator"
)

func TestEnginesInMemory(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]int{
		"max\n": 0, "": 0, "2147483648\n": 11, "536870912\n": 1, "1073741824": 4, "134217728\n": 1,
	} {
		if got := operator.EnginesIn(limit); got != want {
			t.Errorf("memory.max %q: got %d engines, want %d", limit, got, want)
		}
	}
}
