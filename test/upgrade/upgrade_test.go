// Package upgrade_test upgrades numaform on an existing fleet. It checks that new modules
// and a new provider change no VM, and that scaling continues. It runs the real engine and
// the real provider with a simulated Proxmox.
package upgrade_test

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/modules"
)

// nextProvider is an unreleased version of the provider, with the same program.
const nextProvider = "0.111.2"

// TestUpgrades checks that an upgrade of the modules, and then of the provider, changes no VM
// of a fleet with the modules of an older numaform, and that VMs can be created. The fleet has
// 100 VMs on five hosts in make nightly, and ten on two in make test.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	hosts, vms := 2, 10
	if enginetest.EveryCase() {
		hosts, vms = 5, 100
	}
	older := olderRelease(t)
	f := start(t, hosts)
	f.as(older, f.plugins)
	f.grow(t, slices.Repeat(f.hosts, vms/hosts)...)

	current := generator.Current()
	f.as(current, f.plugins)
	t.Run("modules", func(t *testing.T) {
		grown := f.growByOne(t)
		wantFiles(t, grown, "modules/proxmox-node/", "modules/proxmox-security-groups/")
		if got := grown.vm.Module; got != modules.Hash() {
			t.Errorf("the new VM calls modules %s, want %s", got, modules.Hash())
		}
		wantModules(t, f, map[string]int{modules.HashOf(older.Modules): vms, modules.Hash(): 1})
	})

	current.Provider = nextProvider
	f.as(current, mirrorOf(t, f.plugins, nextProvider))
	t.Run("provider", func(t *testing.T) {
		grown := f.growByOne(t)
		wantFiles(t, grown, "main.tf")
		for name, content := range grown.after {
			if path.Base(name) == "main.tf" && strings.Count(name, "/") == 2 && !bytes.Contains(content, []byte(`"`+nextProvider+`"`)) {
				t.Errorf("%s does not require provider %s", name, nextProvider)
			}
		}
		wantModules(t, f, map[string]int{modules.HashOf(older.Modules): vms, modules.Hash(): 2})
	})
}

// firstModules is the hash of the first released modules, whose node module has a
// shorter timeout.
const firstModules = "53eb0066f3e67bbd"

// olderRelease returns a release with the first modules.
func olderRelease(t *testing.T) generator.Release {
	t.Helper()
	files, ok := modules.Released(firstModules)
	if !ok {
		t.Fatalf("modules %s are not among the released modules", firstModules)
	}
	older := generator.Current()
	older.Modules = files
	return older
}

// unknownRelease returns a release whose modules were never released.
func unknownRelease(t *testing.T) generator.Release {
	t.Helper()
	unknown := generator.Current()
	unknown.Modules = maps.Clone(unknown.Modules)
	name := modules.NodeModule + "/main.tf"
	content := bytes.Replace(unknown.Modules[name], []byte("timeout_migrate     = 1800"), []byte("timeout_migrate     = 900"), 1)
	if bytes.Equal(content, unknown.Modules[name]) {
		t.Fatalf("%s has no timeout_migrate to change", name)
	}
	unknown.Modules[name] = content
	return unknown
}

// wantFiles checks that the creation of a VM changed only its file and files whose path
// contains one of the parts.
func wantFiles(t *testing.T, grown growth, parts ...string) {
	t.Helper()
	var others []string
	for name := range grown.after {
		switch before, existed := grown.before[name]; {
		case existed && bytes.Equal(before, grown.after[name]):
		case name == generator.NodeFile(&grown.vm):
		case !slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) }):
			others = append(others, name)
		}
	}
	for name := range grown.before {
		if _, exists := grown.after[name]; !exists {
			others = append(others, "-"+name)
		}
	}
	if slices.Sort(others); len(others) > 0 {
		t.Errorf("files changed besides the new VM's: %v", others)
	}
}

// wantModules checks the number of VMs that call each version of the modules.
func wantModules(t *testing.T, f *fixture, want map[string]int) {
	t.Helper()
	current, _, err := f.scaler.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for i := range current.VMs {
		got[current.VMs[i].Module]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("VMs by modules (-want +got):\n%s", diff)
	}
}

// TestRefusesNewerModules checks the error about a fleet whose standby VM calls modules that
// this release does not contain, as after a downgrade: it names the modules and asks for an
// upgrade.
func TestRefusesNewerModules(t *testing.T) {
	t.Parallel()
	newer := unknownRelease(t)
	f := start(t, 1)
	f.as(newer, f.plugins)
	change := f.propose(t, f.hosts[0])
	change.After.VMs[0].Standby = true
	files, err := newer.Render(change.After)
	if err != nil {
		t.Fatal(err)
	}
	_, err = generator.Current().Parse(files)
	if err == nil || !strings.Contains(err.Error(), "calls modules "+modules.HashOf(newer.Modules)) || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("got %v", err)
	}
}
