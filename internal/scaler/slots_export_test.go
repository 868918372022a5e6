package scaler

import "context"

// NewSlots returns functions that wait for a slot for a plan or an apply, and return a
// function that releases it.
func NewSlots(limit func() int) (plan, apply func(ctx context.Context) (release func())) {
	s := &slots{limit: limit}
	return s.plan, s.apply
}
