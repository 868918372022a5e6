package operator

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/freeze"
	"github.com/numaform/numaform/internal/signature"
)

// Approval configures whose signatures approvals need, and when no changes may begin.
type Approval struct {
	// AllowedSignersFile contains the keys of the people who sign, in OpenSSH's format.
	AllowedSignersFile string `yaml:"allowed_signers_file"`
	// Require are the signatures that approvals need.
	Require []signature.Requirement `yaml:"require"`
	// BreakGlass are the people who may approve alone in an emergency; empty means everyone
	// who may approve at all.
	BreakGlass []string `yaml:"break_glass"`
	// Freeze are the windows in which only break-glass approvals begin a change.
	Freeze []freeze.Config `yaml:"freeze"`
}

// check returns an error for each mistake.
func (a *Approval) check() []error {
	var mistakes []error
	if a.AllowedSignersFile == "" && len(a.Require)+len(a.BreakGlass) > 0 {
		mistakes = append(mistakes, errors.New("approval.allowed_signers_file: must be set, because approval.require or approval.break_glass name signers"))
	}
	for i := range a.Require {
		r := &a.Require[i]
		path := fmt.Sprintf("approval.require[%d]", i)
		mistakes = append(mistakes, checkPeople(path+".of", r.Of)...)
		if r.Quorum < 1 || r.Quorum > len(r.Of) || r.Quorum > signature.MaxSignatures {
			mistakes = append(mistakes, fmt.Errorf("%s.quorum: %d: must be from 1 to the number of people in of, which is %d, and at most %d",
				path, r.Quorum, len(r.Of), signature.MaxSignatures))
		}
	}
	mistakes = append(mistakes, checkPeople("approval.break_glass", a.BreakGlass)...)
	_, err := freeze.Parse("approval.freeze", a.Freeze)
	return append(mistakes, err)
}

// checkPeople returns an error for each name that is not that of one person.
func checkPeople(path string, names []string) []error {
	var mistakes []error
	for i, name := range names {
		switch {
		case name == "" || strings.ContainsAny(name, "*?!,\" \t\n"):
			mistakes = append(mistakes, fmt.Errorf("%s: %q: must be the name of one person in approval.allowed_signers_file, such as alice@example.com", path, name))
		case slices.Contains(names[:i], name):
			mistakes = append(mistakes, fmt.Errorf("%s: duplicate name %q: remove one", path, name))
		}
	}
	return mistakes
}

// Signatures returns whose signatures approvals need. It reads the file of allowed signers.
func (c *Config) Signatures() (signature.Policy, error) {
	policy := signature.Policy{Require: c.Approval.Require, BreakGlass: c.Approval.BreakGlass}
	file := c.Approval.AllowedSignersFile
	if file == "" {
		return policy, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return policy, fmt.Errorf("reading approval.allowed_signers_file: %w: %s", err, readFix(err, "correct the path"))
	}
	if policy.Signers, err = signature.ParseSigners(file, text); err != nil {
		return policy, err
	}
	return policy, c.Approval.knows(policy.Signers)
}

// knows returns an error for each person without a key.
func (a *Approval) knows(signers *signature.Signers) error {
	var mistakes []error
	check := func(path string, names []string) {
		for _, name := range names {
			if !signers.Has(name) {
				mistakes = append(mistakes, fmt.Errorf("%s: %s has no key in %s: add a line to it, or remove the name", path, name, a.AllowedSignersFile))
			}
		}
	}
	for i := range a.Require {
		check(fmt.Sprintf("approval.require[%d].of", i), a.Require[i].Of)
	}
	check("approval.break_glass", a.BreakGlass)
	return errors.Join(mistakes...)
}

// Freezes returns the freeze windows.
func (c *Config) Freezes() (freeze.Windows, error) {
	return freeze.Parse("approval.freeze", c.Approval.Freeze)
}
