package cli //nolint:testpackage // the question has no exported form

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

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
	plans := []scaler.RootPlan{{
		Host: topology.HostID{Region: "lab", Host: "pve-1"}, Plan: &state.Plan{Digest: "d1", Changes: true},
		Verdict: guard.Verdict{Decision: guard.NeedsApproval},
	}}
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
		p := &proposal{session: &session{config: &operator.Config{}}, change: &scaler.Change{Snapshot: &topology.Snapshot{}}, plans: plans}
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
