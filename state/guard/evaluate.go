package guard

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/interpreter"
	tfjson "github.com/hashicorp/terraform-json"
)

// maxMessage limits the result of a rule's message expression, in bytes.
const maxMessage = 500

// errTooMuch reports that the rules together exceed maxTotal.
var errTooMuch = fmt.Errorf("all rules together exceed the cost limit of %d CEL units: use fewer or simpler rules", maxTotal)

// evaluation is one evaluation of a policy.
type evaluation struct {
	*checker
	// budget is the remaining cost of all rules.
	budget uint64
	// evaluated counts the evaluations of conditions that succeeded; allowed holds the
	// addresses of the changes that a rule allows: "" means all.
	evaluated int
	allowed   map[string]bool
}

// policy evaluates each rule of a policy, once for the plan or once for each changed
// resource. A change that no rule allows needs approval.
func (c *checker) policy(plan *tfjson.Plan, policy *Policy) {
	if policy == nil {
		return // already denied
	}
	if len(policy.rules) == 0 {
		c.deny(RulePolicy, "", "the policy has no rules: add rules, or use the default policy")
		return
	}
	facts, err := c.facts(plan)
	if err != nil {
		c.deny(RulePolicy, "", fmt.Sprintf("the rules cannot be evaluated: %v", err))
		return
	}
	var changes []*tfjson.ResourceChange
	for _, rc := range plan.ResourceChanges {
		if rc != nil && rc.Change != nil && actionOf(rc) != string(tfjson.ActionNoop) {
			changes = append(changes, rc)
		}
	}

	e := &evaluation{checker: c, budget: maxTotal, allowed: map[string]bool{}}
	var resources []cel.Activation // of the changes, each added when a rule first needs it
	for i := range policy.rules {
		rule := &policy.rules[i]
		if !rule.each {
			e.evaluate(rule, "", facts)
			continue
		}
		for n, rc := range changes {
			if n == len(resources) {
				resource, err := c.resourceActivation(rc)
				if err != nil {
					c.deny(RulePolicy, rc.Address, fmt.Sprintf("the rules cannot be evaluated: %v", err))
					return
				}
				resources = append(resources, interpreter.NewHierarchicalActivation(facts, resource))
			}
			e.evaluate(rule, rc.Address, resources[n])
		}
	}

	if len(changes) > 0 && e.evaluated == 0 {
		c.deny(RulePolicy, "", "no rule of the policy was evaluated: fix the rules, or use the default policy")
		return
	}
	for _, rc := range changes {
		if !e.allowed[""] && !e.allowed[rc.Address] {
			c.needApproval(RulePolicy, rc.Address, "no rule of the policy allows it: approve it, or add a rule that allows it")
		}
	}
}

// evaluate evaluates a rule once and records the result. A rule that cannot be evaluated
// denies the plan.
func (e *evaluation) evaluate(rule *policyRule, address string, facts cel.Activation) {
	matches, err := result[bool](e, rule.when, facts)
	if err == nil {
		e.evaluated++
	}
	message := rule.message
	if err == nil && matches && rule.messageExpression != nil {
		message, err = result[string](e, rule.messageExpression, facts)
		message = harmless(message)
	}
	switch {
	case err != nil:
		e.deny(PolicyRule(rule.name), address, fmt.Sprintf("the rule cannot be evaluated, so the plan is denied: %s: fix the rule, and test it with `numaform policy test`", harmless(err.Error())))
	case !matches:
	case rule.decision == Allow:
		e.allowed[address] = true
	default:
		e.findings = append(e.findings, Finding{
			Rule: PolicyRule(rule.name), Decision: rule.decision, Address: address, Message: message,
		})
	}
}

// result returns the result of an expression, and subtracts its cost from the budget. It
// returns errTooMuch if the budget is used up, and an error if the result is not a T.
func result[T bool | string](e *evaluation, program cel.Program, facts cel.Activation) (T, error) {
	var none T
	if e.budget == 0 {
		return none, errTooMuch
	}
	value, details, err := program.Eval(facts)
	cost := uint64(maxCost) // the cost if evaluation was stopped
	if known := details.ActualCost(); err == nil && known != nil {
		cost = *known
	}
	e.budget -= min(e.budget, cost)
	if err != nil {
		return none, err
	}
	typed, ok := value.Value().(T)
	if !ok {
		return none, fmt.Errorf("its result has type %s: must be %T", value.Type().TypeName(), none)
	}
	return typed, nil
}

// harmless returns a text derived from a plan as one short line without secrets.
func harmless(text string) string {
	if kinds := secretIn(text); len(kinds) > 0 {
		return "the reason is hidden because it looks like " + kinds[0]
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + " …"
	}
	return text
}

// The facts are the variables of a policy. Their tags are the names used in rules.

// changeFacts counts the requested changes on a host.
type changeFacts struct {
	Creates int64 `cel:"creates"`
	Deletes int64 `cel:"deletes"`
	// Gone is the number of deletes of VMs whose Node no longer exists: see Target.Gone.
	Gone    int64 `cel:"gone"`
	Imports int64 `cel:"imports"`
	Updates int64 `cel:"updates"`
	Wakes   int64 `cel:"wakes"`
	// Nodes is the number of VMs in the host's state before the change.
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
	Wake      []targetFacts `cel:"wake"`
}

type targetFacts struct {
	Address string `cel:"address"`
	Name    string `cel:"name"`
	VMID    int64  `cel:"vmid"`
	Key     string `cel:"key"`
	Host    string `cel:"host"`
	Pool    string `cel:"pool"`
	Drained bool   `cel:"drained"`
	Gone    bool   `cel:"gone"`
}

// resourceFacts describe a resource that a plan changes.
type resourceFacts struct {
	Address string `cel:"address"`
	// Kind is "vm", "firewall", or the type of any other resource, which the guard denies.
	Kind string `cel:"kind"`
	// Action is create, delete, update, wake, import, replace, forget, move, or the plan's
	// own term.
	Action string `cel:"action"`
	Name   string `cel:"name"`
	Host   string `cel:"host"`
	Pool   string `cel:"pool"`
	VMID   int64  `cel:"vmid"`
}

// facts returns the variables about the whole plan.
func (c *checker) facts(plan *tfjson.Plan) (cel.Activation, error) {
	change := changeFacts{
		Creates: int64(len(c.intent.Create)),
		Deletes: int64(len(c.intent.Delete)),
		Imports: int64(len(c.intent.Import)),
		Updates: int64(len(c.intent.Update)),
		Wakes:   int64(len(c.intent.Wake)),
	}
	for i := range c.intent.Delete {
		if c.intent.Delete[i].Gone {
			change.Gone++
		}
	}
	if plan.PriorState != nil {
		for _, r := range resources(plan.PriorState.Values) {
			if r != nil && r.Type == ResourceType {
				change.Nodes++
			}
		}
	}
	hosts := map[string]bool{}
	pools := []string{}
	for _, r := range c.requests {
		hosts[string(r.Host)] = true
		if r.Pool != "" {
			pools = append(pools, r.Pool)
		}
	}
	change.Hosts = int64(len(hosts))
	slices.Sort(pools)

	return cel.NewActivation(map[string]any{
		"change": change,
		"intent": intentFacts{
			ClusterID: c.intent.ClusterID,
			Create:    targetsOf(c.intent.Create),
			Delete:    targetsOf(c.intent.Delete),
			Import:    targetsOf(c.intent.Import),
			Update:    targetsOf(c.intent.Update),
			Wake:      targetsOf(c.intent.Wake),
		},
		"pools": slices.Compact(pools),
		// Converting the plan to a JSON object costs more than all other facts together,
		// so only rules that use it cause the conversion.
		"plan": func() any {
			var document map[string]any
			raw, err := json.Marshal(plan)
			if err == nil {
				err = json.Unmarshal(raw, &document)
			}
			if err != nil {
				return types.WrapErr(err)
			}
			return object(document)
		},
	})
}

func targetsOf(targets []Target) []targetFacts {
	facts := make([]targetFacts, len(targets))
	for i, t := range targets {
		facts[i] = targetFacts{
			Address: t.Address,
			Name:    nameOf(t.Address),
			VMID:    int64(t.VMID),
			Key:     string(t.Key),
			Host:    string(t.Host),
			Pool:    t.Pool,
			Drained: t.Drained && t.Blocked == "",
			Gone:    t.Gone,
		}
	}
	return facts
}

// resourceActivation returns the variables about a changed resource. Host, pool and VMID
// are empty if the intent does not contain its VM.
func (c *checker) resourceActivation(rc *tfjson.ResourceChange) (cel.Activation, error) {
	facts := resourceFacts{Address: rc.Address, Kind: rc.Type, Action: actionOf(rc)}
	vm := rc.Address
	switch rc.Type {
	case ResourceType:
		facts.Kind = "vm"
	case FirewallType:
		facts.Kind = "firewall"
		vm = VMOf(rc.Address)
	}
	facts.Name = nameOf(vm)
	if r := c.requests[vm]; r != nil {
		facts.Host = string(r.Host)
		facts.Pool = r.Pool
		facts.VMID = int64(r.VMID)
		if r.operation == opWake && rc.Type == ResourceType && facts.Action == string(tfjson.ActionUpdate) {
			facts.Action = string(opWake)
		}
	}
	return cel.NewActivation(map[string]any{
		"resource": facts, "before": object(rc.Change.Before), "after": object(rc.Change.After),
	})
}

// actionOf returns the policy's term for the action of a change.
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

// object returns a copy of an object for use in CEL, or nil if v is not an object.
func object(v any) map[string]any {
	m, _ := withIntegers(v).(map[string]any)
	return m
}

// withIntegers copies a value of a plan, converting whole numbers to integers.
func withIntegers(v any) any {
	switch t := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(t))
		for name, e := range t {
			m[name] = withIntegers(e)
		}
		return m
	case []any:
		l := make([]any, len(t))
		for i, e := range t {
			l[i] = withIntegers(e)
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
