package scaler

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// hidden replaces a value that must not be shown.
const hidden = "(not shown)"

// shownLength limits how much of a value is shown.
const shownLength = 60

// differences returns what a change would alter in Proxmox: the values before are
// Proxmox', the values after are the file's.
func differences(change *tfjson.Change) []DriftDifference {
	proxmox, file := leaves{}, leaves{}
	proxmox.add("", change.Before)
	file.add("", change.After)
	secret, unknown := marks{}, marks{}
	secret.add("", change.BeforeSensitive)
	secret.add("", change.AfterSensitive)
	unknown.add("", change.AfterUnknown)
	paths := map[string]bool{}
	for path := range proxmox {
		paths[path] = true
	}
	for path := range file {
		paths[path] = true
	}
	var found []DriftDifference
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if proxmox[path] == file[path] || unknown.covers(path) {
			continue
		}
		found = append(found, difference(path, file[path], proxmox[path], secret.covers(path)))
	}
	return found
}

func difference(path, file, proxmox string, secret bool) DriftDifference {
	switch {
	case secret || secretName(path):
		return DriftDifference{Attribute: path, File: hidden, Proxmox: hidden}
	case path == "description":
		return describe(file, proxmox)
	}
	return DriftDifference{Attribute: path, File: shown(file, proxmox), Proxmox: shown(proxmox, file)}
}

// describe compares two descriptions without repeating text written by people.
func describe(file, proxmox string) DriftDifference {
	d := DriftDifference{Attribute: "description", File: "the text of its file", Proxmox: "another text"}
	was, wanted := fleet.ParseMarker(text(file))
	is, has := fleet.ParseMarker(text(proxmox))
	if wanted && has && (!slices.Equal(was.Pins, is.Pins) || was.Emulator != is.Emulator) {
		d.File, d.Proxmox = declared(was), declared(is)
	}
	return d
}

// declared describes what a marker requests from the host agent.
func declared(m fleet.Marker) string {
	if len(m.Pins) == 0 {
		return "no pins"
	}
	text := "pins " + topology.Pins(m.Pins).String()
	if m.Emulator != "" {
		text += ", emulator " + string(m.Emulator)
	}
	return text
}

// text returns the original string of a leaf.
func text(leaf string) string {
	var s string
	if json.Unmarshal([]byte(leaf), &s) != nil {
		return ""
	}
	return s
}

// secretName reports whether an attribute's value is a secret, even if the provider does
// not mark it.
func secretName(path string) bool {
	path = strings.ToLower(path)
	return slices.ContainsFunc([]string{"password", "secret", "token", "private_key"}, func(word string) bool {
		return strings.Contains(path, word)
	})
}

// shown returns a value for display. An empty one is shown as the zero value of the
// other's type.
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

// leaves are the values of a resource by path. Empty values are omitted, because the
// provider's SDK does not distinguish null from zero.
type leaves map[string]string

// add adds a value and its elements.
func (l leaves) add(path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			l.add(strings.TrimPrefix(path+"."+name, "."), inner)
		}
	case []any:
		l.addList(path, v)
	case nil:
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

// addList adds the elements of a list of blocks one by one, and a list of scalars as a
// whole.
func (l leaves) addList(path string, values []any) {
	for i, value := range values {
		switch value.(type) {
		case map[string]any, []any:
			l.add(indexed(path, i, value, len(values)), value)
		default:
			if leaf, err := json.Marshal(values); err == nil {
				l[path] = string(leaf)
			}
			return
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

// indexed returns the path of a list element. A block that occurs once has no index, and
// a list of scalars counts as one.
func indexed(path string, i int, element any, length int) string {
	switch element.(type) {
	case map[string]any, []any:
		if length > 1 {
			return fmt.Sprintf("%s[%d]", path, i)
		}
	}
	return path
}
