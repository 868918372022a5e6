package forge

import (
	"cmp"
	"maps"
	"slices"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// collect returns all pages of a list, at most most entries. page returns the entries of a
// page, from 1, and whether there is another one. It stops early if stop returns true.
func collect[T any](most int, tooMany error, page func(number int) (entries []T, more bool, err error)) ([]T, error) {
	var list []T
	for number := 1; ; number++ {
		entries, more, err := page(number)
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
