package hostile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// writers returns the texts that must be in the first column of the threat model.
func writers() []string {
	return []string{
		"Proxmox token", "descriptions of VMs", "notes of hosts", "fleet repository", "plain directory", "state backend",
		"ConfigMaps", "ProxmoxNodeClasses", "NodeClaims", "NodePools", "ScalePlans", "Pods", "certificate requests", "registry", "seeds",
		"working directory", "saved plan", "environment",
	}
}

// named matches the reference to a test in the threat model.
var named = regexp.MustCompile("`([^`:]+_test\\.go):((?:Test|Fuzz)[A-Za-z0-9_]*)`")

// TestThreatModel checks that the threat model has a row for each kind of input, and that
// each row has an effect and names existing tests.
func TestThreatModel(t *testing.T) {
	t.Parallel()
	rows := threatModel(t)
	for _, writer := range writers() {
		if !slices.ContainsFunc(rows, func(row []string) bool { return strings.Contains(row[0], writer) }) {
			t.Errorf("docs/security.md: the threat model has no row for %q", writer)
		}
	}
	for _, row := range rows {
		if len(row) != 3 || row[0] == "" || row[1] == "" {
			t.Errorf("docs/security.md: a row of the threat model has %d columns, want writer, effect and tests: %q", len(row), row)
			continue
		}
		tests := named.FindAllStringSubmatch(row[2], -1)
		if rest := strings.Trim(named.ReplaceAllString(row[2], ""), ", "); len(tests) == 0 || rest != "" {
			t.Errorf("docs/security.md: the row %q names tests as %q, want `directory/file_test.go:TestName`, …", row[0], row[2])
		}
		for _, test := range tests {
			if !declares(t, filepath.Join("..", "..", test[1]), test[2]) {
				t.Errorf("docs/security.md: the row %q names %s of %s, which does not exist", row[0], test[2], test[1])
			}
		}
	}
}

// threatModel returns the cells of the table under its heading.
func threatModel(t *testing.T) [][]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(content), "\n## Threat model\n")
	if !found {
		t.Fatal("docs/security.md has no threat model")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| attacker with write access to ") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

// declares reports whether a file declares a test.
func declares(t *testing.T, file, name string) bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("reading a test that the threat model names: %v", err)
		return false
	}
	return slices.ContainsFunc(parsed.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && f.Recv == nil && f.Name.Name == name
	})
}
