package pvesim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The messages of PVE::JSONSchema without arguments.
const (
	textMissing    = "property is missing and it is not optional"
	textUndefined  = "property is not defined in schema and the schema does not allow additional properties"
	textBadPattern = "value does not match the regex pattern"
)

var (
	integerText = regexp.MustCompile(`^[+-]?\d+$`)
	numberText  = regexp.MustCompile(`^[+-]?(\d+\.\d+|\d+\.|\.\d+|\d+)([eE][+-]?\d+)?$`)
)

// value is a parameter as received: a text, or another JSON value.
type value struct {
	text string
	list []string // a JSON array, or the values of a repeated key
	// ref is Perl's name of the type of a JSON value that is neither text nor number.
	ref string
}

// problems are the errors of parameters, by the path of the parameter.
type problems map[string]string

func (p problems) add(path, text string) {
	if path == "" {
		path = "_root"
	}
	if old, ok := p[path]; ok {
		text = old + `\n` + text
	}
	p[path] = text
}

// validate checks the parameters against the endpoint's schema and returns them as texts.
func (e *endpoint) validate(given map[string]value) (params, *apiError) {
	found := problems{}
	texts := make(params, len(given))
	for name, v := range given {
		s := e.params[name]
		if s == nil {
			if !e.open {
				found.add(name, textUndefined)
			}
			continue
		}
		texts[name] = s.checkValue(name, v, found)
	}
	for name, s := range e.params {
		_, ok := given[name]
		if !ok && !s.Optional {
			found.add(name, textMissing)
		}
		if ok && s.Requires != "" {
			if _, has := given[s.Requires]; !has {
				found.add(s.Requires, fmt.Sprintf("missing property - '%s' requires this property", name))
			}
		}
	}
	if len(found) > 0 {
		return nil, paramError(found)
	}
	return texts, nil
}

// checkValue converts lists to texts if the schema has a list format, and checks the text.
func (s *schema) checkValue(path string, v value, found problems) string {
	if s.Type == "array" {
		items := v.list
		if items == nil {
			items = []string{v.text}
		}
		for i, item := range items {
			if s.Items != nil {
				s.Items.check(fmt.Sprintf("%s[%d]", path, i), item, found)
			}
		}
		return strings.Join(items, "\x00")
	}
	if v.list != nil && strings.HasSuffix(s.Format, "-list") {
		v = value{text: strings.Join(v.list, ",")}
	}
	if v.ref != "" && (v.ref != refBool || s.Type != "boolean") {
		found.add(path, fmt.Sprintf("type check ('%s') failed - got %s", s.Type, v.ref))
		return ""
	}
	s.check(path, v.text, found)
	return v.text
}

// check checks a text, as JSONSchema's check_prop does: type, format, pattern, lengths,
// limits and enumeration, up to the first failure.
func (s *schema) check(path, text string, found problems) {
	if !typeFits(s.Type, text) {
		found.add(path, fmt.Sprintf("type check ('%s') failed - got '%s'", s.Type, text))
		return
	}
	if err := s.checkFormat(path, text); err != nil {
		found.add(path, "invalid format - "+err.Error()+"\n")
		return
	}
	if problem := s.checkBounds(text); problem != "" {
		found.add(path, problem)
		return
	}
	if s.Enum != nil && !holds(s.Enum, text) {
		found.add(path, fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", text, strings.Join(s.Enum, ", ")))
	}
}

func typeFits(kind, text string) bool {
	switch kind {
	case "boolean":
		return text == "0" || text == "1"
	case "integer":
		return integerText.MatchString(text)
	case "number":
		return numberText.MatchString(text)
	}
	return true
}

// checkBounds checks pattern, lengths and limits, and returns the message of the first
// violation, or "".
func (s *schema) checkBounds(text string) string {
	if s.pattern != nil && !s.pattern.MatchString(text) {
		return textBadPattern
	}
	length := utf8.RuneCountInString(text)
	if s.MaxLength != nil && length > *s.MaxLength {
		return fmt.Sprintf("value may only be %d characters long", *s.MaxLength)
	}
	if s.MinLength != nil && length < *s.MinLength {
		return fmt.Sprintf("value must be at least %d characters long", *s.MinLength)
	}
	return s.checkRange(text)
}

// checkRange checks the limits of a text that is a number, and returns the message of a
// violation, or "".
func (s *schema) checkRange(text string) string {
	if !numberText.MatchString(text) {
		return ""
	}
	number, _ := strconv.ParseFloat(text, 64)
	if s.Maximum != nil && number > *s.Maximum {
		return "value must have a maximum value of " + strconv.FormatFloat(*s.Maximum, 'f', -1, 64)
	}
	if s.Minimum != nil && number < *s.Minimum {
		return "value must have a minimum value of " + strconv.FormatFloat(*s.Minimum, 'f', -1, 64)
	}
	return ""
}
