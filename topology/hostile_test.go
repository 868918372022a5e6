package topology_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/topology"
)

// TestHostileTexts checks that the errors about malicious notes and files are short enough for
// a condition, and that a text or machine beyond the limits is rejected.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	list := func(item string) string { return strings.TrimSuffix(strings.Repeat(item+",", size/len(item)), ",") }
	block := func(text string) string { return "<!-- numaform-topology\n" + text + "\n-->\n" }
	machine := func(cpus string) string { return `{"format":1,"cpus":[` + cpus + `],"numa_nodes":[]}` }
	few := strings.TrimSuffix(strings.Repeat("{},", 8000), ",")
	readers := map[string]func(text string) error{
		"published": func(text string) error { _, _, err := topology.ParsePublished(text); return err },
		"agent":     func(text string) error { _, _, err := topology.ParseAgent(text); return err },
		"collected": func(text string) error { _, err := topology.ParseCollectedFile([]byte(text)); return err },
		"settings":  func(text string) error { _, err := topology.ParseSettings([]byte(text)); return err },
		"snapshot":  func(text string) error { _, err := topology.ParseSnapshot([]byte(text)); return err },
		"lscpu":     func(text string) error { _, err := topology.ParseLscpu(text); return err },
		"cpus":      func(text string) error { _, err := topology.ParseCPUSet(text); return err },
	}
	for name, text := range map[string]string{
		"CPUs":             machine(list("{}")),
		"fewer CPUs":       machine(few),
		"CPUs in notes":    block(machine(list("{}"))),
		"fewer in notes":   block(machine(few)),
		"blanks in notes":  block(strings.Repeat(" ", size)),
		"blocks":           strings.Repeat("<!-- numaform-topology\n", size/23),
		"brackets":         strings.Repeat("[", size),
		"braces":           strings.Repeat(`{"a":`, size/5),
		"one key":          "{" + list(`"hosts":1`) + "}",
		"lines of lscpu":   strings.Repeat("NUMA node0 CPU(s): 0-8191\n", size/26),
		"ranges":           list("0-8191"),
		"one large number": strings.Repeat("9", size),
	} {
		for reader, read := range readers {
			t.Run(name+" as "+reader, func(t *testing.T) {
				t.Parallel()
				if err := read(text); err != nil && len(err.Error()) > 16<<10 {
					t.Errorf("the error has %d bytes: %.200s", len(err.Error()), err)
				}
			})
		}
	}
	if _, found, err := topology.ParsePublished(block(machine(list("{}")))); !found || err == nil || !strings.Contains(err.Error(), "Proxmox stores at most 65536") {
		t.Errorf("notes longer than Proxmox allows: %t, %v", found, err)
	}
	if _, err := topology.ParseCollectedFile([]byte(machine(list("{}")))); err == nil || !strings.Contains(err.Error(), "at most 65536 of each") {
		t.Errorf("a machine with too many CPUs: %v", err)
	}
}
