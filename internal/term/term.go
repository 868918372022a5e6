// Package term fits the output of commands to a terminal: its width, colors, wrapped text,
// tables and a progress line. It breaks a word only after a comma, or if the word is longer
// than a line. Output to a pipe or a file is not wrapped, unless COLUMNS is set, so that
// programs read whole lines. Start at Of.
package term

import (
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/mattn/go-isatty"
	"golang.org/x/term"

	"github.com/numaform/numaform/internal/wrap"
)

// MinWidth is the number of columns that output needs, and PipeWidth the width of drawings
// if the output is neither a terminal nor limited by COLUMNS.
const (
	MinWidth  = 60
	PipeWidth = 100
)

// Terminal describes the place where a command prints. The zero value is a pipe.
type Terminal struct {
	// Width is the number of columns of drawings, at least MinWidth.
	Width int
	// Wrap limits text and tables to Width. It is false for a pipe or a file, unless
	// COLUMNS is set.
	Wrap bool
	// Color allows colors.
	Color bool
	// Live is true for a terminal in which a progress line can be redrawn.
	Live bool
}

// Of describes the place that w writes to. COLUMNS in environ is the width if w is not a
// terminal. Color is auto, always or never; auto uses colors in a terminal, unless environ
// contains NO_COLOR or TERM=dumb.
func Of(w io.Writer, environ []string, color string) Terminal {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			values[name] = value
		}
	}
	t := Terminal{Width: PipeWidth}
	if file, ok := w.(interface{ Fd() uintptr }); ok && isatty.IsTerminal(file.Fd()) {
		t.Live = values["TERM"] != "dumb"
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			t.Width, t.Wrap = max(columns, MinWidth), true
		}
	}
	if columns, err := strconv.Atoi(values["COLUMNS"]); err == nil && columns > 0 && !t.Wrap {
		t.Width, t.Wrap = max(columns, MinWidth), true
	}
	t.Color = color == "always" || (color != "never" && t.Live && values["NO_COLOR"] == "")
	return t
}

// Color is a color of text.
type Color = ansi.BasicColor

// The colors of changes and results.
const (
	Red     = ansi.Red
	Green   = ansi.Green
	Yellow  = ansi.Yellow
	Magenta = ansi.Magenta
)

// Paint colors text, if the terminal allows colors.
func (t Terminal) Paint(color Color, text string) string {
	if !t.Color || text == "" {
		return text
	}
	return ansi.NewStyle().ForegroundColor(color).Styled(text)
}

// Bold emphasizes text, if the terminal allows colors.
func (t Terminal) Bold(text string) string {
	if !t.Color || text == "" {
		return text
	}
	return ansi.NewStyle().Bold().Styled(text)
}

// Fill wraps each line of text at spaces. Further lines of a wrapped line are indented by
// hang columns more than its first one. A word that is longer than a line is continued on
// the next line.
func (t Terminal) Fill(text string, hang int) string {
	if !t.Wrap {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if ansi.StringWidth(line) <= t.Width {
			continue
		}
		content := strings.TrimLeft(line, " ")
		indent := strings.Repeat(" ", min(len(line)-len(content), MinWidth/2))
		after := "\n" + indent + strings.Repeat(" ", hang)
		limit := t.Width - len(after) + 1
		var parts []string
		for _, part := range wrap.Words(strings.Fields(content), " ", limit, limit) {
			parts = append(parts, strings.Split(ansi.Hardwrap(part, limit, true), "\n")...)
		}
		lines[i] = indent + strings.Join(parts, after)
	}
	return strings.Join(lines, "\n")
}

// shorten cuts the middle of a name, because similar names differ at their ends.
func shorten(name string, limit int) string {
	columns := ansi.StringWidth(name)
	if columns <= limit {
		return name
	}
	end := limit / 2
	tail := ansi.TruncateLeft(name, columns-end, "")
	if ansi.StringWidth(tail) > end { // a character of two columns is at the cut
		tail = ansi.TruncateLeft(name, columns-end+1, "")
	}
	return ansi.Truncate(name, limit-end-1, "") + "…" + tail
}

// Command wraps a command line at spaces so that it can be copied: each line but the last
// ends with a backslash. The first line starts after indent columns.
func (t Terminal) Command(line string, indent int) string {
	if !t.Wrap || indent+ansi.StringWidth(line) <= t.Width {
		return line
	}
	limit := t.Width - indent - len(` \`)
	var lines []string
	for _, word := range shellWords.FindAllString(line, -1) {
		if last := len(lines) - 1; last >= 0 && ansi.StringWidth(lines[last]+" "+word) <= limit {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return strings.Join(lines, " \\\n"+strings.Repeat(" ", indent))
}

// shellWords matches the arguments of a command line, which may be quoted.
var shellWords = regexp.MustCompile(`(?:\\.|'[^']*'|"[^"]*"|[^\s])+`)

// Printable removes control characters other than newlines and tabs, and characters that
// change the direction of text: names and messages come from Proxmox, records and clusters,
// and could control the terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return -1
		}
		return r
	}, text)
}

// styles matches the sequences that Paint and Bold write.
var styles = regexp.MustCompile(`\x1b\[(?:1|3[1235])?m`)

// Printable is like the function Printable, but keeps the sequences of Paint and Bold if the
// terminal allows colors.
func (t Terminal) Printable(text string) string {
	if !t.Color {
		return Printable(text)
	}
	var out strings.Builder
	end := 0
	for _, at := range styles.FindAllStringIndex(text, -1) {
		out.WriteString(Printable(text[end:at[0]]) + text[at[0]:at[1]])
		end = at[1]
	}
	return out.String() + Printable(text[end:])
}
