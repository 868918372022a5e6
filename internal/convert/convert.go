// Package convert translates the configuration of another node autoscaler for Proxmox to
// numaform's. One table for each peer has a row for each of its options; the rows convert, and
// the migration pages show them. It reads and writes nothing: objects in, files and a report
// out. Start at Convert.
package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Peer is an autoscaler whose configuration can be converted.
type Peer string

// The peers.
const (
	KPP           Peer = "kpp"           // karpenter-provider-proxmox
	Kproximate    Peer = "kproximate"    // kproximate
	KubeNodeSmith Peer = "kubenodesmith" // KubeNodeSmith
)

// Peers returns the peers.
func Peers() []Peer { return []Peer{KPP, Kproximate, KubeNodeSmith} }

// Settings are values that the peers do not have, or that they leave to the user.
type Settings struct {
	// ClusterID is the clusterID of numaform.yaml.
	ClusterID string
	// Region is the name of the Proxmox cluster, for peers that do not name it.
	Region string
	// Template is the VM template of classes that would have none.
	Template string
	// Namespace is numaform's namespace, which gets the Secrets.
	Namespace string
}

// Verdict is what happened to an option.
type Verdict string

// The verdicts.
const (
	// Kept options mean the same in numaform.
	Kept Verdict = "kept"
	// Changed options are in the output, with a difference that the reason explains.
	Changed Verdict = "changed"
	// Dropped options have no effect in numaform, or no place there.
	Dropped Verdict = "dropped"
	// Unknown options are not options of the peer that this version of numaform knows.
	Unknown Verdict = "unknown"
)

// Line reports what happened to one option. It never contains a value.
type Line struct {
	// Object is the object or file with the option, such as ProxmoxNodeClass/default.
	Object string
	// Path is the path of the option in the object.
	Path    string
	Verdict Verdict
	// Ours is the place of the option in numaform's configuration, if any.
	Ours   string
	Reason string
}

// File is a part of the result.
type File struct {
	// Name is a relative path, such as manifests/nodepools.yaml.
	Name    string
	Content []byte
	// Secret files contain credentials or templates that can contain some.
	Secret bool
}

// Result is a converted configuration.
type Result struct {
	// Files are sorted by name.
	Files []File
	// Lines are in the order of the input's objects and of the options in them.
	Lines []Line
}

// Convert translates the objects of a peer.
func Convert(peer Peer, objects []Object, settings Settings) (*Result, error) {
	c := &conversion{Settings: settings, out: map[string]*output{}, used: map[string]bool{}}
	if err := c.run(peer, objects); err != nil {
		return nil, err
	}
	files, err := c.files()
	return &Result{Files: files, Lines: c.lines}, err
}

func (c *conversion) run(peer Peer, objects []Object) error {
	c.Namespace = cmp.Or(c.Namespace, "numaform")
	switch c.options = optionsOf(peer); peer {
	case KPP:
		return c.kpp(objects)
	case Kproximate:
		return c.kproximate(objects)
	case KubeNodeSmith:
		return c.kubeNodeSmith(objects)
	}
	return fmt.Errorf("%q is not a peer: must be one of %v", peer, Peers())
}

func optionsOf(peer Peer) []option {
	switch peer {
	case KPP:
		return kppOptions()
	case Kproximate:
		return kproximateOptions()
	case KubeNodeSmith:
		return kubeNodeSmithOptions()
	}
	return nil
}

// conversion is one run of Convert.
type conversion struct {
	Settings
	options []option
	out     map[string]*output
	lines   []Line
	// used are the rows that apply to the input, as OBJECT PATH.
	used map[string]bool
}

// option is a row of a peer's table.
type option struct {
	// object is what contains the option: a kind or a file.
	object string
	// path is the path in the object: [] matches each item of a list, * each key of a map,
	// and ** at the end everything below.
	path string
	// ours is the place in numaform's configuration: a kind or file, and a path; or several
	// places, separated by commas. Empty means that numaform has no place for the option.
	ours string
	// note explains a difference in meaning, or why the option is not kept and what replaces
	// it.
	note string
	// apply converts the option; nil means that it is not kept.
	apply func(c *conversion, at *place)
}

// place is an option in an object.
type place struct {
	option
	from *Object
	// path is the concrete path, with indices and keys that the pattern matched.
	path     string
	segments []string
	index    []int
	keys     []string
	value    any
	// reason and verdict are set by apply if they differ from the row's.
	reason  string
	verdict Verdict
}

// drop reports that the option is not kept.
func (at *place) drop(reason string) { at.verdict, at.reason = Dropped, reason }

// change reports a difference.
func (at *place) change(reason string) {
	at.verdict, at.reason = Changed, strings.TrimPrefix(at.reason+"; "+reason, "; ")
}

// ignored reports whether a path is part of every Kubernetes object and no option.
func ignored(path string) bool {
	return slices.Contains([]string{"apiVersion", "kind", "status", "metadata"}, path)
}

// walk converts all options of an object in the order of their paths.
func (c *conversion) walk(from *Object) { c.descend(from, "", nil, from.Fields) }

func (c *conversion) descend(from *Object, path string, segments []string, value any) {
	if len(segments) == 1 && ignored(segments[0]) {
		return
	}
	row := c.find(from.Kind, segments)
	if row != nil && strings.HasSuffix(row.path, "**") && c.inside(from.Kind, segments) {
		row = nil // other rows are about parts of the value
	}
	if row != nil {
		c.convert(&place{option: *row, from: from, path: path, segments: segments, value: value})
		return
	}
	switch value := value.(type) {
	case map[string]any:
		if len(value) == 0 && (len(segments) == 0 || c.inside(from.Kind, segments)) {
			return
		}
		if len(value) > 0 {
			for _, key := range sorted(value) {
				c.descend(from, join(path, key), append(slices.Clone(segments), key), value[key])
			}
			return
		}
	case []any:
		if len(value) == 0 && c.inside(from.Kind, segments) {
			return
		}
		if len(value) > 0 {
			for i, item := range value {
				part := fmt.Sprintf("[%d]", i)
				c.descend(from, path+part, append(slices.Clone(segments), part), item)
			}
			return
		}
	case nil:
		if c.inside(from.Kind, segments) {
			return
		}
	}
	c.line(from, path, Unknown, "", "not an option that this version of numaform knows: see whether you need it")
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// find returns the row of a path: the one with the most literal segments.
func (c *conversion) find(kind string, segments []string) *option {
	var best *option
	most := -1
	for i := range c.options {
		row := &c.options[i]
		if row.object != kind {
			continue
		}
		if n := match(split(row.path), segments); n > most {
			best, most = row, n
		}
	}
	return best
}

// inside reports whether a path is the beginning of a row's path.
func (c *conversion) inside(kind string, segments []string) bool {
	return slices.ContainsFunc(c.options, func(row option) bool {
		pattern := split(row.path)
		return row.object == kind && len(pattern) > len(segments) && match(pattern[:len(segments)], segments) >= 0
	})
}

// split returns the segments of a pattern: keys, [] and *.
func split(pattern string) []string {
	var segments []string
	for part := range strings.SplitSeq(pattern, ".") {
		for {
			name, rest, list := strings.Cut(part, "[]")
			if name != "" {
				segments = append(segments, strings.ReplaceAll(name, "~", "."))
			}
			if !list {
				break
			}
			segments = append(segments, "[]")
			part = rest
			if part == "" {
				break
			}
		}
	}
	return segments
}

// match returns the number of literal segments of a pattern that matches, or -1.
func match(pattern, segments []string) int {
	literal := 0
	for i, part := range pattern {
		if part == "**" {
			if len(segments) > i {
				return literal
			}
			return -1
		}
		if i >= len(segments) {
			return -1
		}
		item := strings.HasPrefix(segments[i], "[")
		switch {
		case part == "[]" && item, part == "*" && !item:
		case part == segments[i]:
			literal++
		default:
			return -1
		}
	}
	if len(pattern) != len(segments) {
		return -1
	}
	return literal
}

// convert applies a row and reports the result.
func (c *conversion) convert(at *place) {
	c.used[at.object+" "+at.option.path] = true
	pattern := split(at.option.path)
	for i, part := range at.segments {
		if i < len(pattern) && pattern[i] == "**" {
			break
		}
		if i < len(pattern) && pattern[i] == "[]" {
			n := 0
			_, _ = fmt.Sscanf(part, "[%d]", &n)
			at.index = append(at.index, n)
		}
		if i < len(pattern) && pattern[i] == "*" {
			at.keys = append(at.keys, part)
		}
	}
	at.verdict, at.reason = Kept, at.note
	switch {
	case at.apply == nil:
		at.verdict = Dropped
	case at.note != "":
		at.verdict = Changed
	}
	if at.apply != nil {
		at.apply(c, at)
	}
	ours := at.ours
	if at.verdict == Dropped {
		ours = ""
	}
	c.line(at.from, at.path, at.verdict, ours, at.reason)
}

func (c *conversion) line(from *Object, path string, verdict Verdict, ours, reason string) {
	c.lines = append(c.lines, Line{Object: from.String(), Path: path, Verdict: verdict, Ours: ours, Reason: reason})
}
