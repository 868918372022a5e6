package guard

import (
	"regexp/syntax"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

const (
	// maxCost limits the cost of one expression, in CEL's units: about ten milliseconds.
	maxCost = 1_000_000
	// maxTotal limits the cost of all rules for one plan.
	maxTotal = 50_000_000
	// perUnit is the number of bytes, or of regular expression steps, per unit.
	perUnit = 10
	// maxText limits the length of a string that a function returns: a longer string
	// would cost more than maxCost.
	maxText = maxCost * perUnit
)

// costs charges calls for the data that they process. CEL itself charges one unit for a
// string function, however long the string is, and estimates the size of a regular
// expression by its length. For set functions, CEL's own cost is sufficient: it depends on
// the sizes of both sets.
type costs struct{}

// CallCost returns the cost of a call, or nil if CEL's own estimate applies.
func (costs) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	steps := uint64(perUnit)
	switch function {
	case "matches":
		steps += (length(args[0]) + 1) * instructions(args[1])
	case "replace", "split", "join", "reverse", "format", "indexOf", "lastIndexOf", "lowerAscii", "upperAscii", "trim", "charAt", "substring",
		"strings.quote":
		for _, arg := range args {
			steps += length(arg)
		}
		steps += length(result)
	default:
		return nil
	}
	units := steps / perUnit
	return &units
}

// length returns the size of a string in bytes, or the number of elements in a list.
func length(value ref.Val) uint64 {
	switch value := value.(type) {
	case types.String:
		return uint64(len(value))
	case interface{ Size() ref.Val }:
		if size, ok := value.Size().(types.Int); ok && size > 0 {
			return uint64(size)
		}
	}
	return 0
}

// instructions returns the size of a compiled regular expression.
func instructions(pattern ref.Val) uint64 {
	text, _ := pattern.(types.String)
	parsed, err := syntax.Parse(string(text), syntax.Perl)
	if err != nil {
		return 1
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 1
	}
	return uint64(len(program.Inst))
}

// boundedTexts redeclares the functions whose result can be much longer than their
// arguments. CEL charges only for a finished result, so the redeclared functions return an
// error before they build a result that is too long.
func boundedTexts() ([]cel.EnvOption, error) {
	env, err := cel.NewEnv(ext.Strings())
	if err != nil {
		return nil, err
	}
	var options []cel.EnvOption
	for name, size := range map[string]func(args []ref.Val) int{"replace": replacedSize, "join": joinedSize, "format": textSize} {
		declared := env.Functions()[name]
		bindings, err := declared.Bindings()
		if err != nil {
			return nil, err
		}
		byID := map[string]*functions.Overload{}
		for _, binding := range bindings {
			byID[binding.Operator] = binding
		}
		for _, overload := range declared.OverloadDecls() {
			call := byID[overload.ID()]
			bounded := func(args ...ref.Val) ref.Val {
				if size(args) > maxText {
					return types.NewErr("%s would return a string of more than %d bytes", name, maxText)
				}
				switch {
				case call.Unary != nil && len(args) == 1:
					return call.Unary(args[0])
				case call.Binary != nil && len(args) == 2:
					return call.Binary(args[0], args[1])
				}
				return call.Function(args...)
			}
			binding := cel.FunctionBinding(bounded)
			switch len(overload.ArgTypes()) {
			case 1:
				binding = cel.UnaryBinding(func(arg ref.Val) ref.Val { return bounded(arg) })
			case 2:
				binding = cel.BinaryBinding(func(a, b ref.Val) ref.Val { return bounded(a, b) })
			}
			options = append(options, cel.Function(name, cel.MemberOverload(overload.ID(), overload.ArgTypes(), overload.ResultType(), binding)))
		}
	}
	return options, nil
}

// replacedSize returns the size of the result of replace, given the string, the old and
// new substrings, and the maximum number of replacements.
func replacedSize(args []ref.Val) int {
	var texts [3]string
	for i := range texts {
		if i < len(args) {
			text, _ := args[i].(types.String)
			texts[i] = string(text)
		}
	}
	count := strings.Count(texts[0], texts[1])
	if len(args) > 3 {
		if most, is := args[3].(types.Int); is && most >= 0 {
			count = min(count, int(most))
		}
	}
	return len(texts[0]) + count*(len(texts[2])-len(texts[1]))
}

// joinedSize returns an upper bound of the size of the result of join, given the list and
// the separator.
func joinedSize(args []ref.Val) int {
	size := textSize(args)
	if len(args) > 1 {
		size += int(length(args[0])) * int(length(args[1])) //nolint:gosec // both are sizes in memory
	}
	return size
}

// textSize returns the total size of all strings in values, plus one for each value. It
// stops once the size exceeds maxText.
func textSize(values []ref.Val) int {
	size := 0
	for _, value := range values {
		switch value := value.(type) {
		case types.String:
			size += len(value)
		case types.Bytes:
			size += len(value)
		case traits.Mapper:
			for i := value.Iterator(); i.HasNext() == types.True && size <= maxText; {
				key := i.Next()
				size += textSize([]ref.Val{key, value.Get(key)})
			}
		case traits.Lister:
			for i := value.Iterator(); i.HasNext() == types.True && size <= maxText; {
				size += textSize([]ref.Val{i.Next()})
			}
		}
		size++
		if size > maxText {
			break
		}
	}
	return size
}
