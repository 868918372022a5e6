package cpumap_test

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// busy returns a real or constructed machine with its first core reserved for the host, a VM
// on half of every second group of CPUs, and guests that are not pinned.
func busy(t testing.TB, name string) drawing {
	t.Helper()
	h := load(t, name)
	h.ReservedCPUs = h.Cores()[0].CPUs
	var vms []fleet.VM
	for i, group := range h.Groups() {
		var taken topology.CPUSet
		for _, core := range h.Cores() {
			if core.CPUs.IsSubsetOf(group.CPUs) && !core.CPUs.Equal(h.ReservedCPUs) && 2*taken.Size() < group.CPUs.Size() {
				taken = taken.Union(core.CPUs)
			}
		}
		if i%2 == 0 && !taken.IsEmpty() {
			vms = append(vms, vm(t, 2001+i, taken.String(), max(group.NUMANode, 0), int64(taken.Size())<<10))
		}
	}
	h.Guests = []topology.Guest{
		{VMID: 100, Name: "gateway", Kind: topology.GuestContainer, Running: true, VCPUs: 1},
		{VMID: 101, Name: "backup", Kind: topology.GuestVM, Running: true, VCPUs: 4},
	}
	if name == "opteron-6276-4s-8node" {
		h.Warnings = []string{"its notes cannot be read, so a topology published there is unknown: grant Sys.Audit on /"}
	}
	return drawing{h, cpumap.Owners(&h, vms)}
}

// TestMachines checks the drawing of every real and constructed machine against golden files:
// as text for a wide and a narrow terminal, and as an image.
func TestMachines(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Concat(machines.Names(), machines.Constructed()) {
		d := busy(t, name)
		wide := cpumap.Text(&d.host, d.owners, cpumap.Options{Width: 120})
		thin := cpumap.Text(&d.host, d.owners, cpumap.Options{Width: 48})
		name = path.Base(name)
		golden(t, "machines/"+name+".txt", []byte("width 120\n\n"+wide+"\nwidth 48\n\n"+thin))
		svg := cpumap.SVG([]topology.Host{d.host}, map[topology.HostID]cpumap.Ownership{d.host.ID(): d.owners})
		wellFormed(t, svg)
		golden(t, "machines/"+name+".svg", svg)
	}
}

// TestWarnings checks that text and image contain the warnings, and that the text contains
// the warnings of a host about which nothing else is known.
func TestWarnings(t *testing.T) {
	t.Parallel()
	h := load(t, "laptop-i5-m560-2c4t")
	h.Maintenance, h.Backup, h.Warnings = true, true, []string{"guest 9 does not describe\x1b[2J the host"}
	svg := string(cpumap.SVG([]topology.Host{h}, nil))
	unread := topology.Host{Region: "region-1", Name: "pve-9", Maintenance: true, Backup: true, Warnings: h.Warnings}
	for what, drawn := range map[string]string{
		"text": cpumap.Text(&h, cpumap.Ownership{}, cpumap.Options{}), "picture": svg,
		"text of nothing": cpumap.Text(&unread, cpumap.Ownership{}, cpumap.Options{}),
	} {
		if !strings.Contains(drawn, "in maintenance: ") || !strings.Contains(drawn, "guests are being backed up: ") || !strings.Contains(drawn, "warning: guest 9 does not describe?[2J the host") {
			t.Errorf("the %s lacks a warning:\n%s", what, drawn)
		}
	}
}

// TestMapInTheDocs checks that docs/topology.svg is the current drawing of its two hosts.
func TestMapInTheDocs(t *testing.T) {
	t.Parallel()
	first := load(t, "xeon-6230-2s-snc2")
	first.ReservedCPUs = cpus(t, "0,40")
	second := load(t, "hybrid-i7-1370p-6p8e")
	second.Name = "pve-2"
	second.ReservedCPUs = cpus(t, "0-1")
	small := vm(t, 2003, "12-15", 0, 4<<10)
	small.Host = second.ID()
	svg := cpumap.SVG([]topology.Host{first, second}, map[topology.HostID]cpumap.Ownership{
		first.ID(): cpumap.Owners(&first, []fleet.VM{
			vm(t, 2001, "4,8,12,16,20,44,48,52,56,60", 0, 20<<10), vm(t, 2002, "2,6,10,14,18,42,46,50,54,58", 2, 20<<10),
		}),
		second.ID(): cpumap.Owners(&second, []fleet.VM{small}),
	})
	wellFormed(t, svg)
	golden(t, filepath.FromSlash("../../../docs/topology.svg"), svg)
}
