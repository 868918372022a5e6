package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// jsonNode is a JSON value with its line number.
type jsonNode struct {
	kind jsonKind
	line int
	// text is the unquoted text of a string, or the literal text of another scalar.
	text string
	// keys are an object's keys in order; items are the values of an object or array.
	keys  []string
	items []*jsonNode
}

type jsonKind string

const (
	jsonObject jsonKind = "an object"
	jsonArray  jsonKind = "an array"
	jsonString jsonKind = "a string"
	jsonNumber jsonKind = "a number"
	jsonBool   jsonKind = "true or false"
	jsonNull   jsonKind = "null"
)

// maxJSONDepth far exceeds the depth of all our formats.
const maxJSONDepth = 16

// field returns the value of an object's key, or nil.
func (n *jsonNode) field(key string) *jsonNode {
	if n == nil {
		return nil
	}
	for i, k := range n.keys {
		if k == key {
			return n.items[i]
		}
	}
	return nil
}

// lineOf returns the line of the value at the path of keys, or of its innermost existing
// ancestor.
func (n *jsonNode) lineOf(path ...string) int {
	for _, key := range path {
		inner := n.field(key)
		if inner == nil {
			break
		}
		n = inner
	}
	return n.line
}

type jsonReader struct {
	data    []byte
	decoder *json.Decoder
	// line is the line of the last counted offset.
	line   int
	offset int64
}

// parseTree parses data, which must be exactly one JSON value.
func parseTree(data []byte) (*jsonNode, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	r := &jsonReader{data: data, decoder: decoder, line: 1}
	root, err := r.value(0)
	if err != nil {
		return nil, r.locate(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line %d: more follows the end of the JSON value: remove it", r.lineAt(decoder.InputOffset()))
	}
	return root, nil
}

func (r *jsonReader) locate(err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: not JSON: %w", 1+bytes.Count(r.data[:min(syntax.Offset, int64(len(r.data)))], []byte("\n")), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: not JSON: the text ends too early", 1+bytes.Count(r.data, []byte("\n")))
	default:
		return err
	}
}

func (r *jsonReader) lineAt(offset int64) int {
	r.line += bytes.Count(r.data[r.offset:offset], []byte("\n"))
	r.offset = offset
	return r.line
}

func (r *jsonReader) value(depth int) (*jsonNode, error) {
	token, err := r.decoder.Token()
	if err != nil {
		return nil, err
	}
	node := &jsonNode{line: r.lineAt(r.decoder.InputOffset())}
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("line %d: values are nested more than %d deep", node.line, maxJSONDepth)
	}
	switch token := token.(type) {
	case json.Delim:
		return node, r.composite(node, token, depth)
	case string:
		node.kind, node.text = jsonString, token
	case json.Number:
		node.kind, node.text = jsonNumber, token.String()
	case bool:
		node.kind, node.text = jsonBool, fmt.Sprint(token)
	default:
		node.kind, node.text = jsonNull, "null"
	}
	return node, nil
}

// composite parses the rest of an object or array after its opening bracket.
func (r *jsonReader) composite(node *jsonNode, open json.Delim, depth int) error {
	node.kind = jsonArray
	if open == '{' {
		node.kind = jsonObject
	}
	for r.decoder.More() {
		if node.kind == jsonObject {
			key, err := r.decoder.Token()
			if err != nil {
				return err
			}
			node.keys = append(node.keys, fmt.Sprint(key))
		}
		item, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		node.items = append(node.items, item)
	}
	_, err := r.decoder.Token()
	return err
}

// maxLine is the maximum width of an object or array on one line.
const maxLine = 160

// printJSON prints a value as JSON: small objects and arrays on one line each, so that a
// file with a hundred CPUs stays readable and diffs line by line.
func printJSON(value any) ([]byte, error) {
	var compact bytes.Buffer
	encoder := json.NewEncoder(&compact)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	tree, err := parseTree(compact.Bytes())
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	tree.print(&out, "", true)
	out.WriteByte('\n')
	return []byte(out.String()), nil
}

// print prints the node. It always breaks the outermost value and an array of objects
// into lines.
func (n *jsonNode) print(out *strings.Builder, indent string, breaks bool) {
	if len(n.items) == 0 || (!breaks && !n.holdsObjects()) {
		line := n.oneLine()
		if len(n.items) == 0 || len(indent)+len(line) <= maxLine {
			out.WriteString(line)
			return
		}
	}
	open, end := n.brackets()
	out.WriteString(open + "\n")
	for i, item := range n.items {
		out.WriteString(indent + "  ")
		if n.kind == jsonObject {
			out.WriteString(quoteJSON(n.keys[i]) + ": ")
		}
		item.print(out, indent+"  ", false)
		if i < len(n.items)-1 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
	}
	out.WriteString(indent + end)
}

func (n *jsonNode) holdsObjects() bool {
	return n.kind == jsonArray && n.items[0].kind == jsonObject
}

func (n *jsonNode) brackets() (string, string) {
	if n.kind == jsonArray {
		return "[", "]"
	}
	return "{", "}"
}

func (n *jsonNode) oneLine() string {
	switch n.kind {
	case jsonObject, jsonArray:
		open, end := n.brackets()
		parts := make([]string, len(n.items))
		for i, item := range n.items {
			parts[i] = item.oneLine()
			if n.kind == jsonObject {
				parts[i] = quoteJSON(n.keys[i]) + ": " + parts[i]
			}
		}
		return open + strings.Join(parts, ", ") + end
	case jsonString:
		return quoteJSON(n.text)
	default:
		return n.text
	}
}

func quoteJSON(text string) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		return `""`
	}
	return strings.TrimSuffix(out.String(), "\n")
}
