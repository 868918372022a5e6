package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The lines that enclose a host's topology published in Proxmox, in the host's notes or
// in a VM's description. They form a Markdown comment, so that Proxmox does not display
// it.
const (
	publishedBegin = "<!-- numaform-topology"
	publishedEnd   = "-->"
)

// maxNotes is the maximum size of a host's notes in Proxmox, in bytes. The maximum for a
// VM's description is lower.
const maxNotes = 64 << 10

// ParsePublished finds the topology published in a host's notes or a VM's description,
// and parses it strictly, because anyone with permission to edit notes can write it. It
// marks the facts as the agent's. It returns false if no topology is published.
func ParsePublished(notes string) (Machine, bool, error) {
	text, found, err := readBlock(notes, publishedBegin)
	if err != nil || !found {
		return Machine{}, found, err
	}
	file, err := ParseCollectedFile([]byte(text))
	if err != nil {
		return Machine{}, true, fmt.Errorf("reading the text after the line %q: %w", publishedBegin, err)
	}
	return file.machine().WithSource(SourceAgent), true, nil
}

// PublishIn returns notes with the published topology replaced by the file, or with the
// file appended. It leaves the rest unchanged.
func (f CollectedFile) PublishIn(notes string) (string, error) {
	if f.NUMANodes == nil || f.CPUs == nil {
		return "", errors.New("publishing topology: CPUs or NUMA nodes are unknown: run `numaform topology collect` on the host")
	}
	text, err := putBlock(notes, publishedBegin, f)
	if err != nil {
		return "", fmt.Errorf("publishing topology: %w", err)
	}
	return text, nil
}

// Published returns the file in its published form. It ends with a line break.
func (f CollectedFile) Published() ([]byte, error) {
	text, err := f.PublishIn("")
	return []byte(text), err
}

// putBlock returns notes with the block that starts with line begin replaced by value, or
// with value appended. The value is JSON on one line, because Proxmox limits notes to
// 64 KiB and a VM's description to 8 KiB.
func putBlock(notes, begin string, value any) (string, error) {
	if _, _, err := findBlock(notes, begin); err != nil {
		return "", err
	}
	// The encoder escapes < and >, so no text can end the comment.
	data, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	block := begin + "\n" + string(data) + "\n" + publishedEnd + "\n"

	var out strings.Builder
	within, done := false, false
	for line := range strings.Lines(notes) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == begin:
			within, done = true, true
			out.WriteString(block)
		case within && trimmed == publishedEnd:
			within = false
		case !within:
			out.WriteString(line)
		}
	}
	if !done {
		if out.Len() > 0 && !strings.HasSuffix(notes, "\n") {
			out.WriteByte('\n')
		}
		out.WriteString(block)
	}
	return out.String(), nil
}

// readBlock is findBlock for text from Proxmox. It refuses text that is longer than Proxmox
// allows.
func readBlock(notes, begin string) (text string, found bool, err error) {
	if len(notes) > maxNotes {
		return "", true, fmt.Errorf("the text has %d bytes, but Proxmox stores at most %d: shorten it", len(notes), maxNotes)
	}
	return findBlock(notes, begin)
}

// findBlock returns the text between the lines begin and publishedEnd, and whether notes
// contain these lines.
func findBlock(notes, begin string) (text string, found bool, err error) {
	within := false
	var out strings.Builder
	for line := range strings.Lines(notes) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == begin && (within || found):
			return "", true, fmt.Errorf("duplicate line %q: remove one", begin)
		case trimmed == begin:
			within = true
		case within && trimmed == publishedEnd:
			within, found = false, true
		case within:
			out.WriteString(line)
		}
	}
	if within {
		return "", true, fmt.Errorf("the line %q has no line %q after it: the text is incomplete; publish it again", begin, publishedEnd)
	}
	return out.String(), found, nil
}
