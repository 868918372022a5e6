package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

// Governor configures frequency scaling of pinned CPUs. With the zero value, the agent
// changes no governor.
type Governor struct {
	// Pinned is the governor of cores with a pinned vCPU.
	Pinned string `yaml:"pinned"`
	// Free is the governor after the pins are removed; empty means the earlier one.
	Free string `yaml:"free"`
	// Unpinned is the governor of all other cores, including those that never had a pinned
	// vCPU; empty leaves them unchanged.
	Unpinned string `yaml:"unpinned"`
}

// Governed is a frequency policy whose governor the agent set.
type Governed struct {
	Policy int `json:"policy"`
	// CPUs are the online CPUs of the policy.
	CPUs topology.CPUSet `json:"cpus"`
	Was  string          `json:"was"`
	Now  string          `json:"now"`
	// Free is true once the governor for pinned CPUs no longer applies: no core of the policy
	// has a pinned vCPU, or no governor is configured.
	Free bool `json:"free,omitempty"`
	// PutBack is the number of times that the agent restored the governor after another
	// program changed it.
	PutBack int `json:"put_back,omitempty"`
	// Problem is the reason why the policy's governor is not Now, or empty.
	Problem string `json:"problem,omitempty"`
}

// governors returns the policies whose governor the agent set, must set, or must restore. It
// reads a policy's earlier governor before the agent changes it.
func (a *Agent) governors(next *State) []Governed {
	exclusive := next.Online.Difference(next.Shared)
	managed := []Governed{}
	for _, policy := range a.policies {
		last := find(a.state.Governors, func(g Governed) bool { return g.Policy == policy.ID })
		pinned := a.Settings.Governor.Pinned != "" && !policy.CPUs.Intersection(exclusive).IsEmpty()
		switch {
		case last == nil && !pinned && a.Settings.Governor.Unpinned == "":
			continue
		case last == nil:
			was, err := a.frequencies.Governor(policy.ID)
			if err != nil {
				a.Log.Debug("governor not read", logkey.Message, err.Error())
				continue
			}
			last = &Governed{Policy: policy.ID, Was: was}
		}
		g := *last
		g.CPUs = policy.CPUs
		g.Free = !pinned
		g.Now = a.Settings.Governor.Pinned
		if g.Free {
			g.Now = cmp.Or(a.Settings.Governor.Unpinned, a.Settings.Governor.Free, g.Was)
		}
		managed = append(managed, g)
	}
	return managed
}

// governorNote explains why the configured governors have no effect, or returns an empty
// string.
func (a *Agent) governorNote() string {
	if a.Settings.Governor.Pinned == "" || len(a.policies) > 0 {
		return ""
	}
	return "this host has no cpufreq, because it is a VM or its firmware scales frequencies: remove governor from the agent's configuration"
}

// govern sets each governor that differs from the desired one. It sets the governor of free
// CPUs only once, and drops the record of a policy whose earlier governor it restored. With
// a governor for unpinned CPUs, it keeps the record, so that it sets that only once, too.
func (a *Agent) govern() {
	set := map[string]topology.CPUSet{}
	for i := range a.state.Governors {
		g := &a.state.Governors[i]
		known := a.governed[g.Policy] == g.Now
		if g.Free && known {
			continue
		}
		before := g.Problem
		g.Problem = ""
		now, err := a.frequencies.Governor(g.Policy)
		differs := err == nil && now != g.Now
		if differs {
			if known {
				g.PutBack++
			}
			if known && g.PutBack == 1 {
				a.Log.Warn("restored governor that another program changed; further changes are only counted", "cpus", g.CPUs.String(), "had", now, "governor", g.Now)
			}
			err = a.frequencies.SetGovernor(g.Policy, g.Now)
		}
		if err != nil {
			delete(a.governed, g.Policy)
			if g.Problem = err.Error(); g.Problem != before {
				a.Log.Warn("governor not set", "cpus", g.CPUs.String(), logkey.Message, g.Problem)
			}
			continue
		}
		a.governed[g.Policy] = g.Now
		if differs && !known {
			set[g.Now] = set[g.Now].Union(g.CPUs)
		}
	}
	for _, governor := range slices.Sorted(maps.Keys(set)) {
		a.Log.Info("set governor", "cpus", set[governor].String(), "governor", governor)
	}
	a.state.Governors = slices.DeleteFunc(a.state.Governors, func(g Governed) bool {
		done := g.Free && g.Now == g.Was && g.Problem == "" && a.Settings.Governor.Unpinned == ""
		if done {
			delete(a.governed, g.Policy)
		}
		return done
	})
}
