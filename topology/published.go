package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The lines between which a host's topology is published in Proxmox: in the host's
// notes, or in the description of a VM. They make it a comment of Markdown, so that
// Proxmox does not show it.
const (
	publishedBegin = "<!-- numaform-topology"
	publishedEnd   = "-->"
)

// maxNotes is the size of a host's notes that Proxmox keeps; a VM's description is shorter.
const maxNotes = 64 << 10

// ParsePublished finds the one topology that is published in a host's notes or a
// VM's description, and reads it strictly: everybody who may write notes may write
// this. It reports false if none is there. Its facts are marked as the agent's.
func ParsePublished(notes string) (Machine, bool, error) {
	text, found, err := readBlock(notes, publishedBegin)
	if err != nil || !found {
		return Machine{}, found, err
	}
	file, err := ParseCollectedFile([]byte(text))
	if err != nil {
		return Machine{}, true, fmt.Errorf("reading what stands behind the line %q: %w", publishedBegin, err)
	}
	return file.machine().WithSource(SourceAgent), true, nil
}

// PublishIn returns notes in which the file stands in place of the topology that is
// published there, or at their end. All else stays as it is.
func (f CollectedFile) PublishIn(notes string) (string, error) {
	block, err := f.Published()
	if err != nil {
		return "", err
	}
	text, err := putBlock(notes, publishedBegin, block)
	if err != nil {
		return "", fmt.Errorf("publishing topology: %w", err)
	}
	return text, nil
}

// putBlock returns notes in which block stands in place of the one that begins with that
// line, or at their end.
func putBlock(notes, begin string, block []byte) (string, error) {
	if _, _, err := findBlock(notes, begin); err != nil {
		return "", err
	}
	var out strings.Builder
	within, done := false, false
	for line := range strings.Lines(notes) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == begin:
			within, done = true, true
			out.Write(block)
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
		out.Write(block)
	}
	return out.String(), nil
}

// readBlock is findBlock in what Proxmox has, and refuses what it cannot have.
func readBlock(notes, begin string) (text string, found bool, err error) {
	if len(notes) > maxNotes {
		return "", true, fmt.Errorf("the text has %d bytes, and Proxmox keeps %d at most: it is not read", len(notes), maxNotes)
	}
	return findBlock(notes, begin)
}

// findBlock returns the text between the line begin and publishedEnd.
func findBlock(notes, begin string) (text string, found bool, err error) {
	within := false
	var out strings.Builder
	for line := range strings.Lines(notes) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == begin && (within || found):
			return "", true, fmt.Errorf("the line %q stands there twice: remove one of the two", begin)
		case trimmed == begin:
			within = true
		case within && trimmed == publishedEnd:
			within, found = false, true
		case within:
			out.WriteString(line)
		}
	}
	if within {
		return "", true, fmt.Errorf("the line %q has no line %q behind it: the text is cut off; publish it again", begin, publishedEnd)
	}
	return out.String(), found, nil
}

// Published returns the file as it is published: in one line, as Proxmox bounds
// notes to 64 KiB and a VM's description to 8 KiB. It ends with a line break.
func (f CollectedFile) Published() ([]byte, error) {
	if f.NUMANodes == nil || f.CPUs == nil {
		return nil, errors.New("publishing topology: no CPUs are known")
	}
	var out bytes.Buffer
	out.WriteString(publishedBegin + "\n")
	// The encoder writes < and > as escapes, so no name can end the comment.
	if err := json.NewEncoder(&out).Encode(f); err != nil {
		return nil, fmt.Errorf("publishing topology: %w", err)
	}
	out.WriteString(publishedEnd + "\n")
	return out.Bytes(), nil
}
