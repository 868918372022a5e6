// Package machines holds the topologies of real machines, as collected files, for
// tests, examples and the simulator. They were derived from public test data of
// other projects, which each file names; only facts were taken. Start at Load.
package machines

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/numaform/numaform/topology"
)

//go:embed *.json
var files embed.FS

// Names returns the machines' names, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), path.Ext(entry.Name()))
	}
	return names
}

// JSON returns the machine's collected file as it is.
func JSON(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".json")
	if err != nil {
		return nil, fmt.Errorf("loading machine %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	return data, nil
}

// File returns the machine's collected file, with its title and where it is from.
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

// Load returns the machine.
func Load(name string) (topology.Machine, error) {
	file, err := File(name)
	if err != nil {
		return topology.Machine{}, err
	}
	return file.Machine(), nil
}
