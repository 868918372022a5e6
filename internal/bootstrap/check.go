package bootstrap

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	cloudConfig = "#cloud-config"
	// bom is the byte order mark that some editors write at the start of a file.
	bom = "\ufeff"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// checkUserData accepts the cloud-init formats, and Talos machine configs and Ignition, which
// have no header. Ignition reads user-data of a file system with the label cidata, as seeds
// have, only if it is valid JSON: internal/providers/proxmoxve/proxmoxve.go of
// coreos/ignition.
func checkUserData(document, text string) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(text, bom), "\n")
	first = strings.TrimRight(first, " \r")
	// Only cloud-init can check these formats.
	for _, header := range []string{
		"#!", "#include", "#cloud-boothook", "#cloud-config-archive", "#part-handler", "## template:",
		"Content-Type:", "MIME-Version:",
	} {
		if strings.HasPrefix(first, header) {
			return nil
		}
	}
	list, err := mappings(document, text)
	if err != nil || first == cloudConfig {
		return err
	}
	for _, m := range list {
		switch {
		case m["ignition"] != nil && json.Valid([]byte(text)):
			continue
		case m["ignition"] != nil:
			return &DocumentError{Document: document, Line: 1, Rendered: true, Problem: "Ignition reads only JSON without comments " +
				"and without a byte order mark: correct it, and check the result with ignition-validate"}
		case m["variant"] != nil && m["version"] != nil:
			return &DocumentError{Document: document, Line: 1, Rendered: true, Problem: "this is a Butane config, which no guest reads: " +
				"translate it to Ignition with butane --strict, and use the JSON as the template"}
		}
		if m["machine"] == nil && (m["apiVersion"] == nil || m["kind"] == nil) {
			return &DocumentError{Document: document, Line: 1, Rendered: true, Problem: "unknown format: begin " +
				"cloud-init data with #cloud-config or with #! and an interpreter, or use a Talos machine config or Ignition JSON"}
		}
	}
	return nil
}

// checkVendorData accepts the same formats as checkUserData, and an empty document.
func checkVendorData(document, text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return checkUserData(document, text)
}

func checkMetaData(document, text string) error {
	m, err := mapping(document, text)
	if err != nil {
		return err
	}
	if id := m["instance-id"]; id == nil || id.Kind != yaml.ScalarNode || id.Value == "" {
		return &DocumentError{Document: document, Problem: "instance-id is missing: add instance-id: {{ .Metadata.InstanceUUID }}"}
	}
	return nil
}

func checkNetworkConfig(document, text string) error {
	m, err := mapping(document, text)
	if err != nil {
		return err
	}
	version, line := m["version"], 1
	if inner := m["network"]; inner != nil && inner.Kind == yaml.MappingNode {
		line, version = inner.Line, pairs(inner)["version"]
	}
	if version == nil || (version.Value != "1" && version.Value != "2") {
		return &DocumentError{Document: document, Line: line, Rendered: true, Problem: "version must be 1 or 2: set version: 2 and add ethernets in netplan's format"}
	}
	return nil
}

// mapping parses a text that is one YAML object.
func mapping(document, text string) (map[string]*yaml.Node, error) {
	list, err := mappings(document, text)
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, &DocumentError{Document: document, Problem: "contains several YAML documents: remove all but one"}
	}
	return list[0], nil
}

// mappings parses a text of YAML objects, at least one.
func mappings(document, text string) ([]map[string]*yaml.Node, error) {
	decoder := yaml.NewDecoder(strings.NewReader(strings.TrimPrefix(text, bom)))
	var list []map[string]*yaml.Node
	for {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, yamlError(document, err)
		}
		root := &node
		if node.Kind == yaml.DocumentNode && len(node.Content) == 1 {
			root = node.Content[0]
		}
		if root.Kind != yaml.MappingNode {
			return nil, &DocumentError{Document: document, Line: root.Line, Rendered: true, Problem: "must be a YAML object with keys and values"}
		}
		if line := duplicate(root); line > 0 {
			return nil, &DocumentError{Document: document, Line: line, Rendered: true, Problem: "this object contains a duplicate key: remove one of the two"}
		}
		list = append(list, pairs(root))
	}
	if len(list) == 0 {
		return nil, &DocumentError{Document: document, Problem: "must not be empty: write at least one YAML object in the template"}
	}
	return list, nil
}

func pairs(node *yaml.Node) map[string]*yaml.Node {
	m := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		m[node.Content[i].Value] = node.Content[i+1]
	}
	return m
}

// duplicate returns the line of an object with a duplicate key, or 0.
func duplicate(node *yaml.Node) int {
	if node.Kind == yaml.MappingNode && len(pairs(node)) < len(node.Content)/2 {
		return node.Line
	}
	for _, child := range node.Content {
		if line := duplicate(child); line > 0 {
			return line
		}
	}
	return 0
}

// yamlLine matches an error of the YAML parser.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// yamlError converts an error of the YAML parser. It omits a message that contains quotes,
// because such a message can repeat a part of the document.
func yamlError(document string, err error) error {
	e := &DocumentError{Document: document, Rendered: true, Problem: "invalid YAML"}
	if found := yamlLine.FindStringSubmatch(err.Error()); found != nil {
		e.Line, _ = strconv.Atoi(found[1])
		if !strings.ContainsAny(found[2], `"'`+"`") {
			e.Problem += ": " + found[2]
		}
	}
	return e
}
