package scheduling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// idle returns a standby VM of the class shared on a host of the lab.
func idle(id int, host string) fleet.VM {
	vm := keptVM(id, "general", "shared", host, fleet.PolicyShared)
	vm.Standby = true
	vm.Overcommit, vm.CPUType = 1, "host"
	vm.Source = fleet.Source{VMID: 9000}
	return vm
}

// standbyOutcome is the part of a decision that these tests check.
type standbyOutcome struct {
	// Woken are the names of the woken VMs, and Outdated the reasons of the others.
	Woken    []string
	Outdated []string
	// Nodes and Standby are the numbers of new nodes and new standby VMs, and Spare the
	// number of standby VMs that hold no pods.
	Nodes, Standby, Spare int
}

func standbyOutcomeOf(t *testing.T, c *scheduling.Cluster, r scheduling.Request) standbyOutcome {
	t.Helper()
	r.ClusterID = "test"
	d, err := c.Decide(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Refused) > 0 {
		t.Errorf("refused %v", d.Refused)
	}
	o := standbyOutcome{Spare: len(spare(d))}
	for _, w := range d.Woken {
		o.Woken = append(o.Woken, w.VM.Name)
	}
	for _, s := range d.Standby {
		if s.Outdated != "" {
			o.Outdated = append(o.Outdated, s.Outdated)
		}
	}
	for _, n := range d.New {
		if n.Standby {
			o.Standby++
		} else {
			o.Nodes++
		}
	}
	return o
}

// TestMovedStandby checks that a standby VM that another client moved, which no plan can
// start, is not woken but replaced. The templates of the lab's hosts have the same VMID, like
// a template on shared storage.
func TestMovedStandby(t *testing.T) {
	t.Parallel()
	vms := []fleet.VM{idle(2000, "xeon"), idle(2001, "ryzen")}
	moved := vms[0]
	moved.Host.Host = "epyc"
	c := load(t, classes, nodePool("general", "shared", ""), deployment("web", 2, "3", "1Gi", ""))
	got := standbyOutcomeOf(t, c, scheduling.Request{
		Snapshot: withGuests(lab(), moved, vms[1]), Existing: vms, Standby: virtual(2, "3"),
	})
	want := standbyOutcome{
		Woken: []string{"general-2001"}, Outdated: []string{"it was moved from host lab/xeon to host lab/epyc"},
		Nodes: 1, Standby: 2, Spare: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}
