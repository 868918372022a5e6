package store

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/numaform/numaform/generator"
)

// IsModule reports whether a path relative to the fleet belongs to a module.
func IsModule(name string) bool { return strings.HasPrefix(name, "modules/") }

// Difference is the difference of one file between two versions of a fleet.
type Difference struct {
	Path string
	// Added and Removed mark a new and a deleted file; a changed file has neither.
	Added, Removed bool
	// Unified is the difference in unified diff format.
	Unified []byte
}

// Compare returns the files that differ, sorted by path. It returns one Difference without
// lines for the directory of each new module, whose name is the hash of its content, and
// omits other differences of modules.
func Compare(before, after generator.Files) []Difference {
	names := maps.Clone(before)
	maps.Copy(names, after)
	var differences []Difference
	modules := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, existed := before[name]
		content, exists := after[name]
		if existed == exists && bytes.Equal(old, content) {
			continue
		}
		if IsModule(name) {
			if root := path.Dir(name); !modules[root] && !existed && strings.Count(root, "/") == 2 {
				modules[root] = true
				differences = append(differences, Difference{Path: root + "/", Added: true})
			}
			continue
		}
		differences = append(differences, Difference{
			Path: name, Added: !existed, Removed: !exists,
			Unified: diff.Diff("a/"+name, old, "b/"+name, content),
		})
	}
	return differences
}
