package convert

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Object is an input: a Kubernetes object, or the content of a file of another kind.
type Object struct {
	// Kind is the kind of a Kubernetes object, or the name of a file's form, such as
	// "config.yaml" or "environment".
	Kind            string
	Group           string
	Namespace, Name string
	// File is where the object was read.
	File   string
	Fields map[string]any
	// cluster is the index of the Proxmox cluster of a provider.
	cluster int
}

func (o *Object) String() string {
	if o.Name == "" {
		return o.Kind
	}
	return o.Kind + "/" + o.Name
}

// The kinds of inputs that are not Kubernetes objects.
const (
	kindConfig        = "config.yaml"
	kindValues        = "values.yaml"
	kindFlags         = "flags"
	kindEnvironment   = "environment"
	kindSettings      = "nodes-settings.json"
	kindInstanceTypes = "instance-types.json"
	kindScheduler     = "proxmox-scheduler"
)

var (
	separator = regexp.MustCompile(`(?m)^---(?:[ \t].*)?$`)
	variable  = regexp.MustCompile(`(?m)^(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)
)

// Read parses a file of any form that a peer uses: manifests, Helm values, a configuration
// file, JSON settings, or a file of environment variables.
func Read(name string, data []byte) ([]Object, error) {
	if found := variable.FindAllStringSubmatch(string(data), -1); found != nil && isEnvironment(string(data)) {
		fields := map[string]any{}
		for _, pair := range found {
			fields[pair[1]] = strings.Trim(strings.TrimSpace(pair[2]), `"'`)
		}
		kind := kindEnvironment
		if strings.Contains(path.Base(name), kindScheduler) {
			kind = kindScheduler
		}
		return []Object{{Kind: kind, File: name, Fields: fields}}, nil
	}
	var objects []Object
	for i, document := range separator.Split(string(data), -1) {
		var content any
		if err := yaml.Unmarshal([]byte(document), &content); err != nil {
			return nil, fmt.Errorf("reading %s: document %d: invalid YAML: indent with spaces, and quote values that contain {, [, # or \": \"", name, i+1)
		}
		if content == nil {
			continue
		}
		read, err := FromContent(name, content)
		if err != nil {
			return nil, fmt.Errorf("reading %s: document %d: %w", name, i+1, err)
		}
		objects = append(objects, read...)
	}
	return objects, nil
}

// isEnvironment reports whether all lines of a text are variables or comments.
func isEnvironment(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !variable.MatchString(line) {
			return false
		}
	}
	return true
}

// FromContent returns the objects of a decoded document. The items of a List are separate
// objects.
func FromContent(name string, content any) ([]Object, error) {
	if list, ok := content.([]any); ok {
		return []Object{{Kind: kindInstanceTypes, File: name, Fields: map[string]any{"types": list}}}, nil
	}
	fields, ok := content.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("must be a Kubernetes object, a configuration file or Helm values of the peer")
	}
	object := Object{File: name, Fields: fields, Kind: text(fields["kind"])}
	if object.Kind == "" {
		object.Kind = formOf(fields)
		return []Object{object}, nil
	}
	if items, ok := fields["items"].([]any); ok && strings.HasSuffix(object.Kind, "List") {
		var objects []Object
		for _, item := range items {
			read, err := FromContent(name, item)
			if err != nil {
				return nil, err
			}
			objects = append(objects, read...)
		}
		return objects, nil
	}
	if group, _, ok := strings.Cut(text(fields["apiVersion"]), "/"); ok {
		object.Group = group
	}
	metadata, _ := fields["metadata"].(map[string]any)
	object.Name, object.Namespace = text(metadata["name"]), text(metadata["namespace"])
	return []Object{object}, nil
}

// formOf returns the form of a document that is no Kubernetes object.
func formOf(fields map[string]any) string {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(key string) bool { _, ok := fields[key]; return ok })
	}
	switch {
	case has("clusters"):
		return kindConfig
	case has("config", "settings", "customResources", "existingConfigSecret", "extraArgs", "extraEnvs", "kproximate", "rabbitmq", "image", "workerReplicaCount", "logVerbosityLevel"):
		return kindValues
	}
	for _, hosts := range fields {
		if named, ok := hosts.(map[string]any); !ok || len(named) == 0 {
			return kindValues
		}
	}
	return kindSettings
}

// at returns the value of a path such as spec.proxmox.endpoint, or nil.
func (o *Object) at(keys ...string) any {
	var value any = o.Fields
	for _, key := range keys {
		fields, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = fields[key]
	}
	return value
}

// data returns the decoded values of a Secret or ConfigMap.
func (o *Object) data() map[string]string {
	values := map[string]string{}
	encoded, _ := o.at("data").(map[string]any)
	for key, value := range encoded {
		values[key] = text(value)
		if o.Kind == "Secret" {
			decoded, err := base64.StdEncoding.DecodeString(text(value))
			if err == nil {
				values[key] = string(decoded)
			}
		}
	}
	plain, _ := o.at("stringData").(map[string]any)
	for key, value := range plain {
		values[key] = text(value)
	}
	return values
}

// Reference names a Secret or ConfigMap that an object uses.
type Reference struct{ Kind, Namespace, Name string }

// References returns the Secrets and ConfigMaps that the objects use.
func References(objects []Object) []Reference {
	var list []Reference
	add := func(kind, namespace string, name any) {
		if reference := (Reference{Kind: kind, Namespace: namespace, Name: text(name)}); reference.Name != "" && !slices.Contains(list, reference) {
			list = append(list, reference)
		}
	}
	for i := range objects {
		object := &objects[i]
		for _, ref := range [][]string{{"spec", "metadataOptions", "templatesRef"}, {"spec", "metadataOptions", "valuesRef"}, {"spec", "credentialsSecretRef"}} {
			if fields, ok := object.at(ref...).(map[string]any); ok {
				namespace := text(fields["namespace"])
				if namespace == "" {
					namespace = object.Namespace
				}
				add("Secret", namespace, fields["name"])
			}
		}
		if object.Kind != "Deployment" {
			continue
		}
		for _, container := range containers(object) {
			for _, source := range mappings(container["envFrom"]) {
				add("Secret", object.Namespace, child(source, "secretRef")["name"])
				add("ConfigMap", object.Namespace, child(source, "configMapRef")["name"])
			}
		}
		for _, volume := range mappings(object.at("spec", "template", "spec", "volumes")) {
			add("Secret", object.Namespace, child(volume, "secret")["secretName"])
			add("ConfigMap", object.Namespace, child(volume, "configMap")["name"])
		}
	}
	return list
}

func containers(object *Object) []map[string]any {
	return mappings(object.at("spec", "template", "spec", "containers"))
}

// mappings returns the objects of a list.
func mappings(value any) []map[string]any {
	items, _ := value.([]any)
	var objects []map[string]any
	for _, item := range items {
		if fields, ok := item.(map[string]any); ok {
			objects = append(objects, fields)
		}
	}
	return objects
}

func child(fields map[string]any, key string) map[string]any {
	inner, _ := fields[key].(map[string]any)
	return inner
}

// flagsOf returns the flags and variables of containers as one object: flags under their
// names, and variables under theirs.
func flagsOf(containers []map[string]any) map[string]any {
	flags := map[string]any{}
	for _, container := range containers {
		var args []string
		for _, key := range []string{"command", "args"} {
			items, _ := container[key].([]any)
			for _, item := range items {
				args = append(args, text(item))
			}
		}
		for i, arg := range args {
			if !strings.HasPrefix(arg, "-") {
				continue
			}
			name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			switch {
			case ok:
			case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
				value = args[i+1]
			default:
				value = "true"
			}
			flags[name] = value
		}
		for _, entry := range mappings(container["env"]) {
			if value, ok := entry["value"]; ok {
				flags[text(entry["name"])] = text(value)
			}
		}
	}
	return flags
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// text returns a scalar as a string, without an exponent; nil is "".
func text(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return string(encoded)
}
