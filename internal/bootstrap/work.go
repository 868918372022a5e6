package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"strings"
	"text/template"
	"text/template/parse"
)

// The limits on the cost of rendering one document. text/template cannot be interrupted, so
// each operation is charged before it runs. A unit is ten to thirty nanoseconds.
const (
	// maxSteps is the maximum total number of loop iterations and template calls.
	maxSteps = 10_000
	// maxWork is the total budget in units, which takes one to two seconds.
	maxWork = 1 << 26
	// perNode is the cost of a template node, perComparison of a comparison of two strings,
	// and perCall of a function call without its arguments.
	perNode       = 16
	perComparison = 1 << 10
	perCall       = 64
	// maxPattern is the maximum length of a regular expression, maxProgram its maximum number
	// of instructions, and perInstruction the cost of compiling one instruction.
	maxPattern     = 1 << 10
	maxProgram     = 10_000
	perInstruction = 256
	// maxIndent is the maximum indentation of indent and nindent.
	maxIndent = 256
	// maxGrown is the maximum estimated size of a function's result. Estimates are upper
	// bounds.
	maxGrown = 16 * maxDocument
	// maxWidth is the maximum number of bytes that a printf verb adds to its argument.
	maxWidth = 999
	// stepName is the name of the function that charges for nodes; see count.
	stepName = "numaformStep"
)

var (
	errTooManySteps = errors.New("too many steps")
	errTooMuchWork  = errors.New("too much work")
	errTooLarge     = errors.New("result is too large")
	errTooFar       = fmt.Errorf("indentation must be 0 to %d", maxIndent)
	errPattern      = fmt.Errorf("regular expression exceeds %d bytes or %d instructions", maxPattern, maxProgram)
)

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

// step charges for loop iterations and the nodes that they evaluate.
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

// compile returns a compiled regular expression from the cache or compiles it.
func (w *work) compile(text string) (*pattern, error) {
	if known := w.patterns[text]; known != nil {
		return known, w.take(perCall)
	}
	if len(text) > maxPattern {
		return nil, errPattern
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("invalid regular expression: %w", err)
	}
	compiled := &pattern{instructions: len(program.Inst)}
	if compiled.instructions > maxProgram {
		return nil, errPattern
	}
	if err := w.take(perInstruction * compiled.instructions); err != nil {
		return nil, err
	}
	if compiled.Regexp, err = regexp.Compile(text); err != nil {
		return nil, fmt.Errorf("invalid regular expression: %w", err)
	}
	w.patterns[text] = compiled
	return compiled, nil
}

// once returns the maximum cost of finding one match: each instruction at each byte, with
// copies of the groups.
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

// replaceAll replaces all matches. Each match may scan the rest of the text again, so
// replaceAll stops searching when the number of matches exceeds the budget.
func (w *work) replaceAll(expression, text, with string) (string, error) {
	p, err := w.compile(expression)
	if err != nil {
		return "", err
	}
	// Matches are searched twice: to count and to replace.
	each := 2 * p.once(text, p.NumSubexp())
	most := w.left / each
	matches := p.FindAllStringIndex(text, most+1)
	if err := w.take(each * (len(matches) + 1)); err != nil {
		return "", err
	}
	size := len(text)
	for _, match := range matches {
		// A group is at most as long as its match.
		size += len(with) + strings.Count(with, "$")*(match[1]-match[0])
	}
	if size > maxGrown {
		return "", errTooLarge
	}
	return p.ReplaceAllString(text, with), nil
}

// wideVerb matches a printf verb with a width or precision of more than three digits or from
// an argument.
var wideVerb = regexp.MustCompile(`%[^a-zA-Z%]*(\*|[0-9]{4})`)

// bounded returns Functions with limits, so that no template blocks its worker. Each function
// charges for its work first and rejects a result larger than a document. Functions whose
// result can grow like the product of two arguments check its size before they build it.
func bounded(left *work) template.FuncMap {
	functions := Functions()
	// Limit Go's built-in text functions, too.
	functions["print"], functions["println"] = fmt.Sprint, fmt.Sprintln
	functions["html"], functions["js"], functions["urlquery"] = template.HTMLEscaper, template.JSEscaper, template.URLQueryEscaper
	functions["printf"] = func(format string, args ...any) (string, error) {
		if size := len(format) + strings.Count(format, "%")*(sizeOf(args)+maxWidth); size > maxGrown || wideVerb.MatchString(format) {
			return "", errTooLarge
		}
		return fmt.Sprintf(format, args...), nil
	}
	indent := func(spaces int, text string) (string, error) {
		if spaces < 0 || spaces > maxIndent {
			return "", errTooFar
		}
		if len(text)+spaces*(strings.Count(text, "\n")+1) > maxGrown {
			return "", errTooLarge
		}
		pad := strings.Repeat(" ", spaces)
		return pad + strings.ReplaceAll(text, "\n", "\n"+pad), nil
	}
	functions["indent"] = indent
	functions["nindent"] = func(spaces int, text string) (string, error) {
		text, err := indent(spaces, text)
		return "\n" + text, err
	}
	functions["replace"] = func(old, with, text string) (string, error) {
		if strings.Count(text, old)*len(with) > maxGrown {
			return "", errTooLarge
		}
		return strings.ReplaceAll(text, old, with), nil
	}
	if join, ok := functions["join"].(func(string, any) string); ok {
		functions["join"] = func(first, second any) (string, error) {
			// karpenter-provider-proxmox has the list first.
			separator, ok := first.(string)
			list := second
			if !ok {
				separator, ok = second.(string)
				list = first
			}
			if !ok {
				return "", errors.New("requires a separator and a list")
			}
			parts := 1
			if value := reflect.ValueOf(list); value.Kind() == reflect.Slice || value.Kind() == reflect.Array {
				parts = value.Len()
			}
			if parts*len(separator) > maxGrown {
				return "", errTooLarge
			}
			return join(separator, list), nil
		}
	}
	functions["pairs"] = func(separator string, values map[string]any) (string, error) {
		if len(values)*len(separator) > maxGrown {
			return "", errTooLarge
		}
		return pairsOf(separator, values), nil
	}

	// rates are the costs for each byte of the arguments.
	rates := map[string]int{
		"toJson": 16, "toPrettyJson": 16, "toYaml": 64, "toPrettyYaml": 64, "toYamlPretty": 64, "js": 8, "html": 8, "urlquery": 8, "kubeletFlags": 16,
	}
	for name, function := range functions {
		functions[name] = left.limit(function, cmp.Or(rates[name], 2))
	}
	// These functions compute their own cost.
	functions["regexFind"] = func(expression, text string) (string, error) {
		groups, err := left.find(expression, text)
		return nth(groups, 0), err
	}
	functions["regexFindString"] = func(expression, text string, group int) (string, error) {
		groups, err := left.find(expression, text)
		return nth(groups, group), err
	}
	functions["regexReplaceAll"] = left.limit(left.replaceAll, 2)
	functions[stepName] = left.step
	return functions
}

// limit wraps a function. The wrapper first charges rate for each byte of the arguments, and
// limits the result to the maximum size of a document.
func (w *work) limit(function any, rate int) any {
	inner := reflect.ValueOf(function)
	kind := inner.Type()
	in := make([]reflect.Type, kind.NumIn())
	for i := range in {
		in[i] = kind.In(i)
	}
	failure := reflect.TypeFor[error]()
	out := []reflect.Type{kind.Out(0), failure}
	fail := func(err error) []reflect.Value {
		return []reflect.Value{reflect.Zero(kind.Out(0)), reflect.ValueOf(&err).Elem()}
	}
	return reflect.MakeFunc(reflect.FuncOf(in, out, kind.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		size := 0
		for _, arg := range args {
			size += sizeOf(arg.Interface())
		}
		if err := w.take(perCall + rate*size); err != nil {
			return fail(err)
		}
		var results []reflect.Value
		if kind.IsVariadic() {
			results = inner.CallSlice(args)
		} else {
			results = inner.Call(args)
		}
		if sizeOf(results[0].Interface()) > maxDocument {
			return fail(errTooLarge)
		}
		if len(results) == 1 {
			results = append(results, reflect.Zero(failure))
		}
		return results
	}).Interface()
}

// sizeOf returns the size of a value, at most about maxGrown.
func sizeOf(value any) int {
	left := maxGrown
	weigh(value, &left)
	return maxGrown - left
}

// weigh subtracts the size of a value from left, and stops when nothing is left.
func weigh(value any, left *int) {
	if *left < 0 {
		return
	}
	*left--
	switch value := value.(type) {
	case string:
		*left -= len(value)
	case []string:
		for _, text := range value {
			weigh(text, left)
		}
	case []any:
		for _, inner := range value {
			weigh(inner, left)
		}
	case map[string]string:
		for key, text := range value {
			*left -= len(key) + len(text)
		}
	case map[string]any:
		for key, inner := range value {
			*left -= len(key)
			weigh(inner, left)
		}
	}
}

// count inserts a call of step into each list of nodes. The call charges for the list before
// the list runs. Each loop iteration and each template call is also a step.
func count(parsed *template.Template, functions template.FuncMap) error {
	for _, one := range parsed.Templates() {
		if one.Tree == nil || one.Root == nil {
			continue
		}
		rounds := map[*parse.ListNode]int{one.Root: 1}
		var lists []*parse.ListNode
		walk(one.Root, func(node parse.Node) bool {
			switch node := node.(type) {
			case *parse.RangeNode:
				rounds[node.List] = 1
			case *parse.ListNode:
				lists = append(lists, node)
			}
			return true
		})
		for _, list := range lists {
			units := perNode
			for _, node := range list.Nodes {
				units += perNode
				walk(node, func(node parse.Node) bool {
					if _, nested := node.(*parse.ListNode); nested {
						return false // the nested list charges for itself
					}
					units += perNode
					if function, ok := node.(*parse.IdentifierNode); ok {
						switch function.Ident {
						case "eq", "ne", "lt", "le", "gt", "ge":
							units += perComparison
						}
					}
					return true
				})
			}
			step, err := template.New("").Funcs(functions).Parse(fmt.Sprintf("{{%s %d %d}}", stepName, rounds[list], units))
			if err != nil {
				return err
			}
			list.Nodes = append([]parse.Node{step.Root.Nodes[0]}, list.Nodes...)
		}
	}
	return nil
}
