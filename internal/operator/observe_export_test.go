package operator

import (
	"context"

	"github.com/numaform/numaform/internal/scaler"
)

// Observed returns the VMs that a controller in observe mode sees.
func Observed(ctx context.Context, fleet *scaler.Scaler) ([]scaler.VMState, error) {
	return (&onlooker{scaler: fleet}).States(ctx)
}
