package signature

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// The limits of a file of allowed signers.
const (
	maxSignersBytes = 1 << 20
	maxSigners      = 4096
)

// Signers are the allowed signers of a file in OpenSSH's format: see ALLOWED SIGNERS in
// ssh-keygen(1).
type Signers struct{ entries []entry }

// entry is a line of the file.
type entry struct {
	// principals are the names of the key's owner: patterns, as in OpenSSH.
	principals []string
	key        ssh.PublicKey
	// after and before limit when the key is valid; zero means no limit.
	after, before time.Time
}

// ParseSigners parses the file of allowed signers with that name.
func ParseSigners(name string, content []byte) (*Signers, error) {
	if len(content) > maxSignersBytes {
		return nil, fmt.Errorf("reading %s: it has %d bytes: at most %d are supported", name, len(content), maxSignersBytes)
	}
	s := &Signers{}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		e, ours, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s: line %d: %w", name, number, err)
		}
		if ours {
			s.entries = append(s.entries, e)
		}
		if len(s.entries) > maxSigners {
			return nil, fmt.Errorf("reading %s: it has more than %d keys", name, maxSigners)
		}
	}
	return s, nil
}

// parseEntry parses a line. ours is false if the line is only for other namespaces.
func parseEntry(text string) (e entry, ours bool, err error) {
	var principals string
	rest, found := "", false
	if strings.HasPrefix(text, `"`) {
		principals, rest, found = strings.Cut(text[1:], `"`)
	} else {
		at := strings.IndexAny(text, " \t")
		if found = at > 0; found {
			principals, rest = text[:at], text[at:]
		}
	}
	e.principals = strings.Split(principals, ",")
	if !found || principals == "" || slices.Contains(e.principals, "") {
		return e, false, fmt.Errorf("must be: principals [options] keytype key, such as alice@example.com ssh-ed25519 AAAA…")
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(strings.TrimSpace(rest)))
	if err != nil {
		return e, false, fmt.Errorf("reading the key of %s: %w: copy the whole line of the .pub file", principals, err)
	}
	if err := checkKey(key); err != nil {
		return e, false, fmt.Errorf("key of %s: %w", principals, err)
	}
	e.key = key
	ours = true
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		value = strings.Trim(value, `"`)
		switch strings.ToLower(name) {
		case "namespaces":
			ours = matches(strings.Split(value, ","), Namespace)
		case "valid-after":
			e.after, err = parseTime(value)
		case "valid-before":
			e.before, err = parseTime(value)
		case "cert-authority":
			return e, false, fmt.Errorf("option cert-authority of %s is not supported: list the key of each signer", principals)
		default:
			return e, false, fmt.Errorf("option %q of %s is unknown: use namespaces, valid-after or valid-before", name, principals)
		}
		if err != nil {
			return e, false, fmt.Errorf("option %s of %s: %w", name, principals, err)
		}
	}
	return e, ours, nil
}

// parseTime parses a time of an option. Without Z, OpenSSH uses the machine's time zone,
// so a key would expire at another time in the controller than on a laptop.
func parseTime(value string) (time.Time, error) {
	text, utc := strings.CutSuffix(value, "Z")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err := time.Parse(layout, text); err == nil && len(text) == len(layout) {
			if !utc {
				return t, fmt.Errorf("%s: add Z for UTC: numaform and you may have different time zones", value)
			}
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: must be YYYYMMDDZ, YYYYMMDDHHMMZ or YYYYMMDDHHMMSSZ", value)
}

// matches reports whether a name matches a list of patterns. A pattern that begins with !
// and matches excludes the name.
func matches(patterns []string, name string) bool {
	found := false
	for _, pattern := range patterns {
		pattern, negated := strings.CutPrefix(pattern, "!")
		// OpenSSH's patterns have only * and ?, which match every character.
		pattern = strings.NewReplacer(`\`, `\\`, "[", `\[`, "/", "\x00").Replace(pattern)
		ok, err := path.Match(pattern, strings.ReplaceAll(name, "/", "\x00"))
		if ok && err == nil && negated {
			return false
		}
		found = found || ok && err == nil
	}
	return found
}

// Has reports whether a person has a key, valid now or not.
func (s *Signers) Has(principal string) bool {
	return s != nil && slices.ContainsFunc(s.entries, func(e entry) bool { return matches(e.principals, principal) })
}

// of returns the entries of a key.
func (s *Signers) of(key ssh.PublicKey) []entry {
	if s == nil {
		return nil
	}
	raw := key.Marshal()
	var found []entry
	for _, e := range s.entries {
		if bytes.Equal(e.key.Marshal(), raw) {
			found = append(found, e)
		}
	}
	return found
}

// invalid returns why a key is not valid at a time, or "".
func (e *entry) invalid(at time.Time) string {
	switch {
	case !e.after.IsZero() && at.Before(e.after):
		return "is valid only after " + e.after.Format(time.RFC3339)
	case !e.before.IsZero() && at.After(e.before):
		return "expired at " + e.before.Format(time.RFC3339)
	}
	return ""
}
