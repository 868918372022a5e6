package links_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTroubleshootingQuotesMessages checks that each message that docs/troubleshooting.md
// quotes as a symptom is in the code, apart from the names and numbers in it, and that each
// row of its tables has a symptom, a cause and a remedy.
func TestTroubleshootingQuotesMessages(t *testing.T) {
	t.Parallel()
	messages := literals(t)
	quoted := 0
	for line := range strings.Lines(read(t, filepath.Join(root, "docs", "troubleshooting.md"))) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") {
			continue
		}
		if len(cells) != 3 {
			t.Errorf("a row has %d cells, want 3: %s", len(cells), line)
		}
		for _, match := range code.FindAllString(cells[0], -1) {
			for part := range strings.SplitSeq(strings.Trim(match, "`"), "…") {
				quoted++
				if part = strings.TrimSpace(part); !strings.Contains(messages, part) {
					t.Errorf("docs/troubleshooting.md quotes %s, but no message of the code contains %q", match, part)
				}
			}
		}
	}
	if quoted < 60 {
		t.Errorf("only %d parts of messages were checked", quoted)
	}
}

// literals returns the string literals of the product's code, one a line. Literals that are
// concatenated in the code are one literal.
func literals(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"api", "cmd", "fleet", "generator", "internal", "planner", "state", "topology"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				expression, ok := node.(ast.Expr)
				if !ok {
					return true
				}
				text, constant := constantText(expression)
				all.WriteString(text)
				all.WriteString("\n")
				return !constant
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// constantText returns the text of a string literal, or of a sum of string literals.
func constantText(expression ast.Expr) (text string, ok bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			x, xOK := constantText(e.X)
			y, yOK := constantText(e.Y)
			if xOK && yOK {
				return x + y, true
			}
		}
	}
	return "", false
}
