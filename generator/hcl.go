package generator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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

// arguments turns a struct with JSON tags into attributes, in field order. Attribute
// names are the tags, so no value can become one; checkOptions and checkBackend check map
// keys.
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
		list = append(list, argument{fmt.Sprint(name), tokens})
	}
	return list, nil
}

// expression turns the decoder's next value into an expression.
func expression(decoder *json.Decoder) (hclwrite.Tokens, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch value := token.(type) {
	case json.Delim:
		if value == '{' {
			return object(decoder)
		}
		return tuple(decoder)
	case json.Number:
		return number(value)
	case string:
		return hclwrite.TokensForValue(cty.StringVal(value)), nil
	case bool:
		return hclwrite.TokensForValue(cty.BoolVal(value)), nil
	default:
		return hclwrite.TokensForValue(cty.NullVal(cty.DynamicPseudoType)), nil
	}
}

// number returns a number as cty prints it. Without an exponent, encoding/json prints it
// the same way at a hundredth of the cost.
func number(value json.Number) (hclwrite.Tokens, error) {
	if !strings.ContainsAny(value.String(), "eE") {
		return hclwrite.Tokens{{Type: hclsyntax.TokenNumberLit, Bytes: []byte(value)}}, nil
	}
	exact, err := cty.ParseNumberVal(value.String())
	return hclwrite.TokensForValue(exact), err
}

// object writes each attribute on its own line. hclwrite.TokensForObject does too, but
// reformats the content at each depth, which is most of the cost of a file.
func object(decoder *json.Decoder) (hclwrite.Tokens, error) {
	tokens := hclwrite.Tokens{{Type: hclsyntax.TokenOBrace, Bytes: []byte{'{'}}}
	for decoder.More() {
		if len(tokens) == 1 {
			tokens = append(tokens, newline())
		}
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		value, err := expression(decoder)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, hclwrite.TokensForIdentifier(fmt.Sprint(name))...)
		tokens = append(tokens, &hclwrite.Token{Type: hclsyntax.TokenEqual, Bytes: []byte{'='}})
		tokens = append(append(tokens, value...), newline())
	}
	_, err := decoder.Token()
	return append(tokens, &hclwrite.Token{Type: hclsyntax.TokenCBrace, Bytes: []byte{'}'}}), err
}

func newline() *hclwrite.Token {
	return &hclwrite.Token{Type: hclsyntax.TokenNewline, Bytes: []byte{'\n'}}
}

// maxLine is the maximum total length of list elements on a single line.
const maxLine = 60

// tuple puts a short list on one line, and each element of a longer one on its own line,
// so that a diff shows which element changed.
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
	_, err := decoder.Token()
	if short && length <= maxLine {
		return hclwrite.TokensForTuple(elements), err
	}
	return lines(elements), err
}

// lines returns a tuple with each element on its own line.
func lines(elements []hclwrite.Tokens) hclwrite.Tokens {
	tokens := hclwrite.Tokens{{Type: hclsyntax.TokenOBrack, Bytes: []byte{'['}}, newline()}
	for _, element := range elements {
		tokens = append(tokens, element...)
		tokens = append(tokens, &hclwrite.Token{Type: hclsyntax.TokenComma, Bytes: []byte{','}}, newline())
	}
	return append(tokens, &hclwrite.Token{Type: hclsyntax.TokenCBrack, Bytes: []byte{']'}})
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

// sortedAttributes returns attributes sorted by name, so that the same error is found
// every time.
func sortedAttributes(attributes hclsyntax.Attributes) []*hclsyntax.Attribute {
	var list []*hclsyntax.Attribute
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		list = append(list, attributes[name])
	}
	return list
}
