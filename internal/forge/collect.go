package forge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// complete returns an error if an answer has null instead of a list, or an entry that is null or
// lacks a field without which numaform would misunderstand it. missing returns the name of such
// a field, or "". An entry that is ignored could be a pull request that is open, a review that
// requests changes, or a check that failed.
func complete[T any](list []T, missing func(T) string) error {
	if list == nil {
		return errors.New("the answer is null, not a list")
	}
	for i, entry := range list {
		if field := missing(entry); field != "" {
			return fmt.Errorf("entry %d of the answer is null or has no %s", i+1, field)
		}
	}
	return nil
}

// named returns the name of a field that is missing: the value is the zero value.
func named[T comparable](field string, value T) string {
	var zero T
	if value == zero {
		return field
	}
	return ""
}

// collect returns all pages of a list, at most most entries, which must be complete. page
// returns the entries of a page, from 1, and whether there is another one.
func collect[T any](most int, tooMany error, missing func(T) string, page func(number int) (entries []T, more bool, err error)) ([]T, error) {
	var list []T
	for number := 1; ; number++ {
		entries, more, err := page(number)
		if err == nil {
			err = complete(entries, missing)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, entries...)
		if len(list) > most || more && len(entries) == 0 {
			return nil, tooMany
		}
		if !more {
			return list, nil
		}
	}
}

// newestReviews returns the newest review of each user from reviews in the order of their
// time, oldest first. A review without a user, whose account is deleted, approves nothing.
func newestReviews(reviews []Review) []Review {
	newest := map[string]Review{}
	for _, review := range reviews {
		if review.User != "" {
			newest[review.User] = review
		}
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b Review) int { return cmp.Compare(a.User, b.User) })
}

// sortChecks returns checks by name, each once: of two with the same name, the worse one.
func sortChecks(checks []Check) []Check {
	order := []CheckState{Neutral, Success, Pending, Failure}
	worst := map[string]Check{}
	for _, check := range checks {
		have, ok := worst[check.Name]
		if !ok || slices.Index(order, check.State) > slices.Index(order, have.State) {
			worst[check.Name] = check
		}
	}
	return slices.SortedFunc(maps.Values(worst), func(a, b Check) int { return cmp.Compare(a.Name, b.Name) })
}
