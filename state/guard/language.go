package guard

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
)

// language is the CEL that policies are written in.
type language struct {
	// plan has the variables for rules about a plan; resource has three more.
	plan, resource *cel.Env
}

// newLanguage declares the variables of rules.
func newLanguage() (*language, error) {
	bounds, err := boundedTexts()
	if err != nil {
		return nil, err
	}
	facts := []any{
		reflect.TypeFor[intentFacts](), reflect.TypeFor[targetFacts](),
		reflect.TypeFor[changeFacts](), reflect.TypeFor[resourceFacts](), ext.ParseStructTags(true),
	}
	plan, err := cel.NewEnv(append([]cel.EnvOption{
		ext.NativeTypes(facts...), ext.Strings(), ext.Sets(), ext.Math(),
		cel.CrossTypeNumericComparisons(true),
		cel.Variable("plan", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("intent", cel.ObjectType("guard.intentFacts")),
		cel.Variable("change", cel.ObjectType("guard.changeFacts")),
		cel.Variable("pools", cel.ListType(cel.StringType)),
	}, bounds...)...)
	if err != nil {
		return nil, err
	}
	values := cel.MapType(cel.StringType, cel.DynType)
	resource, err := plan.Extend(
		cel.Variable("resource", cel.ObjectType("guard.resourceFacts")),
		cel.Variable("before", values), cel.Variable("after", values),
	)
	if err != nil {
		return nil, err
	}
	return &language{plan: plan, resource: resource}, nil
}

// celProblem is an error in an expression, with the line within the expression.
type celProblem struct {
	line    int
	message string
}

// compile compiles an expression that must have the type want.
func (l *language) compile(text string, each bool, want *cel.Type) (cel.Program, *celProblem) {
	env := l.plan
	if each {
		env = l.resource
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		message := strings.ReplaceAll(first.Message, "guard.", "")
		return nil, &celProblem{line: first.Location.Line(), message: message}
	}
	if got := ast.OutputType(); !got.IsExactType(want) {
		return nil, &celProblem{line: 1, message: fmt.Sprintf("it is %s, want %s", got, want)}
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(costs{}), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, &celProblem{line: 1, message: err.Error()}
	}
	return program, nil
}
