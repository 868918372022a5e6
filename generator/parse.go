package generator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// ParseError reports a file of a fleet that numaform does not understand: which file,
// which line, and how to fix it.
type ParseError struct {
	// File is the path relative to the fleet's directory.
	File string
	// Line counts from 1; 0 means the whole file.
	Line int
	// Problem says what is wrong.
	Problem string
	// Mend says how to fix it.
	Mend string
	// Err is the cause, or nil.
	Err error
}

// Error returns "file:line: problem: fix".
func (e *ParseError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("reading fleet file %s: %s: %s", visible(where), visible(e.Problem), e.Mend)
}

// visible escapes characters that a terminal would interpret or not show, as Go does in
// quoted strings: a fleet's paths and values are untrusted text.
func visible(text string) string {
	if strings.IndexFunc(text, hidden) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// hidden reports whether a character is a control character or only changes the display
// of others.
func hidden(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// The hints for fixing a file.
const (
	mendRestore = "restore the file from version control; to change a node, change its NodePool or ProxmoxNodeClass"
	mendUpgrade = "upgrade numaform"
	mendRemove  = "move the file out of the fleet's directory"
	mendEither  = "restore the file from version control if it is a node's, or else move it out of the fleet's directory"
	mendModule  = "restore the file from version control, or remove the directory: numaform has the modules itself"
	mendMerge   = "take one side as it is: git checkout --ours, or --theirs"
)

// Parse parses a fleet with the current release.
func Parse(files Files) (fleet.Fleet, error) { return Current().Parse(files) }

// Parse parses what Render wrote and accepts nothing else: if Render would write a file
// differently, it returns an error with the first different line. Only the provider
// version may be another release's, because Render upgrades all roots to its own. A node
// file may call only modules that the release carries; the copies in the fleet's
// directory are for people and must be equal to them. Parse ignores files that the engine
// does not read. No files at all are an empty fleet.
func (r Release) Parse(files Files) (fleet.Fleet, error) {
	p := &parser{release: r, files: files, modules: map[string]map[string][]byte{}}
	if !p.hasFleet() {
		return fleet.Fleet{}, nil
	}
	if err := p.parse(); err != nil {
		return fleet.Fleet{}, err
	}
	return p.fleet, nil
}

type parser struct {
	release Release
	files   Files
	fleet   fleet.Fleet
	// modules caches the requested modules by hash; nil if the release has no such
	// modules.
	modules map[string]map[string][]byte
}

// carried returns the modules with a hash, or nil.
func (p *parser) carried(hash string) map[string][]byte {
	if files, known := p.modules[hash]; known {
		return files
	}
	files, ok := p.release.Carried(hash)
	if !ok {
		files = nil
	}
	p.modules[hash] = files
	return files
}

// hasFleet reports whether there is a file that only a fleet has.
func (p *parser) hasFleet() bool {
	for name := range p.files {
		if kind := kindOf(name); kind != kindOther && kind != kindIgnore && kind != kindModule {
			return true
		}
	}
	return false
}

func (p *parser) parse() error {
	if err := cmp.Or(p.bounded(), p.unmerged()); err != nil {
		return err
	}
	if err := p.parseIndex(); err != nil {
		return err
	}
	hosts := map[topology.HostID]bool{}
	for _, name := range sortedPaths(p.files) {
		kind := kindOf(name)
		if err := p.checkStray(name); err != nil {
			return err
		}
		if kind != kindMain && kind != kindNode {
			continue
		}
		host := hostOf(name)
		if _, known := findRegion(&p.fleet, host.Region); !known {
			return &ParseError{File: name, Problem: fmt.Sprintf("region %q is not in %s", host.Region, fleetFile), Mend: mendRestore}
		}
		hosts[host] = true
		if kind == kindNode {
			if err := p.parseNode(name); err != nil {
				return err
			}
		}
	}
	for host := range hosts {
		p.fleet.Hosts = append(p.fleet.Hosts, host)
	}
	p.fleet.Hosts = p.fleet.Shards()
	p.fleet.Sort()
	return p.compare()
}

// conflict matches a merge conflict marker. Render never begins a line like this.
var conflict = regexp.MustCompile(`(?m)^(<{7}|>{7})( |\r?$)`)

// unmerged refuses a file with unresolved merge conflicts.
func (p *parser) unmerged() error {
	for _, name := range sortedPaths(p.files) {
		switch kindOf(name) {
		case kindIndex, kindMain, kindNode:
			content := p.files[name]
			if at := conflict.FindIndex(content); at != nil {
				line := 1 + bytes.Count(content[:at[0]], []byte("\n"))
				return &ParseError{File: name, Line: line, Problem: "holds both sides of a merge that conflicted", Mend: mendMerge}
			}
		}
	}
	return nil
}

// checkStray refuses files that the engine would plan along with a root's own.
func (p *parser) checkStray(name string) error {
	switch kind := kindOf(name); {
	case kind == kindStray:
		return &ParseError{File: name, Problem: "is not numaform's, but the engine would read it", Mend: mendRemove}
	case kind == kindNode && !Owns(name, p.files[name]):
		return &ParseError{File: name, Problem: "lacks numaform's header, but the engine would read it", Mend: mendEither}
	}
	return nil
}

// compare renders the parsed fleet and returns an error for the first difference from the
// files.
func (p *parser) compare() error {
	if err := p.checkModules(); err != nil {
		return err
	}
	written, err := Render(p.fleet)
	if err != nil {
		return p.blame(err)
	}
	for _, name := range sortedPaths(written) {
		if name == ignoreFile || strings.HasPrefix(name, modulesDir+"/") {
			continue
		}
		content, exists := p.files[name]
		if kindOf(name) == kindMain {
			content = providerPin.ReplaceAll(content, []byte(`${1}"`+ProviderVersion+`"`))
		}
		switch {
		case !exists && kindOf(name) == kindMain: // The next rendering brings it back.
		case !exists:
			return &ParseError{File: name, Problem: "is missing", Mend: mendRestore}
		case !bytes.Equal(content, written[name]):
			return &ParseError{
				File: name, Line: firstDifference(content, written[name]),
				Problem: "was edited: this is not what numaform writes", Mend: mendRestore,
			}
		}
	}
	return nil
}

// providerPin matches the provider version in a root's main.tf.
var providerPin = regexp.MustCompile(`(?m)^(      version = )"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*"$`)

// blame returns a ParseError for a value that Render refused. It names the VM's file if
// the error is about a VM, and the index otherwise.
func (p *parser) blame(err error) error {
	var field *FieldError
	if !errors.As(err, &field) {
		return &ParseError{File: fleetFile, Problem: err.Error(), Mend: mendRestore, Err: err}
	}
	for i := range p.fleet.VMs {
		if p.fleet.VMs[i].Name == field.VM {
			return &ParseError{File: NodeFile(&p.fleet.VMs[i]), Problem: field.Error(), Mend: mendRestore, Err: err}
		}
	}
	return &ParseError{File: fleetFile, Problem: field.Error(), Mend: mendRestore, Err: err}
}

// firstDifference returns the number of the first line in which got and want
// differ.
func firstDifference(got, want []byte) int {
	gotLines, wantLines := bytes.SplitAfter(got, []byte("\n")), bytes.SplitAfter(want, []byte("\n"))
	for i := range gotLines {
		if i >= len(wantLines) || !bytes.Equal(gotLines[i], wantLines[i]) {
			return i + 1
		}
	}
	return len(gotLines)
}

// checkModules compares the modules in the fleet's directory with the release's. The name
// of an unknown version that no VM calls must match its content.
func (p *parser) checkModules() error {
	unknown := map[string]map[string][]byte{}
	for _, name := range sortedPaths(p.files) {
		parts := strings.SplitN(name, "/", 4)
		if len(parts) < 4 || parts[0] != modulesDir || !slices.Contains(modules.Names(), parts[1]) {
			continue
		}
		hash, file := parts[2], path.Join(parts[1], parts[3])
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
			return &ParseError{File: name, Problem: "is no file of these modules", Mend: mendModule}
		case !bytes.Equal(content, p.files[name]):
			return &ParseError{File: name, Line: firstDifference(p.files[name], content), Problem: "was edited", Mend: mendModule}
		}
	}
	for _, hash := range slices.Sorted(maps.Keys(unknown)) {
		if modules.HashOf(unknown[hash]) != hash {
			return &ParseError{
				File: path.Join(modulesDir, modules.NodeModule, hash), Mend: "remove the directory: nothing calls it",
				Problem: "was edited, or is another module of that name",
			}
		}
	}
	return nil
}

// unknownModules returns the error for a node file that calls modules that the release
// does not carry.
func (p *parser) unknownModules(name string, line int, hash string) error {
	return &ParseError{
		File: name, Line: line,
		Problem: fmt.Sprintf("calls modules %s, which this numaform does not carry; it has %s", hash, strings.Join(p.release.Carries(), ", ")),
		Mend: "restore the file from version control; if another version of numaform wrote it, use one that carries both " + hash +
			" and one of these until this node is replaced, or upgrade; allow modules of your own under modules.allow in numaform.yaml",
	}
}
