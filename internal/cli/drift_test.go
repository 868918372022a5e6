package cli_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/cli"
)

// runDrift runs `numaform drift` and returns its exit code.
func runDrift(ctx context.Context, stderr *strings.Builder, args ...string) int {
	return cli.Run(ctx, cli.Process{
		Args: append([]string{"drift"}, args...), Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: stderr,
	})
}

func TestDriftEveryUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		says string
	}{
		{"--every 9s", "--every 9s: must be at least 10s"},
		{"--every -1h", "--every -1h0m0s: must be at least 10s"},
		{"--every 1h --repair", "add --auto-approve"},
		{"--every soon", "invalid argument"},
		{"--every 1h -o toml", "must be text, json or yaml"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			code := runDrift(t.Context(), &stderr, strings.Fields(tt.args)...)
			if code != cli.ExitUsage || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("exit code %d, want %d; stderr lacks %q:\n%s", code, cli.ExitUsage, tt.says, &stderr)
			}
		})
	}
}

// TestDriftEveryFails checks the exit codes of an interrupted drift --every whose
// configuration cannot be read.
func TestDriftEveryFails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	nowhere := filepath.Join(t.TempDir(), "numaform.yaml")
	for want, args := range map[int][]string{
		cli.ExitOK:     {"--config", nowhere, "--every", "1h"},
		cli.ExitFailed: {"--config", nowhere, "--every", "1h", "--detailed-exitcode"},
	} {
		var stderr strings.Builder
		if code := runDrift(ctx, &stderr, args...); code != want || strings.Count(stderr.String(), nowhere) != 1 {
			t.Errorf("%v: exit code %d, want %d, and the failure once:\n%s", args, code, want, &stderr)
		}
	}
}

// TestErrorsDoNotControlTheTerminal checks that an error does not print an escape sequence
// in a name. Names from Proxmox, records and files can contain such sequences.
func TestErrorsDoNotControlTheTerminal(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	code := runDrift(t.Context(), &stderr, "--config", "x\x1b[2J.yaml")
	if code != cli.ExitFailed || !strings.Contains(stderr.String(), "x[2J.yaml") || strings.Contains(stderr.String(), "\x1b") {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

// TestRepeat checks that checks continue until an interrupt, even if some fail, and which
// result remains.
func TestRepeat(t *testing.T) {
	t.Parallel()
	broken, stopped := errors.New("the host does not answer"), errors.New("stopped halfway")
	type end struct {
		left bool
		err  error
	}
	for _, tt := range []struct {
		name string
		// ends are the results of the checks; the last one is interrupted.
		ends []end
		want end
		says string
	}{
		{"clean", []end{{false, nil}}, end{false, nil}, ""},
		{"interrupted between looks", []end{{false, nil}, {true, nil}}, end{true, nil}, ""},
		{"goes on after a failure", []end{{true, broken}, {false, nil}, {true, nil}}, end{true, nil}, "numaform: the host does not answer\n"},
		{"the last look is interrupted", []end{{true, nil}, {false, stopped}}, end{true, nil}, "numaform: stopped halfway\n"},
		{"the failure before it counts", []end{{false, broken}, {false, stopped}}, end{false, broken}, "numaform: the host does not answer\nnumaform: stopped halfway\n"},
		{"the only look is interrupted", []end{{false, stopped}}, end{false, stopped}, "numaform: stopped halfway\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			looks := 0
			var stderr strings.Builder
			left, err := cli.Repeat(ctx, &stderr, time.Millisecond, func(context.Context) (bool, error) {
				now := tt.ends[looks]
				if looks++; looks == len(tt.ends) {
					cancel()
				}
				return now.left, now.err
			})
			if looks != len(tt.ends) || left != tt.want.left || !errors.Is(err, tt.want.err) || (err == nil) != (tt.want.err == nil) {
				t.Errorf("%d looks, want %d; got %t, %v, want %+v", looks, len(tt.ends), left, err, tt.want)
			}
			if stderr.String() != tt.says {
				t.Errorf("stderr %q, want %q", stderr.String(), tt.says)
			}
		})
	}
}

// TestRepeatAtOnce checks that the first check does not wait for a tick.
func TestRepeatAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr strings.Builder
	if left, err := cli.Repeat(ctx, &stderr, time.Hour, func(context.Context) (bool, error) { cancel(); return true, nil }); !left || err != nil {
		t.Errorf("got %t, %v", left, err)
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("it waited for the first tick: %v", ctx.Err())
	}
}
