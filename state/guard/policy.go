package guard

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"go.yaml.in/yaml/v3"
)

//go:embed default-policy.yaml
var defaultPolicy []byte

// defaultPolicyName is the name of the default policy in errors and docs.
const defaultPolicyName = "default-policy.yaml"

// DefaultPolicy returns the text of the default policy.
func DefaultPolicy() []byte { return slices.Clone(defaultPolicy) }

// Policy is an operator's list of compiled rules. A rule is evaluated for each plan, or
// for each resource that a plan changes. The strictest decision of the matching rules
// applies. A change that no rule allows needs approval, and a plan with changes is denied
// if no rule could be evaluated. The invariants apply whatever the rules decide. A Policy
// is safe for concurrent use.
type Policy struct {
	rules []policyRule
}

// policyRule is one rule, compiled.
type policyRule struct {
	name     string
	decision Decision
	// each is set if the rule is evaluated for every changed resource.
	each bool
	when cel.Program
	// message is the reason, unless messageExpression is set.
	message           string
	messageExpression cel.Program
}

// Names returns the names of the rules in their order.
func (p *Policy) Names() []string {
	names := make([]string, len(p.rules))
	for i := range p.rules {
		names[i] = p.rules[i].name
	}
	return names
}

// And returns a policy with the rules of both. Their names must differ.
func (p *Policy) And(more *Policy) (*Policy, error) {
	known := p.Names()
	for _, name := range more.Names() {
		if slices.Contains(known, name) {
			return nil, fmt.Errorf("extending policy: rule %s is in both policies: rename one of the rules", name)
		}
	}
	return &Policy{rules: slices.Concat(p.rules, more.rules)}, nil
}

// maxPolicyBytes and maxPolicyRules far exceed any policy written by hand.
const (
	maxPolicyBytes = 1 << 20
	maxPolicyRules = 1000
)

// policyName matches the names of rules.
var policyName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)

// ruleKeys are the keys that a rule may have.
var ruleKeys = []string{"name", "description", "each", "when", "decision", "message", "messageExpression"}

// ParsePolicy compiles a policy. name is the file name in errors, which also contain the
// line and the rule if these are known. A policy without rules is an error.
func ParsePolicy(name string, text []byte) (*Policy, error) {
	p := &policyParser{file: name}
	policy := p.parse(text)
	if len(p.faults) > 0 {
		return nil, fmt.Errorf("reading policy: %w", errors.Join(p.faults...))
	}
	return policy, nil
}

// policyParser parses one file and collects its errors.
type policyParser struct {
	file   string
	faults []error
	// ofPlan has the variables for rules about a plan; ofResource has three more.
	ofPlan, ofResource *cel.Env
}

// fault records an error at a line, about a rule if rule is not empty.
func (p *policyParser) fault(line int, rule, format string, args ...any) {
	where := p.file
	if line > 0 {
		where = fmt.Sprintf("%s:%d", p.file, line)
	}
	if rule != "" {
		where += ": rule " + rule
	}
	p.faults = append(p.faults, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
}

func (p *policyParser) parse(text []byte) *Policy {
	if len(text) > maxPolicyBytes {
		p.fault(0, "", "the policy has %d bytes, but the limit is %d: shorten it", len(text), maxPolicyBytes)
		return nil
	}
	if err := p.declare(); err != nil {
		p.fault(0, "", "setting up CEL: %v", err)
		return nil
	}

	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		p.fault(0, "", "the file is empty, and a policy without rules denies everything: add a list named rules")
		return nil
	} else if err != nil {
		p.fault(0, "", "%v", err)
		return nil
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		p.fault(second.Line, "", "the file has a second document: remove it")
		return nil
	}
	root := document.Content[0]
	list := p.fields(root, "", []string{"rules"})["rules"]
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		p.fault(root.Line, "", "the file has no rules, and a policy without rules denies everything: add a list named rules")
		return nil
	}
	if len(list.Content) > maxPolicyRules {
		p.fault(list.Line, "", "the policy has %d rules, but the limit is %d: remove some", len(list.Content), maxPolicyRules)
		return nil
	}

	policy := &Policy{}
	lines := map[string]int{}
	for i, node := range list.Content {
		rule := p.rule(node, i)
		if line, ok := lines[rule.name]; ok && rule.name != "" {
			p.fault(node.Line, rule.name, "line %d already has a rule of that name: rename one", line)
		}
		lines[rule.name] = node.Line
		policy.rules = append(policy.rules, rule)
	}
	return policy
}

// declare declares the variables and functions of rules.
func (p *policyParser) declare() error {
	functions, err := boundedTexts()
	if err != nil {
		return err
	}
	object := cel.MapType(cel.StringType, cel.DynType)
	p.ofPlan, err = cel.NewEnv(append([]cel.EnvOption{
		ext.Strings(), ext.Sets(), ext.Math(), cel.CrossTypeNumericComparisons(true),
		ext.NativeTypes(
			reflect.TypeFor[intentFacts](), reflect.TypeFor[targetFacts](),
			reflect.TypeFor[changeFacts](), reflect.TypeFor[resourceFacts](), ext.ParseStructTags(true),
		),
		cel.Variable("plan", object),
		cel.Variable("intent", cel.ObjectType("guard.intentFacts")),
		cel.Variable("change", cel.ObjectType("guard.changeFacts")),
		cel.Variable("pools", cel.ListType(cel.StringType)),
	}, functions...)...)
	if err != nil {
		return err
	}
	p.ofResource, err = p.ofPlan.Extend(
		cel.Variable("resource", cel.ObjectType("guard.resourceFacts")),
		cel.Variable("before", object),
		cel.Variable("after", object),
	)
	return err
}

// fields returns the values of an object by key. Unknown keys are errors.
func (p *policyParser) fields(node *yaml.Node, rule string, known []string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		p.fault(node.Line, rule, "the value must be an object with the keys %s", strings.Join(known, ", "))
		return nil
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case !slices.Contains(known, key.Value):
			p.fault(key.Line, rule, "key %.60q is unknown: use %s", key.Value, strings.Join(known, ", "))
		case fields[key.Value] != nil:
			p.fault(key.Line, rule, "duplicate key %s: remove one", key.Value)
		default:
			fields[key.Value] = value
		}
	}
	return fields
}

// rule parses rule number i.
func (p *policyParser) rule(node *yaml.Node, i int) policyRule {
	number := fmt.Sprintf("number %d", i+1)
	label := cmp.Or(ruleName(node), number)
	fields := p.fields(node, label, ruleKeys)
	if fields == nil {
		return policyRule{}
	}
	texts := map[string]string{}
	for _, key := range ruleKeys {
		field := fields[key]
		if field == nil {
			continue
		}
		if field.Kind != yaml.ScalarNode || key != "name" && field.Tag != "!!str" {
			p.fault(field.Line, label, "%s is not a string: put it in quotes", key)
			continue
		}
		texts[key] = strings.TrimSpace(field.Value)
	}

	rule := policyRule{name: texts["name"], message: texts["message"], each: texts["each"] != ""}
	if !policyName.MatchString(rule.name) {
		p.fault(node.Line, number, "the name is missing or invalid: use lower-case letters, digits and hyphens, as in no-night-shift")
	}
	if rule.each && texts["each"] != "resource" {
		p.fault(fields["each"].Line, label, "each %.40q is unknown: set resource, or remove each to evaluate the rule for the whole plan", texts["each"])
	}
	decision, known := decisionWords[texts["decision"]]
	rule.decision = decision
	switch {
	case fields["decision"] == nil:
		p.fault(node.Line, label, "decision is missing: set allow, approve or deny")
	case !known:
		p.fault(fields["decision"].Line, label, "decision %.40q is unknown: set allow, approve or deny", fields["decision"].Value)
	}
	if fields["when"] == nil {
		p.fault(node.Line, label, "when is missing: add a CEL expression that is true when the rule applies")
	}
	message, expression := fields["message"], fields["messageExpression"]
	switch {
	case message != nil && expression != nil:
		p.fault(expression.Line, label, "message and messageExpression are both set: remove one")
	case rule.decision != Allow && rule.message == "" && expression == nil:
		p.fault(node.Line, label, "message is missing: say what is wrong and how to fix it")
	}
	env := p.ofPlan
	if rule.each {
		env = p.ofResource
	}
	rule.when = p.compile(env, label, "when", fields["when"], cel.BoolType)
	rule.messageExpression = p.compile(env, label, "messageExpression", expression, cel.StringType)
	return rule
}

// ruleName returns the name of a rule for errors, even if other parts of the rule are
// invalid, or "".
func ruleName(node *yaml.Node) string {
	for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
		value := node.Content[i+1]
		if node.Content[i].Value == "name" && value.Kind == yaml.ScalarNode && policyName.MatchString(value.Value) {
			return value.Value
		}
	}
	return ""
}

// compile compiles the CEL expression in a rule's field to a program with a result of type
// want. It returns nil if the field is missing or invalid.
func (p *policyParser) compile(env *cel.Env, rule, key string, field *yaml.Node, want *cel.Type) cel.Program {
	if field == nil || field.Tag != "!!str" {
		return nil
	}
	text := strings.TrimSpace(field.Value)
	if text == "" {
		p.fault(field.Line, rule, "%s is empty: add a CEL expression", key)
		return nil
	}
	line := field.Line
	if field.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		line++ // the text begins below the key
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		issue := issues.Errors()[0]
		p.fault(line+issue.Location.Line()-1, rule, "%s: %s", key, strings.ReplaceAll(issue.Message, "guard.", ""))
		return nil
	}
	if got := ast.OutputType(); !got.IsExactType(want) {
		p.fault(line, rule, "%s: the result is %s, but must be %s", key, got, want)
		return nil
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(costs{}), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		p.fault(line, rule, "%s: %v", key, err)
	}
	return program
}
