package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"go.yaml.in/yaml/v3"
)

// maxPolicyBytes and maxPolicyRules far exceed any policy written by hand.
const (
	maxPolicyBytes = 1 << 20
	maxPolicyRules = 1000
)

// policyName matches the names of rules.
var policyName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)

// ruleKeys are the keys that a rule may have.
var ruleKeys = []string{"name", "description", "each", "when", "decision", "message", "messageExpression"}

// ParsePolicy compiles a policy. name is the file name for errors: each names file, line
// and rule. A policy without rules is an error.
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
	lang   *language
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
		p.fault(0, "", "%d bytes are too many for a policy: at most %d are read", len(text), maxPolicyBytes)
		return nil
	}
	var err error
	if p.lang, err = newLanguage(); err != nil {
		p.fault(0, "", "setting CEL up: %v", err)
		return nil
	}
	root := p.document(text)
	if root == nil {
		return nil
	}
	list := p.fields(root, "", []string{"rules"})["rules"]
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		p.fault(root.Line, "", "there are no rules, and a policy without rules denies everything: want rules, a list")
		return nil
	}
	if len(list.Content) > maxPolicyRules {
		p.fault(list.Line, "", "%d rules are too many: at most %d are read", len(list.Content), maxPolicyRules)
		return nil
	}
	policy := &Policy{}
	names := map[string]int{}
	for i, node := range list.Content {
		rule := p.rule(node, i)
		if line, ok := names[rule.name]; ok && rule.name != "" {
			p.fault(node.Line, rule.name, "a rule of that name stands in line %d already: rename one", line)
		}
		names[rule.name] = node.Line
		policy.rules = append(policy.rules, rule)
	}
	return policy
}

// document returns the only document of the text.
func (p *policyParser) document(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.fault(0, "", "the file is empty, and a policy without rules denies everything: want rules, a list")
		return nil
	case err != nil:
		p.fault(0, "", "%v", err)
		return nil
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		p.fault(more.Line, "", "there is a second document: want one")
		return nil
	}
	if len(doc.Content) != 1 {
		p.fault(doc.Line, "", "want an object with rules")
		return nil
	}
	return doc.Content[0]
}

// fields returns the values of an object by key. Unknown keys are errors.
func (p *policyParser) fields(node *yaml.Node, rule string, known []string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		p.fault(node.Line, rule, "want an object with the keys %s", strings.Join(known, ", "))
		return nil
	}
	fields := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case !slices.Contains(known, key.Value):
			p.fault(key.Line, rule, "key %.60q is unknown: want %s", key.Value, strings.Join(known, ", "))
		case fields[key.Value] != nil:
			p.fault(key.Line, rule, "%s stands twice: remove one", key.Value)
		default:
			fields[key.Value] = value
		}
	}
	return fields
}

// rule parses rule number i.
func (p *policyParser) rule(node *yaml.Node, i int) policyRule {
	number := fmt.Sprintf("number %d", i+1)
	name := ruleName(node)
	label := name
	if name == "" {
		label = number
	}
	fields := p.fields(node, label, ruleKeys)
	if !policyName.MatchString(name) {
		p.fault(node.Line, number, "it needs a name of lower-case letters, digits and hyphens, such as no-night-shift")
	}
	s := &ruleScanner{policyParser: p, label: label, line: node.Line, fields: fields}
	rule := policyRule{name: name, decision: s.decision(), each: s.each()}
	s.text("description")
	rule.message = s.text("message")
	rule.when = s.expression("when", rule.each, cel.BoolType)
	if fields["when"] == nil && fields != nil {
		p.fault(node.Line, label, "when is missing: say in CEL when the rule holds")
	}
	rule.messageExpression = s.expression("messageExpression", rule.each, cel.StringType)
	s.messages(rule)
	return rule
}

// ruleName returns the name of a rule, even if the rule is otherwise invalid.
func ruleName(node *yaml.Node) string {
	for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
		if value := node.Content[i+1]; node.Content[i].Value == "name" && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}

// ruleScanner reads the fields of one rule.
type ruleScanner struct {
	*policyParser
	label  string
	line   int
	fields map[string]*yaml.Node
}

// text returns the text of a field, or "".
func (s *ruleScanner) text(key string) string {
	node := s.fields[key]
	if node == nil {
		return ""
	}
	if node.Kind != yaml.ScalarNode || node.Tag != "!!str" {
		s.fault(node.Line, s.label, "%s is no text: put it into quotes", key)
		return ""
	}
	return strings.TrimSpace(node.Value)
}

func (s *ruleScanner) decision() Decision {
	if decision, ok := decisionWords()[s.text("decision")]; ok {
		return decision
	}
	if node := s.fields["decision"]; node != nil {
		s.fault(node.Line, s.label, "decision %.40q is none: want allow, approve or deny", node.Value)
	} else {
		s.fault(s.line, s.label, "decision is missing: want allow, approve or deny")
	}
	return Deny
}

func (s *ruleScanner) each() bool {
	text := s.text("each")
	if text != "" && text != "resource" {
		s.fault(s.fields["each"].Line, s.label, "each %.40q is unknown: want resource, or leave it out for the plan as a whole", text)
	}
	return text != ""
}

// messages checks that a rule that does not allow has exactly one kind of message.
func (s *ruleScanner) messages(rule policyRule) {
	message, expression := s.fields["message"], s.fields["messageExpression"]
	switch {
	case message != nil && expression != nil:
		s.fault(expression.Line, s.label, "there is a message and a messageExpression: want one of them")
	case rule.decision != Allow && rule.message == "" && expression == nil:
		s.fault(s.line, s.label, "message is missing: say what is wrong and how to mend it")
	}
}

// expression compiles the CEL of a field, or returns nil.
func (s *ruleScanner) expression(key string, each bool, want *cel.Type) cel.Program {
	text := s.text(key)
	node := s.fields[key]
	if node == nil || text == "" {
		if node != nil {
			s.fault(node.Line, s.label, "%s is empty", key)
		}
		return nil
	}
	program, problem := s.lang.compile(text, each, want)
	if problem != nil {
		line := node.Line + problem.line - 1
		if node.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			line = node.Line + problem.line
		}
		s.fault(line, s.label, "%s: %s", key, problem.message)
	}
	return program
}
