package generator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// argument is one attribute of a block.
type argument struct {
	name  string
	value hclwrite.Tokens
}

// arguments converts a struct with JSON tags to attributes, in field order. Attribute names
// are the tags or the keys of maps, which the caller has checked.
func arguments(value any) ([]argument, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	return members(decoder)
}

// members reads the members of a JSON object up to its end.
func members(decoder *json.Decoder) ([]argument, error) {
	var list []argument
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		tokens, err := expression(decoder)
		if err != nil {
			return nil, err
		}
		list = append(list, argument{name: fmt.Sprint(name), value: tokens})
	}
	_, err := decoder.Token()
	return list, err
}

// maxLine is the maximum total length of list elements on a single line.
const maxLine = 60

// expression converts the decoder's next value to an HCL expression.
func expression(decoder *json.Decoder) (hclwrite.Tokens, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch value := token.(type) {
	case string:
		return hclwrite.TokensForValue(cty.StringVal(value)), nil
	case bool:
		return hclwrite.TokensForValue(cty.BoolVal(value)), nil
	case json.Number:
		// Without an exponent, encoding/json prints a number as cty does, at a hundredth of
		// the cost.
		if !strings.ContainsAny(value.String(), "eE") {
			return hclwrite.Tokens{{Type: hclsyntax.TokenNumberLit, Bytes: []byte(value)}}, nil
		}
		exact, err := cty.ParseNumberVal(value.String())
		return hclwrite.TokensForValue(exact), err
	case json.Delim:
		if value == '[' {
			return tuple(decoder)
		}
	default:
		return hclwrite.TokensForValue(cty.NullVal(cty.DynamicPseudoType)), nil
	}

	// An object has each attribute on its own line. hclwrite.TokensForObject gives the same
	// result, but reformats the content at each depth, which is most of the cost of a file.
	list, err := members(decoder)
	if err != nil {
		return nil, err
	}
	tokens := hclwrite.Tokens{punctuation(hclsyntax.TokenOBrace, '{')}
	if len(list) > 0 {
		tokens = append(tokens, punctuation(hclsyntax.TokenNewline, '\n'))
	}
	for _, member := range list {
		tokens = append(tokens, hclwrite.TokensForIdentifier(member.name)...)
		tokens = append(tokens, punctuation(hclsyntax.TokenEqual, '='))
		tokens = append(tokens, member.value...)
		tokens = append(tokens, punctuation(hclsyntax.TokenNewline, '\n'))
	}
	return append(tokens, punctuation(hclsyntax.TokenCBrace, '}')), nil
}

// tuple puts a short list of simple values on one line. In other lists, each element is on its
// own line, so that a diff shows which element changed.
func tuple(decoder *json.Decoder) (hclwrite.Tokens, error) {
	var elements []hclwrite.Tokens
	short, length := true, 0
	for decoder.More() {
		value, err := expression(decoder)
		if err != nil {
			return nil, err
		}
		short = short && value[0].Type != hclsyntax.TokenOBrace && value[0].Type != hclsyntax.TokenOBrack
		length += len(value.Bytes())
		elements = append(elements, value)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	if short && length <= maxLine {
		return hclwrite.TokensForTuple(elements), nil
	}

	newline := punctuation(hclsyntax.TokenNewline, '\n')
	tokens := hclwrite.Tokens{punctuation(hclsyntax.TokenOBrack, '['), newline}
	for _, element := range elements {
		tokens = append(tokens, element...)
		tokens = append(tokens, punctuation(hclsyntax.TokenComma, ','), newline)
	}
	return append(tokens, punctuation(hclsyntax.TokenCBrack, ']')), nil
}

func punctuation(kind hclsyntax.TokenType, text byte) *hclwrite.Token {
	return &hclwrite.Token{Type: kind, Bytes: []byte{text}}
}

// comment appends comment lines; an empty one is a bare "#".
func comment(body *hclwrite.Body, texts ...string) {
	for _, text := range texts {
		line := "#"
		if text != "" {
			line += " " + text
		}
		body.AppendUnstructuredTokens(hclwrite.Tokens{{Type: hclsyntax.TokenComment, Bytes: []byte(line + "\n")}})
	}
}

func setText(body *hclwrite.Body, name, value string) {
	body.SetAttributeValue(name, cty.StringVal(value))
}
