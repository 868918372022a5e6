package layering

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// source is the part of a Go file that the rules use.
type source struct {
	path      string // below the module root, with slashes
	pkg       string // the package clause's name
	doc       string // the comment above the package clause
	imports   []string
	nested    []string // functions that exceed the nesting limit
	clock     []string // uses of package time that read a clock
	lines     int
	test      bool
	generated bool
}

// dir returns the package directory; the module root is ".".
func (s source) dir() string { return path.Dir(s.path) }

// readTree parses every Go file of the module with root fsys, sorted by path.
func readTree(fsys fs.FS) ([]source, error) {
	var sources []source
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(fsys, name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		parsed, err := readSource(fsys, name)
		if err != nil {
			return err
		}
		sources = append(sources, parsed)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading source tree: %w", err)
	}
	return sources, nil
}

// skipDir skips what the go command excludes from the module: nested modules, testdata,
// vendor, and directories that start with a dot or an underscore.
func skipDir(fsys fs.FS, dir string) error {
	if dir == "." {
		return nil
	}
	base := path.Base(dir)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func readSource(fsys fs.FS, name string) (source, error) {
	content, err := fs.ReadFile(fsys, name)
	if err != nil {
		return source{}, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return source{}, fmt.Errorf("parsing %s: %w", name, err)
	}
	imports, err := importPaths(file)
	if err != nil {
		return source{}, fmt.Errorf("parsing imports of %s: %w", name, err)
	}
	return source{
		path:      name,
		pkg:       file.Name.Name,
		doc:       file.Doc.Text(),
		imports:   imports,
		nested:    nestedFunctions(file, MaxNesting),
		clock:     clockReads(file),
		lines:     strings.Count(string(content), "\n"),
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(file),
	}, nil
}

func importPaths(file *ast.File) ([]string, error) {
	paths := make([]string, 0, len(file.Imports))
	for _, spec := range file.Imports {
		unquoted, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		paths = append(paths, unquoted)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}
