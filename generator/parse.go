package generator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
)

// ParseError reports an invalid file of a fleet: its line, and how to fix it.
type ParseError struct {
	// File is the path relative to the fleet's directory.
	File string
	// Line counts from 1; 0 means the whole file.
	Line int
	// Problem describes the fault.
	Problem string
	// Hint is the fix.
	Hint string
	// Err is the cause, or nil.
	Err error
}

// Error returns "reading fleet file <file>:<line>: <problem>: <hint>", without the line if it
// is 0.
func (e *ParseError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("reading fleet file %s: %s: %s", visible(where), visible(e.Problem), e.Hint)
}

// visible escapes characters that a terminal would interpret or hide, as Go does in quoted
// strings, because a fleet's paths and values are untrusted.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r == '\n' || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// The hints for fixing a file.
const (
	hintRestore = "restore the file from version control; to change a node, change its NodePool or ProxmoxNodeClass"
	hintUpgrade = "upgrade numaform"
	hintRemove  = "move the file out of the fleet's directory"
	hintEither  = "restore the file from version control if it describes a node; otherwise move it out of the fleet's directory"
	hintModule  = "restore the file from version control, or remove the directory: numaform contains the modules"
	hintMerge   = "restore one version of the file from version control; during a merge, run git checkout --ours or --theirs"
)

// The limits of a text file, for Parse and Render. The file of a very large VM is several
// times smaller.
const (
	maxFileBytes = 256 << 10
	maxFileLines = 4000
)

// excess describes how a text file exceeds the limits, or returns "". line is the first line
// beyond the limit of lines, or 0.
func excess(content []byte) (line int, problem string) {
	if len(content) > maxFileBytes {
		return 0, fmt.Sprintf("has %d bytes, more than the limit of %d", len(content), maxFileBytes)
	}
	if lines := bytes.Count(content, []byte("\n")); lines > maxFileLines {
		return maxFileLines + 1, fmt.Sprintf("has %d lines, more than the limit of %d", lines, maxFileLines)
	}
	return 0, ""
}

// conflict matches a merge conflict marker. Render never writes such a line. A search for
// conflictMarks excludes it at a hundredth of the cost.
var (
	conflict      = regexp.MustCompile(`(?m)^(<{7}|>{7})( |\r?$)`)
	conflictMarks = [][]byte{[]byte("<<<<<<<"), []byte(">>>>>>>")}
)

// providerPin matches the provider version in a root's main.tf.
var providerPin = regexp.MustCompile(`(?m)^(      version = )"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*"$`)

// Parse parses a fleet with the current release.
func Parse(files Files) (fleet.Fleet, error) { return Current().Parse(files) }

// Parse parses the files that Render wrote and accepts no others: if Render would write a
// file differently, it returns an error with the first different line. Only the provider
// version may be another release's, because Render upgrades all roots to its own. A node file
// may call only modules that the release contains. The copies of modules in the fleet's
// directory are for readers, and must be equal to the release's modules. Parse ignores files
// that the engine does not read. Without files, the fleet is empty.
func (r Release) Parse(files Files) (fleet.Fleet, error) {
	if known, ok := r.Memo.whole(files); ok {
		return known, nil
	}
	p := &parser{release: r, files: files, modules: map[string]map[string][]byte{}}
	names := sortedPaths(files)
	exists := func(name string) bool { return kindOf(name).isText() || kindOf(name) == kindStray }
	if !slices.ContainsFunc(names, exists) {
		return fleet.Fleet{}, nil
	}

	for _, name := range names {
		if err := p.checkText(name); err != nil {
			return fleet.Fleet{}, err
		}
	}
	if err := p.parseIndex(); err != nil {
		return fleet.Fleet{}, err
	}
	for _, name := range names {
		if err := p.parseRootFile(name); err != nil {
			return fleet.Fleet{}, err
		}
	}
	p.fleet.Hosts = p.fleet.AllHosts()
	p.fleet.Sort()

	if err := p.checkModules(); err != nil {
		return fleet.Fleet{}, err
	}
	if err := p.compare(); err != nil {
		return fleet.Fleet{}, err
	}
	r.Memo.replace(&p.fleet, files)
	return p.fleet, nil
}

type parser struct {
	release Release
	files   Files
	fleet   fleet.Fleet
	// modules caches Release.Carried, which hashes the modules at each call; nil means
	// modules that the release does not contain.
	modules map[string]map[string][]byte
}

// carried returns the modules with the given hash, or nil.
func (p *parser) carried(hash string) map[string][]byte {
	files, known := p.modules[hash]
	if !known {
		var ok bool
		if files, ok = p.release.Carried(hash); !ok {
			files = nil
		}
		p.modules[hash] = files
	}
	return files
}

// checkText returns an error for text that exceeds the limits, and for merge conflicts.
func (p *parser) checkText(name string) error {
	if !kindOf(name).isText() {
		return nil
	}
	content := p.files[name]
	if line, problem := excess(content); problem != "" {
		return &ParseError{File: name, Line: line, Problem: problem, Hint: hintRestore}
	}
	marked := slices.ContainsFunc(conflictMarks, func(mark []byte) bool { return bytes.Contains(content, mark) })
	if !marked {
		return nil
	}
	if at := conflict.FindIndex(content); at != nil {
		return &ParseError{File: name, Line: lineAt(content, at[0]), Problem: "contains merge conflict markers", Hint: hintMerge}
	}
	return nil
}

// lineAt returns the number of the line at an offset, counted from 1.
func lineAt(content []byte, offset int) int {
	return 1 + bytes.Count(content[:min(offset, len(content))], []byte("\n"))
}

// parseIndex reads fleet.json: first its format version, then every field.
func (p *parser) parseIndex() error {
	content, ok := p.files[fleetFile]
	if !ok {
		return &ParseError{File: fleetFile, Problem: "is missing", Hint: hintRestore}
	}
	var read index
	if err := json.Unmarshal(content, &read); err == nil && read.FormatVersion != FormatVersion {
		return formatError(fleetFile, 0, read.FormatVersion)
	}

	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&read)
	if err == nil {
		if _, end := decoder.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("contains more than one JSON value")
		}
	}
	if err != nil {
		line := 0
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			line = lineAt(content, int(syntax.Offset))
		}
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			line = lineAt(content, int(kind.Offset))
		}
		return &ParseError{File: fleetFile, Line: line, Problem: err.Error(), Hint: hintRestore, Err: err}
	}
	p.fleet = fleet.Fleet{ClusterID: read.ClusterID, Backend: read.Backend, Regions: read.Regions}
	return nil
}

func formatError(name string, line, format int) error {
	if format > FormatVersion {
		return &ParseError{
			File: name, Line: line, Hint: hintUpgrade,
			Problem: fmt.Sprintf("has format %d, but this numaform supports only formats up to %d", format, FormatVersion),
		}
	}
	return &ParseError{File: name, Line: line, Problem: fmt.Sprintf("has the unknown format %d", format), Hint: hintRestore}
}

// parseRootFile adds the host or the VM of a file to the fleet. It returns an error for an
// unmanaged file that the engine would read.
func (p *parser) parseRootFile(name string) error {
	kind := kindOf(name)
	switch {
	case kind == kindStray:
		return &ParseError{File: name, Problem: "was not written by numaform, but the engine would read it", Hint: hintRemove}
	case !kind.inRoot():
		return nil
	case kind == kindNode && !Owns(name, p.files[name]):
		return &ParseError{File: name, Problem: "has no numaform header, but the engine would read it", Hint: hintEither}
	}

	host := hostOf(name)
	if regionIndex(&p.fleet, host.Region) < 0 {
		return &ParseError{File: name, Problem: fmt.Sprintf("region %q is not in %s", host.Region, fleetFile), Hint: hintRestore}
	}
	p.fleet.Hosts = append(p.fleet.Hosts, host)
	if kind == kindMain {
		return nil
	}
	if vm, ok := p.release.Memo.parsed(p.fleet.ClusterID, name, p.files[name]); ok {
		p.fleet.VMs = append(p.fleet.VMs, vm)
		return nil
	}
	vm, err := p.parseNode(name)
	if err != nil {
		return err
	}
	if own := NodeFile(&vm); own != name {
		return &ParseError{File: name, Problem: fmt.Sprintf("contains VM %s, which belongs in %s", vm.Name, own), Hint: hintRestore}
	}
	p.fleet.VMs = append(p.fleet.VMs, vm)
	return nil
}

// compare renders the parsed fleet and returns an error for the first difference from the
// files.
func (p *parser) compare() error {
	written, err := p.release.Render(p.fleet)
	if err != nil {
		// The error is about a VM's file or, if it names no VM, about the index.
		refused := &ParseError{File: fleetFile, Problem: err.Error(), Hint: hintRestore, Err: err}
		if field, ok := errors.AsType[*FieldError](err); ok {
			refused.Problem = field.Error()
			for i := range p.fleet.VMs {
				if p.fleet.VMs[i].Name == field.VM {
					refused.File = NodeFile(&p.fleet.VMs[i])
				}
			}
		}
		return refused
	}

	for _, name := range sortedPaths(written) {
		kind := kindOf(name)
		if !kind.isText() {
			continue
		}
		content, exists := p.files[name]
		if kind == kindMain {
			if !exists {
				continue // the next Render restores it
			}
			content = providerPin.ReplaceAll(content, []byte(`${1}"`+p.release.Provider+`"`))
		}
		if !bytes.Equal(content, written[name]) {
			return &ParseError{
				File: name, Line: firstDifference(content, written[name]),
				Problem: "was edited: numaform writes it differently", Hint: hintRestore,
			}
		}
	}
	return nil
}

// firstDifference returns the number of the first line in which got and want
// differ.
func firstDifference(got, want []byte) int {
	gotLines := bytes.SplitAfter(got, []byte("\n"))
	wantLines := bytes.SplitAfter(want, []byte("\n"))
	for i := range gotLines {
		if i >= len(wantLines) || !bytes.Equal(gotLines[i], wantLines[i]) {
			return i + 1
		}
	}
	return len(gotLines)
}

// checkModules compares the modules in the fleet's directory with the release's. The hash in
// the name of other modules, which no VM calls, must match their content.
func (p *parser) checkModules() error {
	unknown := map[string]map[string][]byte{}
	for _, name := range sortedPaths(p.files) {
		parts := strings.SplitN(name, "/", 4)
		if len(parts) < 4 || parts[0] != modulesDir || !slices.Contains(modules.Names(), parts[1]) {
			continue
		}
		hash := parts[2]
		file := path.Join(parts[1], parts[3])
		known := p.carried(hash)
		if known == nil {
			if unknown[hash] == nil {
				unknown[hash] = map[string][]byte{}
			}
			unknown[hash][file] = p.files[name]
			continue
		}
		switch content, exists := known[file]; {
		case !exists:
			return &ParseError{File: name, Problem: "is not a file of these modules", Hint: hintRemove}
		case !bytes.Equal(content, p.files[name]):
			return &ParseError{File: name, Line: firstDifference(p.files[name], content), Problem: "was edited", Hint: hintModule}
		}
	}
	for _, hash := range slices.Sorted(maps.Keys(unknown)) {
		if modules.HashOf(unknown[hash]) != hash {
			return &ParseError{
				File: path.Join(modulesDir, modules.NodeModule, hash), Hint: "no VM calls these modules: remove every directory " + path.Join(modulesDir, "*", hash),
				Problem: "the modules with this hash were edited, or are different modules with that name",
			}
		}
	}
	return nil
}
