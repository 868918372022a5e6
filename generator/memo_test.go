package generator_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
)

// TestMemoChangesNothing checks that Render and Parse return the same results with a memo of
// an earlier version of the fleet as without a memo.
func TestMemoChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		remembering := generator.Current()
		remembering.Memo = &generator.Memo{}
		f := fleets().Draw(t, "fleet")
		for range 4 {
			want, err := generator.Render(f)
			if err != nil {
				t.Fatal(err)
			}
			files, err := remembering.Render(f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, files); diff != "" {
				t.Fatalf("rendered (-without +with a memo):\n%s", diff)
			}
			got, err := remembering.Parse(files)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(f, got); diff != "" {
				t.Fatalf("fleet read back (-rendered +parsed):\n%s", diff)
			}
			// A caller may change the lists of a fleet that it parsed.
			for i := range got.VMs {
				got.VMs[i].VMID++
			}
			slices.Reverse(got.Hosts)
			slices.Reverse(got.Regions)
			if got, err = remembering.Parse(maps.Clone(files)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(f, got); diff != "" {
				t.Fatalf("fleet read again (-rendered +parsed):\n%s", diff)
			}
			if len(files) > 0 {
				edited := maps.Clone(files)
				name := rapid.SampledFrom(slices.Sorted(maps.Keys(files))).Draw(t, "file")
				edited[name] = append(slices.Clone(edited[name]), "# edited\n"...)
				_, want := generator.Parse(edited)
				if _, err := remembering.Parse(edited); fmt.Sprint(err) != fmt.Sprint(want) {
					t.Fatalf("an edited %s: %v, want %v", name, err, want)
				}
			}

			// Some VMs change, are removed or are added again.
			next := f
			next.VMs = nil
			for _, vm := range f.VMs {
				switch rapid.IntRange(0, 3).Draw(t, "edit") {
				case 0:
				case 1:
					vm.MemoryMiB += 1024
					vm.Policy, vm.PinWith, vm.CPUs, vm.VCPUPins, vm.Cells, vm.L3 = fleet.PolicyShared, "", f.VMs[0].CPUs, nil, nil, nil
					if _, err := generator.Render(fleetLike(f, vm)); err != nil {
						continue // not a valid VM
					}
					next.VMs = append(next.VMs, vm)
				default:
					next.VMs = append(next.VMs, vm)
				}
			}
			if parsed, err := generator.Render(next); err == nil {
				if next, err = generator.Parse(parsed); err != nil {
					t.Fatal(err)
				}
				f = next
			}
		}
	})
}

// fleetLike returns the fleet with vm as its only VM.
func fleetLike(f fleet.Fleet, vm fleet.VM) fleet.Fleet {
	f.VMs = []fleet.VM{vm}
	return f
}

func BenchmarkParseWithMemo(b *testing.B) {
	files, err := generator.Render(large())
	if err != nil {
		b.Fatal(err)
	}
	remembering := generator.Current()
	remembering.Memo = &generator.Memo{}
	for b.Loop() {
		if _, err := remembering.Parse(files); err != nil {
			b.Fatal(err)
		}
	}
}
