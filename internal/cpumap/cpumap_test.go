package cpumap_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func load(t testing.TB, name string) topology.Host {
	t.Helper()
	m, err := machines.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return topology.Host{Region: "region-1", Name: "pve-1", Online: true, Machine: m}
}

func cpus(t testing.TB, list string) topology.CPUSet {
	t.Helper()
	set, err := topology.ParseCPUSet(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// vm returns a VM of the fleet on pve-1, its memory bound to one NUMA node.
func vm(t testing.TB, vmid int, list string, node int, memoryMiB int64) fleet.VM {
	t.Helper()
	v := fleet.VM{VMID: fleet.VMID(vmid), Name: fleet.NodeName("workers", fleet.VMID(vmid))}
	v.Host = topology.HostID{Region: "region-1", Host: "pve-1"}
	v.CPUs = cpus(t, list)
	v.Cells = []topology.NUMACell{{
		GuestCPUs: topology.CPUs(0), HostNodes: topology.CPUs(node), MemoryMiB: memoryMiB, Policy: topology.NUMABind,
	}}
	return v
}

// TestTextOfWideNames checks that the columns of the legend are aligned below names with
// characters of two columns, and with characters of two runes.
func TestTextOfWideNames(t *testing.T) {
	t.Parallel()
	host := load(t, "ryzen-ai-hx370-2ccx")
	host.Guests = []topology.Guest{
		{VMID: 100, Name: "世界", Kind: topology.GuestVM, Running: true, Pins: cpus(t, "1")},
		{VMID: 101, Name: "e\u0301te\u0301", Kind: topology.GuestVM, Running: true, Pins: cpus(t, "2")},
		{VMID: 102, Name: "gateway", Kind: topology.GuestVM, Running: true, Pins: cpus(t, "3")},
	}
	text := cpumap.Text(&host, cpumap.Owners(&host, nil), cpumap.Options{})
	_, legend, _ := strings.Cut(text, " free\n")
	columns := map[int]bool{}
	for line := range strings.Lines(legend) {
		if before, _, found := strings.Cut(line, "1 CPU  "); found {
			columns[ansi.StringWidth(before)] = true
		}
	}
	if len(columns) != 1 {
		t.Errorf("the counts of CPUs are in the columns %v:\n%s", slices.Collect(maps.Keys(columns)), text)
	}
}

// drawing is a host with its owners.
type drawing struct {
	host   topology.Host
	owners cpumap.Ownership
}

// drawings returns the cases of TestText and TestSVG by the names of their golden files.
func drawings(t testing.TB) map[string]drawing {
	t.Helper()
	epyc := load(t, "epyc-7451-2s-8node")
	epyc.ReservedCPUs = cpus(t, "0,48")
	for i := range epyc.NUMANodes {
		epyc.NUMANodes[i].MemoryMiB = 32 << 10
	}
	epyc.Guests = []topology.Guest{
		{VMID: 100, Name: "db", Kind: topology.GuestVM, Running: true, Pins: cpus(t, "18-20,66-68"), NUMA: []topology.NUMACell{
			{HostNodes: topology.CPUs(3), MemoryMiB: 16 << 10},
		}},
		{VMID: 101, Name: "gateway", Kind: topology.GuestVM, Running: true},
	}
	xeon := load(t, "xeon-6230-2s-snc2")
	xeon.ReservedCPUs = cpus(t, "0,40")
	ryzen := load(t, "ryzen-ai-hx370-2ccx")
	ryzen.ReservedCPUs = cpus(t, "0,12")
	ryzen.Guests = []topology.Guest{{VMID: 200, Kind: topology.GuestVM, Running: true, Pins: cpus(t, "0-1")}}
	unknown := topology.Host{
		Region: "region-1", Name: "pve-1", Online: true,
		Machine: topology.FromCounts("Intel(R) N305", 1, 8, 16, 32000),
	}
	offline := load(t, "xeon-e5-2680v3-offline-cpu0")
	offline.Problem = "storage local-lvm is not active"
	return map[string]drawing{
		"epyc-7451": {epyc, cpumap.Owners(&epyc, []fleet.VM{
			vm(t, 2001, "1-2,49-50", 0, 8<<10), vm(t, 2002, "3-5,51-53", 0, 12<<10), vm(t, 2003, "6-11,54-59", 1, 30<<10),
			vm(t, 2004, "24,72", 4, 4<<10), vm(t, 2005, "30-32,78-80", 5, 24<<10), vm(t, 2006, "42-43,90-91", 7, 8<<10),
		})},
		"xeon-6230": {xeon, cpumap.Owners(&xeon, []fleet.VM{
			vm(t, 2001, "4,8,44,48", 0, 64<<10), vm(t, 2002, "12,16,20,24,52,56,60,64", 0, 128<<10),
			vm(t, 2003, "2,6,10,14,18,22,26,30,42,46,50,54,58,62,66,70", 2, 256<<10), vm(t, 2004, "1,41", 1, 16<<10),
		})},
		"ryzen-hx370": {ryzen, cpumap.Owners(&ryzen, []fleet.VM{
			vm(t, 2001, "2-3,14-15", 0, 8<<10), vm(t, 2002, "4-7,16-19", 0, 16<<10),
		})},
		"counts-only": {unknown, cpumap.Owners(&unknown, []fleet.VM{vm(t, 2001, "2-5", 0, 4<<10)})},
		"offline":     {offline, cpumap.Owners(&offline, nil)},
		"nothing":     {topology.Host{Region: "region-1", Name: "pve-1", Problem: "host is down"}, cpumap.Ownership{}},
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for name, d := range drawings(t) {
		wide := cpumap.Text(&d.host, d.owners, cpumap.Options{})
		thin := cpumap.Text(&d.host, d.owners, cpumap.Options{Width: 40})
		golden(t, name+".txt", []byte("width 100\n\n"+wide+"\nwidth 40\n\n"+thin))
	}
}

func TestSVG(t *testing.T) {
	t.Parallel()
	for name, d := range drawings(t) {
		svg := cpumap.SVG([]topology.Host{d.host}, map[topology.HostID]cpumap.Ownership{d.host.ID(): d.owners})
		wellFormed(t, svg)
		golden(t, name+".svg", svg)
	}
}

// wellFormed checks that an image is one self-contained XML document.
func wellFormed(t testing.TB, svg []byte) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
	rest := strings.Replace(string(svg), `xmlns="http://www.w3.org/2000/svg"`, "", 1)
	for _, outside := range []string{"http:", "https:", "href", "<script", "@import"} {
		if strings.Contains(rest, outside) {
			t.Errorf("the image has %q: must not refer to external resources", outside)
		}
	}
}

func TestSVGOfSeveralHosts(t *testing.T) {
	t.Parallel()
	a, b := load(t, "nuc-i7-1165g7-4c8t"), load(t, "laptop-i5-m560-2c4t")
	b.Name = "pve-2"
	owners := map[topology.HostID]cpumap.Ownership{
		b.ID(): cpumap.Owners(&b, nil), {Region: "region-9", Host: "gone"}: {},
	}
	svg := cpumap.SVG([]topology.Host{a, b}, owners)
	wellFormed(t, svg)
	if first, second := bytes.Index(svg, []byte("region-1/pve-1")), bytes.Index(svg, []byte("region-1/pve-2")); first < 0 || second < first {
		t.Errorf("hosts are at %d and %d: want both, in order", first, second)
	}
	if n := bytes.Count(svg, []byte(`<title>CPU `)); n != 1+8+4 {
		t.Errorf("%d titles, want one for each of 12 CPUs and one for the image", n)
	}
	wellFormed(t, cpumap.SVG(nil, nil))
}

func TestNamesFromProxmoxAreHarmless(t *testing.T) {
	t.Parallel()
	h := load(t, "laptop-i5-m560-2c4t")
	h.Model = "<script>alert(1)</script>\x1b[2J"
	h.Guests = []topology.Guest{{VMID: 100, Name: `"/><x>&` + "\x1b]0;\x00\xff", Kind: topology.GuestVM, Running: true, Pins: cpus(t, "1")}}
	owners := cpumap.Owners(&h, nil)
	wellFormed(t, cpumap.SVG([]topology.Host{h}, map[topology.HostID]cpumap.Ownership{h.ID(): owners}))
	text := cpumap.Text(&h, owners, cpumap.Options{})
	if strings.ContainsAny(text, "\x1b\x00") || !utf8.ValidString(text) || !strings.Contains(text, `"/><x>&?]0;?? (100)`) {
		t.Errorf("the text would disturb a terminal:\n%q", text)
	}
}

func TestTextKeepsItsWidth(t *testing.T) {
	t.Parallel()
	all := drawings(t)
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(rt *rapid.T) {
		d := all[rapid.SampledFrom(names).Draw(rt, "drawing")]
		width := rapid.IntRange(40, 200).Draw(rt, "width")
		for line := range strings.Lines(cpumap.Text(&d.host, d.owners, cpumap.Options{Width: width})) {
			line = strings.TrimRight(line, "\n")
			if n := utf8.RuneCountInString(line); n > width || strings.TrimRight(line, " ") != line {
				rt.Fatalf("line of %d characters at width %d: %q", n, width, line)
			}
		}
	})
}

func TestTextHasEachCPUOnce(t *testing.T) {
	t.Parallel()
	for _, name := range machines.Names() {
		h := load(t, name)
		free := 0
		for line := range strings.Lines(cpumap.Text(&h, cpumap.Ownership{}, cpumap.Options{Width: 300})) {
			if strings.HasPrefix(line, "  L3 ") {
				free += strings.Count(line, ".")
			}
		}
		if want := h.OnlineCPUs().Size(); free != want {
			t.Errorf("%s: %d cells, want %d", name, free, want)
		}
	}
}

// TestMemoryOnlyNodes checks that the text shows whether VMs may use the memory of NUMA
// nodes without CPUs.
func TestMemoryOnlyNodes(t *testing.T) {
	t.Parallel()
	h := load(t, "constructed/xeon-2s-memory-only")
	some := topology.CPUs(3)
	h.MemoryNodes = &some
	text := cpumap.Text(&h, cpumap.Ownership{}, cpumap.Options{})
	if strings.Count(text, "\n  no CPUs, memory for VMs\n") != 1 || strings.Count(text, "\n  no CPUs, memory not for VMs\n") != 1 {
		t.Errorf("got\n%s", text)
	}
}

func TestManyOwners(t *testing.T) {
	t.Parallel()
	h := load(t, "kunpeng920-2s-4node")
	var vms []fleet.VM
	for i := range 100 {
		vms = append(vms, vm(t, 2000+i, topology.CPUs(i).String(), 0, 1))
	}
	text := cpumap.Text(&h, cpumap.Owners(&h, vms), cpumap.Options{})
	for _, want := range []string{"\n  a workers-2000", "\n  9 workers-2061", "\n  + workers-2062", "\n  + workers-2099"} {
		if !strings.Contains(text, want) {
			t.Errorf("the legend lacks %q:\n%s", want, text)
		}
	}
}

// hosts returns hosts with the same machine.
func hosts(t testing.TB, count int) []topology.Host {
	t.Helper()
	all := make([]topology.Host, count)
	for i := range all {
		all[i] = load(t, "xeon-4108-2s-smt")
		all[i].Name = topology.HostName(fmt.Sprintf("pve-%02d", i+1))
	}
	return all
}

// TestSVGIsAboutSquare checks that an image of many hosts is about as wide as high, and
// that the images of up to three hosts of this size still have one column.
func TestSVGIsAboutSquare(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 2, 3, 7, 40, 100} {
		svg := cpumap.SVG(hosts(t, count), nil)
		wellFormed(t, svg)
		var width, height int
		if _, err := fmt.Sscanf(string(svg), `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"`, &width, &height); err != nil {
			t.Fatal(err)
		}
		ratio := float64(width) / float64(height)
		if count <= 3 && width != 1000 || count > 3 && (ratio < 0.6 || ratio > 1.6) {
			t.Errorf("%d hosts: %d × %d", count, width, height)
		}
		if n := bytes.Count(svg, []byte(`class="h1"`)); n != count {
			t.Errorf("%d hosts: the image has %d", count, n)
		}
	}
}

// TestSharedVMsAreVisible checks that a host whose VMs all share its CPUs does not look
// empty in text and image.
func TestSharedVMsAreVisible(t *testing.T) {
	t.Parallel()
	h := load(t, "nuc-i7-1165g7-4c8t")
	for vmid := range 2 {
		h.Guests = append(h.Guests, topology.Guest{VMID: 2001 + vmid, Kind: topology.GuestVM, Running: true, VCPUs: 3})
	}
	owners := cpumap.Owners(&h, nil)
	text := cpumap.Text(&h, owners, cpumap.Options{})
	for _, want := range []string{"8 free, 0 owned, 0 reserved, 6 vCPUs not pinned\n", "[~~]", "  ~ free, shared by 2 guests with 6 vCPUs\n", "guest 2001 3 vCPUs"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	svg := string(cpumap.SVG([]topology.Host{h}, map[topology.HostID]cpumap.Ownership{h.ID(): owners}))
	for _, want := range []string{"6 vCPUs not pinned", `class="bar-shared"`, `<g class="shared">`, "free, shared by 2 guests with 6 vCPUs"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the image lacks %q", want)
		}
	}
	empty := load(t, "nuc-i7-1165g7-4c8t")
	if text := cpumap.Text(&empty, cpumap.Ownership{}, cpumap.Options{}); strings.Contains(text, "~") || strings.Contains(text, "not pinned") {
		t.Errorf("an empty host has shared CPUs:\n%s", text)
	}
}
