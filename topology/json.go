package topology

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxJSONDepth far exceeds the depth of all our formats.
const maxJSONDepth = 16

// maxFaults limits how many faults of one file are reported at once.
const maxFaults = 20

// joinFaults joins the first maxFaults faults and reports the number of the rest.
func joinFaults(faults []error) error {
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults:maxFaults], fmt.Errorf("and %d more", more))
	}
	return errors.Join(faults...)
}

// strictJSON reads JSON into target and rejects input that encoding/json accepts: unknown
// keys, duplicate keys, keys that differ in case, and null. It reports up to maxFaults of
// these faults at once, each with its line and path.
//
// No library does this for these types. encoding/json and sigs.k8s.io/json do not find
// unknown keys in types with an UnmarshalJSON, which CPU and NUMANode need for their
// defaults. They stop at the first wrong type, and they omit the path of a text that
// UnmarshalText rejects: for `"cpus": "3-1"` they report a reversed range, but no host.
func strictJSON(data []byte, target any) error {
	r := strictReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data)), fields: map[reflect.Type]map[string]reflect.Type{}}
	r.decoder.UseNumber()
	err := r.read(reflect.TypeOf(target).Elem(), "", 0)

	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: not JSON: %w", r.line(syntax.Offset), err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: not JSON: unexpected end of text", r.line(int64(len(data))))
	case err != nil:
		return err
	}
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d: unexpected data after the JSON value: remove it", r.line(r.decoder.InputOffset()))
	}
	if len(r.faults) > 0 {
		return errors.Join(r.faults...)
	}
	return json.Unmarshal(data, target)
}

// strictReader compares JSON with the Go type into which it is decoded.
type strictReader struct {
	data    []byte
	decoder *json.Decoder
	// fields are the keys of each struct, and their types.
	fields map[reflect.Type]map[string]reflect.Type
	faults []error
}

// line returns the number of the line that contains an offset.
func (r *strictReader) line(offset int64) int {
	return 1 + bytes.Count(r.data[:min(offset, int64(len(r.data)))], []byte("\n"))
}

// fault records a fault of the last value or key that the decoder read.
func (r *strictReader) fault(path, format string, args ...any) {
	if len(r.faults) >= maxFaults {
		return
	}
	if path == "" {
		path = "the file"
	}
	r.faults = append(r.faults, fmt.Errorf("line %d: %s: %s", r.line(r.decoder.InputOffset()), path, fmt.Sprintf(format, args...)))
}

// read reads one value and compares it with its type. A nil type fits any value.
func (r *strictReader) read(typ reflect.Type, path string, depth int) error {
	token, err := r.decoder.Token()
	if err != nil {
		return err
	}
	if depth > maxJSONDepth {
		return fmt.Errorf("line %d: values must be nested at most %d levels deep", r.line(r.decoder.InputOffset()), maxJSONDepth)
	}
	if typ != nil {
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if want, got := jsonKind(typ), tokenKind(token); want != got {
			r.fault(path, "must be %s, not %s", want, got)
			typ = nil
		}
	}

	switch token := token.(type) {
	case json.Delim:
		return r.readElements(token == '{', typ, path, depth)
	case string:
		if typ != nil {
			if text, ok := reflect.New(typ).Interface().(encoding.TextUnmarshaler); ok {
				if err := text.UnmarshalText([]byte(token)); err != nil {
					r.fault(path, "%s", err)
				}
			}
		}
	case json.Number:
		if typ != nil && typ.Kind() != reflect.Float64 {
			if _, err := strconv.ParseInt(token.String(), 10, typ.Bits()); err != nil {
				r.fault(path, "%s: must be a whole number", quote(token.String()))
			}
		}
	}
	return nil
}

// readElements reads the rest of an object or array after its opening bracket.
func (r *strictReader) readElements(object bool, typ reflect.Type, path string, depth int) error {
	seen := map[string]bool{}
	for i := 0; r.decoder.More(); i++ {
		element, inner := reflect.Type(nil), fmt.Sprintf("%s[%d]", path, i)
		if object {
			token, err := r.decoder.Token()
			if err != nil {
				return err
			}
			key := fmt.Sprint(token)
			inner = strings.TrimPrefix(path+"."+key, ".")
			if seen[key] {
				r.fault(inner, "duplicate key: remove one")
			} else if typ != nil {
				element = r.checkKey(typ, key, inner)
			}
			seen[key] = true
		} else if typ != nil {
			element = typ.Elem()
		}
		if err := r.read(element, inner, depth+1); err != nil {
			return err
		}
	}
	_, err := r.decoder.Token()
	return err
}

// checkKey returns the type of the value of an object's key, or nil if the key is unknown. It
// records a fault for an invalid key.
func (r *strictReader) checkKey(typ reflect.Type, key, path string) reflect.Type {
	if typ.Kind() == reflect.Map {
		number, err := strconv.Atoi(key)
		if typ.Key().Kind() == reflect.Int && (err != nil || strconv.Itoa(number) != key) {
			r.fault(path, "key %s must be a number", quote(key))
		}
		return typ.Elem()
	}

	fields := r.fields[typ]
	if fields == nil {
		fields = map[string]reflect.Type{}
		r.fields[typ] = fields
		for _, field := range reflect.VisibleFields(typ) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				fields[name] = field.Type
			}
		}
	}
	field, ok := fields[key]
	if !ok {
		r.fault(path, "unknown key: must be one of %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
	}
	return field
}

// jsonKind describes the JSON values that decode into a type.
func jsonKind(typ reflect.Type) string {
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return tokenKind("")
	}
	switch typ.Kind() {
	case reflect.Struct, reflect.Map:
		return tokenKind(json.Delim('{'))
	case reflect.Slice:
		return tokenKind(json.Delim('['))
	case reflect.String:
		return tokenKind("")
	case reflect.Bool:
		return tokenKind(true)
	default:
		return tokenKind(json.Number(""))
	}
}

// tokenKind describes the kind of a JSON value by its first token.
func tokenKind(token json.Token) string {
	switch token {
	case json.Delim('{'):
		return "an object"
	case json.Delim('['):
		return "an array"
	case nil:
		return "null"
	}
	switch token.(type) {
	case string:
		return "a string"
	case bool:
		return "true or false"
	default:
		return "a number"
	}
}

// maxLine is the maximum width of an object or array on one line.
const maxLine = 160

// printJSON prints a value as JSON, small objects and arrays on one line each, so that a
// file with a hundred CPUs stays readable and diffs line by line. The outermost value and
// arrays of objects are never on one line.
func printJSON(value any) ([]byte, error) {
	var indented bytes.Buffer
	encoder := json.NewEncoder(&indented)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}

	var lines []string
	var unclosed []int // the lines of brackets without their closing bracket
	for line := range strings.Lines(indented.String()) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		switch text := strings.TrimSpace(line); {
		case strings.HasSuffix(text, "{") || strings.HasSuffix(text, "["):
			unclosed = append(unclosed, len(lines)-1)
		case text[0] == '}' || text[0] == ']':
			start := unclosed[len(unclosed)-1]
			unclosed = unclosed[:len(unclosed)-1]
			ofObjects := text[0] == ']' && strings.TrimSpace(lines[start+1])[0] == '{'
			if joined := joinLines(lines[start:]); joined != "" && len(unclosed) > 0 && !ofObjects {
				lines = append(lines[:start], joined)
			}
		}
	}
	return []byte(strings.Join(lines, "\n") + "\n"), nil
}

// joinLines puts an object or array on one line, or returns "" if it is too long. The key
// before it and the comma after it do not count towards its length.
func joinLines(lines []string) string {
	first := lines[0]
	indent := len(first) - len(strings.TrimLeft(first, " "))
	body := first[len(first)-1:]
	for i, line := range lines[1:] {
		line = strings.TrimSpace(line)
		if i > 0 && i < len(lines)-2 && !strings.HasSuffix(body, "[") && !strings.HasPrefix(line, "]") {
			body += " "
		}
		body += line
		if indent+len(strings.TrimSuffix(body, ",")) > maxLine {
			return ""
		}
	}
	return first[:len(first)-1] + body
}
