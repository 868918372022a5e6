// Package machines contains the topologies of real machines, as collected files, for tests,
// examples and the simulator. Each file names the public test data of another project from
// which its facts come. For kinds of machines without such data, the package contains
// constructed machines. Start at Load.
package machines

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/numaform/numaform/topology"
)

//go:embed *.json constructed/*.json
var files embed.FS

// Names returns the names of the real machines, sorted.
func Names() []string { return namesIn(".") }

// Constructed returns the names of the constructed machines, sorted.
func Constructed() []string { return namesIn("constructed") }

func namesIn(dir string) []string {
	entries, err := files.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, path.Join(dir, strings.TrimSuffix(entry.Name(), path.Ext(entry.Name()))))
		}
	}
	return names
}

// JSON returns the unparsed collected file of a machine in Names or Constructed.
func JSON(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".json")
	if err != nil {
		return nil, fmt.Errorf("loading machine %q: must be one of %s", name, strings.Join(append(Names(), Constructed()...), ", "))
	}
	return data, nil
}

// File returns the collected file of a machine in Names or Constructed, with its title and
// attribution.
func File(name string) (topology.CollectedFile, error) {
	data, err := JSON(name)
	if err != nil {
		return topology.CollectedFile{}, err
	}
	file, err := topology.ParseCollectedFile(data)
	if err != nil {
		return topology.CollectedFile{}, fmt.Errorf("loading machine %q: %w", name, err)
	}
	return file, nil
}

// Load returns a machine in Names or Constructed.
func Load(name string) (topology.Machine, error) {
	file, err := File(name)
	if err != nil {
		return topology.Machine{}, err
	}
	return file.Machine(), nil
}
