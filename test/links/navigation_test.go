package links_test

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// group is a group of pages in the sidebar of the documentation site.
type group struct {
	Name  string   `json:"group"`
	Pages []string `json:"pages"`
}

// contributors is the group of the pages for contributors.
const contributors = "Architecture"

func navigation(t *testing.T) []group {
	t.Helper()
	var groups []group
	if err := json.Unmarshal([]byte(read(t, filepath.Join(root, "tools", "site", "navigation.json"))), &groups); err != nil {
		t.Fatal(err)
	}
	return groups
}

// TestNavigation checks that each page of docs/ is once in the navigation of the site,
// except the index and the decision records.
func TestNavigation(t *testing.T) {
	t.Parallel()
	listed := map[string]int{}
	var names []string
	for _, group := range navigation(t) {
		names = append(names, group.Name)
		for _, page := range group.Pages {
			listed[page]++
		}
	}
	docs := filepath.Join(root, "docs")
	err := filepath.WalkDir(docs, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		page, err := filepath.Rel(docs, path)
		if err != nil {
			return err
		}
		page = filepath.ToSlash(page)
		if page == "README.md" || strings.HasPrefix(page, "adr/") {
			return nil
		}
		if listed[page] == 0 {
			t.Errorf("docs/%s is in no group of the site's navigation: add %q to the pages of one group in tools/site/navigation.json (%s), and a row for it to docs/README.md",
				page, page, strings.Join(names, ", "))
		}
		if listed[page] > 1 {
			t.Errorf("docs/%s is %d times in tools/site/navigation.json, want once", page, listed[page])
		}
		delete(listed, page)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for page := range listed {
		t.Errorf("tools/site/navigation.json lists %s, but there is no docs/%s", page, page)
	}
}

// TestIndex checks that docs/README.md links to each page of the navigation.
func TestIndex(t *testing.T) {
	t.Parallel()
	index := read(t, filepath.Join(root, "docs", "README.md"))
	for _, group := range navigation(t) {
		for _, page := range group.Pages {
			if !strings.Contains(index, "]("+page+")") {
				t.Errorf("docs/README.md has no link to %s: add a row with the task of its reader", page)
			}
		}
	}
}

// TestUsersNeedNoDecisionRecords checks that pages for users do not refer their readers to
// decision records or design documents, which are for contributors.
func TestUsersNeedNoDecisionRecords(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, group := range navigation(t) {
		if group.Name == contributors {
			continue
		}
		for _, page := range group.Pages {
			checked++
			for _, match := range link.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", filepath.FromSlash(page))), -1) {
				steps := strings.Split(match[1], "/")
				if slices.Contains(steps, "adr") || strings.HasPrefix(steps[len(steps)-1], "DESIGN.md") {
					t.Errorf("docs/%s links to %s, which is for contributors: state on the page what its reader needs", page, match[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d pages were checked", checked)
	}
}
