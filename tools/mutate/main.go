// Command mutate changes one expression or statement of a package at a time and runs tests.
// A change that no test detects, called a survivor, shows a missing test or code without
// effect. A seed selects the changes, so that a run can be repeated. Start at mutants.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	count := flag.Int("n", 30, "number of changes per package")
	seed := flag.Uint64("seed", 1, "seed that selects the changes")
	also := flag.String("also", "", "further `packages`, separated by commas, whose tests may detect a change")
	timeout := flag.Duration("timeout", 2*time.Minute, "time limit of the tests; a change that exceeds it counts as detected")
	limit := flag.Float64("limit", 0.10, "share of survivors at which the command fails")
	flag.Parse()

	failed := false
	for _, dir := range flag.Args() {
		tests := []string{"./" + filepath.Clean(dir)}
		if *also != "" {
			tests = append(tests, strings.Split(*also, ",")...)
		}
		survivors, tried, err := run(dir, tests, *count, *seed, *timeout)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d of %d survived\n", dir, survivors, tried)
		failed = failed || float64(survivors) > *limit*float64(tried)
	}
	if failed {
		os.Exit(1)
	}
}

// mutant is one change of a source file: text replaces the bytes from start to end.
type mutant struct {
	file       string
	start, end int
	text       string
	position   token.Position
}

// run tries up to count changes of a package that compile, and prints the outcome of each.
func run(dir string, tests []string, count int, seed uint64, timeout time.Duration) (survivors, tried int, err error) {
	all, err := mutants(dir)
	if err != nil {
		return 0, 0, err
	}
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable, not a secret
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	quick, err := quickTests(tests, timeout)
	if err != nil {
		return 0, 0, err
	}

	for _, m := range all {
		if tried == count {
			break
		}
		source, err := os.ReadFile(m.file)
		if err != nil {
			return survivors, tried, err
		}
		before := string(source[m.start:m.end])
		changed := string(source[:m.start]) + m.text + string(source[m.end:])

		start := time.Now()
		outcome, err := try(m.file, changed, tests, quick, timeout)
		if err != nil {
			return survivors, tried, err
		}
		fmt.Printf("%-12s %5.1fs  %s: %q -> %q\n", outcome, time.Since(start).Seconds(), m.position, before, m.text)
		if outcome == "not compiled" {
			continue
		}
		tried++
		if outcome == "SURVIVED" {
			survivors++
		}
	}
	return survivors, tried, nil
}

// quickTests runs the tests without a change, and returns a pattern that matches the
// fastest tests, which together take at most a fifth of the time. These tests run first,
// because they detect most changes.
func quickTests(tests []string, timeout time.Duration) (string, error) {
	arguments := append([]string{"test", "-json", "-vet=off", "-ldflags=-s -w", "-timeout=" + timeout.String()}, tests...)
	out, err := exec.CommandContext(context.Background(), "go", arguments...).Output() //nolint:gosec // arguments of the caller
	if err != nil {
		return "", fmt.Errorf("running %s without a change: %w: fix the tests first, because failing tests detect every change", strings.Join(tests, " "), err)
	}

	type result struct {
		Action, Test string
		Elapsed      float64
	}
	var passed []result
	var total float64
	for line := range bytes.Lines(out) {
		var r result
		if json.Unmarshal(line, &r) == nil && r.Action == "pass" && r.Test != "" && !strings.Contains(r.Test, "/") {
			passed = append(passed, r)
			total += r.Elapsed
		}
	}
	slices.SortStableFunc(passed, func(a, b result) int { return cmp.Compare(a.Elapsed, b.Elapsed) })
	var names []string
	var sum float64
	for _, r := range passed {
		if sum += r.Elapsed; sum > total/5 {
			break
		}
		names = append(names, r.Test)
	}
	return "^(" + strings.Join(names, "|") + ")$", nil
}

// try runs the tests with a changed file in place of the original, first the tests that
// match quick. It returns "not compiled", "noticed" if a test failed, or "SURVIVED".
func try(file, changed string, tests []string, quick string, timeout time.Duration) (string, error) {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // a temporary directory

	source := filepath.Join(scratch, "changed.go")
	if err := os.WriteFile(source, []byte(changed), 0o600); err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(scratch, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {absolute: source}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, content, 0o600); err != nil {
		return "", err
	}

	build := exec.CommandContext(context.Background(), "go", "build", "-overlay="+overlay, "./"+filepath.Dir(file)) //nolint:gosec // arguments of the caller
	if build.Run() != nil {
		return "not compiled", nil
	}
	for _, selection := range []string{"-run=" + quick, "-skip=" + quick} {
		arguments := append([]string{"test", "-overlay=" + overlay, "-vet=off", "-ldflags=-s -w", "-failfast", "-timeout=" + timeout.String(), selection}, tests...)
		err := exec.CommandContext(context.Background(), "go", arguments...).Run() //nolint:gosec // arguments of the caller
		var failed *exec.ExitError
		switch {
		case errors.As(err, &failed):
			return "noticed", nil
		case err != nil:
			return "", err
		}
	}
	return "SURVIVED", nil
}

// opposite maps an operator to the operator that replaces it.
var opposite = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD,
}

// logs matches calls that only write a log line.
var logs = regexp.MustCompile(`^log[a-z]*\.`)

// mutants lists the possible changes of a package's files, except tests and generated
// files: conditions are negated, operators replaced, booleans flipped, errors dropped, and
// assignments, calls and jumps removed.
func mutants(dir string) ([]mutant, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(file) {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}

		all = append(all, fileMutants(name, source, files, file)...)
	}
	return all, nil
}

// fileMutants lists the possible changes of one file.
func fileMutants(name string, source []byte, files *token.FileSet, file *ast.File) []mutant {
	var all []mutant
	offset := func(pos token.Pos) int { return files.Position(pos).Offset }
	add := func(from, to token.Pos, text string) {
		all = append(all, mutant{file: name, start: offset(from), end: offset(to), text: text, position: files.Position(from)})
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.IfStmt:
			condition := string(source[offset(n.Cond.Pos()):offset(n.Cond.End())])
			add(n.Cond.Pos(), n.Cond.End(), "!("+condition+")")
		case *ast.BinaryExpr:
			if with, ok := opposite[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), with.String())
			}
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				add(n.Pos(), n.End(), map[string]string{"true": "false", "false": "true"}[n.Name])
			}
		case *ast.ReturnStmt:
			if len(n.Results) > 0 {
				if last, ok := n.Results[len(n.Results)-1].(*ast.Ident); ok && last.Name == "err" {
					add(last.Pos(), last.End(), "nil")
				}
			}
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				add(n.Pos(), n.End(), "_ = 0")
			}
		case *ast.ExprStmt:
			if !logs.Match(source[offset(n.Pos()):offset(n.End())]) {
				add(n.Pos(), n.End(), "_ = 0")
			}
		case *ast.IncDecStmt, *ast.BranchStmt, *ast.DeferStmt:
			add(node.Pos(), node.End(), "_ = 0")
		}
		return true
	})
	return all
}
