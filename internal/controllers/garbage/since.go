package garbage

import (
	"maps"
	"time"
)

// since records since when a condition has held, by key.
type since[K comparable] map[K]time.Time

// lasting updates s with the keys for which the condition holds now, and returns the keys
// for which it has held for at least long.
func (s since[K]) lasting(current []K, now time.Time, long time.Duration) map[K]bool {
	is := make(map[K]bool, len(current))
	for _, k := range current {
		is[k] = true
	}
	maps.DeleteFunc(s, func(k K, _ time.Time) bool { return !is[k] })
	old := map[K]bool{}
	for _, k := range current {
		from, known := s[k]
		if !known {
			from, s[k] = now, now
		}
		if now.Sub(from) >= long {
			old[k] = true
		}
	}
	return old
}
