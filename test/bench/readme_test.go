package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// documentedMachine is the kind of machine whose figures are in docs/performance.md.
	documentedMachine = "AMD EPYC, 2 CPUs"
	tableBegin        = "<!-- performance: kept by test/bench -->\n"
	tableEnd          = "<!-- end of performance -->\n"
)

// TestReadmeShowsTheFigures checks that the table of docs/performance.md matches the
// committed figures. With -update, it updates the table.
func TestReadmeShowsTheFigures(t *testing.T) {
	t.Parallel()
	all, err := readCommitted()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "..", "docs", "performance.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(readme), tableBegin)
	shown, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		t.Fatalf("docs/performance.md has no lines %q and %q", tableBegin, tableEnd)
	}
	want := performance(all[documentedMachine])
	if shown == want {
		return
	}
	if !*update {
		t.Fatalf("docs/performance.md does not show the figures of %s: run go test ./test/bench -run %s -update. It has\n%swant\n%s",
			figuresFile, t.Name(), shown, want)
	}
	if err := os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// performance renders the existing figures for docs/performance.md.
func performance(all map[string]figures) string {
	var text strings.Builder
	text.WriteString("| | direct calls | numaform | ratio | CPU | requests to Proxmox | peak memory |\n|---|---|---|---|---|---|---|\n")
	for _, row := range []struct{ title, name, wall string }{
		{"1 VM", "Road/vms=1/clone=5s/bare", "pod-to-last-start-s"},
		{"1 VM with a seed", "Road/vms=1/clone=5s/seeds", "pod-to-last-start-s"},
		{"1 VM with a seed and a larger disk", "Road/vms=1/clone=5s/seeds-resize", "pod-to-last-start-s"},
		{"20 VMs", "Road/vms=20/clone=5s/bare", "pod-to-last-start-s"},
		{"20 VMs with seeds", "Road/vms=20/clone=5s/seeds", "pod-to-last-start-s"},
		{"20 VMs with seeds and larger disks", "Road/vms=20/clone=5s/seeds-resize", "pod-to-last-start-s"},
		{"1 VM in a fleet of 200", "Road/plus-one-at-200", "pod-to-last-start-s"},
		{"200 VMs, clones take 5 ms", "Road/burst-200", "pod-to-last-start-s"},
		{"1 standby VM with a seed; the direct calls clone a VM", "Wake/vms=1/seeds", "pod-to-last-start-s"},
		{"20 standby VMs with seeds; the direct calls clone VMs", "Wake/vms=20/seeds", "pod-to-last-start-s"},
		{"20 nodes removed", "Road/remove-20", "last-delete-s"},
	} {
		f := all[row.name]
		if f == nil {
			continue
		}
		ratio := "–"
		if x, ok := f["x-direct"]; ok {
			ratio = fmt.Sprintf("%.2f", x)
		}
		fmt.Fprintf(&text, "| %s | %.1f s | %.1f s | %s | %.1f s | %.0f | %.0f MiB |\n",
			row.title, f["direct-s"], f[row.wall], ratio, f["cpu-s"], f["proxmox-requests"], f["peak-MiB"])
	}
	if idle := all["Road/idle-20"]; idle != nil {
		fmt.Fprintf(&text, "\nWith 20 idle nodes, numaform uses %.1f CPU s, %.0f requests to Proxmox and %.0f to Kubernetes per minute; the controller uses %.0f MiB of memory.\n",
			idle["cpu-s"], idle["proxmox-requests"], idle["kubernetes-requests"], idle["controller-MiB"])
	}
	small, large := all["AddOneVM/vms=10/hosts=1"], all["AddOneVM/vms=1000/hosts=50"]
	if small != nil && large != nil {
		fmt.Fprintf(&text, "\nTo add one VM, the engine and the provider use %.2f CPU s and %.0f requests in a fleet of 10 VMs on one host, and %.2f CPU s and\n%.0f requests in a fleet of 1,000 VMs on 50 hosts.\n",
			small["cpu-s"], small["provider-requests"], large["cpu-s"], large["provider-requests"])
	}
	return text.String()
}
