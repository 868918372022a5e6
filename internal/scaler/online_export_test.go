package scaler

import (
	"context"

	"github.com/numaform/numaform/topology"
)

// Watch returns a context that ends when a host is lost, and what ends the watch.
func (s *Scaler) Watch(ctx context.Context, host topology.HostID) (watched context.Context, stop func(error) error) {
	return s.watch(ctx, host)
}
