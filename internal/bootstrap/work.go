package bootstrap

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"text/template"
	"text/template/parse"
)

// The limits on the cost of rendering one document: text/template cannot be interrupted,
// so work is counted before it is done. A unit is about ten nanoseconds.
const (
	// maxSteps limits the total iterations of all loops and templates of a document.
	maxSteps = 10_000
	// maxWork takes one to two seconds.
	maxWork = 1 << 26
	// perNode is the cost of a template node, perComparison of a node that may compare
	// two strings, and perCall of a function call without its arguments.
	perNode       = 16
	perComparison = 1 << 10
	perCall       = 64
	// maxPattern limits the length of a regular expression, and maxProgram its number of
	// instructions; perInstruction is the cost of compiling one.
	maxPattern     = 1 << 10
	maxProgram     = 10_000
	perInstruction = 256
	// stepName is the name of the counting function; see count.
	stepName = "numaformStep"
)

var (
	errTooManySteps = errors.New("too many steps")
	errTooMuchWork  = errors.New("too much work")
	errPattern      = fmt.Errorf("has a regular expression of more than %d bytes or %d instructions", maxPattern, maxProgram)
)

// perByte returns the cost of functions for each byte of their arguments; the default is
// 2.
func perByte() map[string]int {
	return map[string]int{
		"toJson": 16, "toPrettyJson": 16, "toYaml": 64, "toPrettyYaml": 64, "js": 8, "html": 8, "urlquery": 8, "kubeletFlags": 16,
	}
}

// work is the remaining budget for one document.
type work struct {
	steps, left int
	patterns    map[string]*pattern
}

func newWork() *work { return &work{steps: maxSteps, left: maxWork, patterns: map[string]*pattern{}} }

// take subtracts work from the budget.
func (w *work) take(units int) error {
	if units < 0 || units > w.left {
		w.left = 0
		return errTooMuchWork
	}
	w.left -= units
	return nil
}

// call charges for a call.
func (w *work) call(rate int, args []any) error {
	left := maxGrown
	for _, arg := range args {
		weigh(arg, &left)
	}
	return w.take(perCall + rate*(maxGrown-left))
}

// step charges for iterations of loops, and the nodes that they evaluate.
func (w *work) step(rounds, units int) (string, error) {
	if w.steps -= rounds; rounds < 0 || w.steps < 0 {
		return "", errTooManySteps
	}
	return "", w.take(units)
}

// pattern is a compiled regular expression.
type pattern struct {
	*regexp.Regexp
	instructions int
}

// compile compiles a regular expression, and caches it.
func (w *work) compile(text string) (*pattern, error) {
	if known := w.patterns[text]; known != nil {
		return known, w.take(perCall)
	}
	if len(text) > maxPattern {
		return nil, errPattern
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("has a pattern that is no regular expression: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("has a pattern that is no regular expression: %w", err)
	}
	compiled := &pattern{instructions: len(program.Inst)}
	if compiled.instructions > maxProgram {
		return nil, errPattern
	}
	if err := w.take(perInstruction * compiled.instructions); err != nil {
		return nil, err
	}
	if compiled.Regexp, err = regexp.Compile(text); err != nil {
		return nil, fmt.Errorf("has a pattern that is no regular expression: %w", err)
	}
	w.patterns[text] = compiled
	return compiled, nil
}

// once returns the maximum cost of finding one match of a pattern: each instruction at
// each byte, with the groups that it copies.
func (p *pattern) once(text string, groups int) int {
	return (len(text) + 1) * p.instructions * (1 + groups)
}

// find returns the groups of the first match, or nil.
func (w *work) find(expression, text string) ([]string, error) {
	p, err := w.compile(expression)
	if err == nil {
		err = w.take(p.once(text, p.NumSubexp()))
	}
	if err != nil {
		return nil, err
	}
	return p.FindStringSubmatch(text), nil
}

// replaceAll replaces all matches. Each match may scan the rest of the text again, so it
// searches for no more matches than the budget allows.
func (w *work) replaceAll(expression, text, with string) (string, error) {
	p, err := w.compile(expression)
	if err != nil {
		return "", err
	}
	// They are searched for twice: to count, and to replace.
	each := 2 * p.once(text, p.NumSubexp())
	most := w.left / each
	matches := p.FindAllStringIndex(text, most+1)
	if err := w.take(each * (len(matches) + 1)); err != nil {
		return "", err
	}
	size := len(text)
	for _, match := range matches {
		// A group is not longer than its match.
		size += len(with) + strings.Count(with, "$")*(match[1]-match[0])
	}
	return grown(size, false, func() string { return p.ReplaceAllString(text, with) })
}

// count makes each part of a template charge for its work before it runs: each iteration
// of a loop and each use of a template also counts as a step.
func count(parsed *template.Template, functions template.FuncMap) error {
	for _, one := range parsed.Templates() {
		if one.Tree != nil && one.Root != nil {
			if err := countIn(one.Root, 1, functions); err != nil {
				return err
			}
		}
	}
	return nil
}

// countIn inserts a step before a list, and into the lists in it.
func countIn(list *parse.ListNode, rounds int, functions template.FuncMap) error {
	if list == nil {
		return nil
	}
	units := perNode
	for _, node := range list.Nodes {
		units += perNode + workOf(node)
		branch, inner := (*parse.BranchNode)(nil), 0
		switch node := node.(type) {
		case *parse.RangeNode:
			branch, inner = &node.BranchNode, 1
		case *parse.IfNode:
			branch = &node.BranchNode
		case *parse.WithNode:
			branch = &node.BranchNode
		}
		if branch == nil {
			continue
		}
		units += workOf(branch.Pipe)
		if err := errors.Join(countIn(branch.List, inner, functions), countIn(branch.ElseList, 0, functions)); err != nil {
			return err
		}
	}
	step, err := template.New("").Funcs(functions).Parse(fmt.Sprintf("{{%s %d %d}}", stepName, rounds, units))
	if err != nil {
		return err
	}
	list.Nodes = append([]parse.Node{step.Root.Nodes[0]}, list.Nodes...)
	return nil
}

// workOf returns the cost of a node without the lists in it.
func workOf(node parse.Node) int {
	units := perNode
	switch node := node.(type) {
	case *parse.ActionNode:
		units += workOf(node.Pipe)
	case *parse.TemplateNode:
		units += workOf(node.Pipe)
	case *parse.PipeNode:
		if node == nil {
			return 0
		}
		for _, command := range node.Cmds {
			units += workOf(command)
		}
	case *parse.CommandNode:
		for _, argument := range node.Args {
			units += workOf(argument)
		}
	case *parse.ChainNode:
		units += workOf(node.Node)
	case *parse.IdentifierNode:
		switch node.Ident {
		case "eq", "ne", "lt", "le", "gt", "ge":
			units += perComparison
		}
	}
	return units
}
