package audit

import (
	"errors"
	"fmt"
	"slices"
	"time"

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
	statement, err := signature.ParseStatement(a.Statement)
	switch {
	case err != nil:
	case statement.ClusterID != cluster:
		err = fmt.Errorf("it approves a change of cluster %q, not of %q", statement.ClusterID, cluster)
	case statement.Hash != a.Digest:
		err = fmt.Errorf("it approves another change: %s", statement.Hash)
	case statement.BreakGlass != a.BreakGlass:
		err = errors.New("the recorded reason of the break-glass approval is not the signed one")
	}
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
			return other.ScalePlan == approval.ScalePlan && other.Digest == approval.Digest && other.Statement == approval.Statement
		}) {
			continue
		}
		list = append(list, approval)
	}
	return list
}
