package guard

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	tfjson "github.com/hashicorp/terraform-json"
)

// maxMessage limits the result of a rule's message expression, in bytes.
const maxMessage = 500

// errTooMuch reports that the rules together exceed maxTotal.
var errTooMuch = fmt.Errorf("all rules together took more than %d of CEL's units: write fewer, or let them look at less", maxTotal)

// errNotSaid reports that an expression has no boolean result.
var errNotSaid = errors.New("it gives neither yes nor no")

// policy evaluates the policy's rules for a plan.
func (j *judge) policy(plan *tfjson.Plan, policy *Policy) {
	if policy == nil {
		return // already denied
	}
	if len(policy.rules) == 0 {
		j.deny(RulePolicy, "", "the policy has no rules: load one that has, or use the shipped one")
		return
	}
	q := j.question(plan)
	for i := range policy.rules {
		q.ask(&policy.rules[i])
	}
	q.close()
}

// question is one evaluation of a policy.
type question struct {
	*judge
	facts   cel.Activation
	changed []*tfjson.ResourceChange
	// resources holds the variables of each element of changed, filled when a rule first
	// needs them.
	resources []map[string]any
	// work is the remaining cost budget of all rules.
	work uint64
	// asked counts evaluations; allowed holds the addresses of the changes that a rule
	// allows: "" means all.
	asked   int
	allowed map[string]bool
}

func (j *judge) question(plan *tfjson.Plan) *question {
	q := &question{judge: j, allowed: map[string]bool{}, work: maxTotal}
	for _, rc := range plan.ResourceChanges {
		if rc != nil && rc.Change != nil && !idle(rc) {
			q.changed = append(q.changed, rc)
		}
	}
	facts, err := cel.NewActivation(map[string]any{
		"intent": j.intentFacts(), "change": j.changeFacts(plan), "pools": j.pools(),
		"plan": func() any {
			doc, err := planFacts(plan)
			if err != nil {
				return types.WrapErr(err)
			}
			return doc
		},
	})
	if err != nil {
		j.deny(RulePolicy, "", fmt.Sprintf("the rules cannot be asked: %v", err))
	}
	q.facts = facts
	return q
}

// ask evaluates one rule, for the plan or for each changed resource.
func (q *question) ask(rule *policyRule) {
	if q.facts == nil {
		return
	}
	if !rule.each {
		q.answer(rule, "", q.facts)
		return
	}
	if q.resources == nil {
		for _, rc := range q.changed {
			q.resources = append(q.resources, map[string]any{
				"resource": q.resourceFacts(rc), "before": object(rc.Change.Before), "after": object(rc.Change.After),
			})
		}
	}
	for i, rc := range q.changed {
		q.answer(rule, rc.Address, hierarchy{q.resources[i], q.facts})
	}
}

// answer evaluates a rule once and records the result.
func (q *question) answer(rule *policyRule, address string, facts cel.Activation) {
	holds, err := evaluate[bool](q, rule.when, facts)
	if err != nil {
		q.broken(rule, address, err)
		return
	}
	q.asked++
	if !holds {
		return
	}
	if rule.decision == Allow {
		q.allowed[address] = true
		return
	}
	message := rule.message
	if rule.messageExpression != nil {
		if message, err = evaluate[string](q, rule.messageExpression, facts); err != nil {
			q.broken(rule, address, err)
			return
		}
		message = harmless(message)
	}
	q.findings = append(q.findings, Finding{
		Rule: PolicyRule(rule.name), Decision: rule.decision, Address: address, Message: message,
	})
}

// broken denies a plan for which a rule cannot be evaluated.
func (q *question) broken(rule *policyRule, address string, err error) {
	q.deny(PolicyRule(rule.name), address, fmt.Sprintf("the rule cannot be evaluated, so it denies: %s: mend it, and try it with `numaform policy test`", harmless(err.Error())))
}

// close adds findings for what no rule decided.
func (q *question) close() {
	if len(q.changed) == 0 {
		return
	}
	if q.asked == 0 {
		q.deny(RulePolicy, "", "no rule of the policy was evaluated: mend the rules, or use the shipped ones")
		return
	}
	for _, rc := range q.changed {
		if !q.allowed[""] && !q.allowed[rc.Address] {
			q.judge.ask(RulePolicy, rc.Address, "no rule of the policy allows it: approve it, or add a rule that does")
		}
	}
}

// hierarchy resolves names first among the variables of a resource, then among the
// plan's.
type hierarchy struct {
	inner map[string]any
	outer cel.Activation
}

// ResolveName returns the value of a variable.
func (h hierarchy) ResolveName(name string) (any, bool) {
	if v, ok := h.inner[name]; ok {
		return v, true
	}
	return h.outer.ResolveName(name)
}

// Parent returns the variables that belong to no resource.
func (h hierarchy) Parent() cel.Activation { return h.outer }

// evaluate returns the result of an expression.
func evaluate[T bool | string](q *question, program cel.Program, facts cel.Activation) (T, error) {
	var none T
	if q.work == 0 {
		return none, errTooMuch
	}
	value, details, err := program.Eval(facts)
	cost := uint64(maxCost) // the cost if evaluation was stopped
	if known := details.ActualCost(); err == nil && known != nil {
		cost = *known
	}
	q.work -= min(q.work, cost)
	if err != nil {
		return none, err
	}
	said, ok := value.Value().(T)
	if !ok {
		return none, errNotSaid
	}
	return said, nil
}

// harmless returns a text derived from a plan as one short line without secrets.
func harmless(text string) string {
	for _, p := range secretPatterns {
		if p.pattern.MatchString(text) {
			return "the reason is not shown, as it looks like " + p.name
		}
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + " …"
	}
	return text
}
