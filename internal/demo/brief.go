package demo

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// progressLine matches a line that reports progress; one of its groups is the kind of progress.
var progressLine = regexp.MustCompile(`^\S+/\S+: (?:\S+: )?(planning|applying|Creating|Destroying|Still|Creation|Destruction)\b|(, )\d+s$`)

// repeated matches a line of a report about one file or host. The groups are the kind of the
// line; brief prints only the first line of each kind.
var repeated = regexp.MustCompile(`^  ([+-]) \S+/node-|^    \S+/\S+: (Plan): `)

// firsts is an output that writes only the first line of each kind of progress.
type firsts struct {
	w io.Writer

	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// Write writes the lines of text, without lines that report a kind of progress that an earlier
// line reported.
func (f *firsts) Write(text []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []byte
	for line := range bytes.Lines(text) {
		if ended := bytes.TrimSuffix(line, []byte("\n")); len(ended) < len(line) {
			if match := progressLine.FindSubmatch(ended); match != nil {
				kind := string(match[1]) + string(match[2])
				if f.seen[kind] {
					continue
				}
				f.seen[kind] = true
			}
		}
		left = append(left, line...)
	}
	if len(left) > 0 {
		if _, err := f.w.Write(left); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// Fd returns the file descriptor of the terminal or file, or an invalid one.
func (f *firsts) Fd() uintptr {
	if file, ok := f.w.(interface{ Fd() uintptr }); ok {
		return file.Fd()
	}
	return ^uintptr(0)
}

// folded removes each line whose kind occurred in an earlier line. A note with the number of
// removed lines replaces each run of removed lines. kind returns "" for lines that must not be
// removed.
func folded(lines []string, kind func(line string) string) []string {
	seen := map[string]bool{}
	var left []string
	more := 0
	flush := func() {
		if more > 0 {
			left = append(left, fmt.Sprintf("  … %d more", more))
		}
		more = 0
	}
	for _, line := range lines {
		k := kind(line)
		if k != "" && seen[k] {
			more++
			continue
		}
		flush()
		seen[k] = true
		left = append(left, line)
	}
	flush()
	return left
}

// brief runs a scene and prints its output without the sections and lines of the summary whose
// titles are in without, and with only the first line about a file or host.
func (s *show) brief(scene func() error, without ...string) error {
	whole, out := &bytes.Buffer{}, s.Stdout
	s.Stdout = whole
	err := scene()
	s.Stdout = out
	hidden, blank := false, false
	var left []string
	lines := strings.Split(strings.TrimRight(whole.String(), "\n"), "\n")
	for i, line := range lines {
		title, _, _ := strings.Cut(line, "  ")
		if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "───") {
			hidden, title = slices.Contains(without, line), ""
		}
		if hidden || slices.Contains(without, title) || line == "" && blank {
			continue
		}
		blank = line == ""
		left = append(left, line)
	}
	left = folded(left, func(line string) string {
		if match := repeated.FindStringSubmatch(line); match != nil {
			return match[1] + match[2]
		}
		return ""
	})
	fmt.Fprintln(out, strings.Trim(strings.Join(left, "\n"), "\n"))
	return err
}
