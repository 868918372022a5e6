package bootstrap

import (
	"errors"
	"fmt"
	"reflect"
	"text/template"
	"text/template/parse"
)

const (
	// maxSteps is how often all loops and templates of a document may go round.
	maxSteps = 10_000
	// maxIndent is how far indent and nindent go in.
	maxIndent = 256
	// stepName is the function that counts; see count.
	stepName = "numaformStep"
)

var (
	errTooManySteps = errors.New("too many steps")
	errTooLarge     = errors.New("makes something that is too large")
	errTooFar       = fmt.Errorf("indents by 0 to %d", maxIndent)
)

// bounded returns Functions such that no template keeps its worker: none makes
// anything that is larger than a document may be.
func bounded() template.FuncMap {
	functions := Functions()
	// Those of Go's templates that make texts.
	functions["print"], functions["println"] = fmt.Sprint, fmt.Sprintln
	functions["html"], functions["js"], functions["urlquery"] = template.HTMLEscaper, template.JSEscaper, template.URLQueryEscaper
	for _, name := range []string{"indent", "nindent"} {
		if theirs, ok := functions[name].(func(int, string) string); ok {
			functions[name] = func(spaces int, text string) (string, error) {
				if spaces < 0 || spaces > maxIndent {
					return "", errTooFar
				}
				return theirs(spaces, text), nil
			}
		}
	}
	boundGrowing(functions)
	for name, function := range functions {
		functions[name] = shortly(function)
	}
	steps := 0
	functions[stepName] = func() (string, error) {
		if steps++; steps > maxSteps {
			return "", errTooManySteps
		}
		return "", nil
	}
	return functions
}

// shortly returns a function whose results are not larger than a document may be.
func shortly(function any) any {
	inner := reflect.ValueOf(function)
	kind := inner.Type()
	in := make([]reflect.Type, kind.NumIn())
	for i := range in {
		in[i] = kind.In(i)
	}
	failure := reflect.TypeFor[error]()
	out := []reflect.Type{kind.Out(0), failure}
	return reflect.MakeFunc(reflect.FuncOf(in, out, kind.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		var results []reflect.Value
		if kind.IsVariadic() {
			results = inner.CallSlice(args)
		} else {
			results = inner.Call(args)
		}
		err := reflect.Zero(failure)
		if len(results) > 1 {
			err = results[1]
		}
		left := maxDocument
		if weigh(results[0].Interface(), &left); left < 0 {
			return []reflect.Value{reflect.Zero(kind.Out(0)), reflect.ValueOf(&errTooLarge).Elem()}
		}
		return []reflect.Value{results[0], err}
	}).Interface()
}

// weigh takes the size of a value off what is left, and stops where nothing is.
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
	case map[string]any:
		for key, inner := range value {
			*left -= len(key)
			weigh(inner, left)
		}
	}
}

// count makes each round of a loop, and each use of a template, a step.
func count(parsed *template.Template, functions template.FuncMap) error {
	step, err := template.New("").Funcs(functions).Parse("{{" + stepName + "}}")
	if err != nil {
		return err
	}
	node := step.Root.Nodes[0]
	for _, one := range parsed.Templates() {
		if one.Tree != nil && one.Root != nil {
			countIn(one.Root, node)
			one.Root.Nodes = append([]parse.Node{node}, one.Root.Nodes...)
		}
	}
	return nil
}

// countIn puts a step into the loops of a list.
func countIn(list *parse.ListNode, step parse.Node) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch node := node.(type) {
		case *parse.RangeNode:
			countIn(node.List, step)
			countIn(node.ElseList, step)
			node.List.Nodes = append([]parse.Node{step}, node.List.Nodes...)
		case *parse.IfNode:
			countIn(node.List, step)
			countIn(node.ElseList, step)
		case *parse.WithNode:
			countIn(node.List, step)
			countIn(node.ElseList, step)
		}
	}
}
