package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/internal/audit"
)

// HistoryDir is the subdirectory of the fleet's directory for the records of its changes.
const HistoryDir = "history"

// idTime is the layout of the time at the start of a change's ID.
const idTime = "20060102T150405Z"

var changeID = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-[0-9a-z]+$`)

// recordName and outcomeName return the paths of a change's two records.
func recordName(id string) string  { return HistoryDir + "/" + id + ".json" }
func outcomeName(id string) string { return HistoryDir + "/" + id + ".outcome.json" }

// encodeChange returns the record of a change in the current format.
func encodeChange(change audit.Change) ([]byte, error) {
	change.Format = audit.FormatVersion
	return encode(change.ID, change)
}

// encodeOutcome returns the record of an outcome in the current format.
func encodeOutcome(outcome audit.Outcome) ([]byte, error) {
	outcome.Format = audit.FormatVersion
	return encode(outcome.ID, outcome)
}

func encode(id string, record any) ([]byte, error) {
	if !changeID.MatchString(id) {
		return nil, fmt.Errorf("recording change %q: invalid ID: must have the form 20261121T134501Z-1f2e3d4c", id)
	}
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("recording change %s: %w", id, err)
	}
	return append(text, '\n'), nil
}

// RecordError reports a record of the history that numaform cannot read. Reading the
// history fails only if a newer numaform of this installation wrote the record; otherwise
// the entry is marked as unreadable.
type RecordError struct {
	// Where is the file, the commit or the object that contains the record.
	Where string
	// Hint is the fix.
	Hint string
	Err  error
}

// Error returns "reading the record where: problem: fix".
func (e *RecordError) Error() string {
	return fmt.Sprintf("reading the record %s: %v: %s", e.Where, e.Err, e.Hint)
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// recordHint is the hint for an invalid record in a store without version control.
const recordHint = "restore the record from a backup; if you have none, move the unreadable record elsewhere: the history then lacks the change or its outcome"

// decodable is a Change or an Outcome.
type decodable interface {
	json.Unmarshaler
	Head() (format int, id string)
}

// decode decodes a record, which must have the change's ID.
func decode(where, hint, id string, content []byte, record decodable) error {
	err := record.UnmarshalJSON(content) // json.Unmarshal would read the content twice before
	format, recorded := record.Head()
	switch {
	case err != nil:
	case format > audit.FormatVersion && recorded == id:
		err = fmt.Errorf("a newer numaform wrote it (format %d, but this version supports only %d)", format, audit.FormatVersion)
		hint = "use that version"
	case format < 1:
		err = errors.New("it has no format")
	case recorded != id:
		err = fmt.Errorf("it is the record of change %q, not of %q", recorded, id)
	}
	if err != nil {
		return &RecordError{Where: where, Hint: hint, Err: err}
	}
	return nil
}

// loadEntry returns a change that was read, after it decodes it.
type loadEntry func() (audit.Entry, error)

// readable loads a change. If a record is invalid, it sets Unreadable in the entry instead
// of returning an error; otherwise anyone with write access to the store could stop
// numaform.
func readable(id string, load loadEntry) (audit.Entry, error) {
	entry, err := load()
	broken, is := errors.AsType[*RecordError](err)
	if !is {
		return entry, err
	}
	entry.Unreadable = broken.Error()
	if entry.Change.Format < 1 || entry.Change.ID != id {
		entry.Change = audit.Change{ID: id}
	}
	if !understood(entry.Change.Format) {
		entry.Change.Time, _ = time.Parse(idTime, id[:len(idTime)]) // the zero time makes it the oldest
	}
	if entry.Outcome != nil && (entry.Outcome.Format < 1 || entry.Outcome.ID != id) {
		entry.Outcome = nil
	}
	return entry, nil
}

// entries loads the changes that began at or after since, oldest first. It always includes
// the last change. It calls read one by one, and decodes what it returns in parallel. If reduce
// is not nil, it is called for each entry.
func entries(ids []string, since time.Time, read func(id string) loadEntry, reduce func(*audit.Entry)) ([]audit.Entry, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if !since.IsZero() && len(ids) > 0 {
		first, _ := slices.BinarySearch(ids, since.UTC().Format(idTime)) // the first ID of that second or later
		ids = ids[min(first, len(ids)-1):]
	}
	const partSize = 64
	list := make([]audit.Entry, len(ids))
	group := &errgroup.Group{}
	group.SetLimit(runtime.GOMAXPROCS(0))
	for first := 0; first < len(ids); first += partSize {
		part := ids[first:min(first+partSize, len(ids))]
		loads := make([]loadEntry, len(part))
		for i, id := range part {
			loads[i] = read(id)
		}
		group.Go(func() (err error) {
			for i, load := range loads {
				entry := &list[first+i]
				if *entry, err = readable(part[i], load); err != nil {
					return err
				}
				if reduce != nil {
					reduce(entry)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if since.IsZero() && len(list) > 0 {
		return list, nil
	}
	var found []audit.Entry
	for i := range list {
		if i == len(list)-1 || !list[i].Change.Time.Before(since) {
			found = append(found, list[i])
		}
	}
	return found, nil
}
