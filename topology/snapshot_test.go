package topology_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numaform/numaform/topology"
)

func exampleSnapshot(t *testing.T) *topology.Snapshot {
	t.Helper()
	return &topology.Snapshot{
		Regions: []topology.Region{{Name: "region-1", Version: "9.0.3", Quorate: true, Pools: []string{"k8s"}}},
		Hosts: []topology.Host{
			{
				Region: "region-1", Name: "pve-1", Online: true, Machine: load(t, "xeon-4108-2s-smt"),
				ReservedCPUs: topology.CPUs(0, 16), ReservedMemoryMiB: 1024,
				Guests: []topology.Guest{
					{VMID: 100, Name: "<b>&", Kind: topology.GuestContainer, Running: true, VCPUs: 2, MemoryMiB: 512},
					{
						VMID: 2001, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8192, Pins: topology.CPUs(1, 2, 17, 18),
						NUMA: []topology.NUMACell{{
							GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(0),
							MemoryMiB: 8192, Policy: topology.NUMABind,
						}},
						Tags: []string{"numaform"}, ClusterID: "prod", Key: "5f1d",
					},
				},
				Storages:  []topology.Storage{{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 100, FreeMiB: 50}},
				Templates: []topology.Template{{VMID: 9000, Name: "ubuntu", DiskInterface: "scsi0", DiskGiB: 4, Storage: "local-lvm", Options: map[string]string{"bios": "ovmf"}}},
			},
			{Region: "region-1", Name: "pve-2", Problem: "host is offline"},
		},
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	want := exampleSnapshot(t)
	text, err := want.Print()
	if err != nil {
		t.Fatal(err)
	}
	got, err := topology.ParseSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	again, err := got.Print()
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("prints differently the second time, error %v:\n%s", err, cmp.Diff(string(text), string(again)))
	}
	for _, line := range strings.Split(string(text), "\n") {
		if len(line) > 400 {
			t.Errorf("a line of %d characters is not readable: %s", len(line), line)
		}
	}
}

func TestSnapshotPrintSorts(t *testing.T) {
	t.Parallel()
	sorted, shuffled := exampleSnapshot(t), exampleSnapshot(t)
	h := shuffled.Hosts
	h[0], h[1] = h[1], h[0]
	g := h[1].Guests
	g[0], g[1] = g[1], g[0]
	cpus := h[1].CPUs
	cpus[3], cpus[30] = cpus[30], cpus[3]
	want, err := sorted.Print()
	if err != nil {
		t.Fatal(err)
	}
	got, err := shuffled.Print()
	if err != nil || !bytes.Equal(want, got) {
		t.Errorf("the output depends on the order, error %v:\n%s", err, cmp.Diff(string(want), string(got)))
	}
	if h[0].Name != "pve-2" || g[0].VMID != 2001 || cpus[3].ID != 30 {
		t.Error("printing reordered the snapshot itself")
	}
}

func TestParseSnapshotRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		spoil func(s *topology.Snapshot)
		err   string
	}{
		{"host of no region", func(s *topology.Snapshot) { s.Hosts[1].Region = "region-9" }, "host region-9/pve-2: each host must have a unique name and a region"},
		{"host twice", func(s *topology.Snapshot) { s.Hosts[1].Name = "pve-1" }, "host region-1/pve-1: each host must have a unique name"},
		{"region twice", func(s *topology.Snapshot) { s.Regions = append(s.Regions, s.Regions[0]) }, `region "region-1": each region must have a unique name`},
		{"VMID twice", func(s *topology.Snapshot) { s.Hosts[1].Guests = s.Hosts[0].Guests[:1] }, "host region-1/pve-2: guest 100 also exists on host pve-1"},
		{"VMID 0", func(s *topology.Snapshot) { s.Hosts[0].Guests[0].VMID = 0 }, "guest 0: vmid must be positive"},
		{"guest kind", func(s *topology.Snapshot) { s.Hosts[0].Guests[0].Kind = "vm" }, `kind is "vm": must be qemu or lxc`},
		{"reserved CPU", func(s *topology.Snapshot) { s.Hosts[0].ReservedCPUs = topology.CPUs(99) }, "reserved_cpus names CPUs 99, which do not exist"},
		{"reserved memory", func(s *topology.Snapshot) { s.Hosts[0].ReservedMemoryMiB = -1 }, "reserved_memory_mib is -1"},
		{"load", func(s *topology.Snapshot) { s.Hosts[0].Load = &topology.Load{CPUPercent: 101} }, "load has cpu_percent 101"},
		{"machine", func(s *topology.Snapshot) { s.Hosts[0].CPUs[1].ID = 0 }, "host region-1/pve-1: cpu 0 is listed twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := exampleSnapshot(t)
			test.spoil(s)
			text, err := s.Print()
			if err != nil {
				t.Fatal(err)
			}
			_, err = topology.ParseSnapshot(text)
			checkError(t, err, test.err)
		})
	}
}

func TestParseSnapshotNamesTheLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, err string }{
		{`{"regions": [], "hosts": []}`, "it has format 0, but this numaform reads only format 1"},
		{"{\"format\": 1, \"regions\": [],\n\"hosts\": [{\"region\": \"r\", \"guest\": []}]}", "line 2: hosts[0].guest: unknown key"},
		{"{\"format\": 1,\n\"hosts\": [{\"reserved_cpus\": \"3-1\"}]}", "line 2: hosts[0].reserved_cpus: parsing cpu list"},
	} {
		_, err := topology.ParseSnapshot([]byte(test.text))
		checkError(t, err, test.err)
	}
}

func TestSnapshotHost(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(t)
	if h := s.Host(topology.HostID{Region: "region-1", Host: "pve-2"}); h != &s.Hosts[1] {
		t.Errorf("got %v", h)
	}
	if h := s.Host(topology.HostID{Region: "region-1", Host: "pve-3"}); h != nil {
		t.Errorf("found %s, which does not exist", h.ID())
	}
}

func FuzzParseSnapshot(f *testing.F) {
	f.Add([]byte(`{"format": 1, "regions": [{"name": "r", "quorate": true}], "hosts": [{"region": "r", "name": "h", "online": true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := topology.ParseSnapshot(data)
		if err != nil {
			return
		}
		text, err := s.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := topology.ParseSnapshot(text)
		if diff := cmp.Diff(s, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("prints as %s, error %v:\n%s", text, err, diff)
		}
	})
}
