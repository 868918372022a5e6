package cli //nolint:testpackage // questions and reports have no exported form

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/topology"
)

// TestNoAnswer checks the error of a question whose input ends, and that the error is on a
// line of its own.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	process := Process{Stdin: strings.NewReader(""), Stderr: &out, asking: new(atomic.Bool)}
	yes, err := confirmed(t.Context(), process, "Apply this change?")
	if want := "the answer is missing, because the input ended"; yes || err == nil || err.Error() != want {
		t.Errorf("%t, %v, want %q", yes, err, want)
	}
	if !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("the error would follow the question on its line: %q", out.String())
	}
}

// TestHistoryDetails checks that only a new VM has a reason for its placement, and that
// hashes are labeled.
func TestHistoryDetails(t *testing.T) {
	t.Parallel()
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	vm := func(name string) fleet.VM {
		vm := fleet.VM{Name: name}
		vm.Host, vm.Reason = host, "the fullest host that has room"
		return vm
	}
	var out bytes.Buffer
	w := newPrinter(Process{Stdout: &out})
	w.entry(&audit.Entry{Verified: true, Change: audit.Change{
		Approval: &audit.Approval{By: "ann@laptop", Digest: "d0"},
		Added:    []fleet.VM{vm("a")},
		Removed:  []fleet.VM{vm("b")},
		Hosts:    []audit.HostPlan{{Host: host, PlanDigest: "d1", PlanSHA256: "s1"}},
	}})
	for _, want := range []string{
		"\n  approval ann@laptop, digest d0\n",
		"\n  added    a on lab/pve-1: the fullest host that has room\n",
		"\n  removed  b on lab/pve-1\n",
		"\n    plan digest  d1\n    saved plan   SHA-256 s1\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}

// TestFiles checks that a report counts all files that it does not list, and that it promises
// a reason only for new VMs.
func TestFiles(t *testing.T) {
	t.Parallel()
	const reason = "--verbose also shows the reason"
	added := []fileReport{
		{Path: ".gitignore", Change: "added"},
		{Path: "fleet.json", Change: "added"},
		{Path: "lab/modules/0123456789abcdef/", Change: "added"},
		{Path: "lab/pve-1/node-a.tf", Change: "added"},
	}
	removed := []fileReport{{Path: "lab/pve-1/node-a.tf", Change: "removed"}}
	printed := func(files []fileReport) string {
		var out bytes.Buffer
		newPrinter(Process{Stdout: &out}).files(files, &options{})
		return out.String()
	}
	if text := printed(added); !strings.Contains(text, "\n  + lab/pve-1/node-a.tf\n  + 2 other files and 1 module\n") || !strings.Contains(text, reason) {
		t.Errorf("a new VM:\n%s", text)
	}
	if text := printed(removed); !strings.Contains(text, "\n  - lab/pve-1/node-a.tf\n") || strings.Contains(text, reason) {
		t.Errorf("a removed VM:\n%s", text)
	}
}
