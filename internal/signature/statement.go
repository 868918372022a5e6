package signature

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Statement is what a signature approves: one change of one cluster, once.
type Statement struct {
	// ClusterID is the cluster of the change.
	ClusterID string
	// Hash is the whole hash of the change: the planHash of a ScalePlan, or the digest of
	// plan and apply.
	Hash string
	// Subject is the one use of the approval: ForScalePlan or ForChange. The hash alone is
	// not sufficient, because the same change can be necessary again later.
	Subject string
	// BreakGlass is the reason of an approval without the required signers, and Until its
	// end; empty for other approvals.
	BreakGlass string
	Until      time.Time
}

// ForScalePlan returns the subject of a ScalePlan. Kubernetes never assigns a UID twice.
func ForScalePlan(name, uid string) string { return "scaleplan " + name + " " + uid }

// ForChange returns the subject of a change by the command line: the one that follows the
// newest change in the fleet's history, by its ID, which is empty if there is none.
func ForChange(newest string) string {
	if newest == "" {
		return "first change"
	}
	return "change after " + newest
}

// After returns the newest change before the change that a statement approves, which is empty if
// there is none, and whether its subject is of ForChange.
func (s *Statement) After() (newest string, is bool) {
	if s.Subject == ForChange("") {
		return "", true
	}
	return strings.CutPrefix(s.Subject, "change after ")
}

// head is the first line of a Statement's text.
const head = "numaform plan approval 1"

var wholeHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Text returns the text that is signed.
func (s *Statement) Text() ([]byte, error) {
	if !wholeHash.MatchString(s.Hash) {
		return nil, fmt.Errorf("hash %q: must be the whole hash: 64 hexadecimal digits", s.Hash)
	}
	if s.ClusterID == "" || s.Subject == "" {
		return nil, errors.New("an approval names its cluster and its subject")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\ncluster: %q\nhash: %s\nsubject: %q\n", head, s.ClusterID, s.Hash, s.Subject)
	if s.BreakGlass != "" {
		fmt.Fprintf(&text, "break-glass: %q\nuntil: %s\n", s.BreakGlass, s.Until.UTC().Format(time.RFC3339))
	}
	return []byte(text.String()), nil
}

// ParseStatement returns the Statement with the text, which must be exactly as Text
// writes it.
func ParseStatement(text string) (Statement, error) {
	var s Statement
	lines := strings.Split(text, "\n")
	fields := map[string]string{}
	for _, line := range lines[min(1, len(lines)):] {
		if name, value, ok := strings.Cut(line, ": "); ok {
			fields[name] = value
		}
	}
	s.Hash = fields["hash"]
	for name, target := range map[string]*string{"cluster": &s.ClusterID, "subject": &s.Subject, "break-glass": &s.BreakGlass} {
		if fields[name] == "" {
			continue
		}
		value, err := strconv.Unquote(fields[name])
		if err != nil {
			return Statement{}, fmt.Errorf("reading the signed text: %s: %w", name, err)
		}
		*target = value
	}
	if until := fields["until"]; until != "" {
		var err error
		if s.Until, err = time.Parse(time.RFC3339, until); err != nil {
			return Statement{}, fmt.Errorf("reading the signed text: until: %w", err)
		}
	}
	if again, err := s.Text(); err != nil || string(again) != text {
		return Statement{}, errors.New("reading the signed text: it is not a text that numaform writes")
	}
	return s, nil
}
