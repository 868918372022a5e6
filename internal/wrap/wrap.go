// Package wrap breaks text into lines by the width of its characters in a terminal. Package
// term wraps output to a terminal with it, and package cpumap wraps drawings. Start at Words.
package wrap

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Words joins words with a separator into lines: the first has at most first columns, and
// the others at most rest. A line that continues ends with the separator, without the spaces
// at its end. A word that is longer than rest, such as a list of CPUs, is broken after commas;
// a part that is still longer gets its own line.
func Words(words []string, separator string, first, rest int) []string {
	var lines []string
	line, limit := "", first
	for i, word := range words {
		glue := separator
		if i == 0 {
			glue = ""
		}
		for _, piece := range pieces(word, rest) {
			if line != "" && ansi.StringWidth(line+glue+piece) > limit {
				lines = append(lines, strings.TrimRight(line+glue, " "))
				line = piece
				limit = rest
			} else {
				line += glue + piece
			}
			glue = ""
		}
	}
	return append(lines, strings.TrimRight(line, " "))
}

// pieces breaks a word after commas, if it is longer than a line.
func pieces(word string, limit int) []string {
	if ansi.StringWidth(word) <= limit {
		return []string{word}
	}
	var pieces []string
	piece := ""
	for part := range strings.SplitAfterSeq(word, ",") {
		if piece != "" && part != "" && ansi.StringWidth(piece+part) > limit {
			pieces = append(pieces, piece)
			piece = ""
		}
		piece += part
	}
	return append(pieces, piece)
}
