package generator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
)

// Limits of a node file's expressions, several times the amounts that Render writes. The
// HCL parser is recursive, and a stack overflow ends the process.
const (
	maxNesting = 24
	// maxOperators limits signs, negations, conditions and directives, because each can
	// nest the next.
	maxOperators = 64
)

// groupsArgument is the argument of groupsCall.
const groupsArgument = "security_groups"

// nodeFile is a node file being parsed.
type nodeFile struct {
	name    string
	content []byte
}

func (n *nodeFile) fail(line int, format string, args ...any) error {
	return &ParseError{File: n.name, Line: line, Problem: fmt.Sprintf(format, args...), Hint: hintRestore}
}

func (n *nodeFile) failDiagnostics(diagnostics hcl.Diagnostics) error {
	first := diagnostics[0]
	line := 0
	if first.Subject != nil {
		line = first.Subject.Start.Line
	}
	return &ParseError{File: n.name, Line: line, Problem: first.Summary + "; " + first.Detail, Hint: hintRestore, Err: diagnostics}
}

// parseNode parses one node file.
func (p *parser) parseNode(name string) (fleet.VM, error) {
	n := &nodeFile{name: name, content: p.files[name]}
	attributes, groups, err := n.calls()
	if err != nil {
		return fleet.VM{}, err
	}
	for _, list := range []hclsyntax.Attributes{attributes, groups} {
		if err := n.constant(list); err != nil {
			return fleet.VM{}, err
		}
	}

	// Check the format first, so that a newer file is reported as newer and not as invalid.
	var head struct {
		FormatVersion int    `json:"format_version"`
		Source        string `json:"source"`
	}
	first := hclsyntax.Attributes{}
	for _, required := range []string{"format_version", "source"} {
		if first[required] = attributes[required]; first[required] == nil {
			return fleet.VM{}, n.fail(1, "has no %s", required)
		}
	}
	if err := n.decode(first, &head); err != nil {
		return fleet.VM{}, err
	}
	if head.FormatVersion != FormatVersion {
		return fleet.VM{}, formatError(name, first["format_version"].NameRange.Start.Line, head.FormatVersion)
	}

	line := first["source"].NameRange.Start.Line
	hash := path.Base(head.Source)
	if head.Source != moduleSource(modules.NodeModule, hash) {
		return fleet.VM{}, n.fail(line, "calls a module that does not belong to numaform")
	}
	// Check the modules before the arguments, because other modules may have other
	// arguments.
	if p.carried(hash) == nil {
		return fleet.VM{}, &ParseError{
			File: name, Line: line,
			Problem: fmt.Sprintf("calls modules %s, which this numaform does not contain; it contains %s", hash, strings.Join(p.release.Carries(), ", ")),
			Hint: "restore the file from version control; if a newer version of numaform wrote it, upgrade; if an older version wrote it, use a version that contains both " + hash +
				" and one of the others until the node is replaced; if the modules are your own, add them to modules.allow in numaform.yaml",
		}
	}
	delete(attributes, "source")

	var content call
	var extra groupsCall
	if err := n.decode(attributes, &content); err != nil {
		return fleet.VM{}, err
	}
	if err := n.decode(groups, &extra); err != nil {
		return fleet.VM{}, err
	}
	vm, err := vmOf(hostOf(name).Region, hash, &content, extra.SecurityGroups)
	if err != nil {
		return fleet.VM{}, n.fail(0, "%v", err)
	}
	return vm, nil
}

// calls returns the arguments of the file's module calls: the call of the VM and, if the
// VM has security groups, the groups argument of the second call. The comparison with
// Render's output finds anything else in the file.
func (n *nodeFile) calls() (vm, groups hclsyntax.Attributes, err error) {
	// The lexer is not recursive, so it finds deep nesting before the parser runs. The parser
	// reports syntax errors.
	tokens, _ := hclsyntax.LexConfig(n.content, n.name, hcl.InitialPos)
	depth, operators := 0, 0
	for _, token := range tokens {
		switch token.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
			operators++ // an if or for directive nests everything up to its end directive
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc,
			hclsyntax.TokenTemplateSeqEnd:
			depth--
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			operators++
		}
		switch {
		case depth > maxNesting:
			return nil, nil, n.fail(token.Range.Start.Line, "expression is nested more than %d levels deep", maxNesting)
		case operators > maxOperators:
			return nil, nil, n.fail(token.Range.Start.Line, "expression has more than %d operators", maxOperators)
		}
	}

	parsed, diagnostics := hclsyntax.ParseConfig(n.content, n.name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return nil, nil, n.failDiagnostics(diagnostics)
	}
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok || len(body.Attributes) > 0 || len(body.Blocks) < 1 || len(body.Blocks) > 2 {
		return nil, nil, n.fail(1, "must contain one module call, and at most one more for security groups")
	}
	for _, block := range body.Blocks {
		if block.Type != "module" {
			return nil, nil, n.fail(block.TypeRange.Start.Line, "has a block %q, which numaform does not write", block.Type)
		}
	}
	vm = body.Blocks[0].Body.Attributes
	if len(body.Blocks) == 1 {
		return vm, nil, nil
	}
	second := body.Blocks[1]
	attribute, ok := second.Body.Attributes[groupsArgument]
	if !ok {
		return nil, nil, n.fail(second.TypeRange.Start.Line, "has a second module call that is not for security groups")
	}
	return vm, hclsyntax.Attributes{groupsArgument: attribute}, nil
}

// constant returns an error for expressions that compute a value, because each nested for
// expression multiplies the evaluation time.
func (n *nodeFile) constant(attributes hclsyntax.Attributes) error {
	// Sort the names, so that the same file always gives the same error.
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		diagnostics := hclsyntax.VisitAll(attributes[name].Expr, func(node hclsyntax.Node) hcl.Diagnostics {
			switch node.(type) {
			case *hclsyntax.ForExpr, *hclsyntax.SplatExpr, *hclsyntax.BinaryOpExpr, *hclsyntax.ConditionalExpr, *hclsyntax.IndexExpr, *hclsyntax.TemplateJoinExpr:
				at := node.Range()
				return hcl.Diagnostics{{
					Severity: hcl.DiagError, Summary: "Expression not allowed", Detail: "use a constant value", Subject: &at,
				}}
			}
			return nil
		})
		if diagnostics.HasErrors() {
			return n.failDiagnostics(diagnostics)
		}
	}
	return nil
}

// maxExponent limits numbers to the range of a float64. Without a limit, a few characters
// of HCL could expand to a number whose digits exhaust the memory.
const maxExponent = 1100

var errHugeNumber = errors.New("number out of range")

// decode decodes the attributes into a struct with JSON tags, one by one, so that an error
// contains the attribute's line.
func (n *nodeFile) decode(attributes hclsyntax.Attributes, into any) error {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		attribute := attributes[name]
		line := attribute.NameRange.Start.Line
		value, diagnostics := attribute.Expr.Value(nil)
		if diagnostics.HasErrors() {
			return n.failDiagnostics(diagnostics)
		}
		err := cty.Walk(value, func(_ cty.Path, v cty.Value) (bool, error) {
			if v.IsNull() || v.Type() != cty.Number {
				return true, nil
			}
			if exponent := v.AsBigFloat().MantExp(nil); exponent > maxExponent || exponent < -maxExponent {
				return false, errHugeNumber
			}
			return true, nil
		})
		var text []byte
		if err == nil {
			text, err = ctyjson.Marshal(value, value.Type())
		}
		if err != nil {
			return n.fail(line, "%s has a value that numaform does not write", name)
		}

		decoder := json.NewDecoder(bytes.NewReader(slices.Concat([]byte(`{"`+name+`":`), text, []byte("}"))))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(into)
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return n.fail(line, "%s: must not be a %s", name, kind.Value)
		}
		if err != nil {
			problem := strings.Replace(strings.TrimPrefix(err.Error(), "json: "), "unknown field", "unknown attribute", 1)
			return n.fail(line, "%s: %s", name, problem)
		}
	}
	return nil
}
