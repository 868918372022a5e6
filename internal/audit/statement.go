package audit

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// The types of a Statement, as in-toto defines them, and of its predicate: an Entry.
const (
	StatementType     = "https://in-toto.io/Statement/v1"
	StatementMedia    = "application/vnd.in-toto+json"
	ChangePredicate   = "https://numaform.dev/change/v1"
	digestAlgorithm   = "sha256"
	subjectOfPlan     = "plan/"
	subjectOfTemplate = "plan/templates/"
	subjectOfChange   = "change/"
	subjectOfOutcome  = "outcome/"
)

// statement is an in-toto statement
// (in-toto/attestation at v1.2.0, spec/v1/statement.md).
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     any       `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Statement returns an in-toto statement about a change: its subjects are the saved plans, the
// record of the change and the record of its outcome, and its predicate is the entry.
func (e *Entry) Statement() ([]byte, error) {
	s := statement{Type: StatementType, PredicateType: ChangePredicate, Predicate: e}
	add := func(name, digest string) {
		if digest != "" {
			s.Subject = append(s.Subject, subject{Name: name, Digest: map[string]string{digestAlgorithm: digest}})
		}
	}
	add(subjectOfChange+e.Change.ID, hex.EncodeToString(e.Change.Digest[:]))
	if e.Outcome != nil {
		add(subjectOfOutcome+e.Change.ID, hex.EncodeToString(e.Outcome.Digest[:]))
	}
	for i := range e.Change.Hosts {
		add(subjectOfPlan+e.Change.Hosts[i].Host.String(), e.Change.Hosts[i].PlanSHA256)
	}
	for i := range e.Change.Templates {
		add(subjectOfTemplate+e.Change.Templates[i].Host.String(), e.Change.Templates[i].PlanSHA256)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("describing change %s: %w", e.Change.ID, err)
	}
	return text, nil
}
