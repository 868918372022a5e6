package cli

import (
	"context"
	"io"
	"time"
)

// Repeat checks for drift repeatedly, and returns the result of the last check.
func Repeat(ctx context.Context, stderr io.Writer, every time.Duration, look func(context.Context) (bool, error)) (remains bool, err error) {
	return repeat(ctx, stderr, every, look)
}
