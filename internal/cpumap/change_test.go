package cpumap_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// changed returns a host of 8 NUMA nodes with guests and VMs, and a change of each kind.
func changed(t testing.TB) (topology.Host, []fleet.VM, []cpumap.Change) {
	t.Helper()
	d := drawings(t)["epyc-7451"]
	vms := []fleet.VM{
		vm(t, 2001, "1-2,49-50", 0, 8<<10), vm(t, 2002, "3-5,51-53", 0, 12<<10), vm(t, 2003, "6-11,54-59", 1, 30<<10),
		vm(t, 2004, "24,72", 4, 4<<10), vm(t, 2005, "30-32,78-80", 5, 24<<10), vm(t, 2006, "42-43,90-91", 7, 8<<10),
	}
	for i := range vms {
		vms[i].Key = fleet.Key(fmt.Sprintf("k%d", i))
		vms[i].MemoryMiB = vms[i].Cells[0].MemoryMiB
	}
	d.host.Guests = append(d.host.Guests, topology.Guest{VMID: 2003, Name: "workers-2003", Kind: topology.GuestVM, Running: true, Pins: vms[2].CPUs, NUMA: vms[2].Cells})
	vms[4].Standby, vms[4].Reserve = true, true
	created := vm(t, 2007, "12-15,60-63", 2, 16<<10)
	created.Key, created.MemoryMiB = "k7", 16<<10
	floating := fleet.VM{Key: "k8", VMID: 2008, Placement: fleet.Placement{Host: created.Host}, Spec: fleet.Spec{VCPUs: 2, MemoryMiB: 4 << 10}}
	return d.host, append(vms, created), []cpumap.Change{
		{Kind: cpumap.Created, VM: created, Name: "c1.8VCPU-16GB for web"},
		{Kind: cpumap.Created, VM: floating, Name: "c1.2VCPU-4GB for batch"},
		{Kind: cpumap.Removed, VM: vms[2], Name: "workers-2003"},
		{Kind: cpumap.Woken, VM: vms[4], Name: "workers-2005"},
		{Kind: cpumap.Updated, VM: vms[3], Name: "workers-2004"},
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	host, vms, changes := changed(t)
	svg := cpumap.Compare(&host, vms, changes)
	wellFormed(t, svg)
	golden(t, "../../../docs/pull-request.svg", svg) // an example in docs/pull-requests.md
	if again := cpumap.Compare(&host, vms, changes); !bytes.Equal(svg, again) {
		t.Error("another image of the same change differs")
	}
	before, after, found := bytes.Cut(svg, []byte(">after<"))
	if !found {
		t.Fatal("no side is called after")
	}
	for name, c := range map[string]struct {
		part  []byte
		class string
		want  bool
	}{
		"created before": {before, "add", false}, "created after": {after, "add", true},
		"removed before": {before, "del", true}, "removed after": {after, "del", false},
		"woken before": {before, "mod", true}, "woken after": {after, "mod", true},
	} {
		if got := bytes.Contains(c.part, []byte(`<path class="`+c.class+`"`)); got != c.want {
			t.Errorf("%s: cells %t, want %t", name, got, c.want)
		}
	}
}

// TestCompareIsSmall draws the largest machines, full of changed VMs with long names.
func TestCompareIsSmall(t *testing.T) {
	t.Parallel()
	largest := 0
	for _, name := range machines.Names() {
		host := load(t, name)
		var changes []cpumap.Change
		for i, cpu := range host.OnlineCPUs().List() {
			v := vm(t, 2000+i, topology.CPUs(cpu).String(), 0, 1<<10)
			changes = append(changes, cpumap.Change{Kind: cpumap.ChangeKind(i % 2), VM: v, Name: strings.Repeat("long", 50)})
		}
		svg := cpumap.Compare(&host, nil, changes)
		wellFormed(t, svg)
		largest = max(largest, len(svg))
	}
	t.Logf("the largest image has %d bytes", largest)
	if largest > 64<<10 {
		t.Errorf("an image has %d bytes, want at most 64 KiB", largest)
	}
}

func TestCompareNamesAreHarmless(t *testing.T) {
	t.Parallel()
	host, vms, changes := changed(t)
	const hostile = `"/><script>alert(1)</script>&` + "\x1b]0;\x00\xff\u202e"
	host.Model = hostile
	for i := range changes {
		changes[i].Name = hostile
	}
	svg := cpumap.Compare(&host, vms, changes)
	wellFormed(t, svg)
	if bytes.ContainsAny(svg, "\x1b\x00\u202e") {
		t.Errorf("control characters in %q", svg)
	}
	host.CPUs = nil
	wellFormed(t, cpumap.Compare(&host, vms, changes))
	wellFormed(t, cpumap.Compare(&host, nil, nil))
}
