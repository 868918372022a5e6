package operator

import (
	"context"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// Previewer compares and plans edits of a fleet's files.
type Previewer interface {
	Compare(now, after generator.Files) (*scaler.Edits, error)
	Preview(ctx context.Context, snapshot *topology.Snapshot, edits *scaler.Edits) ([]scaler.RootPlan, error)
}

// CheckMerge evaluates what the merge of a person's pull request would change.
func CheckMerge(ctx context.Context, p Previewer, trusted bool) (ok bool, summary string, err error) {
	snapshot := func(context.Context) (*topology.Snapshot, error) { return &topology.Snapshot{}, nil }
	return mergeCheck{scaler: p, snapshot: snapshot}.run(ctx, nil, nil, trusted)
}
