package generator_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// FuzzRenderText checks that any text in the text fields of a VM is rejected or survives the
// round trip unchanged.
func FuzzRenderText(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "${a}", "%{if}", `"`, `\`, "a\nb", "for", "é", "e\u0301", "\xff", "\u202e", "#", "*/", "numaform/1 cluster=x",
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, value, name string) {
		vm := vmAt(somewhere, 2001)
		vm.NodeClass, vm.InstanceType, vm.CapacityType, vm.Template, vm.Reason = value, value, value, value, value
		vm.Source.Storage, vm.Source.DiskInterface = value, value
		vm.Source.Options = map[string]string{name: value}
		checkSurvives(t, fleetOf(vm))
	})
}

// FuzzRenderNames checks that any names of a region and a host, which become parts of paths,
// and any backend setting are rejected or survive the round trip unchanged.
func FuzzRenderNames(f *testing.F) {
	f.Add("region-1", "pve-1", "namespace", "x")
	f.Add("..", "a/b", "secret", "y")
	f.Add("modules", "templates", "a-b", "{state}")
	f.Add("PVE_1", "con.", "for", "https://u:p@h/")
	f.Fuzz(func(t *testing.T, region, host, name, value string) {
		place := topology.HostID{Region: topology.RegionName(region), Host: topology.HostName(host)}
		fl := fleetOf(vmAt(place, 2001))
		fl.Regions[0].Name = place.Region
		fl.Backend.Config = map[string]string{name: value}
		checkSurvives(t, fl)
	})
}

// checkSurvives checks that Render rejects the fleet with an error that names a field, or that
// the fleet survives the round trip unchanged.
func checkSurvives(t *testing.T, f fleet.Fleet) {
	t.Helper()
	files, err := generator.Render(f)
	if err != nil {
		var field *generator.FieldError
		if !errors.As(err, &field) {
			t.Fatalf("refused without naming a field: %v", err)
		}
		return
	}
	for name := range files {
		if strings.Contains(name, "..") || strings.Contains(name, "//") || strings.HasPrefix(name, "/") {
			t.Fatalf("path %q leaves the fleet", name)
		}
	}
	got, err := generator.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(canonical(f), got); diff != "" {
		t.Fatalf("fleet read back (-rendered +parsed):\n%s", diff)
	}
}

// FuzzParse checks that Parse does not panic on any node file, and accepts only files that
// Render would write.
func FuzzParse(f *testing.F) {
	files, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
	if err != nil {
		f.Fatal(err)
	}
	const name = "region-1/pve-1/node-workers-2001.tf"
	f.Add(files[name])
	f.Add([]byte(`module "a" { format_version = 2 }`))
	f.Add([]byte(`module "a" { format_version = [] }`))
	f.Add([]byte(`module "a" { source = null, format_version = 1 }`))
	f.Fuzz(func(t *testing.T, content []byte) {
		changed := generator.Files{}
		for path, old := range files {
			changed[path] = old
		}
		changed[name] = content
		parsed, err := generator.Parse(changed)
		if err != nil {
			var where *generator.ParseError
			if !errors.As(err, &where) || where.File == "" || where.Hint == "" {
				t.Fatalf("error without location and fix: %v", err)
			}
			return
		}
		again, err := generator.Render(parsed)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(content), string(again[name])); diff != "" {
			t.Fatalf("accepted a file that Render would not write (-read +written):\n%s", diff)
		}
	})
}

// FuzzRenderCounts checks that a VM with many entries in its lists is rejected or survives the
// round trip unchanged.
func FuzzRenderCounts(f *testing.F) {
	f.Add(uint16(0), uint16(0), uint16(0), uint16(0), uint16(0), uint8(1))
	f.Add(uint16(3950), uint16(0), uint16(0), uint16(0), uint16(0), uint8(1))
	f.Add(uint16(900), uint16(900), uint16(0), uint16(900), uint16(30), uint8(63))
	f.Add(uint16(0), uint16(5000), uint16(0), uint16(0), uint16(0), uint8(9))
	f.Add(uint16(0), uint16(0), uint16(5000), uint16(0), uint16(0), uint8(9))
	f.Add(uint16(0), uint16(0), uint16(0), uint16(5000), uint16(0), uint8(9))
	f.Fuzz(func(t *testing.T, labels, tags, groups, options, disks uint16, size uint8) {
		vm := vmAt(somewhere, 2001)
		long := strings.Repeat("x", int(size)%64)
		if labels > 0 {
			vm.Labels = map[string]string{}
		}
		if options > 0 {
			vm.Source.Options = map[string]string{}
		}
		for i := range int(labels) {
			vm.Labels[fmt.Sprintf("l%d", i)] = long
		}
		for i := range int(tags) {
			vm.Tags = append(vm.Tags, fmt.Sprintf("t%s%d", long, i))
		}
		for i := range int(groups) {
			vm.SecurityGroups = append(vm.SecurityGroups, fmt.Sprintf("g%d", i))
		}
		for i := range int(options) {
			vm.Source.Options[fmt.Sprintf("o%d", i)] = long
		}
		for i := range int(disks) {
			vm.DataDisks = append(vm.DataDisks, fleet.DataDisk{Interface: fmt.Sprintf("scsi%d", i+1), SizeGiB: 1, Storage: "local"})
		}
		checkSurvives(t, fleetOf(vm))
	})
}
