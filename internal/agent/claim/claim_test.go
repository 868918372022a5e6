package claim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/topology"
)

// host returns a host with 8 cores of two threads each, n and n+8. CPU 15 is offline.
func host() claim.Host {
	var cpus []topology.CPU
	for id := range 16 {
		cpus = append(cpus, topology.CPU{ID: id, Online: id != 15, Core: id % 8})
	}
	return claim.NewHost(cpus)
}

func rules() claim.Rules {
	return claim.Rules{
		Clusters: []string{"prod", "stage"}, MaxPercent: 80, Reserved: topology.CPUs(0), Emulator: fleet.EmulatorGuest,
	}
}

func marker(vmid int, pins ...int) string {
	return fleet.Marker{ClusterID: "prod", Key: key(vmid), Pins: pins}.String()
}

func key(vmid int) fleet.Key { return fleet.Key(fmt.Sprintf("%032x", vmid)) }

func pins(vmid int, cpus ...int) *claim.Pins {
	return &claim.Pins{ClusterID: "prod", Key: key(vmid), CPUs: cpus, Emulator: fleet.EmulatorGuest}
}

// guest returns a guest that declares pins and runs as many vCPUs.
func guest(vmid int, current *claim.Pins, cpus ...int) claim.Guest {
	return claim.Guest{VMID: vmid, Description: marker(vmid, cpus...), VCPUs: len(cpus), Current: current}
}

// says returns a guest with two vCPUs and the given description.
func says(vmid int, current *claim.Pins, description string) claim.Guest {
	return claim.Guest{VMID: vmid, Description: description, VCPUs: 2, Current: current}
}

// outcome returns a decision as text: the CPUs, then the reason.
func outcome(v claim.Decision) string {
	text := "floats"
	if v.Pins != nil {
		text = strings.Trim(fmt.Sprint(v.Pins.CPUs), "[]")
	}
	if v.Refused != nil {
		text += " " + string(v.Refused.Reason)
	}
	return text
}

type test struct {
	name   string
	guests []claim.Guest
	want   []string
}

func tests() []test {
	otherCluster := strings.Replace(marker(1, 1, 9), "prod", "other", 1)
	current := pins(1, 1, 9)
	return []test{
		{"in the order of vCPUs", []claim.Guest{guest(1, nil, 9, 1)}, []string{"9 1"}},
		{"nobody's", []claim.Guest{says(1, nil, "a database")}, []string{"floats"}},
		{"a marker without pins", []claim.Guest{says(1, nil, marker(1))}, []string{"floats"}},
		{"pins gone", []claim.Guest{says(1, current, marker(1))}, []string{"floats"}},
		{"marker gone", []claim.Guest{says(1, current, "")}, []string{"floats"}},

		{"garbage", []claim.Guest{says(1, nil, "numaform/1 pins=1-9")}, []string{"floats malformed"}},
		{"garbage keeps", []claim.Guest{says(1, current, "numaform/1 pins=1-9")}, []string{"1 9 malformed"}},
		{"another version keeps", []claim.Guest{says(1, current, "numaform/2 cluster=prod")}, []string{"1 9 malformed"}},
		{"unread keeps", []claim.Guest{{VMID: 1, Current: current, Unread: "gone"}}, []string{"1 9 unread"}},
		{"of another cluster", []claim.Guest{says(1, nil, otherCluster)}, []string{"floats foreign_cluster"}},
		{"of another cluster, pins remain", []claim.Guest{says(1, current, otherCluster)}, []string{"1 9 foreign_cluster"}},
		{"of another cluster, without pins", []claim.Guest{says(1, nil, strings.Replace(marker(1), "prod", "other", 1))}, []string{"floats"}},
		{"offline", []claim.Guest{guest(1, nil, 7, 15)}, []string{"floats no_such_cpu"}},
		{"out of range", []claim.Guest{guest(1, current, 1, 65535)}, []string{"1 9 no_such_cpu"}},
		{"reserved", []claim.Guest{guest(1, nil, 0, 8)}, []string{"floats reserved_cpu"}},
		{"too few vCPUs", []claim.Guest{{VMID: 1, Description: marker(1, 1, 9), VCPUs: 1}}, []string{"floats vcpus_differ"}},
		{"vCPUs unknown keep", []claim.Guest{{VMID: 1, Description: marker(1, 2, 10), Current: current}}, []string{"1 9 vcpus_differ"}},

		{
			"beside one that is refused for another's CPU",
			[]claim.Guest{guest(1, pins(1, 1, 9), 1, 9), guest(2, nil, 1, 2), guest(3, nil, 2, 3)},
			[]string{"1 9", "floats overlap", "2 3"},
		},
		{"overlap, both new", []claim.Guest{guest(1, nil, 1, 9), guest(2, nil, 2, 9), guest(3, nil, 3, 11)}, []string{"floats overlap", "floats overlap", "3 11"}},
		{"the owner keeps it", []claim.Guest{guest(1, nil, 1, 9), guest(2, pins(2, 9, 2), 9, 2)}, []string{"floats overlap", "9 2"}},
		{"a thread each of one core", []claim.Guest{guest(1, nil, 1, 2), guest(2, nil, 9, 3)}, []string{"1 2", "9 3"}},
		{"exchange", []claim.Guest{guest(1, pins(1, 1), 2), guest(2, pins(2, 2), 1)}, []string{"2", "1"}},
		{"onto a CPU that another releases", []claim.Guest{guest(1, nil, 2), says(2, pins(2, 2), "")}, []string{"2", "floats"}},
		{"onto a CPU that another cannot release", []claim.Guest{guest(1, nil, 2), guest(2, pins(2, 2), 3), guest(3, pins(3, 3), 3)}, []string{"floats overlap", "2 overlap", "3"}},
		{"a chain of those", []claim.Guest{guest(1, pins(1, 1), 2), guest(2, pins(2, 2), 3), guest(3, pins(3, 3), 0)}, []string{"1 overlap", "2 overlap", "3 reserved_cpu"}},
		{"a clone", []claim.Guest{guest(1, current, 1, 9), {VMID: 2, Description: marker(1, 2, 10), VCPUs: 2}}, []string{"1 9", "floats key_twice"}},
		{"two clones", []claim.Guest{guest(1, nil, 1, 9), {VMID: 2, Description: marker(1, 2, 10), VCPUs: 2}}, []string{"floats key_twice", "floats key_twice"}},

		{"ceiling", []claim.Guest{guest(1, nil, 1, 2, 3), guest(2, nil, 4, 5, 6, 7), guest(3, nil, 11)}, []string{"1 2 3", "floats ceiling", "11"}},
		{"ceiling, two above it", []claim.Guest{guest(1, nil, 1, 2, 3), guest(2, nil, 4, 5, 6, 7), guest(3, nil, 12, 13, 14, 8)}, []string{"1 2 3", "floats ceiling", "floats ceiling"}},
		{"ceiling, the owner keeps its pins", []claim.Guest{guest(1, nil, 1, 2, 3), guest(2, pins(2, 4, 5, 6, 7), 4, 5, 6, 7)}, []string{"floats ceiling", "4 5 6 7"}},
		{"ceiling lowered below two", []claim.Guest{guest(1, pins(1, 1, 2, 3), 1, 2, 3), guest(2, pins(2, 4, 5, 6, 7), 4, 5, 6, 7)}, []string{"1 2 3", "floats ceiling"}},
		{"ceiling lowered", []claim.Guest{guest(1, pins(1, 1, 2, 3, 4, 5, 6, 7), 1, 2, 3, 4, 5, 6, 7)}, []string{"floats ceiling"}},
		{"cluster no longer allowed", []claim.Guest{says(1, &claim.Pins{ClusterID: "old", CPUs: []int{1}}, "numaform/1")}, []string{"floats foreign_cluster"}},

		{"within its own affinity", []claim.Guest{{VMID: 1, Description: marker(1, 1, 9), VCPUs: 2, Affinity: topology.CPUs(1, 9)}}, []string{"1 9"}},
		{"outside its own affinity", []claim.Guest{{VMID: 1, Description: marker(1, 1, 9), VCPUs: 2, Affinity: topology.CPUs(2, 9)}}, []string{"floats affinity"}},
		{"in another's affinity", []claim.Guest{guest(1, nil, 1, 9), {VMID: 2, Affinity: topology.CPUs(8, 9)}}, []string{"floats affinity", "floats"}},
		{"an affinity that came later", []claim.Guest{guest(1, current, 1, 9), {VMID: 2, Affinity: topology.CPUs(8, 9)}}, []string{"1 9", "floats"}},
	}
}

// TestUnknownVCPUs checks the refusal of pins for a guest whose number of vCPUs is unknown:
// the refusal does not state a number of running vCPUs.
func TestUnknownVCPUs(t *testing.T) {
	t.Parallel()
	decisions := claim.Decide(host(), rules(), []claim.Guest{{VMID: 1, Description: marker(1, 2, 10)}})
	if got := decisions[0].Refused; got == nil || !strings.HasPrefix(got.Text, "the number of running vCPUs is unknown, but 2 pins are declared: ") {
		t.Errorf("refused: %v", got)
	}
}

// TestCeilingIsIncluded checks that exactly the maximum share of a host can be pinned, and
// one more CPU cannot.
func TestCeilingIsIncluded(t *testing.T) {
	t.Parallel()
	var cpus []topology.CPU
	for id := range 10 {
		cpus = append(cpus, topology.CPU{ID: id, Online: true, Core: id})
	}
	for count, want := range map[int]string{8: "1 2 3 4 5 6 7 8", 9: "floats ceiling"} {
		list := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}[:count]
		verdicts := claim.Decide(claim.NewHost(cpus), rules(), []claim.Guest{guest(1, nil, list...)})
		if got := outcome(verdicts[0]); got != want {
			t.Errorf("%d of 10 CPUs: %s, want %s", count, got, want)
		}
	}
}

// TestPinsAreEqual checks that Equal compares every field of pins, and accepts nil.
func TestPinsAreEqual(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(p *claim.Pins)
		want   bool
	}{
		"nothing":  {func(*claim.Pins) {}, true},
		"cluster":  {func(p *claim.Pins) { p.ClusterID = "stage" }, false},
		"key":      {func(p *claim.Pins) { p.Key = key(2) }, false},
		"emulator": {func(p *claim.Pins) { p.Emulator = fleet.EmulatorShared }, false},
		"CPUs":     {func(p *claim.Pins) { p.CPUs = []int{9, 1} }, false},
	} {
		other := pins(1, 1, 9)
		tt.change(other)
		if got := pins(1, 1, 9).Equal(other); got != tt.want {
			t.Errorf("%s changed: equal is %t", name, got)
		}
	}
	if pins(1, 1).Equal(nil) || !(*claim.Pins)(nil).Equal(nil) {
		t.Error("nil pins equal other pins")
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for _, tt := range tests() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, guests := range [][]claim.Guest{tt.guests, reversed(tt.guests)} {
				var got []string
				for _, verdict := range claim.Decide(host(), rules(), guests) {
					got = append(got, outcome(verdict))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("outcomes (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func reversed(guests []claim.Guest) []claim.Guest {
	other := slices.Clone(guests)
	slices.Reverse(other)
	return other
}

// TestSharedKeepsOffSiblings checks that the CPUs of guests without pins exclude both threads
// of a core if a guest is pinned to one of them.
func TestSharedKeepsOffSiblings(t *testing.T) {
	t.Parallel()
	h := host()
	got := h.Shared(topology.CPUs(1, 2, 9))
	if want := topology.CPUs(0, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14); !got.Equal(want) {
		t.Errorf("shared %s, want %s", got, want)
	}
	lone := claim.NewHost([]topology.CPU{{ID: 0, Online: true, Core: topology.Unknown}, {ID: 1, Online: true, Core: topology.Unknown}})
	if got := lone.Shared(topology.CPUs(0)); !got.Equal(topology.CPUs(1)) {
		t.Errorf("shared %s where siblings are unknown, want 1", got)
	}
}

// drawGuests draws guests with disjoint current pins and arbitrary declarations.
func drawGuests(t *rapid.T) []claim.Guest {
	free := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}).Draw(t, "free")
	var guests []claim.Guest
	for vmid := range rapid.IntRange(1, 6).Draw(t, "guests") {
		g := claim.Guest{VMID: vmid, VCPUs: rapid.IntRange(0, 3).Draw(t, "vcpus")}
		if n := rapid.IntRange(0, 2).Draw(t, "current"); n > 0 && len(free) > n {
			g.Current, free = pins(vmid, free[:n]...), free[n:]
		}
		requested := rapid.SliceOfNDistinct(rapid.IntRange(0, 17), 0, 3, rapid.ID).Draw(t, "pins")
		g.Description = marker(rapid.SampledFrom([]int{vmid, vmid, vmid, 1}).Draw(t, "key"), requested...)
		if rapid.IntRange(0, 9).Draw(t, "doubt") == 0 {
			g.Description = "numaform/1 ?"
		}
		if rapid.IntRange(0, 9).Draw(t, "root") == 0 {
			g.Affinity = topology.CPUs(rapid.SliceOfN(rapid.IntRange(0, 15), 1, 8).Draw(t, "affinity")...)
		}
		guests = append(guests, g)
	}
	return guests
}

// TestDecideProperties checks for any declarations that no CPU is assigned twice, the rules
// are met, a guest gets its current or its declared pins, and a second call changes
// nothing.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		guests := drawGuests(t)
		checkVerdicts(t, guests, claim.Decide(host(), rules(), guests))
	})
}

type fataler interface{ Fatalf(string, ...any) }

func checkVerdicts(t fataler, guests []claim.Guest, verdicts []claim.Decision) {
	h, taken := host(), topology.CPUSet{}
	for i, v := range verdicts {
		g := &guests[i]
		if v.Pins == nil {
			g.Current = nil
			continue
		}
		declared := v.Pins.CPUs
		if m, ok := fleet.ParseMarker(g.Description); ok {
			declared = m.Pins
		}
		if !v.Pins.Equal(g.Current) && (!slices.Equal(declared, v.Pins.CPUs) || len(declared) != g.VCPUs || v.Refused != nil) {
			t.Fatalf("guest %d got %v (%v), declares %q, had %v", g.VMID, v.Pins, v.Refused, g.Description, g.Current)
		}
		set := v.Pins.Set()
		if set.Size() != len(v.Pins.CPUs) || !taken.Intersection(set).IsEmpty() || !set.IsSubsetOf(h.Online().Difference(rules().Reserved)) {
			t.Fatalf("guest %d got %v beside %s", g.VMID, v.Pins.CPUs, taken)
		}
		taken = taken.Union(set)
		g.Current = v.Pins
	}
	if whole := h.Whole(taken).Size(); whole*100 > h.Online().Size()*rules().MaxPercent {
		t.Fatalf("%d CPUs are pinned", whole)
	}
	for i, again := range claim.Decide(host(), rules(), guests) {
		if !again.Pins.Equal(verdicts[i].Pins) {
			t.Fatalf("guest %d had %v, and got %v in a second decision", again.VMID, verdicts[i].Pins, again.Pins)
		}
	}
}

// FuzzDecide checks that a pinned guest keeps its pins, whatever two other guests declare.
func FuzzDecide(f *testing.F) {
	for _, text := range []string{
		"", marker(1, 1, 9), marker(1, 1, 9) + "\n" + marker(2, 3), "numaform/2 x", marker(9, 4, 12), marker(1, 65535, 0),
		strings.Replace(marker(1, 1, 9), "prod", "stage", 1) + " emulator=shared",
	} {
		f.Add(text, marker(2, 1, 9), 2)
	}
	f.Fuzz(func(t *testing.T, one, two string, vcpus int) {
		guests := []claim.Guest{
			{VMID: 1, Description: one, VCPUs: vcpus}, {VMID: 2, Description: two, VCPUs: vcpus, Current: pins(2, 3, 11)}, guest(9, pins(9, 4, 12), 4, 12),
		}
		verdicts := claim.Decide(host(), rules(), guests)
		if got := outcome(verdicts[2]); got != "4 12" {
			t.Fatalf("the guest that is pinned got %s", got)
		}
		checkVerdicts(t, guests, verdicts)
	})
}

// TestReasonsAreExplained checks that numaform explains each reason of the agent in a sentence.
func TestReasonsAreExplained(t *testing.T) {
	t.Parallel()
	for _, reason := range claim.Reasons() {
		host := topology.Host{
			Agent:  &topology.Agent{Clusters: []string{"prod"}, Refused: map[int]string{2000: string(reason)}},
			Guests: []topology.Guest{{VMID: 2000, Name: "web-1", ClusterID: "prod"}},
		}
		faults := host.AgentFaults("prod", host.ReadAt)
		if len(faults) != 1 || strings.Contains(faults[0].What, "does not know") || !strings.Contains(faults[0].What, " ("+string(reason)+")") {
			t.Errorf("reason %s: faults are %+v", reason, faults)
		}
	}
}
