package layering

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Limits on the lines of a file and of a test file, and on the depth of nested control
// statements in a function. Generated files are exempt.
const (
	MaxFileLines = 800
	MaxTestLines = 1200
	MaxNesting   = 4
)

// Violation is one violation of a rule.
type Violation struct {
	// Path is a file or a package directory, below the module root.
	Path string
	// Problem describes what is wrong and how to fix it.
	Problem string
}

// String returns "path: problem".
func (v Violation) String() string { return v.Path + ": " + v.Problem }

// Check reads the module at fsys, whose import path is module, and returns every violation
// of the table's rules, sorted by path. It returns an error if the tree cannot be read or
// parsed.
func Check(fsys fs.FS, module string, table []Row) ([]Violation, error) {
	sources, err := readTree(fsys)
	if err != nil {
		return nil, err
	}
	c := &checker{module: module, table: table, pure: pureImports(), sources: sources}
	c.checkTable()
	c.checkReach()
	for _, file := range sources {
		c.checkSize(file)
		c.checkImports(file)
	}
	c.checkDocs()
	slices.SortFunc(c.found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Problem, b.Problem))
	})
	return c.found, nil
}

type checker struct {
	module  string
	table   []Row
	pure    map[string]bool
	sources []source
	found   []Violation
}

func (c *checker) add(where, format string, args ...any) {
	c.found = append(c.found, Violation{Path: where, Problem: fmt.Sprintf(format, args...)})
}

// local returns the directory of an import path, and reports false for paths outside the
// module.
func (c *checker) local(importPath string) (string, bool) {
	if importPath == c.module {
		return ".", true
	}
	return strings.CutPrefix(importPath, c.module+"/")
}

// byDir groups production files, or all files, by package directory.
func (c *checker) byDir(tests bool) map[string][]source {
	dirs := map[string][]source{}
	for _, file := range c.sources {
		if tests || !file.test {
			dirs[file.dir()] = append(dirs[file.dir()], file)
		}
	}
	return dirs
}

func (c *checker) checkTable() {
	for dir := range c.byDir(true) {
		if _, ok := find(c.table, dir); !ok {
			c.add(dir, "package has no floor: add a row to Table in internal/layering/table.go")
		}
	}
}

func (c *checker) checkSize(file source) {
	if file.generated {
		return
	}
	for _, function := range file.nested {
		c.add(file.path, "%s nests control statements more than %d deep: "+
			"make the candidates a list first, or return early", function, MaxNesting)
	}
	limit := MaxFileLines
	if file.test {
		limit = MaxTestLines
	}
	if file.lines > limit {
		c.add(file.path, "%d lines, limit %d: split it by topic", file.lines, limit)
	}
}

func (c *checker) checkImports(file source) {
	from, ok := find(c.table, file.dir())
	if !ok {
		return
	}
	for _, name := range file.imports {
		dir, local := c.local(name)
		switch {
		case local:
			c.checkLocalImport(file, from, dir)
		case from.Pure && !file.test && !c.pure[name]:
			c.add(file.path, "pure package imports %s: take the value as a parameter, "+
				"or allow the path in pureImports if it is only computation", name)
		}
	}
	for _, name := range file.clock {
		if from.Pure && !file.test {
			c.add(file.path, "pure package uses %s of package time: take the time as a parameter", name)
		}
	}
}

// checkLocalImport checks an import of another package of the module.
func (c *checker) checkLocalImport(file source, from Row, dir string) {
	to, ok := find(c.table, dir)
	switch {
	case !ok: // checkTable reports it.
	case file.test:
		c.checkTestImport(file, from, to, dir)
	case to.Support && !from.Support && from.Floor < Programs:
		c.add(file.path, "imports %s, which is only for tests and the demo: move the shared part to another package", dir)
	case to.Floor > from.Floor:
		c.add(file.path, "imports %s upward, floor %d from floor %d: "+
			"pass a value or an interface down instead", dir, to.Floor, from.Floor)
	case to.Floor == from.Floor:
		c.add(file.path, "imports %s of its own floor %d: "+
			"move the shared part one floor down", dir, to.Floor)
	case from.Pure && !to.Pure:
		c.add(file.path, "pure package imports %s, which is not pure", dir)
	}
}

// checkTestImport checks an import of a test. Tests may also use packages of their own
// floor, as an oracle or to read back what was written, and support packages of any floor.
func (c *checker) checkTestImport(file source, from, to Row, dir string) {
	if to.Floor > from.Floor && !to.Support {
		c.add(file.path, "test imports %s upward, floor %d from floor %d: "+
			"move the test to the higher package", dir, to.Floor, from.Floor)
	}
}

// checkDocs checks that each package has one package comment, in Go's form.
func (c *checker) checkDocs() {
	for dir, files := range c.byDir(false) {
		var documented []string
		for _, file := range files {
			if strings.TrimSpace(file.doc) != "" {
				documented = append(documented, path.Base(file.path))
				c.checkDoc(file)
			}
		}
		if len(documented) == 0 {
			c.add(dir, "package has no comment: say what it is for, what it is not for, and where to start")
		}
		if len(documented) > 1 {
			c.add(dir, "package has %d comments, in %s: keep one",
				len(documented), strings.Join(documented, ", "))
		}
	}
}

func (c *checker) checkDoc(file source) {
	want := "Package " + file.pkg + " "
	if file.pkg != "main" && !strings.HasPrefix(file.doc, want) {
		c.add(file.path, "package comment must begin with %q", want)
	}
}

// checkReach reports the packages of a row's Without that are imported directly, or
// indirectly through packages of the module.
func (c *checker) checkReach() {
	files := c.byDir(false)
	for dir := range files {
		row, ok := find(c.table, dir)
		if !ok || len(row.Without) == 0 {
			continue
		}
		for _, reached := range c.reach(files, dir) {
			for _, file := range files[reached] {
				c.checkWithout(dir, row, file)
			}
		}
	}
}

func (c *checker) checkWithout(dir string, row Row, file source) {
	for _, name := range file.imports {
		for _, banned := range row.Without {
			if name == banned || strings.HasPrefix(name, banned+"/") {
				c.add(dir, "reaches %s through %s: remove this import", name, file.path)
			}
		}
	}
}

// reach returns dir and every directory of the module that it imports, directly or
// indirectly, sorted.
func (c *checker) reach(files map[string][]source, dir string) []string {
	seen := map[string]bool{dir: true}
	queue := []string{dir}
	for at := 0; at < len(queue); at++ {
		for _, file := range files[queue[at]] {
			for _, name := range file.imports {
				next, local := c.local(name)
				if local && !seen[next] {
					seen[next] = true
					queue = append(queue, next)
				}
			}
		}
	}
	slices.Sort(queue)
	return queue
}
