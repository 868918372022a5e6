package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
)

// configuration is the part of a directory's configuration files that this package needs.
type configuration struct {
	// backend is the kind of the backend; local if there is no backend block.
	backend string
	// settings are the arguments of the backend block by name; a value is "" if it is not a
	// constant string.
	settings map[string]string
	// version is the exact version of the Proxmox provider that the files require, or "".
	version string
	// calls are the sources of the module calls by label. local is set if every call has a
	// label of its own and a local directory as its source.
	calls map[string]string
	local bool
	// dependencies are the parts of the files on which init depends, one per entry.
	dependencies []string
	// refused is the reason why numaform does not run the engine on the files, or nil.
	refused error
}

// readConfiguration reads the configuration files of a directory: .tf, .tf.json and .tofu.
func readConfiguration(dir string) (*configuration, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".tf") && !strings.HasSuffix(name, ".tf.json") && !strings.HasSuffix(name, ".tofu") {
			continue
		}
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return parseConfiguration(files), nil
}

// parseConfiguration parses configuration files, by name. If a file is not a .tf file, or
// has syntax errors, init depends on its whole content; the engine reports the errors.
func parseConfiguration(files map[string][]byte) *configuration {
	c := &configuration{backend: "local", local: true, calls: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		var body *hclsyntax.Body
		if strings.HasSuffix(name, ".tf") {
			file, diagnostics := hclsyntax.ParseConfig(content, name, hcl.InitialPos)
			if body, _ = file.Body.(*hclsyntax.Body); diagnostics.HasErrors() {
				body = nil
			}
		}
		if body == nil {
			c.dependencies = append(c.dependencies, "file "+name+" "+string(content))
			continue
		}
		for _, block := range body.Blocks {
			switch block.Type {
			case "terraform":
				c.dependencies = append(c.dependencies, "terraform "+string(content[block.TypeRange.Start.Byte:block.CloseBraceRange.End.Byte]))
				c.terraform(name, block.Body)
			case "module":
				c.module(block, content)
			case "resource", "data", "ephemeral":
				// The type identifies the provider.
				c.dependencies = append(c.dependencies, block.Type+" "+strings.Join(block.Labels, "."))
			}
		}
	}
	return c
}

// terraform reads a terraform block: the backend and the required provider.
func (c *configuration) terraform(file string, body *hclsyntax.Body) {
	for _, block := range body.Blocks {
		switch {
		case block.Type == "backend" && len(block.Labels) == 1:
			c.backend, c.settings = block.Labels[0], map[string]string{}
			for name, attribute := range block.Body.Attributes {
				c.settings[name] = constant(attribute)[name]
			}
		case block.Type == "required_providers":
			for _, local := range slices.Sorted(maps.Keys(block.Body.Attributes)) {
				version, err := requiredVersion(file, block.Body.Attributes[local])
				c.version = cmp.Or(version, c.version)
				if c.refused == nil {
					c.refused = err
				}
			}
		}
	}
}

// exactVersion matches a constraint that exactly one version meets.
var exactVersion = regexp.MustCompile(`^=? *([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*)$`)

// requiredVersion returns the exact version of the Proxmox provider that an entry of
// required_providers names, or "" if the entry names a built-in provider. It returns an
// error for any other provider, because numaform runs no other, and for a version that is
// not exact.
func requiredVersion(file string, entry *hclsyntax.Attribute) (string, error) {
	required := constant(entry)
	if strings.HasPrefix(required["source"], "terraform.io/builtin/") {
		return "", nil
	}
	if required["source"] != guard.Provider {
		return "", fmt.Errorf("%s requires the provider %s: numaform runs only %s: remove the other provider from required_providers",
			file, cmp.Or(required["source"], entry.Name), guard.Provider)
	}
	exact := exactVersion.FindStringSubmatch(required["version"])
	if exact == nil {
		return "", fmt.Errorf("%s requires %s in version %q, but numaform needs an exact version: write it like %q",
			file, guard.Provider, required["version"], generator.ProviderVersion)
	}
	return exact[1], nil
}

// callPrefix is the prefix of dependencies that are module calls.
const callPrefix = "module "

// module reads a module call.
func (c *configuration) module(block *hclsyntax.Block, content []byte) {
	label := strings.Join(block.Labels, ".")
	line := callPrefix + label
	for _, name := range []string{"source", "version"} {
		line += " "
		if attribute := block.Body.Attributes[name]; attribute != nil {
			line += string(attribute.Expr.Range().SliceBytes(content))
		}
	}
	c.dependencies = append(c.dependencies, line)

	source := constant(block.Body.Attributes["source"])["source"]
	directory := strings.HasPrefix(source, "./") || strings.HasPrefix(source, "../")
	if _, twice := c.calls[label]; twice || !directory || len(block.Labels) != 1 || block.Body.Attributes["version"] != nil {
		c.local = false
		return
	}
	c.calls[label] = source
}

// constant returns the constant strings of an attribute: the members of an object by key,
// or a single string by the attribute's name.
func constant(attribute *hclsyntax.Attribute) map[string]string {
	texts := map[string]string{}
	if attribute == nil {
		return texts
	}
	value, diagnostics := attribute.Expr.Value(nil)
	if diagnostics.HasErrors() || value.IsNull() {
		return texts
	}
	fields := map[string]cty.Value{attribute.Name: value}
	if value.Type().IsObjectType() {
		fields = value.AsValueMap()
	}
	for name, field := range fields {
		if field.Type() == cty.String && !field.IsNull() {
			texts[name] = field.AsString()
		}
	}
	return texts
}

// manifest is the engine's list of the modules that a directory calls, including calls
// within modules.
type manifest struct {
	Modules []moduleCall
}

// moduleCall is one call. Key is its path of labels, such as a.b.
type moduleCall struct {
	Key     string
	Source  string
	Version string `json:",omitempty"`
	Dir     string
}

// manifestFile returns the path of the manifest.
func (w *Workspace) manifestFile() string {
	return filepath.Join(w.config.Dir, ".terraform", "modules", "modules.json")
}

// readManifest reads the manifest. It returns nil if the file does not exist.
func (w *Workspace) readManifest() (*manifest, error) {
	content, err := os.ReadFile(w.manifestFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no list is usual before init
	}
	m := &manifest{}
	if err == nil {
		err = json.Unmarshal(content, m)
	}
	return m, err
}

// addCalls adds the files' module calls to the engine's list of modules, as init would, and
// reports whether it could. Each call must be of a directory that is already in the list,
// because only then are the directory's own calls and providers known. A directory remains
// in the list after its last call is deleted, so that a later call of it needs no init.
func (w *Workspace) addCalls(c *configuration) bool {
	old, err := w.readManifest()
	if err != nil || !c.local || (old == nil && len(c.calls) > 0) {
		return false
	}
	if old == nil {
		return true
	}
	// models contains, for each source, one of its calls and the calls within it.
	models := map[string][]moduleCall{}
	known := map[string]string{} // sources by label
	for _, call := range old.Modules {
		if call.Key == "" || strings.Contains(call.Key, ".") {
			continue
		}
		known[call.Key] = call.Source
		if models[call.Source] != nil {
			continue
		}
		model := []moduleCall{call}
		for _, inner := range old.Modules {
			if strings.HasPrefix(inner.Key, call.Key+".") {
				model = append(model, inner)
			}
		}
		models[call.Source] = model
	}
	unlisted := func(label string) bool { return known[label] != c.calls[label] }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(c.calls)), unlisted) {
		return true
	}

	listed := manifest{Modules: slices.DeleteFunc(slices.Clone(old.Modules), func(call moduleCall) bool { return call.Key != "" })}
	for label, source := range c.calls {
		model := models[source]
		if model == nil {
			return false
		}
		for _, call := range model {
			call.Key = label + strings.TrimPrefix(call.Key, model[0].Key)
			listed.Modules = append(listed.Modules, call)
		}
	}
	for source, model := range models {
		_, replaced := c.calls[model[0].Key]
		if called := slices.Contains(slices.Collect(maps.Values(c.calls)), source); !called && !replaced {
			listed.Modules = append(listed.Modules, model...)
		}
	}
	slices.SortFunc(listed.Modules, func(a, b moduleCall) int { return strings.Compare(a.Key, b.Key) })
	content, err := json.Marshal(listed)
	return err == nil && renameio.WriteFile(w.manifestFile(), content, 0o644) == nil
}
