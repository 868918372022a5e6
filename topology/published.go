package topology

import (
	"bytes"
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

// maxNotes is Proxmox' limit for a host's notes, in bytes; the limit for a VM's
// description is lower.
const maxNotes = 64 << 10

// ParsePublished finds the topology published in a host's notes or a VM's description,
// and parses it strictly, because anyone with permission to edit notes can write it. It
// reports false if there is none. It marks the facts as the agent's.
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

// PublishIn returns notes with the published topology replaced by the file, or with the
// file appended. It leaves the rest unchanged.
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

// putBlock returns notes with the block that starts with line begin replaced by block, or
// with block appended.
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

// readBlock is findBlock for text from Proxmox; it refuses text that Proxmox cannot
// contain.
func readBlock(notes, begin string) (text string, found bool, err error) {
	if len(notes) > maxNotes {
		return "", true, fmt.Errorf("the text has %d bytes, and Proxmox keeps %d at most: it is not read", len(notes), maxNotes)
	}
	return findBlock(notes, begin)
}

// findBlock returns the text between the lines begin and publishedEnd.
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

// Published returns the file in its published form: on one line, because Proxmox limits
// notes to 64 KiB and a VM's description to 8 KiB. It ends with a line break.
func (f CollectedFile) Published() ([]byte, error) {
	if f.NUMANodes == nil || f.CPUs == nil {
		return nil, errors.New("publishing topology: no CPUs are known")
	}
	var out bytes.Buffer
	out.WriteString(publishedBegin + "\n")
	// The encoder escapes < and >, so no name can end the comment.
	if err := json.NewEncoder(&out).Encode(f); err != nil {
		return nil, fmt.Errorf("publishing topology: %w", err)
	}
	out.WriteString(publishedEnd + "\n")
	return out.Bytes(), nil
}
