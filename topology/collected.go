package topology

import (
	"errors"
	"fmt"
)

// CollectedFormat is the format version of a collected file.
const CollectedFormat = 1

// CollectedFile is a machine as `numaform topology collect` prints it, with optional
// annotations. It does not contain Sources; the reader sets them.
type CollectedFile struct {
	Format int `json:"format"`
	// Title is the machine's name for readers.
	Title string `json:"title,omitempty"`
	// Note is a comment for readers.
	Note string `json:"note,omitempty"`
	// Source is the origin of the facts; nil means the machine itself.
	Source *Attribution `json:"source,omitempty"`

	Model     string     `json:"model,omitempty"`
	Arch      string     `json:"arch,omitempty"`
	MemoryMiB int64      `json:"memory_mib,omitempty"`
	NUMANodes []NUMANode `json:"numa_nodes"`
	CPUs      []CPU      `json:"cpus"`
}

// Attribution names the public work that contains a machine's facts.
type Attribution struct {
	Repo    string `json:"repo"`
	Commit  string `json:"commit,omitempty"`
	Path    string `json:"path,omitempty"`
	License string `json:"license"`
}

// ParseCollectedFile parses and validates a collected file. Unknown keys are
// errors that name their line.
func ParseCollectedFile(data []byte) (CollectedFile, error) {
	var file CollectedFile
	if err := strictJSON(data, &file); err != nil {
		return CollectedFile{}, fmt.Errorf("parsing topology: %w", err)
	}
	if file.Format != CollectedFormat {
		return CollectedFile{}, fmt.Errorf("parsing topology: it has format %d, but this numaform reads only format %d: "+
			"collect it again with `numaform topology collect` of this version", file.Format, CollectedFormat)
	}
	machine := file.machine()
	machine.sort()
	if len(machine.CPUs) == 0 {
		return CollectedFile{}, errors.New("parsing topology: cpus is empty: must list at least one CPU; collect the topology again with `numaform topology collect`")
	}
	if err := machine.Validate(); err != nil {
		return CollectedFile{}, fmt.Errorf("parsing topology: %w", err)
	}
	return file, nil
}

// Print returns the file's text. It ends with a line break.
func (f CollectedFile) Print() ([]byte, error) {
	if f.NUMANodes == nil {
		f.NUMANodes = []NUMANode{}
	}
	if f.CPUs == nil {
		f.CPUs = []CPU{}
	}
	text, err := printJSON(f)
	if err != nil {
		return nil, fmt.Errorf("printing topology: %w", err)
	}
	return text, nil
}

// Machine returns the machine with its facts marked as collected.
func (f CollectedFile) Machine() Machine {
	return f.machine().WithSource(SourceCollected)
}

func (f CollectedFile) machine() Machine {
	return Machine{Model: f.Model, Arch: f.Arch, MemoryMiB: f.MemoryMiB, NUMANodes: f.NUMANodes, CPUs: f.CPUs}
}

// ParseCollected parses the machine in a collected file and marks its facts as collected.
func ParseCollected(data []byte) (Machine, error) {
	file, err := ParseCollectedFile(data)
	if err != nil {
		return Machine{}, err
	}
	return file.Machine(), nil
}

// Collected returns the machine as a collected file, without Sources.
func (m Machine) Collected() ([]byte, error) {
	return CollectedFile{
		Format: CollectedFormat, Model: m.Model, Arch: m.Arch, MemoryMiB: m.MemoryMiB,
		NUMANodes: m.NUMANodes, CPUs: m.CPUs,
	}.Print()
}
