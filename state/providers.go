package state

import (
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// exactVersion is a constraint that only one version meets.
var exactVersion = regexp.MustCompile(`^=? *([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*)$`)

// moved reports whether a directory's files ask for another version of a provider
// than its lock file holds. Init then refuses unless it is told to upgrade. Told so
// always, it would ask the registry for newer versions each time.
func moved(files map[string][]byte) bool {
	locked := map[string]string{}
	for _, block := range blocks(providerLock, files[providerLock], "provider") {
		if len(block.Labels) == 1 {
			locked[block.Labels[0]] = constant(block.Body.Attributes["version"])["version"]
		}
	}
	for name, content := range files {
		if !strings.HasSuffix(name, ".tf") {
			continue
		}
		for _, terraform := range blocks(name, content, "terraform") {
			if asksForAnother(terraform.Body, locked) {
				return true
			}
		}
	}
	return false
}

// asksForAnother reports whether a terraform block names a provider exactly, in
// another version than the locked one.
func asksForAnother(terraform *hclsyntax.Body, locked map[string]string) bool {
	for _, block := range terraform.Blocks {
		if block.Type != "required_providers" {
			continue
		}
		for _, attribute := range block.Body.Attributes {
			required := constant(attribute)
			exact := exactVersion.FindStringSubmatch(required["version"])
			if version := locked[required["source"]]; version != "" && exact != nil && exact[1] != version {
				return true
			}
		}
	}
	return false
}

// constant returns the texts of an attribute's value: those of an object by their
// names, or a single one by the attribute's own.
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

// constants returns the texts of an attribute's list.
func constants(attribute *hclsyntax.Attribute) []string {
	if attribute == nil {
		return nil
	}
	value, diagnostics := attribute.Expr.Value(nil)
	if diagnostics.HasErrors() || !value.CanIterateElements() {
		return nil
	}
	var texts []string
	for _, element := range value.AsValueSlice() {
		if element.Type() == cty.String && !element.IsNull() {
			texts = append(texts, element.AsString())
		}
	}
	return texts
}

// blocks returns a file's blocks of a type, or none if it is not plain HCL: the
// engine says what is wrong with it.
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
