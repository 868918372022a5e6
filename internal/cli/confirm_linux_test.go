package cli //nolint:testpackage // the question has no exported form

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// TestConfirmedDigest checks that a change that a user approves has the digest that the user
// approved, and its approver, at the prompt and with --approve.
func TestConfirmedDigest(t *testing.T) {
	t.Parallel()
	plans := plansToApprove()
	shown := digest(plans)
	terminal, keyboard := openTerminal(t)
	for _, test := range []struct {
		name, typed, approver, digest string
		options                       options
	}{
		{name: "yes at the prompt", typed: "yes\n", approver: actor(), digest: shown},
		{name: "no at the prompt", typed: "no\n"},
		{name: "--approve", options: options{approve: shown}, approver: actor() + " by digest", digest: shown},
		{name: "--approve of another change", options: options{approve: "other"}},
	} {
		fmt.Fprint(keyboard, test.typed)
		var out bytes.Buffer
		p := &proposal{session: &session{config: &operator.Config{}, clock: clock.RealClock{}}, change: &scaler.Change{Snapshot: &topology.Snapshot{}}, plans: plans}
		approver, err := p.confirm(t.Context(), Process{Stdin: terminal, Stderr: &out, asking: new(atomic.Bool)}, &test.options)
		digest := ""
		if p.change.Approval != nil {
			digest = p.change.Approval.Digest
		}
		if approver != test.approver || digest != test.digest || (err == nil) != (test.digest != "") {
			t.Errorf("%s: approver %q, digest %q, %v", test.name, approver, digest, err)
		}
	}
}

// plansToApprove returns a plan for which the guard requires approval.
func plansToApprove() []scaler.RootPlan {
	return []scaler.RootPlan{{
		Host: topology.HostID{Region: "lab", Host: "pve-1"}, Plan: &state.Plan{Digest: "d1", Changes: true},
		Verdict: guard.Verdict{Decision: guard.NeedsApproval},
	}}
}

// TestFreezeDuringTheQuestion checks that a change does not begin in a freeze window that begins
// while the user is asked, without a break-glass approval.
func TestFreezeDuringTheQuestion(t *testing.T) {
	t.Parallel()
	asked := time.Date(2026, 12, 19, 23, 50, 0, 0, time.UTC)
	config := &operator.Config{}
	config.Approval.Freeze = []freeze.Config{{Name: "holidays", Start: "2026-12-20T00:00:00Z", End: "2027-01-04T00:00:00Z"}}
	terminal, keyboard := openTerminal(t)
	for answered, frozen := range map[time.Time]bool{asked.Add(time.Minute): false, asked.Add(20 * time.Minute): true} {
		clk := clocktesting.NewFakePassiveClock(asked)
		p := &proposal{session: &session{config: config, clock: clk}, change: &scaler.Change{Snapshot: &topology.Snapshot{}}, plans: plansToApprove()}
		stderr := writerFunc(func(text []byte) {
			if bytes.Contains(text, []byte("Apply this change?")) {
				clk.SetTime(answered)
				fmt.Fprint(keyboard, "yes\n")
			}
		})
		approver, err := p.confirm(t.Context(), Process{Stdin: terminal, Stderr: stderr, asking: new(atomic.Bool)}, &options{})
		if frozen != (approver == "" && err != nil && strings.Contains(err.Error(), `freeze window "holidays"`)) {
			t.Errorf("answered at %s: approver %q (%v)", answered, approver, err)
		}
	}
}

// writerFunc is called for each write.
type writerFunc func(text []byte)

func (f writerFunc) Write(text []byte) (int, error) {
	f(text)
	return len(text), nil
}

// openTerminal returns a terminal, and a file to type in it.
func openTerminal(t *testing.T) (terminal, keyboard *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() })
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return terminal, keyboard
}
