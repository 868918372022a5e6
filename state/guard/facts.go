package guard

import (
	"encoding/json"
	"math"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"
)

// The facts are the variables of a policy. Their tags are the names used in rules.

// changeFacts are the counts of what the plan of a host does.
type changeFacts struct {
	Creates int64 `cel:"creates"`
	Deletes int64 `cel:"deletes"`
	Imports int64 `cel:"imports"`
	Updates int64 `cel:"updates"`
	// Nodes is the number of the host's VMs before the change.
	Nodes int64 `cel:"nodes"`
	// Hosts is the number of hosts of the targets.
	Hosts int64 `cel:"hosts"`
}

type intentFacts struct {
	ClusterID string        `cel:"cluster_id"`
	Create    []targetFacts `cel:"create"`
	Delete    []targetFacts `cel:"delete"`
	Import    []targetFacts `cel:"import"`
	Update    []targetFacts `cel:"update"`
}

type targetFacts struct {
	Address string `cel:"address"`
	Name    string `cel:"name"`
	VMID    int64  `cel:"vmid"`
	Key     string `cel:"key"`
	Host    string `cel:"host"`
	Pool    string `cel:"pool"`
	Drained bool   `cel:"drained"`
}

// resourceFacts describe a resource that a plan changes.
type resourceFacts struct {
	Address string `cel:"address"`
	// Kind is "vm" or "firewall"; any other resource is denied before.
	Kind string `cel:"kind"`
	// Action is create, delete, update, import, replace, forget, move, or the plan's own
	// term.
	Action string `cel:"action"`
	Name   string `cel:"name"`
	Host   string `cel:"host"`
	Pool   string `cel:"pool"`
	VMID   int64  `cel:"vmid"`
}

func (j *judge) changeFacts(plan *tfjson.Plan) changeFacts {
	facts := changeFacts{
		Creates: int64(len(j.intent.Create)), Deletes: int64(len(j.intent.Delete)),
		Imports: int64(len(j.intent.Import)), Updates: int64(len(j.intent.Update)),
	}
	hosts := map[string]bool{}
	for _, w := range j.wanted {
		hosts[string(w.Host)] = true
	}
	facts.Hosts = int64(len(hosts))
	if plan.PriorState != nil {
		for _, r := range resources(plan.PriorState.Values) {
			if r != nil && r.Type == ResourceType {
				facts.Nodes++
			}
		}
	}
	return facts
}

func (j *judge) intentFacts() intentFacts {
	return intentFacts{
		ClusterID: j.intent.ClusterID,
		Create:    targetsOf(j.intent.Create), Delete: targetsOf(j.intent.Delete),
		Import: targetsOf(j.intent.Import), Update: targetsOf(j.intent.Update),
	}
}

func targetsOf(targets []Target) []targetFacts {
	facts := make([]targetFacts, len(targets))
	for i, t := range targets {
		facts[i] = targetFacts{
			Address: t.Address, Name: nameOf(t.Address), VMID: int64(t.VMID), Key: string(t.Key),
			Host: string(t.Host), Pool: t.Pool, Drained: t.Drained && t.Blocked == "",
		}
	}
	return facts
}

// pools returns the names of the pools in the intent, sorted.
func (j *judge) pools() []string {
	pools := []string{}
	for _, w := range j.wanted {
		if w.Pool != "" {
			pools = append(pools, w.Pool)
		}
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// resourceFacts returns the facts about a change. Unknown facts about the VM are empty.
func (j *judge) resourceFacts(rc *tfjson.ResourceChange) resourceFacts {
	facts := resourceFacts{Address: rc.Address, Kind: rc.Type, Action: actionOf(rc)}
	vm := rc.Address
	switch rc.Type {
	case ResourceType:
		facts.Kind = "vm"
	case FirewallType:
		facts.Kind, vm = "firewall", VMOf(rc.Address)
	}
	facts.Name = nameOf(vm)
	if w := j.wanted[vm]; w != nil {
		facts.Host, facts.Pool, facts.VMID = string(w.Host), w.Pool, int64(w.VMID)
	}
	return facts
}

// actionOf returns the term for what a change does.
func actionOf(rc *tfjson.ResourceChange) string {
	actions := rc.Change.Actions
	switch {
	case rc.Change.Importing != nil && (actions.NoOp() || actions.Update()):
		return "import"
	case actions.Replace():
		return "replace"
	case actions.NoOp() && rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address:
		return "move"
	}
	return join(actions)
}

// idle reports whether a plan leaves a resource and its address unchanged.
func idle(rc *tfjson.ResourceChange) bool { return actionOf(rc) == string(tfjson.ActionNoop) }

// object returns a copy of an object for use in CEL.
func object(v any) map[string]any {
	m, _ := plainly(v).(map[string]any)
	return m
}

// plainly copies a value of a plan, converting whole numbers to integers.
func plainly(v any) any {
	switch t := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(t))
		for name, e := range t {
			m[name] = plainly(e)
		}
		return m
	case []any:
		l := make([]any, len(t))
		for i, e := range t {
			l[i] = plainly(e)
		}
		return l
	case float64:
		if t == math.Trunc(t) && math.Abs(t) < 1<<53 {
			return int64(t)
		}
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return i
		}
		f, _ := t.Float64()
		return f
	}
	return v
}

// planFacts returns a plan as its JSON object. It costs more than all other facts
// together, so it is computed only for rules that use it.
func planFacts(plan *tfjson.Plan) (map[string]any, error) {
	raw, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	err = json.Unmarshal(raw, &doc)
	return object(doc), err
}
