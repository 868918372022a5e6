package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/numaform/numaform/internal/signature"
)

// Signed returns the approval with the signers' signatures of a statement.
func (a Approval) Signed(s *signature.Statement, signers []signature.Signer) (Approval, error) {
	a.BreakGlass = s.BreakGlass
	if len(signers) == 0 {
		return a, nil
	}
	text, err := s.Text()
	if err != nil {
		return a, err
	}
	a.Statement = string(text)
	a.Signatures = make([]Signature, len(signers))
	for i := range signers {
		a.Signatures[i] = Signature{Signer: signers[i].Name(), Key: signers[i].Fingerprint, Signature: signers[i].Signature}
	}
	return a, nil
}

// Check verifies the signatures of a recorded approval again, with the keys that the policy
// allows, as of the time of the change. It returns an error, or nil, for each signature.
func (a *Approval) Check(policy *signature.Policy, cluster string, at time.Time) []error {
	if len(a.Signatures) == 0 {
		return nil
	}
	results := make([]error, len(a.Signatures))
	err := a.checkStatement(cluster)
	for i, s := range a.Signatures {
		results[i] = err
		if err != nil {
			continue
		}
		signers, invalid := policy.Verify([]byte(a.Statement), []string{s.Signature}, at)
		switch {
		case invalid != nil:
			results[i] = invalid
		case signers[0].Fingerprint != s.Key || !slices.Contains(signers[0].Principals, s.Signer):
			results[i] = fmt.Errorf("it was made by %s with key %s", signers[0].Name(), signers[0].Fingerprint)
		}
	}
	return results
}

// checkStatement returns an error if the signed statement is not about this approval.
func (a *Approval) checkStatement(cluster string) error {
	statement, err := signature.ParseStatement(a.Statement)
	switch {
	case err != nil:
		return err
	case statement.ClusterID != cluster:
		return fmt.Errorf("it approves a change of cluster %q, not of %q", statement.ClusterID, cluster)
	case statement.Hash != a.Digest:
		return fmt.Errorf("it approves another change: %s", statement.Hash)
	case statement.BreakGlass != a.BreakGlass:
		return errors.New("the recorded reason of the break-glass approval is not the signed one")
	}
	return nil
}

// invalidSignatures returns an error for each signature of the change's approvals that the
// recorded key did not make, or not for this change. It needs no policy: whether the key was
// allowed to approve is not checked.
func (c *Change) invalidSignatures() []error {
	var errs []error
	for _, a := range c.Approvals() {
		if len(a.Signatures) == 0 {
			continue
		}
		err := a.checkStatement(c.ClusterID)
		if statement, perr := signature.ParseStatement(a.Statement); err == nil && perr == nil && a.ScalePlan != "" &&
			!strings.HasPrefix(statement.Subject, signature.ForScalePlan(a.ScalePlan, "")) {
			err = fmt.Errorf("it approves another change: %s", statement.Subject)
		}
		for _, s := range a.Signatures {
			invalid := err
			if invalid == nil {
				var key ssh.PublicKey
				key, invalid = signature.Verify([]byte(a.Statement), s.Signature)
				if invalid == nil && ssh.FingerprintSHA256(key) != s.Key {
					invalid = fmt.Errorf("it was made by key %s", ssh.FingerprintSHA256(key))
				}
			}
			if invalid != nil {
				errs = append(errs, fmt.Errorf("the signature of %s with key %s: %w", s.Signer, s.Key, invalid))
			}
		}
	}
	return errs
}

// Approvals returns the approvals of a change: of the whole change, and of its hosts' plans.
// Hosts with the same approval share it.
func (c *Change) Approvals() []*Approval {
	var list []*Approval
	if c.Approval != nil {
		list = append(list, c.Approval)
	}
	for i := range c.Hosts {
		approval := c.Hosts[i].Approval
		if approval == nil || slices.ContainsFunc(list, func(other *Approval) bool {
			return other.ScalePlan == approval.ScalePlan && other.Digest == approval.Digest && other.Statement == approval.Statement &&
				slices.Equal(other.Signatures, approval.Signatures)
		}) {
			continue
		}
		list = append(list, approval)
	}
	return list
}
