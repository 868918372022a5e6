package generator

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Limits of a file before it is parsed, several times the largest file that Render
// writes. The HCL parser is recursive, and a stack overflow ends the process.
const (
	maxFileBytes = 256 << 10
	maxFileLines = 4000
	maxNesting   = 24
	// maxOperators limits signs, negations, conditions and directives, because each can
	// nest the next.
	maxOperators = 64
)

// bounded refuses files too large for Render to have written.
func (p *parser) bounded() error {
	for _, name := range sortedPaths(p.files) {
		switch kindOf(name) {
		case kindIndex, kindMain, kindNode:
		default:
			continue
		}
		content := p.files[name]
		if len(content) > maxFileBytes {
			return &ParseError{File: name, Problem: fmt.Sprintf("has %d bytes, and may have %d", len(content), maxFileBytes), Mend: mendRestore}
		}
		if lines := bytes.Count(content, []byte("\n")); lines > maxFileLines {
			return &ParseError{File: name, Line: maxFileLines + 1, Problem: fmt.Sprintf("has %d lines, and may have %d", lines, maxFileLines), Mend: mendRestore}
		}
	}
	return nil
}

// nested refuses a file whose expressions nest deeper than Render's. It uses the lexer,
// which is not recursive, and leaves syntax errors to the parser.
func (n *nodeFile) nested() error {
	tokens, _ := hclsyntax.LexConfig(n.content, n.name, hcl.InitialPos)
	depth, operators := 0, 0
	for _, token := range tokens {
		switch token.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			depth++
			operators++ // an if or for nests until its end directive
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc,
			hclsyntax.TokenTemplateSeqEnd:
			depth--
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			operators++
		}
		if depth > maxNesting || operators > maxOperators {
			return n.fail(token.Range.Start.Line, "has an expression that numaform does not write: it nests deeper than %d", maxNesting)
		}
	}
	return nil
}

// constant refuses expressions that compute, because each nested for multiplies the time
// of the evaluation.
func (n *nodeFile) constant(attributes hclsyntax.Attributes) error {
	for _, attribute := range sortedAttributes(attributes) {
		diagnostics := hclsyntax.VisitAll(attribute.Expr, func(node hclsyntax.Node) hcl.Diagnostics {
			switch node.(type) {
			case *hclsyntax.ForExpr, *hclsyntax.SplatExpr, *hclsyntax.BinaryOpExpr, *hclsyntax.ConditionalExpr, *hclsyntax.IndexExpr, *hclsyntax.TemplateJoinExpr:
				at := node.Range()
				return hcl.Diagnostics{{
					Severity: hcl.DiagError, Summary: "Expression not allowed", Detail: "numaform writes values only", Subject: &at,
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
