package garbage_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func TestOrphans(t *testing.T) {
	w := newWorld(t)
	wanted, leaving := newVM(2000), newVM(2001)
	w.wants(wanted, scaler.PhaseMade, nil)
	w.wants(leaving, scaler.PhaseRemoving, nil)
	w.runs(wanted)
	w.runs(leaving)
	w.runs(newVM(2002))
	w.runs(newVM(2003), func(g *topology.Guest) { g.ClusterID = "staging" })
	w.runs(newVM(2004), func(g *topology.Guest) { g.ClusterID, g.Key = "", "" })
	w.runs(newVM(2005), func(g *topology.Guest) { g.Template = true })
	w.runs(wanted, func(g *topology.Guest) { g.VMID, g.Name = 150, "Copy-of-VM-workers-2000" })
	joined := newVM(2006)
	w.runs(joined)
	w.node(joined)
	w.look("orphans")
	w.after(59 * time.Second)
	w.look("orphans")
	w.wantEvents()
	w.after(time.Second)
	w.look("orphans")
	said := strings.Join(w.wantEvents("ConfigMap/numaform-control OrphanedVM: ", "ConfigMap/numaform-control OrphanedVM: ", "Node/workers-2006 OrphanedVM: "), "\n")
	for _, want := range []string{
		"VM 2002 (workers-2002) on lab/pve-1 has the marker of this numaform installation, but is not in any file",
		"VM 150 (Copy-of-VM-workers-2000) on lab/pve-1 has the marker of this numaform installation, with the key of VM workers-2000",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the events are %q, want %q", said, want)
		}
	}
	if diff := cmp.Diff(map[topology.HostID]int{pve1(): 3}, w.collector.Orphans()); diff != "" {
		t.Errorf("orphans differ:\n%s", diff)
	}
	w.after(time.Hour)
	w.look("orphans")
	w.wantEvents()
	w.wantRemoved() // never: a VMID does not prove ownership
	w.snapshot.Hosts[0].Guests = nil
	w.look("orphans")
	if got := w.collector.Orphans(); len(got) != 0 {
		t.Errorf("orphans stay: %v", got)
	}
}
