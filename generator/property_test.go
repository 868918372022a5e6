package generator_test

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
)

func TestRenderParseRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := fleets().Draw(t, "fleet")
		files, err := generator.Render(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := generator.Parse(files)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("fleet read back (-rendered +parsed):\n%s", diff)
		}
		again, err := generator.Render(got)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if formatted := hclwrite.Format(content); strings.HasSuffix(name, ".tf") && !bytes.Equal(formatted, content) {
				t.Fatalf("%s is not formatted (-formatted +rendered):\n%s", name, cmp.Diff(string(formatted), string(content)))
			}
		}
		if diff := cmp.Diff(files, again); diff != "" {
			t.Fatalf("rendered again (-first +second):\n%s", diff)
		}
	})
}

// TestOrderDoesNotMatter checks that the rendered bytes do not depend on the order of VMs,
// regions and hosts.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := fleets().Draw(t, "fleet")
		want, err := generator.Render(f)
		if err != nil {
			t.Fatal(err)
		}
		f.VMs, f.Regions, f.Hosts = slices.Clone(f.VMs), slices.Clone(f.Regions), slices.Clone(f.Hosts)
		slices.Reverse(f.VMs)
		slices.Reverse(f.Regions)
		slices.Reverse(f.Hosts)
		got, err := generator.Render(f)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("bytes depend on order (-sorted +reversed):\n%s", diff)
		}
	})
}

// TestOneMoreVM checks that a scale-up adds one new file.
func TestOneMoreVM(t *testing.T) {
	t.Parallel()
	before, err := generator.Render(fleetOf(vmAt(somewhere, 2001), vmAt(somewhere, 2003)))
	if err != nil {
		t.Fatal(err)
	}
	grown := fleetOf(vmAt(somewhere, 2001), vmAt(somewhere, 2002), vmAt(somewhere, 2003))
	after, err := generator.Render(grown)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"region-1/pve-1/node-workers-2002.tf"}
	if diff := cmp.Diff(want, changed(before, after)); diff != "" {
		t.Errorf("changed files (-want +got):\n%s", diff)
	}
}

// TestLastVMRemoved checks that a root without VMs remains, because a VM must still be
// deleted there.
func TestLastVMRemoved(t *testing.T) {
	t.Parallel()
	before, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := generator.Parse(before)
	if err != nil {
		t.Fatal(err)
	}
	parsed.VMs = nil
	after, err := generator.Render(parsed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"region-1/pve-1/node-workers-2001.tf"}, changed(before, after)); diff != "" {
		t.Errorf("changed files (-want +got):\n%s", diff)
	}
	checkParse(t, parsed, after)
}

// TestModuleIsWritten checks that Render writes the embedded modules, so that a fleet can
// be applied without this binary.
func TestModuleIsWritten(t *testing.T) {
	t.Parallel()
	files, err := generator.Render(fleetOf())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range modules.Files() {
		if diff := cmp.Diff(string(content), string(files[path.Join("modules", path.Dir(name), modules.Hash(), path.Base(name))])); diff != "" {
			t.Errorf("%s (-embedded +written):\n%s", name, diff)
		}
	}
}

// TestDescriptionCarriesTheMarker checks that the description in each VM's file contains
// the VM's marker.
func TestDescriptionCarriesTheMarker(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := fleets().Draw(t, "fleet")
		files, err := generator.Render(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.VMs {
			vm := &f.VMs[i]
			want := fleet.Marker{ClusterID: f.ClusterID, Key: vm.Key}
			if vm.Policy.Pinned() && vm.PinWith == fleet.PinWithHostAgent {
				want.Pins, want.Emulator = vm.VCPUPins, vm.Emulator
			}
			if !strings.Contains(string(files[generator.NodeFile(vm)]), "    \""+want.String()+"\",\n") {
				t.Fatalf("no marker %q in\n%s", want, files[generator.NodeFile(vm)])
			}
		}
	})
}

// changed returns the paths of files that differ, sorted.
func changed(before, after generator.Files) []string {
	var names []string
	all := maps.Clone(before)
	maps.Copy(all, after)
	for name := range all {
		if string(before[name]) != string(after[name]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
