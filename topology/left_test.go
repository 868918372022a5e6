package topology_test

import (
	"testing"

	"github.com/numaform/numaform/topology"
)

// TestLeft checks that a host has left its cluster only if the cluster was read completely, and
// has neither the host nor guests of it.
func TestLeft(t *testing.T) {
	t.Parallel()
	gone := topology.HostID{Region: "lab", Host: "pve-1"}
	for name, test := range map[string]struct {
		change func(*topology.Snapshot)
		want   bool
	}{
		"not in the cluster":       {want: true},
		"only in numaform.yaml":    {change: func(s *topology.Snapshot) { s.Hosts[0].Absent = true }, want: true},
		"a member":                 {change: func(s *topology.Snapshot) { s.Hosts[0].Absent, s.Hosts[0].Online = false, true }},
		"offline":                  {change: func(s *topology.Snapshot) { s.Hosts[0].Absent, s.Hosts[0].Problem = false, "is offline" }},
		"its guests are listed":    {change: func(s *topology.Snapshot) { s.Hosts[0].Guests = []topology.Guest{{VMID: 100}} }},
		"only the host itself":     {change: func(s *topology.Snapshot) { s.Regions[0].Clustered = false }},
		"no quorum":                {change: func(s *topology.Snapshot) { s.Regions[0].Quorate = false }},
		"hidden or unread":         {change: func(s *topology.Snapshot) { s.Regions[0].HidesGuests = true }},
		"another region":           {change: func(s *topology.Snapshot) { s.Regions[0].Name, s.Hosts[1].Region = "office", "office" }},
		"no host of the region":    {change: func(s *topology.Snapshot) { s.Hosts = s.Hosts[:1] }},
		"no host of it is online":  {change: func(s *topology.Snapshot) { s.Hosts[1].Online = false }},
		"the region was not read":  {change: func(s *topology.Snapshot) { s.Regions = nil }},
		"the other host is absent": {change: func(s *topology.Snapshot) { s.Hosts[1].Online, s.Hosts[1].Absent = false, true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			snapshot := &topology.Snapshot{
				Regions: []topology.Region{{Name: "lab", Quorate: true, Clustered: true}},
				Hosts:   []topology.Host{{Region: "lab", Name: "pve-1", Absent: true}, {Region: "lab", Name: "pve-2", Online: true}},
			}
			if test.change != nil {
				test.change(snapshot)
			} else {
				snapshot.Hosts = snapshot.Hosts[1:]
			}
			if got := snapshot.Left(gone); got != test.want {
				t.Errorf("left: %t, want %t", got, test.want)
			}
		})
	}
}
