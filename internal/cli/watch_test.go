package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numaform/numaform/internal/cli"
)

// TestWatch checks that --watch prints changes only, continues after a failure, and ends
// without an error when it is interrupted.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr bytes.Buffer
		calls := 0
		started := time.Now()
		err := cli.Watch(ctx, cli.Process{Stdout: &stdout, Stderr: &stderr}, 5*time.Second, func(w io.Writer) error {
			calls++
			switch calls {
			case 3:
				return errors.New("Proxmox is away")
			case 6:
				cancel()
				return ctx.Err()
			}
			_, err := fmt.Fprintf(w, "state %d\n", calls/4)
			return err
		})
		want, warning := "state 0\n\nstate 1\n", "numaform: Proxmox is away: trying again\n"
		if err != nil || stdout.String() != want || stderr.String() != warning {
			t.Errorf("got %v, stderr %q, want %q, stdout %q, want %q", err, &stderr, warning, &stdout, want)
		}
		if took := time.Since(started); took != 25*time.Second {
			t.Errorf("6 reads took %s, want 25s", took)
		}
	})
}

// TestWatchFails checks that a failure of the first read ends --watch with its error, after
// the messages of the read.
func TestWatchFails(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	failure := errors.New("no configuration")
	process := cli.Process{Stdout: &stdout, Stderr: &stderr}
	err := cli.Watch(t.Context(), process, time.Second, func(w io.Writer) error {
		_, _ = io.WriteString(w, "skipping region a\n")
		return failure
	})
	if !errors.Is(err, failure) || stdout.Len() > 0 || stderr.String() != "skipping region a\n" {
		t.Errorf("got %v, stdout %q, stderr %q", err, &stdout, &stderr)
	}
	if err := cli.Watch(t.Context(), process, 0, nil); err == nil || !strings.Contains(err.Error(), "--interval 0s: must be at least 1s") {
		t.Errorf("an interval of 0: %v", err)
	}
}
