package scaler_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// filesOf returns the files of a fleet with the VMs.
func filesOf(t *testing.T, cluster string, vms ...fleet.VM) generator.Files {
	t.Helper()
	f := fleet.Fleet{
		ClusterID: cluster, Backend: fleet.Backend{Type: "local"}, VMs: vms,
		Regions: []fleet.Region{{Name: "lab", Endpoint: "https://pve-1.example:8006/"}},
	}
	f.Hosts = f.AllHosts()
	f.Sort()
	files, err := generator.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestCompareEdits finds the VMs that a person added, removed and edited in the files, and
// refuses files that are not a valid fleet.
func TestCompareEdits(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil)
	larger := vm(pve1, 2001)
	larger.MemoryMiB = 8192
	now := filesOf(t, clusterID, vm(pve1, 2000), vm(pve1, 2001), vm(pve1, 2002))
	edits, err := s.Compare(now, filesOf(t, clusterID, vm(pve1, 2000), larger, vm(pve2, 2003)))
	if err != nil {
		t.Fatal(err)
	}
	got := [][]fleet.VMID{ids(edits.Added), ids(edits.Edited), ids(edits.Removed)}
	if diff := cmp.Diff([][]fleet.VMID{{2003}, {2001}, {2002}}, got); diff != "" {
		t.Errorf("added, edited and removed (-want +got):\n%s", diff)
	}
	if want := []topology.HostID{pve1, pve2}; !slices.Equal(edits.Hosts(), want) {
		t.Errorf("hosts %v, want %v", edits.Hosts(), want)
	}

	broken := maps.Clone(now)
	for name := range broken {
		if strings.Contains(name, "/node-") {
			broken[name] = []byte("module \"x\" {\n  source = \"../../../etc\"\n}\n")
		}
	}
	for name, after := range map[string]generator.Files{"broken": broken, "another cluster": filesOf(t, "other", vm(pve1, 2000))} {
		if _, err := s.Compare(now, after); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if edits, err := s.Compare(now, nil); err != nil || len(edits.Removed) != 3 {
		t.Errorf("without files: %+v, %v", edits, err)
	}
}
