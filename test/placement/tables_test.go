package placement_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/placement"
)

var (
	seeds   = flag.Int("seeds", 1, "number of seeds to run; the tables in docs/placement.md use 10")
	heldOut = flag.Bool("heldout", false, "use the seeds that are never used for tuning")
	every   = flag.Bool("every", false, "use every machine instead of two")
	ours    = flag.Bool("ours", false, "measure only numaform, by machine")
	machine = flag.String("machine", "", "use only this machine, such as constructed/xeon-2s-memory-only")
	update  = flag.Bool("update", false, "write the tables into docs/placement.md")
)

// TestTables checks that numaform assigns no CPU twice, places no VM that cannot start,
// follows its own rules, and refuses no VM on the two machines of the short run. It also
// prints the measured tables.
func TestTables(t *testing.T) {
	t.Parallel()
	kinds := placement.Kinds()
	if *ours {
		kinds = kinds[len(kinds)-1:]
	}
	var text []string
	for _, mix := range mixes(t) {
		table := placement.Measure(mix, chosen(t), kinds, placement.Seeds(*seeds, *heldOut))
		text = append(text, table.Markdown())
		if *ours {
			text = append(text, table.ByMachine())
		}
		shares, faults := placement.Mean(table.Runs[len(table.Runs)-1])
		if refused := shares[placement.Refused]; !*every && refused > 0 || faults != (placement.Faults{}) {
			t.Errorf("mix %s: numaform refuses %v, faults %v, want none", mix.Name, refused, faults)
		}
	}
	fmt.Println(strings.Join(text, "\n"))
	if *update {
		write(t, strings.Join(text, "\n"))
	}
}

// TestShares checks that numaform's shares on all machines are not below the recorded
// shares, and that numaform refuses no VM and breaks no rule.
func TestShares(t *testing.T) {
	t.Parallel()
	all, err := placement.Machines()
	if err != nil {
		t.Fatal(err)
	}
	for at, least := range []placement.Shares{
		{placement.Prefix: 0.992, placement.NUMA: 0.985, placement.L3: 0.988, placement.CalmNUMA: 0.994, placement.CalmL3: 0.997},
		{placement.Prefix: 0.988, placement.NUMA: 0.892, placement.L3: 0.928, placement.CalmNUMA: 0.955, placement.CalmL3: 0.986},
	} {
		mix := mixes(t)[at]
		table := placement.Measure(mix, all, []placement.Kind{placement.Numaform(false)}, placement.Seeds(2, false))
		got, faults := placement.Mean(table.Runs[0])
		for c := range least {
			if got[c] < least[c] {
				t.Errorf("mix %s: %s is %.4f, want at least %.4f", mix.Name, placement.Column(c), got[c], least[c])
			}
		}
		if got[placement.Refused]+got[placement.CalmRefused] > 0 || faults != (placement.Faults{}) {
			t.Errorf("mix %s: refused %v and %v, faults %v, want none", mix.Name, got[placement.Refused], got[placement.CalmRefused], faults)
		}
		t.Logf("mix %s: %.4f", mix.Name, got)
	}
}

// chosen returns the requested machine, all machines, or by default two: one with little
// memory on every other NUMA node, and one with four nodes and alternating CPUs.
func chosen(t *testing.T) []*placement.Machine {
	t.Helper()
	if *machine != "" {
		return []*placement.Machine{known(t, *machine)}
	}
	all, err := placement.Machines()
	if err != nil {
		t.Fatal(err)
	}
	if *every {
		return all
	}
	var two []*placement.Machine
	for _, m := range all {
		if m.Name == "opteron-48c-8node-sparse" || m.Name == "xeon-e7-4870-4s-pci" {
			two = append(two, m)
		}
	}
	return two
}

// mixes returns placement.Mixes, and fails the test on errors.
func mixes(t *testing.T) []placement.Mix {
	t.Helper()
	all, err := placement.Mixes()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// write replaces the tables between their markers in docs/placement.md.
func write(t *testing.T, tables string) {
	t.Helper()
	const file = "../../docs/placement.md"
	name := "tuning"
	if *heldOut {
		name = "heldout"
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	start, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(string(data), start)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no lines %q and %q", file, start, end)
	}
	if err := os.WriteFile(file, []byte(before+start+tables+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
