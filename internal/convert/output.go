package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// The kinds and files of the result, as rows name them.
const (
	oursConfig   = "numaform.yaml"
	oursChart    = "values.yaml"
	oursAgent    = "numaform-agent.yaml"
	oursClass    = "ProxmoxNodeClass"
	oursPool     = "NodePool"
	oursSecret   = "Secret"
	oursSettings = "nodes-settings.json"
	oursTypes    = "instance-types.json"
)

const (
	group   = "numaform.dev"
	version = group + "/v1alpha1"
	karp    = "karpenter.sh/v1"
)

// output is an object or a file of the result.
type output struct {
	kind, name string
	fields     map[string]any
	// raw is the content of a file that is no YAML.
	raw string
	// comment precedes the object.
	comment string
	secret  bool
}

// object returns an object of the result, and creates it if necessary.
func (c *conversion) object(kind, name string) map[string]any {
	key := kind + "/" + name
	if c.out[key] == nil {
		fields := map[string]any{}
		switch kind {
		case oursClass, kindTemplate:
			fields = manifest(version, kind, name)
		case oursPool:
			fields = manifest(karp, kind, name)
		case oursSecret:
			fields = manifest("v1", kind, name)
			put(fields, "metadata.namespace", nil, c.Namespace)
		}
		c.out[key] = &output{kind: kind, name: name, fields: fields, secret: kind == oursSecret}
	}
	return c.out[key].fields
}

// spec returns the spec of a class.
func (c *conversion) spec(class string) map[string]any {
	object := c.object(oursClass, class)
	if object["spec"] == nil {
		object["spec"] = map[string]any{}
	}
	return child(object, "spec")
}

func manifest(version, kind, name string) map[string]any {
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}}
}

// secretFile adds a file with a credential, and returns its path for numaform.yaml.
func (c *conversion) secretFile(name, value string) string {
	path := "secrets/" + name
	c.out[path] = &output{name: path, raw: strings.TrimSpace(value) + "\n", secret: true}
	return path
}

// files renders the result.
func (c *conversion) files() ([]File, error) {
	content := map[string]*File{}
	for _, key := range sorted(c.out) {
		o := c.out[key]
		name := o.kind
		switch o.kind {
		case oursClass:
			name = "manifests/nodeclasses.yaml"
		case oursPool:
			name = "manifests/nodepools.yaml"
		case kindTemplate:
			name = "manifests/templates.yaml"
		case unfinished:
			name = "unfinished-templates.yaml"
		case oursSecret:
			name = "manifests/secrets.yaml"
		case "":
			name = o.name
		}
		file := content[name]
		if file == nil {
			file = &File{Name: name}
			content[name] = file
		}
		file.Secret = file.Secret || o.secret
		if o.kind == "" || o.kind == oursTypes || o.kind == oursSettings {
			file.Content = []byte(o.raw)
			continue
		}
		encoded, err := yaml.Marshal(o.fields)
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", name, err)
		}
		if len(file.Content) > 0 {
			file.Content = append(file.Content, "---\n"...)
		}
		file.Content = append(file.Content, o.comment+string(encoded)...)
	}
	var files []File
	for _, name := range sorted(content) {
		files = append(files, *content[name])
	}
	return files, nil
}

// put sets the value of a path with [] for the next index and * for the next key. It creates
// the objects and lists on the way.
func put(fields map[string]any, path string, at *place, value any) {
	var index []int
	var keys []string
	if at != nil {
		index, keys = at.index, at.keys
	}
	segments := split(path)
	for i, segment := range segments {
		if segment == "*" && len(keys) > 0 {
			segments[i], keys = keys[0], keys[1:]
		}
		if segment == "[]" {
			n := 0
			if len(index) > 0 {
				n, index = index[0], index[1:]
			}
			segments[i] = "[" + strconv.Itoa(n) + "]"
		}
	}
	putSegments(fields, segments, value)
}

func putSegments(fields map[string]any, segments []string, value any) {
	key := segments[0]
	if len(segments) == 1 {
		fields[key] = value
		return
	}
	if !strings.HasPrefix(segments[1], "[") {
		inner, ok := fields[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			fields[key] = inner
		}
		putSegments(inner, segments[1:], value)
		return
	}
	list, _ := fields[key].([]any)
	n, _ := strconv.Atoi(strings.Trim(segments[1], "[]"))
	for len(list) <= n {
		list = append(list, nil)
	}
	if len(segments) == 2 {
		list[n] = value
	} else {
		item, ok := list[n].(map[string]any)
		if !ok {
			item = map[string]any{}
			list[n] = item
		}
		putSegments(item, segments[2:], value)
	}
	fields[key] = list
}

// get returns the value of a path without lists, or nil.
func get(fields map[string]any, keys ...string) any {
	object := Object{Fields: fields}
	return object.at(keys...)
}

// copied sets the option at the row's place in numaform's configuration, unchanged.
func copied(c *conversion, at *place) { at.put(c, at.value) }

// put sets a value at the row's places in numaform's configuration.
func (at *place) put(c *conversion, value any) {
	for ours := range strings.SplitSeq(at.ours, ", ") {
		kind, path, _ := strings.Cut(ours, " ")
		put(c.target(kind, at.from), path, at, value)
	}
}

// target returns the output of a kind that belongs to an input.
func (c *conversion) target(kind string, from *Object) map[string]any {
	switch {
	case kind == oursConfig || kind == oursChart || kind == oursSettings || kind == oursAgent:
		return c.object(kind, "")
	case kind == oursClass && (from.Kind == kindTemplate || from.Kind == kindUnmanaged):
		// Classes that refer to the template get these fields.
		return c.object(fragment, from.String())
	}
	return c.object(kind, from.Name)
}

// fragment is the kind of an output that becomes part of another one, and unfinished that of
// a ProxmoxTemplate that the user must complete.
const (
	fragment   = "fragment"
	unfinished = "unfinished"
)

// boolean converts "true" and "false" of environment variables.
func boolean(value any) (any, error) {
	if is, ok := value.(bool); ok {
		return is, nil
	}
	is, err := strconv.ParseBool(text(value))
	if err != nil {
		return nil, fmt.Errorf("is neither true nor false")
	}
	return is, nil
}

// texts returns the strings of a list.
func texts(value any) []string {
	items, _ := value.([]any)
	var list []string
	for _, item := range items {
		list = append(list, text(item))
	}
	return list
}

// addTo adds strings to a list, each once.
func addTo(fields map[string]any, key string, values ...string) {
	list := texts(fields[key])
	for _, value := range values {
		if !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	var items []any
	for _, value := range list {
		items = append(items, value)
	}
	fields[key] = items
}
