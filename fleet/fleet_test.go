package fleet_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

const someKey = fleet.Key("0123456789abcdef0123456789abcdef")

func TestMarkerRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := fleet.Marker{
			ClusterID: rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?`).Draw(t, "cluster"),
			Key:       fleet.Key(rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "key")),
		}
		if pins := rapid.SliceOfNDistinct(rapid.IntRange(0, 1023), 0, 16, rapid.ID).Draw(t, "pins"); len(pins) > 0 {
			want.Pins = pins
			want.Emulator = rapid.SampledFrom([]fleet.Emulator{"", fleet.EmulatorGuest, fleet.EmulatorShared}).Draw(t, "emulator")
		}
		got, ok := fleet.ParseMarker("somebody's words\n" + want.String() + "\npool workers\n")
		if !ok {
			t.Fatalf("marker %q was not found", want)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("marker changed (-want +got):\n%s", diff)
		}
	})
}

func TestParseMarkerRefuses(t *testing.T) {
	t.Parallel()
	good := fleet.Marker{ClusterID: "prod", Key: someKey}.String()
	tests := []struct{ name, description string }{
		{"nothing", ""},
		{"no marker", "a database\nof the accountants"},
		{"two markers", good + "\n" + good},
		{"not at the start of a line", "see " + good},
		{"short key", "numaform/1 cluster=prod key=0123"},
		{"upper case key", strings.ToUpper(good)},
		{"one cpu twice", good + " pins=4,4"},
		{"a range for pins", good + " pins=4-7"},
		{"something behind it", good + " pins=4 args=-S"},
		{"later format", strings.Replace(good, "/1", "/2", 1)},
		{"later format beside a good one", good + "\n" + strings.Replace(good, "/1", "/2", 1)},
		{"a second spelling of a number", good + " pins=04"},
		{"no such number", good + " pins=65536"},
		{"a place for nothing", good + " emulator=shared"},
		{"a place that is not known", good + " pins=4 emulator=host"},
		{"fields in another order", good + " emulator=shared pins=4"},
		{"a malformed marker beside a good one", good + "\nnumaform/1 cluster= key="},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if marker, ok := fleet.ParseMarker(tt.description); ok {
				t.Errorf("ParseMarker(%q) = %v, want none", tt.description, marker)
			}
		})
	}
}

// TestFindMarker checks that an unmanaged guest has no marker, and that an invalid marker
// is an error.
func TestFindMarker(t *testing.T) {
	t.Parallel()
	good := fleet.Marker{ClusterID: "prod", Key: someKey}.String()
	for description, doubt := range map[string]bool{
		"": false, "see numaform/1": false, "numaform/agent": false, "numaform": false,
		"numaform/1": true, "numaform/2 anything": true, good + " pins=": true, good + "\n" + good: true,
	} {
		marker, found, err := fleet.FindMarker(description)
		if found != doubt || (err != nil) != doubt {
			t.Errorf("FindMarker(%q) = %v, %t, %v, want doubt = %t", description, marker, found, err, doubt)
		}
	}
	_, _, err := fleet.FindMarker("numaform/1 " + strings.Repeat("\x1b[2J", 100))
	if err == nil || len(err.Error()) > 700 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("error %q, want foreign text short and quoted", err)
	}
}

func FuzzParseMarker(f *testing.F) {
	marker := fleet.Marker{ClusterID: "prod", Key: someKey, Pins: []int{4, 36}}
	f.Add(marker.String())
	marker.Emulator = fleet.EmulatorShared
	f.Add("first\r\n" + marker.String() + "\r\nlast")
	f.Add("numaform/1 cluster=prod key=" + string(someKey) + " pins=,")
	f.Fuzz(func(t *testing.T, description string) {
		marker, ok := fleet.ParseMarker(description)
		if !ok {
			return
		}
		if !strings.Contains(description, marker.String()) {
			t.Errorf("ParseMarker(%q) = %v, which is not in it", description, marker)
		}
		if again, ok := fleet.ParseMarker(marker.String()); !ok || !cmp.Equal(marker, again) {
			t.Errorf("%v reads as %v, %t", marker, again, ok)
		}
	})
}

func TestProviderID(t *testing.T) {
	t.Parallel()
	if got, want := fleet.ProviderID("region-1", 2001), "proxmox://region-1/2001"; got != want {
		t.Errorf("ProviderID = %q, want %q", got, want)
	}
	region, vmid, err := fleet.ParseProviderID("proxmox://region-1/2001")
	if err != nil || region != "region-1" || vmid != 2001 {
		t.Errorf("ParseProviderID = %q, %d, %v", region, vmid, err)
	}
	for _, bad := range []string{
		"", "proxmox://", "proxmox://r", "proxmox:///1", "proxmox://r/", "proxmox://r/099", "proxmox://r/+200",
		"proxmox://r/99", "proxmox://r/1000000000", "kvm://r/100", "proxmox://r/100/", "proxmox://a/b/100",
	} {
		if _, _, err := fleet.ParseProviderID(bad); err == nil {
			t.Errorf("ParseProviderID(%q) succeeded", bad)
		}
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  error
		ok   bool
	}{
		{"cluster id", fleet.CheckClusterID("prod-1"), true},
		{"one letter", fleet.CheckClusterID("p"), true},
		{"empty cluster id", fleet.CheckClusterID(""), false},
		{"upper case cluster id", fleet.CheckClusterID("Prod"), false},
		{"cluster id ends in a dash", fleet.CheckClusterID("prod-"), false},
		{"long cluster id", fleet.CheckClusterID(strings.Repeat("a", 33)), false},
		{"pool", fleet.CheckPool("workers"), true},
		{"pool with a dot", fleet.CheckPool("workers.a"), false},
		{"long pool", fleet.CheckPool(strings.Repeat("a", fleet.MaxPoolName+1)), false},
		{"range", fleet.VMIDRange{Lower: 100, Upper: 100}.Check(), true},
		{"range too low", fleet.VMIDRange{Lower: 99, Upper: 200}.Check(), false},
		{"range upside down", fleet.VMIDRange{Lower: 300, Upper: 200}.Check(), false},
		{"range too high", fleet.VMIDRange{Lower: 300, Upper: fleet.MaxVMID + 1}.Check(), false},
	}
	for _, tt := range tests {
		if (tt.err == nil) != tt.ok {
			t.Errorf("%s: error %v, want ok = %t", tt.name, tt.err, tt.ok)
		}
	}
	if got := len(fleet.NodeName(strings.Repeat("a", fleet.MaxPoolName), fleet.MaxVMID)); got != 63 {
		t.Errorf("the longest name has %d characters, want 63", got)
	}
}

func TestAllocatorRotates(t *testing.T) {
	t.Parallel()
	bounds := fleet.VMIDRange{Lower: 200, Upper: 204}
	a := fleet.NewAllocator("r", bounds, fleet.Rotation{Last: 202}, []fleet.VMID{203, 200})
	var got []fleet.VMID
	for {
		id, err := a.Next()
		if err != nil {
			var exhausted *fleet.RangeExhaustedError
			if !errors.As(err, &exhausted) || exhausted.Region != "r" {
				t.Fatalf("Next: %v, want a RangeExhaustedError of region r", err)
			}
			break
		}
		got = append(got, id)
	}
	if diff := cmp.Diff([]fleet.VMID{204, 201, 202}, got); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	if want := (fleet.Rotation{Last: 202, Round: 1}); a.Rotation() != want {
		t.Errorf("Rotation = %v, want %v", a.Rotation(), want)
	}
}

func TestAllocatorStartsInRange(t *testing.T) {
	t.Parallel()
	for _, last := range []fleet.VMID{0, 5000} {
		a := fleet.NewAllocator("r", fleet.VMIDRange{Lower: 200, Upper: 204}, fleet.Rotation{Last: last}, nil)
		if id, err := a.Next(); err != nil || id != 200 {
			t.Errorf("after %d: Next = %d, %v, want 200", last, id, err)
		}
	}
}

func TestSizeWithout(t *testing.T) {
	t.Parallel()
	r := fleet.VMIDRange{Lower: 200, Upper: 209}
	for _, test := range []struct {
		others []fleet.VMIDRange
		want   int
	}{
		{nil, 10},
		{[]fleet.VMIDRange{{Lower: 100, Upper: 199}, {Lower: 210, Upper: 300}}, 10},
		{[]fleet.VMIDRange{{Lower: 208, Upper: 300}, {Lower: 100, Upper: 200}}, 7},
		{[]fleet.VMIDRange{{Lower: 202, Upper: 206}, {Lower: 203, Upper: 204}, {Lower: 205, Upper: 207}}, 4},
		{[]fleet.VMIDRange{{Lower: 100, Upper: 300}, {Lower: 203, Upper: 204}}, 0},
	} {
		if got := r.SizeWithout(test.others...); got != test.want {
			t.Errorf("without %v: got %d, want %d", test.others, got, test.want)
		}
	}
}

// TestAllocatorContinues moves the range back and forth, and checks that the rotation
// always advances, so that no VMID is allocated twice in a round.
func TestAllocatorContinues(t *testing.T) {
	t.Parallel()
	low, high := fleet.VMIDRange{Lower: 200, Upper: 204}, fleet.VMIDRange{Lower: 300, Upper: 304}
	var now fleet.Rotation
	given := map[fleet.Rotation]bool{}
	for i, bounds := range []fleet.VMIDRange{low, high, low, high, low} {
		a := fleet.NewAllocator("r", bounds, now, nil)
		if _, err := a.Next(); err != nil || given[a.Rotation()] || a.Rotation().Compare(now) <= 0 {
			t.Errorf("range %d: %+v after %+v, %v", i, a.Rotation(), now, err)
		}
		now = a.Rotation()
		given[now] = true
	}
	if got, want := now.Past(201, 203, 199), (fleet.Rotation{Last: 203, Round: 2}); got != want {
		t.Errorf("past 203: %+v, want %+v", got, want)
	}
}

// TestAllocatorReserves checks that the allocator of a region leaves the ranges of classes to
// their classes.
func TestAllocatorReserves(t *testing.T) {
	t.Parallel()
	bounds, class := fleet.VMIDRange{Lower: 200, Upper: 207}, fleet.VMIDRange{Lower: 202, Upper: 204}
	a := fleet.NewAllocator("r", bounds, fleet.Rotation{}, []fleet.VMID{205})
	a.Reserve([]fleet.VMIDRange{class, {Lower: 204, Upper: 204}, {Lower: 300, Upper: 310}})
	within, err := a.Within("team", class, fleet.Rotation{})
	if err != nil {
		t.Fatal(err)
	}
	var got []fleet.VMID
	for _, from := range []*fleet.Allocator{a, within, a, within, a, a, within} {
		id, err := from.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	if diff := cmp.Diff([]fleet.VMID{200, 202, 201, 203, 206, 207, 204}, got); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	_, err = a.Next()
	if want := "region r: of the VMIDs from 200 to 207, the spec.vmidRange of ProxmoxNodeClasses reserve 3, and the others are in use"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("full: got %v, want %s", err, want)
	}
}

func TestEachReservationHasItsOwnKey(t *testing.T) {
	t.Parallel()
	bounds := fleet.VMIDRange{Lower: 200, Upper: 201}
	spec := fleet.Spec{Pool: "workers", VCPUs: 2, Hosts: []topology.HostID{{Region: "r", Host: "a"}}}
	name := func(rotation fleet.Rotation, spec fleet.Spec) fleet.VM {
		vm, err := fleet.NewAllocator("r", bounds, rotation, nil).Name("prod", spec, fleet.Placement{}, fleet.Source{})
		if err != nil {
			t.Fatal(err)
		}
		return vm
	}
	first := name(fleet.Rotation{}, spec)
	if first.Name != "workers-200" || first.VMID != 200 || first.Hosts != nil {
		t.Errorf("vm = %+v, want workers-200 without hosts", first)
	}
	if _, ok := fleet.ParseMarker(fleet.Marker{ClusterID: "prod", Key: first.Key}.String()); !ok {
		t.Errorf("key %q does not fit into a marker", first.Key)
	}
	if again := name(fleet.Rotation{}, spec); again.Key != first.Key {
		t.Error("the same decision got another key")
	}
	bigger := spec
	bigger.VCPUs = 4
	later := name(fleet.Rotation{Last: 201}, spec)
	for what, vm := range map[string]fleet.VM{"another spec": name(fleet.Rotation{}, bigger), "the next round": later} {
		if vm.VMID != first.VMID || vm.Key == first.Key {
			t.Errorf("%s: vmid %d, key %s: want the same vmid with another key", what, vm.VMID, vm.Key)
		}
	}
}

func TestAllHostsAndOrder(t *testing.T) {
	t.Parallel()
	at := func(host topology.HostName, id fleet.VMID) fleet.VM {
		return fleet.VM{VMID: id, Placement: fleet.Placement{Host: topology.HostID{Region: "r", Host: host}}}
	}
	f := fleet.Fleet{
		Regions: []fleet.Region{{Name: "r"}, {Name: "a"}},
		VMs:     []fleet.VM{at("b", 102), at("a", 103), at("b", 101)},
	}
	f.Sort()
	if f.Regions[0].Name != "a" || f.VMs[0].VMID != 103 || f.VMs[1].VMID != 101 {
		t.Errorf("order after Sort: %+v", f)
	}
	want := []topology.HostID{{Region: "r", Host: "a"}, {Region: "r", Host: "b"}}
	if diff := cmp.Diff(want, f.AllHosts()); diff != "" {
		t.Errorf("AllHosts (-want +got):\n%s", diff)
	}
}

func TestVMSurvivesJSON(t *testing.T) {
	t.Parallel()
	vm := fleet.VM{
		Key: someKey, VMID: 2001, Name: "workers-2001",
		Placement: fleet.Placement{
			Host: topology.HostID{Region: "r", Host: "a"}, CPUs: topology.CPUs(4, 5, 36, 37), VCPUPins: []int{4, 36, 5, 37},
			Cells: []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(1), MemoryMiB: 8192, Policy: topology.NUMABind}},
		},
	}
	text, err := json.Marshal(vm)
	if err != nil {
		t.Fatal(err)
	}
	var got fleet.VM
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(vm, got); diff != "" {
		t.Errorf("vm changed (-want +got):\n%s", diff)
	}
}

// TestIsGuest checks that neither the VMID nor the marker alone makes a guest the VM, and that
// a migrated VM is still the VM.
func TestIsGuest(t *testing.T) {
	t.Parallel()
	vm := fleet.VM{Key: someKey, VMID: 2001, Placement: fleet.Placement{Host: topology.HostID{Region: "r", Host: "a"}}}
	guest := topology.Guest{VMID: 2001, ClusterID: "prod", Key: string(someKey)}
	for name, tt := range map[string]struct {
		region topology.RegionName
		edit   func(*topology.Guest)
		want   bool
	}{
		"the VM, on any host of its region": {"r", func(*topology.Guest) {}, true},
		"a clone":                           {"r", func(g *topology.Guest) { g.VMID = 150 }, false},
		"a guest with its VMID":             {"r", func(g *topology.Guest) { g.Key = "" }, false},
		"a VM of another installation":      {"r", func(g *topology.Guest) { g.ClusterID = "test" }, false},
		"a copy in another region":          {"s", func(*topology.Guest) {}, false},
	} {
		found := guest
		tt.edit(&found)
		if got := vm.IsGuest("prod", tt.region, &found); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
