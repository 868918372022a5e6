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
	documentedMachine = "Intel(R) Xeon(R) Processor, 2 CPUs"
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
	want := performance(t, all[documentedMachine])
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

// documentedRow is a row of the table: the benchmark and its unit of numaform's time.
type documentedRow struct{ title, name, wall string }

// documentedRows are the rows of the table.
var documentedRows = []documentedRow{
	{"1 VM", "Road/vms=1/clone=5s/bare", "pod-to-last-start-s"},
	{"1 VM with a seed", "Road/vms=1/clone=5s/seeds", "pod-to-last-start-s"},
	{"1 VM with a seed and a larger disk", "Road/vms=1/clone=5s/seeds-resize", "pod-to-last-start-s"},
	{"1 VM, its clone takes 20 s", "Road/vms=1/clone=20s/bare", "pod-to-last-start-s"},
	{"20 VMs", "Road/vms=20/clone=5s/bare", "pod-to-last-start-s"},
	{"20 VMs with seeds", "Road/vms=20/clone=5s/seeds", "pod-to-last-start-s"},
	{"20 VMs with seeds and larger disks", "Road/vms=20/clone=5s/seeds-resize", "pod-to-last-start-s"},
	{"20 VMs, clones take 20 s", "Road/vms=20/clone=20s/bare", "pod-to-last-start-s"},
	{"1 VM in a fleet of 200", "Road/plus-one-at-200", "pod-to-last-start-s"},
	{"200 VMs, clones take 5 ms", "Road/burst-200", "pod-to-last-start-s"},
	{"1 standby VM with a seed; the direct calls clone a VM", "Wake/vms=1/seeds", "pod-to-last-start-s"},
	{"20 standby VMs with seeds; the direct calls clone VMs", "Wake/vms=20/seeds", "pod-to-last-start-s"},
	{"20 nodes removed", "Road/remove-20", "last-delete-s"},
}

// performance renders the figures for docs/performance.md. It fails the test if a figure is
// missing.
func performance(t *testing.T, all map[string]figures) string {
	t.Helper()
	figure := func(name, unit string) float64 {
		value, found := all[name][unit]
		if !found {
			t.Errorf("%s has no %s of %s for %s: measure it with make bench-update", figuresFile, unit, name, documentedMachine)
		}
		return value
	}
	var text strings.Builder
	text.WriteString("| | direct calls | numaform | ratio | CPU | requests to Proxmox | peak memory |\n|---|---|---|---|---|---|---|\n")
	for _, row := range documentedRows {
		ratio := "–"
		if x, ok := all[row.name]["x-direct"]; ok {
			ratio = fmt.Sprintf("%.2f", x)
		}
		fmt.Fprintf(&text, "| %s | %.1f s | %.1f s | %s | %.1f s | %.0f | %.0f MiB |\n",
			row.title, figure(row.name, "direct-s"), figure(row.name, row.wall), ratio,
			figure(row.name, "cpu-s"), figure(row.name, "proxmox-requests"), figure(row.name, "peak-MiB"))
	}
	const idle = "Road/idle-20"
	fmt.Fprintf(&text, "\nWith 20 idle nodes, numaform uses %.1f CPU s, %.0f requests to Proxmox and %.0f to Kubernetes per minute; the controller uses %.0f MiB of memory.\n",
		figure(idle, "cpu-s"), figure(idle, "proxmox-requests"), figure(idle, "kubernetes-requests"), figure(idle, "controller-MiB"))
	text.WriteString("\nTo add one VM, the engine and the provider use:\n\n| fleet | CPU | requests |\n|---|---|---|\n")
	for _, size := range []struct{ title, name string }{
		{"10 VMs on one host", "AddOneVM/vms=10/hosts=1"},
		{"100 VMs on 5 hosts", "AddOneVM/vms=100/hosts=5"},
		{"1,000 VMs on 50 hosts", "AddOneVM/vms=1000/hosts=50"},
		{"5,000 VMs on 100 hosts", "AddOneVM/vms=5000/hosts=100"},
	} {
		fmt.Fprintf(&text, "| %s | %.2f s | %.0f |\n", size.title, figure(size.name, "cpu-s"), figure(size.name, "provider-requests"))
	}
	return text.String()
}
