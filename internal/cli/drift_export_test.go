package cli

import (
	"context"
	"io"
	"time"
)

// Repeat looks for drift again and again, and returns how the last look ended.
func Repeat(ctx context.Context, stderr io.Writer, every time.Duration, look func(context.Context) (bool, error)) (left bool, err error) {
	last := repeat(ctx, stderr, every, look)
	return last.left, last.err
}
