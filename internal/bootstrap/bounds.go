package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
)

// maxIndent is the maximum indentation of indent and nindent.
const maxIndent = 256

var (
	errTooLarge = errors.New("makes something that is too large")
	errTooFar   = fmt.Errorf("indents by 0 to %d", maxIndent)
)

// bounded returns Functions with limits, so that no template blocks its worker: no
// function returns more than the maximum size of a document, and each is charged for its
// work first.
func bounded(left *work) template.FuncMap {
	functions := Functions()
	// The text functions of Go's templates.
	functions["print"], functions["println"] = fmt.Sprint, fmt.Sprintln
	functions["html"], functions["js"], functions["urlquery"] = template.HTMLEscaper, template.JSEscaper, template.URLQueryEscaper
	for _, name := range []string{"indent", "nindent"} {
		if theirs, ok := functions[name].(func(int, string) string); ok {
			functions[name] = func(spaces int, text string) (string, error) {
				if spaces < 0 || spaces > maxIndent {
					return "", errTooFar
				}
				return grown(len(text)+spaces*(strings.Count(text, "\n")+1), false, func() string { return theirs(spaces, text) })
			}
		}
	}
	boundGrowing(functions)
	rates := perByte()
	for name, function := range functions {
		functions[name] = left.shortly(function, cmp.Or(rates[name], 2))
	}
	// These compute their own cost.
	functions["regexFind"] = func(expression, text string) (string, error) {
		groups, err := left.find(expression, text)
		return nth(groups, 0), err
	}
	functions["regexFindString"] = func(expression, text string, group int) (string, error) {
		groups, err := left.find(expression, text)
		return nth(groups, group), err
	}
	functions["regexReplaceAll"] = left.shortly(left.replaceAll, 2)
	functions[stepName] = left.step
	return functions
}

// shortly wraps a function: it charges rate for each byte of the arguments first, and
// limits the result to the maximum size of a document.
func (w *work) shortly(function any, rate int) any {
	inner := reflect.ValueOf(function)
	kind := inner.Type()
	in := make([]reflect.Type, kind.NumIn())
	for i := range in {
		in[i] = kind.In(i)
	}
	failure := reflect.TypeFor[error]()
	out := []reflect.Type{kind.Out(0), failure}
	return reflect.MakeFunc(reflect.FuncOf(in, out, kind.IsVariadic()), func(args []reflect.Value) []reflect.Value {
		given := make([]any, len(args))
		for i, arg := range args {
			given[i] = arg.Interface()
		}
		if err := w.call(rate, given); err != nil {
			return []reflect.Value{reflect.Zero(kind.Out(0)), reflect.ValueOf(&err).Elem()}
		}
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
