package forge

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// NotFoundError reports that the forge does not have, or hides from the token's user, what
// was asked for.
type NotFoundError struct {
	// What was asked for, such as pull request 7.
	What string
	// Forge is the repository at the forge.
	Forge string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%s: %s does not exist, or the user of NUMAFORM_FORGE_TOKEN may not read it", e.Forge, e.What)
}

// RateLimitError reports that the forge accepts no more requests until Reset.
type RateLimitError struct {
	Forge string
	// Reset is the time from which requests are accepted again, by this machine's clock; zero
	// if the forge does not report it.
	Reset time.Time
}

func (e *RateLimitError) Error() string {
	until := ""
	if !e.Reset.IsZero() {
		until = " until " + e.Reset.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s: the forge accepts no more requests%s: numaform tries again then; raise the poll interval if this repeats", e.Forge, until)
}

// RightsError reports that the token is missing, invalid or expired, or that its user lacks a
// right.
type RightsError struct {
	Forge string
	// Doing is the refused operation.
	Doing string
	// Token is set if the forge accepts no request with the token at all.
	Token bool
	// Reason is the forge's text.
	Reason string
}

func (e *RightsError) Error() string {
	if e.Token {
		return fmt.Sprintf("%s: %s: the forge does not accept the token (%s): "+
			"create a new one and set NUMAFORM_FORGE_TOKEN to it", e.Forge, e.Doing, e.Reason)
	}
	return fmt.Sprintf("%s: %s: the forge does not permit this to the token's user (%s): grant the rights in docs/pull-requests.md", e.Forge, e.Doing, e.Reason)
}

// MovedError reports that the repository was renamed or moved. numaform does not follow the
// redirect: the old name can be taken by another user.
type MovedError struct {
	Forge string
	// To is the new address, as the forge reports it, or empty.
	To string
}

func (e *MovedError) Error() string {
	to := ""
	if e.To != "" {
		to = " to " + e.To
	}
	return fmt.Sprintf("%s: the repository was renamed or moved%s: set fleet.git.remote to its new URL", e.Forge, to)
}

// ConflictError reports that the forge refuses an operation in the current state: a merge
// with conflicts, or without a required review or check, or a second pull request of a
// branch.
type ConflictError struct {
	Forge, Doing string
	// Reason is the forge's text.
	Reason string
}

func (e *ConflictError) Error() string { return fmt.Sprintf("%s: %s: %s", e.Forge, e.Doing, e.Reason) }

// HeadError reports that the head of a pull request is not the expected commit.
type HeadError struct {
	Forge  string
	Number int
	// Want is the expected commit; Have is the current one, or empty if it is unknown.
	Want, Have string
}

func (e *HeadError) Error() string {
	have := "another commit"
	if e.Have != "" {
		have = fmt.Sprintf("%.12s", e.Have)
	}
	return fmt.Sprintf("%s: pull request %d: its head is %s, not %.12s, which was approved: it needs a new plan and a new approval", e.Forge, e.Number, have, e.Want)
}

// IncompleteError reports that a pull request was opened, but that the forge refused its
// labels or its reviewers.
type IncompleteError struct {
	Forge  string
	Number int
	Err    error
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%s: pull request %d is open, but not all labels and reviewers were added: %v", e.Forge, e.Number, e.Err)
}

// Unwrap returns the forge's error.
func (e *IncompleteError) Unwrap() error { return e.Err }

// UnavailableError reports that the forge cannot be reached, or answers with an error of its
// own.
type UnavailableError struct {
	Forge, Doing string
	Err          error
}

func (e *UnavailableError) Error() string {
	fix := ""
	if _, untrusted := errors.AsType[x509.UnknownAuthorityError](e.Err); untrusted {
		fix = ": set fleet.git.ca_file to a file with the CA certificate of the forge"
	}
	return fmt.Sprintf("%s: %s: the forge is not available: %v%s", e.Forge, e.Doing, e.Err, fix)
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// TooManyError reports a list that is longer than numaform reads.
type TooManyError struct {
	Forge string
	// What is listed, and Max is the bound.
	What string
	Max  int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("%s: more than %d %s: numaform reads no more, because it would miss some: close or delete those that are no longer needed", e.Forge, e.Max, e.What)
}
