package generator

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// ParseError says which file of a fleet numaform does not understand, where, and
// how to mend it.
type ParseError struct {
	// File is the path below the fleet's directory.
	File string
	// Line counts from 1; 0 means the file as a whole.
	Line int
	// Problem says what is wrong.
	Problem string
	// Mend says what to do.
	Mend string
	// Err is the cause, or nil.
	Err error
}

// Error returns "file:line: problem: mend".
func (e *ParseError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return fmt.Sprintf("reading fleet file %s: %s: %s", where, e.Problem, e.Mend)
}

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// How to mend a file.
const (
	mendRestore = "restore the file from version control; to change a node, change its NodePool or ProxmoxNodeClass"
	mendUpgrade = "upgrade numaform"
	mendRemove  = "move the file out of the fleet's directory"
	mendEither  = "restore the file from version control if it is a node's, or else move it out of the fleet's directory"
	mendModule  = "restore the directory from version control"
	mendMerge   = "take one side as it is: git checkout --ours, or --theirs"
)

// Parse reads what Render wrote. It accepts nothing else: a file that Render
// would write differently is an error that names its first such line. Only the
// version of the provider may be that of another release: Render brings all shards
// to its own. Files that the engine does not read, and modules of other versions,
// are passed over. No files at all are an empty fleet.
func Parse(files Files) (fleet.Fleet, error) {
	p := &parser{files: files}
	if !p.hasFleet() {
		return fleet.Fleet{}, nil
	}
	if err := p.parse(); err != nil {
		return fleet.Fleet{}, err
	}
	return p.fleet, nil
}

type parser struct {
	files Files
	fleet fleet.Fleet
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
	if err := p.unmerged(); err != nil {
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

// conflict finds where a merge left both sides in a file. numaform begins no line so.
var conflict = regexp.MustCompile(`(?m)^(<{7}|>{7})( |\r?$)`)

// unmerged refuses a file that holds both sides of a merge.
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

// checkStray refuses what the engine would plan along with a shard's files.
func (p *parser) checkStray(name string) error {
	switch kind := kindOf(name); {
	case kind == kindStray:
		return &ParseError{File: name, Problem: "is not numaform's, but the engine would read it", Mend: mendRemove}
	case kind == kindNode && !Owns(name, p.files[name]):
		return &ParseError{File: name, Problem: "lacks numaform's header, but the engine would read it", Mend: mendEither}
	}
	return nil
}

// compare renders what was read and finds the first difference to the files.
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

// providerPin finds the version of the provider in a shard's main.tf.
var providerPin = regexp.MustCompile(`(?m)^(      version = )"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*"$`)

// blame names the file that a value came from that Render refused: a VM's own
// file if the error is about a VM, or else the index.
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

// checkModules makes sure that the content of modules is the one they are named
// by, for all that are there.
func (p *parser) checkModules() error {
	found := map[string]map[string][]byte{}
	for name, content := range p.files {
		parts := strings.SplitN(name, "/", 4)
		if len(parts) < 4 || parts[0] != modulesDir || !slices.Contains(modules.Names(), parts[1]) {
			continue
		}
		hash := parts[2]
		if found[hash] == nil {
			found[hash] = map[string][]byte{}
		}
		found[hash][path.Join(parts[1], parts[3])] = content
	}
	var wrong []string
	for hash, content := range found {
		if modules.HashOf(content) != hash {
			wrong = append(wrong, hash)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return &ParseError{
		File:    path.Join(modulesDir, modules.NodeModule, slices.Min(wrong)),
		Problem: "was edited, or another module of that name: the content is not the one that the name stands for", Mend: mendModule,
	}
}
