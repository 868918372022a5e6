package guard

import (
	"regexp/syntax"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

const (
	// maxCost bounds the work of one expression, in CEL's units: some ten milliseconds.
	maxCost = 1_000_000
	// maxTotal bounds the work of all rules about one plan.
	maxTotal = 50_000_000
	// perUnit is how many bytes, or steps of a regular expression, are a unit.
	perUnit = 10
)

// costs charges calls by what they go through. CEL itself takes one unit for a function
// of texts, however long they are, and the length of a regular expression for its size.
// The functions of sets it charges by the sizes of both.
type costs struct{}

// CallCost returns the work of a call, or nil where CEL knows it.
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

// length returns the size of a text, or how many values a list has.
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
