package faults_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	tableTest = regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`")
	tableRow  = regexp.MustCompile(`(?m)^\| ([^|]+) \| (yes|no) \| (yes|no) \| (yes|no) \|$`)
)

// table reads docs/faults.md.
func table(t *testing.T) (root, text string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	return root, string(content)
}

// TestTableNamesTests checks that every test in the table exists, and that every row names
// a test.
func TestTableNamesTests(t *testing.T) {
	t.Parallel()
	root, text := table(t)
	seen := map[string]bool{}
	for _, match := range tableTest.FindAllStringSubmatch(text, -1) {
		if dir, name := match[1], match[2]; !seen[match[0]] && !declared(t, filepath.Join(root, dir), name) {
			t.Errorf("docs/faults.md names %s.%s, which does not exist", dir, name)
		}
		seen[match[0]] = true
	}
	if len(seen) < 40 {
		t.Errorf("docs/faults.md names %d tests: this test does not parse it correctly", len(seen))
	}
	_, faults, _ := strings.Cut(text, "## Engine, provider and numaform")
	for line := range strings.Lines(faults) {
		heading := strings.HasPrefix(line, "| fault |") || strings.HasPrefix(line, "| --- |")
		if strings.HasPrefix(line, "|") && !heading && !tableTest.MatchString(line) {
			t.Errorf("docs/faults.md: no test in row %s", line)
		}
	}
}

// declared reports whether a package declares a test.
func declared(t *testing.T, dir, name string) bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(content), "\nfunc "+name+"(t *testing.T)")
	})
}

// TestTableIsTheMatrix checks that the table of kills in docs/faults.md matches the tested
// kills.
func TestTableIsTheMatrix(t *testing.T) {
	t.Parallel()
	_, text := table(t)
	var told []string
	for _, row := range tableRow.FindAllStringSubmatch(text, -1) {
		for i, v := range []victim{victimEngine, victimProvider, victimNumaform} {
			if row[2+i] == "yes" {
				told = append(told, fmt.Sprintf("%s: %s", row[1], v))
			}
		}
	}
	var killed []string
	for _, s := range steps() {
		for _, v := range s.victims {
			killed = append(killed, fmt.Sprintf("%s: %s", s.name, v))
		}
	}
	slices.Sort(told)
	slices.Sort(killed)
	if !slices.Equal(told, killed) {
		t.Errorf("docs/faults.md lists the kills\n%q\nwant\n%q", told, killed)
	}
}
