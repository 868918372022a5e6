package scaler

import "context"

// NewSlots returns a function that waits for a slot for an engine and returns how to release
// it.
func NewSlots(limit func() int) (take func(ctx context.Context) (release func())) {
	s := &slots{limit: limit}
	return s.take
}
