package generator_test

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// TestParseIsBounded checks that Parse rejects node files and indexes that are too large, too
// deep or too expensive to evaluate. Without the limits, some of them would crash the process
// or take minutes.
func TestParseIsBounded(t *testing.T) {
	t.Parallel()
	const value = `"debian"`
	many := strings.Repeat("1, ", 99) + "1"
	loops := "1"
	for range 8 {
		loops = "[for a in [" + many + "] : " + loops + "]"
	}
	deep := 80_000
	cases := map[string]struct{ file, old, new, want string }{
		"nested lists":       {nodeFile, value, strings.Repeat("[", deep) + strings.Repeat("]", deep), "is nested more than 24 levels deep"},
		"never closed":       {nodeFile, value, strings.Repeat("[", deep), "is nested more than 24 levels deep"},
		"nested calls":       {nodeFile, value, strings.Repeat("f(", deep) + strings.Repeat(")", deep), "is nested more than 24 levels deep"},
		"nested objects":     {nodeFile, value, strings.Repeat("{a=", 60_000), "is nested more than 24 levels deep"},
		"nested templates":   {nodeFile, value, strings.Repeat(`"${`, 60_000), "is nested more than 24 levels deep"},
		"directives":         {nodeFile, value, `"` + strings.Repeat(`%{if true}`, 20_000) + `"`, "has more than 64 operators"},
		"heredocs":           {nodeFile, value, strings.Repeat("<<A\n${", 30_000), "limit of 4000"},
		"nested blocks":      {nodeFile, "module \"", strings.Repeat("a {", deep) + "module \"", "is nested more than 24 levels deep"},
		"negations":          {nodeFile, value, strings.Repeat("!", deep) + "true", "has more than 64 operators"},
		"signs":              {nodeFile, value, strings.Repeat("- ", deep) + "1", "has more than 64 operators"},
		"conditions":         {nodeFile, value, strings.Repeat("true?", 50_000) + "1", "has more than 64 operators"},
		"loops in loops":     {nodeFile, value, loops, "Expression not allowed"},
		"loops in the seal":  {nodeFile, "format_version = 1", "format_version = " + loops, "Expression not allowed"},
		"loops in the call":  {nodeFile, `  source = "`, `  source = ` + loops + "\n" + `  x = "`, "Expression not allowed"},
		"a sum":              {nodeFile, value, "1 + 1", "Expression not allowed"},
		"a large file":       {nodeFile, "module \"", "#" + strings.Repeat("x", 300_000) + "\nmodule \"", "limit of 262144"},
		"many lines":         {nodeFile, "module \"", strings.Repeat("\n", 5000) + "module \"", nodeFile + ":4001: has 5"},
		"a large main.tf":    {mainFile, "terraform {", strings.Repeat("\n", 300_000) + "terraform {", "limit of 262144"},
		"a large fleet.json": {"fleet.json", "{", "{" + strings.Repeat(" ", 300_000), "limit of 262144"},
		"a deep fleet.json":  {"fleet.json", `"namespace"`, `"a": ` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `, "namespace"`, "exceeded max depth"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
			if err != nil {
				t.Fatal(err)
			}
			text := string(files[c.file])
			if !strings.Contains(text, c.old) {
				t.Fatalf("no %q in\n%s", c.old, text)
			}
			files[c.file] = []byte(strings.Replace(text, c.old, c.new, 1))
			_, err = generator.Parse(files)
			var where *generator.ParseError
			if !errors.As(err, &where) || where.File != c.file || where.Hint == "" {
				t.Fatalf("error without location and fix: %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error:\n%.300s\nwant:\n%s", err, c.want)
			}
			if len(err.Error()) > 2000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestLargeVMsAreWithinBounds checks that a very large VM can be rendered and parsed.
func TestLargeVMsAreWithinBounds(t *testing.T) {
	t.Parallel()
	vm := vmAt(somewhere, 2001)
	vm.VCPUs = 512
	vm.Policy, vm.PinWith, vm.Overcommit = fleet.PolicyDedicated, fleet.PinWithHostAgent, 0
	for i := range vm.VCPUs {
		vm.VCPUPins = append(vm.VCPUPins, 2*i)
	}
	vm.CPUs = topology.CPUs(vm.VCPUPins...)
	vm.Reason = strings.Repeat("r", 1024)
	vm.Labels = map[string]string{}
	for i := range 100 {
		vm.Labels["example.com/"+strings.Repeat("l", 50)+string(rune('a'+i%26))+string(rune('a'+i/26))] = strings.Repeat("v", 63)
	}
	vm.Networks = nil
	for range 32 {
		vm.Networks = append(vm.Networks, fleet.Network{Bridge: "vmbr0", Model: "virtio"})
	}
	files, err := generator.Render(fleetOf(vm))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(files[nodeFile]))
	if _, err := generator.Parse(files); err != nil {
		t.Error(err)
	}
}

// TestRenderHasTheBoundsOfParse checks that Render accepts lists up to the bounds of Parse,
// and rejects longer ones with an error that names the VM or the file.
func TestRenderHasTheBoundsOfParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		// Render accepts at least few entries, and refuses many.
		few, many int
		grow      func(f *fleet.Fleet, count int)
		want      string
	}{
		"labels": {3000, 5000, func(f *fleet.Fleet, count int) {
			f.VMs[0].Labels = map[string]string{}
			for i := range count {
				f.VMs[0].Labels[fmt.Sprintf("l%d", i)] = "v"
			}
		}, "vm workers-2001: file \"" + nodeFile + "\": has "},
		"long labels": {700, 1200, func(f *fleet.Fleet, count int) {
			f.VMs[0].Labels = map[string]string{}
			for i := range count {
				f.VMs[0].Labels[fmt.Sprintf("%s/%d", strings.Repeat("l", 200), i)] = strings.Repeat("v", 63)
			}
		}, "vm workers-2001: file \"" + nodeFile + "\": has "},
		"backend settings": {200, 300, func(f *fleet.Fleet, count int) {
			f.Backend.Config = map[string]string{}
			for i := range count {
				f.Backend.Config[fmt.Sprintf("s%d", i)] = strings.Repeat("v", 1000)
			}
		}, "region-1/pve-1/main.tf: has "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grown := func(count int) fleet.Fleet {
				f := fleetOf(vmAt(somewhere, 2001))
				tt.grow(&f, count)
				return canonical(f)
			}
			// The largest number that Render accepts.
			count := tt.few + sort.Search(tt.many-tt.few, func(n int) bool {
				_, err := generator.Render(grown(tt.few + n + 1))
				return err != nil
			})
			_, err := generator.Render(grown(count + 1))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), ": set fewer ") {
				t.Errorf("%d: got %v, want %s", count+1, err, tt.want)
			}
			t.Logf("%d are accepted", count)
			checkSurvives(t, grown(count))
			checkSurvives(t, grown(count+1))
		})
	}
}
