package store

import (
	"maps"
	"slices"
	"time"

	"github.com/numaform/numaform/internal/audit"
)

// A store finds the recent part of its history by times that anyone with write access can set,
// such as commit times. So a commit or record with an old time could hide what is
// behind it. The numbers of records in the installation's logs show that: a read is complete if
// they have no gap, and begin with a record from before the window.

// margins are how much earlier than requested the history is read, until a read is complete; the
// zero duration means all of it. Outcomes that are written within the first one are of changes
// that are read, too; the second one usually contains a change before the window.
var margins = [...]time.Duration{time.Hour, 30 * 24 * time.Hour, 0}

// remembered is how long before the window of the last read the changes of a log are remembered.
const remembered = 30 * 24 * time.Hour

// known is what this process has read of a log.
type known struct {
	// since is the beginning of the time of which everything was read, and changes are the times
	// of the changes since then, by number.
	since   time.Time
	changes map[int64]time.Time
	// next is the number after the last record.
	next int64
}

// numbered are the verified records of a log in a history.
type numbered struct {
	// times are the times of the records by number; records without a seal have the time of the
	// next one.
	times   map[int64]time.Time
	changes map[int64]time.Time
	// begins is set if the log begins with the first record.
	begins bool
}

// numbersOf returns the verified records of a history by the ID of their log.
func numbersOf(list []audit.Entry) map[string]*numbered {
	logs := map[string]*numbered{}
	add := func(logged *audit.Logged, at time.Time) (of *numbered, number int64) {
		of = logs[logged.Seal.Log]
		if of == nil {
			of = &numbered{times: map[int64]time.Time{}, changes: map[int64]time.Time{}}
			logs[logged.Seal.Log] = of
		}
		number = logged.Seal.Before.Size
		for i := range int64(len(logged.Unsealed)) + 1 {
			of.times[number-i] = at
		}
		if start := logged.Start; start != nil {
			first := int64(len(start.Imported) / audit.ImportedSize)
			of.begins = of.begins || number-int64(len(logged.Unsealed)) == first
		}
		return of, number
	}
	for i := range list {
		e := &list[i]
		if e.Verified && e.Change.Seal != nil {
			of, number := add(&e.Change.Logged, e.Change.Time)
			of.changes[number] = e.Change.Time
		}
		if result := e.Result(); e.Verified && result != nil && result.Seal != nil {
			add(&result.Logged, result.Time)
		}
	}
	return logs
}

// complete reports whether a verified list has all of the installation's sealed changes since a
// time, as far as the list itself and earlier ones show. all is set if it is the whole history:
// then nothing else can be read.
func (s *Sealed) complete(list []audit.Entry, since time.Time, all bool) bool {
	logs := numbersOf(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !all {
		for id, before := range s.read {
			for number, at := range before.changes {
				if of := logs[id]; !at.Before(since) && (of == nil || of.changes[number].IsZero()) {
					return false
				}
			}
		}
		for id, of := range logs {
			if before := s.read[id]; !of.follows(before, since) {
				return false
			}
		}
	}
	for id, before := range s.read {
		maps.DeleteFunc(before.changes, func(number int64, _ time.Time) bool {
			return all && (logs[id] == nil || logs[id].changes[number].IsZero())
		})
	}
	for id, of := range logs {
		before := s.read[id]
		if before == nil || since.Before(before.since) {
			before = &known{since: since, changes: map[int64]time.Time{}}
			s.read[id] = before
		}
		if oldest := since.Add(-remembered); !since.IsZero() && before.since.Before(oldest) {
			before.since = oldest
			maps.DeleteFunc(before.changes, func(_ int64, at time.Time) bool { return at.Before(oldest) })
		}
		for number, at := range of.changes {
			if !at.Before(before.since) {
				before.changes[number] = at
			}
		}
		before.next = max(before.next, slices.Max(slices.Collect(maps.Keys(of.times)))+1)
	}
	return true
}

// follows reports whether no change since a time is missing between the records of a log, nor
// between them and what is known. Gaps before that time do not matter.
func (n *numbered) follows(before *known, since time.Time) bool {
	numbers := slices.Sorted(maps.Keys(n.times))
	next := numbers[0]
	switch {
	case before != nil && !since.Before(before.since):
		next = before.next
	case !n.begins && !n.times[next].Before(since):
		return false
	}
	for _, number := range numbers {
		if number > next && !n.times[number].Before(since) {
			return false
		}
		next = max(next, number+1)
	}
	return true
}
