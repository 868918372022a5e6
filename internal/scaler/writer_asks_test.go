package scaler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// TestWriterAnswersWhileItAsks uses a cluster that is slow to report whether a Node is
// drained, or had joined: the writer responds meanwhile.
func TestWriterAnswersWhileItAsks(t *testing.T) {
	t.Parallel()
	made, gone := vm(pve1, 2000), vm(pve2, 2001)
	asked, answer := make(chan string), make(chan struct{})
	wait := func(ctx context.Context, what string) error {
		select {
		case asked <- what:
		case <-ctx.Done():
		}
		select {
		case <-answer:
			return errors.New("nobody knows")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s := newScaler(t, func(c *scaler.Config) {
		c.Drained = func(ctx context.Context, _ string) error { return wait(ctx, "drained") }
	}, made, gone)
	there := snapshot(guestOf(made))
	writer := scaler.NewWriter(s, scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return there, nil },
		Joined:   func(ctx context.Context, _ fleet.VM) (bool, error) { return false, wait(ctx, "joined") },
		Gather:   time.Nanosecond,
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- writer.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for _, what := range []string{"joined", "drained"} {
		if got := receive(t, asked); got != what {
			t.Fatalf("the cluster is asked %s, want %s", got, what)
		}
		told := make(chan string, 1)
		go func() {
			_ = writer.VMs()
			writer.Remove(made.Key)
			told <- what
		}()
		receive(t, told)
		answer <- struct{}{}
	}
}

// receive returns the next value, which must arrive soon.
func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case what := <-from:
		return what
	case <-timer.C:
		t.Fatal("nothing came")
	}
	return ""
}
