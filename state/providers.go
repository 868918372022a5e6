package state

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
)

// exactVersion matches a constraint that exactly one version meets.
var exactVersion = regexp.MustCompile(`^=? *([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*)$`)

// required returns the exact version of the Proxmox provider that a directory's files
// require, or "" if they require no provider. It refuses any other provider, because the
// engine cannot start one.
func required(files map[string][]byte) (string, error) {
	version := ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".tf") {
			continue
		}
		for _, terraform := range blocks(name, files[name], "terraform") {
			for _, block := range terraform.Body.Blocks {
				if block.Type != "required_providers" {
					continue
				}
				found, err := requiredBy(name, block.Body)
				if err != nil {
					return "", err
				}
				version = cmp.Or(found, version)
			}
		}
	}
	return version, nil
}

// requiredBy reads one required_providers block.
func requiredBy(name string, block *hclsyntax.Body) (version string, err error) {
	for _, local := range slices.Sorted(maps.Keys(block.Attributes)) {
		wanted := constant(block.Attributes[local])
		if strings.HasPrefix(wanted["source"], "terraform.io/builtin/") {
			continue
		}
		if wanted["source"] != guard.Provider {
			return "", fmt.Errorf("%s requires the provider %s: numaform runs %s only: remove the other from required_providers",
				name, cmp.Or(wanted["source"], local), guard.Provider)
		}
		exact := exactVersion.FindStringSubmatch(wanted["version"])
		if exact == nil {
			return "", fmt.Errorf("%s requires %s in version %q: numaform runs an exact version: write it like %q",
				name, guard.Provider, wanted["version"], generator.ProviderVersion)
		}
		version = exact[1]
	}
	return version, nil
}

// constant returns the strings in an attribute's value: an object's by key, or a single
// one by the attribute's own name.
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

// blocks returns a file's blocks of a type. It returns none if the file is not plain HCL,
// because the engine reports the error.
func blocks(name string, content []byte, kind string) []*hclsyntax.Block {
	file, diagnostics := hclsyntax.ParseConfig(content, name, hcl.InitialPos)
	body, ok := file.Body.(*hclsyntax.Body)
	if diagnostics.HasErrors() || !ok {
		return nil
	}
	var found []*hclsyntax.Block
	for _, block := range body.Blocks {
		if block.Type == kind {
			found = append(found, block)
		}
	}
	return found
}
