package signature

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// MaxSignatures is the maximum number of signatures of an approval.
const MaxSignatures = 16

// Requirement is who must sign the approval of some changes, as numaform.yaml configures it.
type Requirement struct {
	// NodePools are the NodePools whose changes need the signatures; empty means all.
	NodePools []string `yaml:"node_pools"`
	// Rules are the guard's rules whose findings need the signatures; empty means that every
	// approval does.
	Rules []string `yaml:"rules"`
	// Quorum is the number of different people who must sign, out of Of.
	Quorum int      `yaml:"quorum"`
	Of     []string `yaml:"of"`
}

// Scope is what a change concerns.
type Scope struct {
	NodePools []string `yaml:"node_pools"`
	// Rules are the guard's rules that require approval.
	Rules []string
}

// applies reports whether a change needs the signatures.
func (r *Requirement) applies(scope Scope) bool {
	any := func(wanted, given []string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(given, func(one string) bool { return slices.Contains(wanted, one) })
	}
	return any(r.NodePools, scope.NodePools) && any(r.Rules, scope.Rules)
}

// Policy is who must sign what. The zero Policy requires no signatures.
type Policy struct {
	// Signers are the known keys.
	Signers *Signers
	// Require are the requirements. A change must meet each one that applies to it.
	Require []Requirement
	// BreakGlass are the people who may approve alone in an emergency; empty means that
	// a break-glass approval needs no signature.
	BreakGlass []string
}

// Requires reports whether the approval of a change needs signatures.
func (p *Policy) Requires(scope Scope) bool {
	return slices.ContainsFunc(p.Require, func(r Requirement) bool { return r.applies(scope) })
}

// Signer is a person who signed, by a key.
type Signer struct {
	// Principals are the names of the key's owner in the file of allowed signers.
	Principals []string
	// Fingerprint is the key's SHA-256, as ssh-keygen -l prints it.
	Fingerprint string
	// Signature is the armored signature.
	Signature string

	entries []entry
}

// Name returns the first name of the signer.
func (s *Signer) Name() string { return s.Principals[0] }

// is reports whether the signer's key, which is valid at a time, is that of a person.
func (s *Signer) is(principal string, at time.Time) bool {
	return slices.ContainsFunc(s.entries, func(e entry) bool { return e.invalid(at) == "" && matches(e.principals, principal) })
}

// Unmet reports that the approval of a change needs more signatures.
type Unmet struct {
	Requirement Requirement
	// Signed are the people in Of who signed.
	Signed []string
	// Author is set if the only signer is the author of the change.
	Author string
}

func (e *Unmet) Error() string {
	missing := slices.DeleteFunc(slices.Clone(e.Requirement.Of), func(name string) bool { return slices.Contains(e.Signed, name) })
	text := fmt.Sprintf("%d of %d signatures", len(e.Signed), e.Requirement.Quorum)
	if len(e.Signed) > 0 {
		text += " (" + strings.Join(e.Signed, ", ") + ")"
	}
	if e.Author != "" {
		text += fmt.Sprintf(": %s requested the change and cannot approve it alone", e.Author)
	}
	return text + ": signatures of these people are missing: " + strings.Join(missing, ", ")
}

// Verify verifies each signature of a text. It returns the signers whose keys are allowed
// and valid at a time, and an error for each other signature. Each key is returned once.
func (p *Policy) Verify(text []byte, signatures []string, at time.Time) ([]Signer, error) {
	if len(signatures) > MaxSignatures {
		return nil, fmt.Errorf("%d signatures: at most %d are supported", len(signatures), MaxSignatures)
	}
	var signers []Signer
	var errs []error
	for i, armored := range signatures {
		signer, err := p.signer(text, armored, at)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("signature %d: %w", i+1, err))
		case !slices.ContainsFunc(signers, func(other Signer) bool { return other.Fingerprint == signer.Fingerprint }):
			signers = append(signers, signer)
		}
	}
	return signers, errors.Join(errs...)
}

func (p *Policy) signer(text []byte, armored string, at time.Time) (Signer, error) {
	key, err := Verify(text, armored)
	if err != nil {
		return Signer{}, err
	}
	signer := Signer{Fingerprint: ssh.FingerprintSHA256(key), Signature: armored, entries: p.Signers.of(key)}
	if len(signer.entries) == 0 {
		return Signer{}, fmt.Errorf("key %s is not an allowed signer: add it to approval.allowed_signers_file", signer.Fingerprint)
	}
	reason := ""
	for i := range signer.entries {
		if invalid := signer.entries[i].invalid(at); invalid != "" {
			reason = invalid
			continue
		}
		signer.Principals = append(signer.Principals, signer.entries[i].principals...)
	}
	if len(signer.Principals) == 0 {
		return Signer{}, fmt.Errorf("key %s of %s %s: sign with a valid key, or correct approval.allowed_signers_file",
			signer.Fingerprint, strings.Join(signer.entries[0].principals, ","), reason)
	}
	return signer, nil
}

// Check returns the signers of a statement, if the people signed it whose signatures the
// policy requires for a change of that scope. author is who requested the change, or empty
// if no person did. With an error, signers are the valid ones. Additional signatures that
// are invalid do not matter: anyone who may approve could add one.
func (p *Policy) Check(s *Statement, signatures []string, scope Scope, author string, at time.Time) (signers []Signer, err error) {
	text, err := s.Text()
	if err != nil {
		return nil, err
	}
	signers, invalid := p.Verify(text, signatures, at)
	var errs []error
	switch {
	case s.BreakGlass != "" && !at.Before(s.Until):
		errs = append(errs, fmt.Errorf("the break-glass approval expired at %s", s.Until.UTC().Format(time.RFC3339)))
	case s.BreakGlass != "" && len(p.BreakGlass) > 0:
		errs = append(errs, quorum(Requirement{Quorum: 1, Of: p.BreakGlass}, signers, "", at))
	case s.BreakGlass == "":
		for _, requirement := range p.Require {
			if requirement.applies(scope) {
				errs = append(errs, quorum(requirement, signers, author, at))
			}
		}
	}
	if unmet := errors.Join(errs...); unmet != nil {
		return signers, errors.Join(unmet, invalid)
	}
	return signers, nil
}

// quorum returns an Unmet unless enough different people signed, with a key for each of
// them, and not only the author.
func quorum(r Requirement, signers []Signer, author string, at time.Time) error {
	// A key may be that of several people, and a person may have several keys: assign each
	// key to one person, so that as many people as possible have one.
	owner := map[string]int{} // principal to index of the signer
	var assign func(signer int, seen map[string]bool) bool
	assign = func(signer int, seen map[string]bool) bool {
		for _, name := range r.Of {
			if seen[name] || !signers[signer].is(name, at) {
				continue
			}
			seen[name] = true
			if other, taken := owner[name]; !taken || assign(other, seen) {
				owner[name] = signer
				return true
			}
		}
		return false
	}
	for i := range signers {
		assign(i, map[string]bool{})
	}
	unmet := &Unmet{Requirement: r}
	other := false // someone besides the author signed
	for _, name := range r.Of {
		signer, ok := owner[name]
		if !ok {
			continue
		}
		unmet.Signed = append(unmet.Signed, name)
		other = other || author == "" || !signers[signer].is(author, at)
	}
	if len(unmet.Signed) >= r.Quorum && other {
		return nil
	}
	if len(unmet.Signed) > 0 && !other {
		unmet.Author = author
	}
	return unmet
}
