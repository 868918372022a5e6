package planner_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// TestAgentsCeiling checks that no plan has pins that the host's agent would refuse: the
// agent counts siblings and always leaves a core unpinned.
func TestAgentsCeiling(t *testing.T) {
	t.Parallel()
	agent := &topology.Agent{MaxPinnedPercent: 90}
	half := &topology.Agent{MaxPinnedPercent: 50}
	const refused = "r1/nuc has a numaform-agent that allows pinning of "
	for _, test := range []struct {
		name    string
		agent   *topology.Agent
		with    fleet.PinWith
		sizes   []int
		refusal string // of the last spec
	}{
		{"one core stays free", agent, fleet.PinWithHostAgent, []int{8}, refused + "7 more CPUs, including siblings"},
		{"one core stays free at 100 percent", &topology.Agent{MaxPinnedPercent: 100}, fleet.PinWithHostAgent, []int{8}, refused + "7 more CPUs"},
		{"exactly the ceiling", agent, fleet.PinWithHostAgent, []int{6}, ""},
		{"above the ceiling", agent, fleet.PinWithHostAgent, []int{6, 2}, refused + "1 more CPU"},
		{"siblings of odd threads count", half, fleet.PinWithHostAgent, []int{2, 1, 2}, refused + "0 more CPUs"},
		{"on a core that is already pinned", half, fleet.PinWithHostAgent, []int{2, 1, 1}, ""},
		{"pins by affinity do not count", half, fleet.PinWithAffinity, []int{6, 2}, ""},
		{"no agent", nil, fleet.PinWithHostAgent, []int{8}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			nuc := host("nuc", known(t, "nuc-i7-1165g7-4c8t"))
			nuc.Agent = test.agent
			p := planner.New(snapshot(nuc), nil)
			for i, vcpus := range test.sizes {
				s := spec(fleet.PolicyDedicated, vcpus, gib, "nuc")
				s.PinWith = test.with
				_, unplaced := p.Place([]fleet.Spec{s})
				switch last := i == len(test.sizes)-1; {
				case last && test.refusal != "":
					if len(unplaced) != 1 || !strings.Contains(unplaced[0].Reason, test.refusal) {
						t.Errorf("want a refusal %q, got %v", test.refusal, unplaced)
					}
				case len(unplaced) > 0:
					t.Errorf("VM %d is refused: %s", i, unplaced[0].Reason)
				}
			}
		})
	}
}
