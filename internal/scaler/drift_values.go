package scaler

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
)

// hidden replaces a value that must not be shown.
const hidden = "(not shown)"

// secretNames matches attributes whose value is a secret, even if the provider does not mark
// it.
var secretNames = regexp.MustCompile(`(?i)password|secret|token|private_key`)

// shownLength limits how much of a value is shown.
const shownLength = 60

// differences returns what a change would alter in Proxmox: the values before are from
// Proxmox, the values after are from the file.
func differences(change *tfjson.Change) []DriftDifference {
	proxmox, file := leaves{}, leaves{}
	proxmox.add("", change.Before)
	file.add("", change.After)
	secret, unknown := marks{}, marks{}
	secret.add("", change.BeforeSensitive)
	secret.add("", change.AfterSensitive)
	unknown.add("", change.AfterUnknown)

	paths := slices.Concat(sortedKeys(proxmox), sortedKeys(file))
	slices.Sort(paths)
	var found []DriftDifference
	for _, path := range slices.Compact(paths) {
		switch {
		case proxmox[path] == file[path] || unknown.covers(path):
		case secret.covers(path) || secretNames.MatchString(path):
			found = append(found, DriftDifference{Attribute: path, File: hidden, Proxmox: hidden})
		case path == "description":
			// Do not repeat text written by people.
			d := DriftDifference{Attribute: path, File: "the text in its file", Proxmox: "different text"}
			declared, inFile := markerIn(file[path])
			actual, inProxmox := markerIn(proxmox[path])
			if inFile && inProxmox && !samePins(declared, actual) {
				d.File = pinText(declared)
				d.Proxmox = pinText(actual)
			}
			found = append(found, d)
		default:
			found = append(found, DriftDifference{Attribute: path, File: shown(file[path], proxmox[path]), Proxmox: shown(proxmox[path], file[path])})
		}
	}
	return found
}

// markerIn returns the marker in a description, which is a JSON string.
func markerIn(leaf string) (fleet.Marker, bool) {
	var text string
	if json.Unmarshal([]byte(leaf), &text) != nil {
		text = ""
	}
	return fleet.ParseMarker(text)
}

// shown returns a value for display, shortened to shownLength. An empty value is shown as
// false or 0 if other is a boolean or a number, and as "nothing" otherwise.
func shown(leaf, other string) string {
	letters := []rune(leaf)
	switch _, err := strconv.ParseFloat(other, 64); {
	case leaf == "" && other == "true":
		return "false"
	case leaf == "" && err == nil:
		return "0"
	case leaf == "":
		return "nothing"
	case len(letters) > shownLength:
		return string(letters[:shownLength]) + "…"
	}
	return leaf
}

// leaves are the values of a resource, as JSON, by path. Empty values are omitted, because
// the provider's SDK does not distinguish null from zero.
type leaves map[string]string

// add adds a value and its elements: a list of blocks one by one, and a list of scalars as
// a whole.
func (l leaves) add(path string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for name, inner := range v {
			l.add(strings.TrimPrefix(path+"."+name, "."), inner)
		}
	case []any:
		for i, element := range v {
			if isBlock(element) {
				l.add(indexed(path, i, element, len(v)), element)
			} else if leaf, err := json.Marshal(v); err == nil {
				l[path] = string(leaf)
				return
			}
		}
	default:
		leaf, err := json.Marshal(v)
		if err != nil {
			leaf = []byte(hidden)
		}
		if word := string(leaf); word != "false" && word != "0" && word != `""` {
			l[path] = word
		}
	}
}

// marks are the paths that a plan marks as sensitive or as unknown. In the plan, marks
// have the shape of the value, with true at marked places.
type marks map[string]bool

func (m marks) add(path string, mark any) {
	switch v := mark.(type) {
	case bool:
		if v {
			m[path] = true
		}
	case map[string]any:
		for name, inner := range v {
			m.add(strings.TrimPrefix(path+"."+name, "."), inner)
		}
	case []any:
		for i, inner := range v {
			m.add(indexed(path, i, inner, len(v)), inner)
		}
	}
}

// covers reports whether a path, or a parent of it, is marked.
func (m marks) covers(path string) bool {
	for above := range m {
		if path == above || above == "" || strings.HasPrefix(path, above+".") || strings.HasPrefix(path, above+"[") {
			return true
		}
	}
	return false
}

func isBlock(element any) bool {
	switch element.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// indexed returns the path of a list element. A block that occurs once has no index, and
// a list of scalars counts as one.
func indexed(path string, i int, element any, length int) string {
	if length > 1 && isBlock(element) {
		return fmt.Sprintf("%s[%d]", path, i)
	}
	return path
}
