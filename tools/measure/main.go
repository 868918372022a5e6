// Command measure prints the size of a Go module's packages, the lengths of their
// functions, and the dependencies between packages. It counts source text without type
// information, so use its figures only to compare two versions of the same module. Start at
// measure.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// besides matches the directories for tests, the demo and the build.
const besides = `^(internal/(pvesim|guestsim|statesim|simprogram|hostagent|agent/agenttest|testenv|enginetest|layering|demo)|test|tools|examples)(/|$)`

func main() {
	except := flag.String("besides", besides, "`regexp` of the directories that are not product code")
	flag.Parse()

	aside, err := regexp.Compile(*except)
	if err == nil {
		err = run(os.Stdout, os.DirFS(cmp.Or(flag.Arg(0), ".")), aside)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// figures are the counts of a package, or of several.
type figures struct {
	lines, blank, code int
	// lengths are the numbers of lines of each function.
	lengths []int
	// single is the number of unexported functions that are used in only one place.
	single int
	// exported is the number of exported names, except methods and fields.
	exported int
	// parallel is the number of parallel assignments, such as a, b = c, d.
	parallel int
}

// pkg is one package, without its tests and generated files.
type pkg struct {
	figures
	dir     string
	imports map[string]bool
	// declared counts the unexported functions by name; used counts the other occurrences
	// of a name.
	declared, used map[string]int
	// fanIn is the number of packages that import this one, and fanOut the number that it
	// imports.
	fanIn, fanOut int
}

// run prints the figures of a module's product packages, their total, and the total of the
// other packages.
func run(out io.Writer, module fs.FS, aside *regexp.Regexp) error {
	content, err := fs.ReadFile(module, "go.mod")
	if err != nil {
		return err
	}
	modulePath := regexp.MustCompile(`(?m)^module\s+(\S+)`).FindSubmatch(content)
	if modulePath == nil {
		return fmt.Errorf("go.mod has no module directive")
	}

	packages, err := measure(module)
	if err != nil {
		return err
	}
	product := map[string]*pkg{}
	var total, others figures
	for dir, p := range packages {
		if aside.MatchString(dir) {
			others.add(&p.figures)
			continue
		}
		product[path.Join(string(modulePath[1]), dir)] = p
		total.add(&p.figures)
	}
	for _, p := range product {
		for imported := range p.imports {
			if other := product[imported]; other != nil {
				p.fanOut++
				other.fanIn++
			}
		}
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "lines\tcode\tfunctions\tsingle-caller\texported\tfan-in\tfan-out\t  package")
	for _, name := range slices.Sorted(maps.Keys(product)) {
		p := product[name]
		fmt.Fprintf(table, "%s%d\t%d\t  %s\n", p.row(), p.fanIn, p.fanOut, p.dir)
	}
	fmt.Fprintf(table, "%s\t\t  product\n", total.row())
	fmt.Fprintf(table, "%s\t\t  besides\n", others.row())
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "product: median function %d lines, p95 %d; %s of the lines blank; %.1f parallel assignments per 1,000 code lines\n",
		total.quantile(0.5), total.quantile(0.95), percent(total.blank, total.lines), 1000*float64(total.parallel)/max(1, float64(total.code)))
	return err
}

// measure returns the packages of a module by directory, without tests, generated files,
// testdata and vendor.
func measure(module fs.FS) (map[string]*pkg, error) {
	packages := map[string]*pkg{}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name != "." && (base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".")) {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}

		source, err := fs.ReadFile(module, name)
		if err != nil {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, source, parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}

		dir := path.Dir(name)
		p := packages[dir]
		if p == nil {
			p = &pkg{dir: dir, imports: map[string]bool{}, declared: map[string]int{}, used: map[string]int{}}
			packages[dir] = p
		}
		p.countLines(string(source))
		return p.countFile(files, file)
	})

	for _, p := range packages {
		for name, times := range p.declared {
			if times == 1 && p.used[name] == 1 {
				p.single++
			}
		}
	}
	return packages, err
}

// countLines counts the lines of a source file: all, blank lines, and lines of code, which
// are not blank and do not begin with a comment.
func (p *pkg) countLines(source string) {
	for line := range strings.Lines(source) {
		line = strings.TrimSpace(line)
		p.lines++
		switch {
		case line == "":
			p.blank++
		case strings.HasPrefix(line, "//"), strings.HasPrefix(line, "/*"), strings.HasPrefix(line, "*/"):
		default:
			p.code++
		}
	}
}

// countFile counts the declarations, names and imports of one file.
func (p *pkg) countFile(files *token.FileSet, file *ast.File) error {
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		p.imports[imported] = true
	}

	declares := map[*ast.Ident]bool{file.Name: true}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				p.countExported(d.Name)
			}
			if d.Body == nil {
				continue
			}
			declares[d.Name] = true
			p.lengths = append(p.lengths, files.Position(d.End()).Line-files.Position(d.Pos()).Line+1)
			if !d.Name.IsExported() {
				p.declared[d.Name.Name]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					p.countExported(s.Name)
				case *ast.ValueSpec:
					p.countExported(s.Names...)
				}
			}
		}
	}

	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if !declares[n] {
				p.used[n.Name]++
			}
		case *ast.AssignStmt:
			if len(n.Lhs) > 1 && len(n.Rhs) > 1 {
				p.parallel++
			}
		}
		return true
	})
	return nil
}

func (p *pkg) countExported(names ...*ast.Ident) {
	for _, name := range names {
		if name.IsExported() {
			p.exported++
		}
	}
}

// add adds the figures of another package.
func (f *figures) add(o *figures) {
	f.lines += o.lines
	f.blank += o.blank
	f.code += o.code
	f.lengths = append(f.lengths, o.lengths...)
	f.single += o.single
	f.exported += o.exported
	f.parallel += o.parallel
}

// row formats the columns common to packages and totals.
func (f *figures) row() string {
	return fmt.Sprintf("%d\t%d\t%d\t%s\t%d\t", f.lines, f.code, len(f.lengths), percent(f.single, len(f.lengths)), f.exported)
}

// quantile returns the length that the given share of functions does not exceed.
func (f *figures) quantile(share float64) int {
	if len(f.lengths) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(f.lengths))
	return sorted[int(float64(len(sorted)-1)*share)]
}

// percent formats part as a percentage of whole, or a dash if whole is 0.
func percent(part, whole int) string {
	if whole == 0 {
		return "-"
	}
	return strconv.Itoa((100*part+whole/2)/whole) + " %"
}
