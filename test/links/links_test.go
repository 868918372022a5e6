// Package links_test checks the links between the pages of this repository.
package links_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	target  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestLinks checks that every relative link on a page refers to an existing file and, if
// the link has an anchor, to a heading in that file.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "testdata" || name == "dist" || strings.HasPrefix(name, ".") && name != ".github" && path != root) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text := code.ReplaceAllString(fenced.ReplaceAllString(read(t, path), ""), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			links++
			if err := follow(t, path, match[1]); err != nil {
				t.Errorf("%s: link %s: %v", path, match[1], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 100 {
		t.Errorf("found %d links: this test does not find all links", links)
	}
}

// follow returns an error for a broken link on a page.
func follow(t *testing.T, page, to string) error {
	t.Helper()
	file, anchor, _ := strings.Cut(to, "#")
	path := page
	if file != "" {
		path = filepath.Join(filepath.Dir(page), filepath.FromSlash(file))
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if anchor == "" || filepath.Ext(path) != ".md" {
		return nil
	}
	if !anchors(read(t, path))[anchor] {
		return fmt.Errorf("%s has no heading #%s", path, anchor)
	}
	return nil
}

// anchors returns the anchors that GitHub and Forgejo generate for the headings of a page.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	text = fenced.ReplaceAllString(text, "")
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, linked.ReplaceAllString(match[1], "$1"))
		name := slug
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", slug, n)
		}
		found[name] = true
	}
	for _, match := range target.FindAllStringSubmatch(text, -1) {
		found[match[1]] = true
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
