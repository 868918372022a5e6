package links_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numaform/numaform/api/v1alpha1"
)

// TestReferenceOfEvents checks that docs/events.md documents each reason, condition and
// annotation of the code once, and no others.
func TestReferenceOfEvents(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "api", "v1alpha1", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"approval", "cloudprovider", "operator", "review", "controllers/*"} {
		more, err := filepath.Glob(filepath.Join(root, "internal", pattern, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	defined := map[string]string{} // the name of each constant by its value
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			addConstants(t, file, defined)
		}
	}
	if len(defined) < 50 {
		t.Fatalf("only %d constants were found", len(defined))
	}

	page, err := os.ReadFile(filepath.Join(root, "docs", "events.md"))
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("`([^`]+)`")
	documented := map[string]int{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, match := range code.FindAllStringSubmatch(cells[1], -1) {
			documented[match[1]]++
		}
	}
	for _, value := range slices.Sorted(maps.Keys(defined)) {
		if documented[value] != 1 {
			t.Errorf("%s (%s) has %d rows in docs/events.md, want 1", value, defined[value], documented[value])
		}
	}
	for value := range documented {
		if defined[value] == "" {
			t.Errorf("docs/events.md lists %s, which no constant has", value)
		}
	}
}

// addConstants adds the reasons, conditions and annotations that a file defines.
func addConstants(t *testing.T, path string, defined map[string]string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`^([Rr]eason|[Cc]ondition|Annotation)[A-Z]`)
	for _, declaration := range file.Decls {
		block, ok := declaration.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		for _, spec := range block.Specs {
			constants := spec.(*ast.ValueSpec)
			for i, name := range constants.Names {
				if !named.MatchString(name.Name) || i >= len(constants.Values) {
					continue
				}
				prefix, value := "", constants.Values[i]
				if sum, ok := value.(*ast.BinaryExpr); ok { // Group + "/name"
					prefix, value = v1alpha1.Group, sum.Y
				}
				literal, ok := value.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					t.Errorf("%s: the value of %s is not a string", path, name.Name)
					continue
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				defined[prefix+text] = name.Name
			}
		}
	}
}

// TestReferenceOfPolicy checks that docs/policy.md names each rule of the guard, and that its
// table of invariants names no others.
func TestReferenceOfPolicy(t *testing.T) {
	t.Parallel()
	rule := regexp.MustCompile(`(?m)^\tRule[A-Z]\w* +(?:Rule )?= "(\w+)"`)
	rules := map[string]bool{}
	for _, match := range rule.FindAllStringSubmatch(read(t, filepath.Join(root, "state", "guard", "verdict.go")), -1) {
		rules[match[1]] = true
	}
	delete(rules, "policy") // a prefix of the names of users' rules
	if len(rules) < 20 {
		t.Fatalf("only %d rules were found", len(rules))
	}
	page := read(t, filepath.Join(root, "docs", "policy.md"))
	for name := range rules {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/policy.md does not describe the rule %s", name)
		}
	}
	_, table, _ := strings.Cut(page, "| rule | requires |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		for _, match := range code.FindAllString(strings.Split(line, "|")[1], -1) {
			if name := strings.Trim(match, "`"); !rules[name] {
				t.Errorf("docs/policy.md lists the rule %s, which the guard does not have", name)
			}
		}
	}
}
