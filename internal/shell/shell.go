// Package shell quotes the words of command lines that users copy into a shell. It runs no
// commands.
package shell

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// plain matches words that need no quotes.
var plain = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)

// Quote returns a word that a shell reads as the given text, in quotes only if they are
// necessary. A text with control characters uses $'…', which needs a shell such as bash.
func Quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		escaped := strconv.QuoteToASCII(text)
		return "$'" + strings.ReplaceAll(escaped[1:len(escaped)-1], "'", `\'`) + "'"
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Line returns the command line of a program and its arguments.
func Line(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = Quote(word)
	}
	return strings.Join(quoted, " ")
}
