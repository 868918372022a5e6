package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// differences lists the differences between a response and the expected one, one per
// line.
func (w *Want) differences(got *answer) []string {
	var found []string
	differ := func(what, got, want string) {
		found = append(found, fmt.Sprintf("%s: expected %s, got %s", what, shown(want), shown(got)))
	}
	if status := w.Status; got.status != max(status, 200) && (status != 0 || got.status >= 400) {
		differ("status", fmt.Sprint(got.status, " ", got.reason), strings.TrimSpace(fmt.Sprint(max(status, 200), " ", w.Text)))
		if len(got.errors) > 0 {
			differ("errors", fmt.Sprint(got.errors), fmt.Sprint(w.Errors))
		}
		return found // the other differences follow from the status
	}
	if w.Text != "" && !matches(w.Text, got.reason) {
		differ("text", got.reason, w.Text)
	}
	if w.Errors != nil {
		for _, name := range slices.Sorted(maps.Keys(w.Errors)) {
			if text := strings.TrimRight(got.errors[name], "\n"); !matches(w.Errors[name], text) {
				differ("error of "+name, text, w.Errors[name])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(got.errors)) {
			if _, ok := w.Errors[name]; !ok {
				differ("error of "+name, got.errors[name], "none")
			}
		}
	}
	if text := textOf(got.data); w.Data != "" && !matches(w.Data, text) {
		differ("data", text, w.Data)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Meta)) {
		if text := textOf(got.meta[name]); !matches(w.Meta[name], text) {
			differ(name+" beside data", text, w.Meta[name])
		}
	}
	return append(found, w.objects(got.data)...)
}

// objects compares objects with the expected ones.
func (w *Want) objects(data any) []string {
	list := listOf(data)
	if w.Item != nil {
		all := len(list)
		list = slices.DeleteFunc(slices.Clone(list), func(element any) bool { return !has(element, w.Item) })
		if len(list) == 0 {
			return []string{fmt.Sprintf("list: expected an element with %v, got none in %d elements", w.Item, all)}
		}
	}
	var found []string
	if w.NoItem != nil {
		for _, element := range list {
			if has(element, w.NoItem) {
				found = append(found, fmt.Sprintf("list: expected no element with %v, got one", w.NoItem))
			}
		}
	}
	if w.Shape == nil && w.Has == nil && w.Lacks == nil {
		return found
	}
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return append(found, "expected an object, got "+shown(textOf(element)))
		}
		found = append(found, w.members(object)...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// members compares the members of one object.
func (w *Want) members(object map[string]any) []string {
	var found []string
	for _, written := range slices.Sorted(maps.Keys(w.Shape)) {
		key, optional := strings.CutSuffix(written, "?")
		value, ok := object[key]
		switch {
		case !ok && !optional:
			found = append(found, "member "+key+" is missing")
		case ok && !slices.Contains(strings.Split(w.Shape[written], "|"), kindOf(value)) &&
			(kindOf(value) != "integer" || !strings.Contains(w.Shape[written], "number")):
			found = append(found, fmt.Sprintf("member %s: expected type %s, got %s", key, w.Shape[written], kindOf(value)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.Has)) {
		value, ok := object[key]
		if !ok {
			found = append(found, "member "+key+" is missing")
		} else if text := textOf(value); !matches(w.Has[key], text) {
			found = append(found, fmt.Sprintf("member %s: expected %s, got %s", key, shown(w.Has[key]), shown(text)))
		}
	}
	for _, key := range w.Lacks {
		if value, ok := object[key]; ok {
			found = append(found, fmt.Sprintf("member %s must be absent, got %s", key, shown(textOf(value))))
		}
	}
	return found
}

// listOf returns data if it is a list, and otherwise a list that contains only data.
func listOf(data any) []any {
	if list, ok := data.([]any); ok {
		return list
	}
	return []any{data}
}

func has(element any, want map[string]string) bool {
	object, ok := element.(map[string]any)
	for key, text := range want {
		value, exists := object[key]
		if !exists || !matches(text, textOf(value)) {
			return false
		}
	}
	return ok
}

// matches compares a text exactly, or with a regular expression that starts with "~".
func matches(want, got string) bool {
	pattern, ok := strings.CutPrefix(want, "~")
	if !ok {
		return want == got
	}
	re, err := regexp.Compile(`^(?s:` + pattern + `)$`)
	return err == nil && re.MatchString(got)
}

// textOf returns a JSON value as text: a string as it is, other values as JSON.
func textOf(value any) string {
	if text, ok := value.(string); ok {
		return text
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

func kindOf(value any) string {
	switch value := value.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case json.Number:
		if strings.ContainsAny(value.String(), ".eE") {
			return "number"
		}
		return "integer"
	case []any:
		return "array"
	}
	return "object"
}

// shown quotes a text and truncates a long one.
func shown(text string) string {
	const most = 400
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%q", text)
}
