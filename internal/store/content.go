package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// Archive is a store that can be backed up and restored, as each kind of store can.
type Archive interface {
	// Content returns the files and the history as they are stored, for a backup.
	Content(ctx context.Context) (*Content, error)
	// Restore adds the missing part of the history, and makes the files of a backup the
	// desired state: both or neither. It returns ErrMoved if the fleet is no longer at base,
	// and an error if the history has changes that the content lacks. If it is interrupted,
	// it can be repeated.
	Restore(ctx context.Context, base Revision, content *Content) error
}

var (
	_ Archive = (*Directory)(nil)
	_ Archive = (*Git)(nil)
	_ Archive = (*ConfigMap)(nil)
)

// ArchiveOf returns the archive of a store.
func ArchiveOf(s Store) (Archive, error) {
	if sealed, is := s.(*Sealed); is {
		s = sealed.Unwrap()
	}
	archive, is := s.(Archive)
	if !is {
		return nil, fmt.Errorf("a store of type %T cannot be backed up", s)
	}
	return archive, nil
}

// Content is all that a store contains, for a backup: the files of the desired state, and
// the history.
type Content struct {
	Files generator.Files
	// Records are the records of the history, oldest first.
	Records []Record
	// Unread are the errors of the records or outcomes that are missing, because another client
	// pushed them and they are too large, by the ID of the change.
	Unread map[string]error
}

// Record is a change in the history, exactly as it is stored, because its seal covers fields
// that this version may not know.
type Record struct {
	ID     string
	Change []byte
	// Outcome is nil if the change has none.
	Outcome []byte
}

// Check returns an error if a store could not have this content.
func (c *Content) Check() error {
	var seen census
	for name, content := range c.Files {
		if roleOf(name, false) != roleFile {
			return fmt.Errorf("%s is not a file of a fleet", printable(name))
		}
		if problem := seen.count(name, roleFile, int64(len(content))); problem != "" {
			return fmt.Errorf("%s %s", printable(name), problem)
		}
	}
	if len(generator.Select(c.Files)) != len(c.Files) {
		return errors.New("some of its files were not written by numaform")
	}
	ids := map[string]bool{}
	for _, record := range c.Records {
		if !changeID.MatchString(record.ID) || len(record.ID) >= 100 || len(record.Change) == 0 {
			return fmt.Errorf("%s is not the ID of a change", printable(record.ID))
		}
		for _, size := range []int{len(record.Change), len(record.Outcome)} {
			if problem := seen.count(record.ID, roleRecord, int64(size)); problem != "" {
				return fmt.Errorf("the record of change %s %s", record.ID, problem)
			}
		}
		if ids[record.ID] {
			return fmt.Errorf("change %s has two records", record.ID)
		}
		ids[record.ID] = true
	}
	return nil
}

// Since returns the records that an older history of the same fleet lacks, and the IDs of the
// changes that only the older one has: if there are any, it is not older. A record without
// the content of its change adds only the outcome. It returns an error if both histories have
// a change, but with different records.
func (c *Content) Since(older []Record) (missing []Record, ahead []string, err error) {
	known := map[string]Record{}
	for _, record := range older {
		known[record.ID] = record
	}
	for _, record := range c.Records {
		have, exists := known[record.ID]
		delete(known, record.ID)
		switch {
		case !exists:
			missing = append(missing, record)
		case !bytes.Equal(have.Change, record.Change), have.Outcome != nil && record.Outcome != nil && !bytes.Equal(have.Outcome, record.Outcome):
			return nil, nil, fmt.Errorf("the records of change %s differ: one of them was edited, or two fleets have the same cluster ID", record.ID)
		case have.Outcome == nil && record.Outcome != nil:
			missing = append(missing, Record{ID: record.ID, Outcome: record.Outcome})
		}
	}
	for _, record := range older {
		if _, only := known[record.ID]; only {
			ahead = append(ahead, record.ID)
		}
	}
	return missing, ahead, nil
}

// addedTo returns the records to add to a store with the given records. It returns an error
// for content that no store has, and if the store has changes that the content lacks.
func (c *Content) addedTo(have []Record) ([]Record, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	missing, ahead, err := c.Since(have)
	if err == nil && len(ahead) > 0 {
		err = fmt.Errorf("the history has changes that are not to be restored, such as %s", ahead[len(ahead)-1])
	}
	return missing, err
}

// Content returns the files and the history, with an interrupted write applied.
func (d *Directory) Content(context.Context) (*Content, error) {
	content := &Content{}
	err := d.shared(func() error {
		have, err := d.scan()
		if err != nil {
			return err
		}
		content.Files = generator.Select(have)
		content.Records, err = d.stored()
		return err
	})
	return content, err
}

// stored returns the history as it is stored.
func (d *Directory) stored() ([]Record, error) {
	records, err := d.records()
	if err != nil {
		return nil, err
	}
	read := func(name string) ([]byte, error) {
		if content := records[name]; content != nil {
			return content, nil
		}
		content, err := readRegular(d.target(name), maxRecord)
		if err != nil {
			return nil, &RecordError{Where: d.target(name), Hint: recordHint, Err: err}
		}
		return content, nil
	}
	var list []Record
	for name := range records {
		id, isJSON := strings.CutSuffix(filepath.Base(name), ".json")
		if !isJSON || !changeID.MatchString(id) {
			continue
		}
		record := Record{ID: id}
		if record.Change, err = read(name); err != nil {
			return nil, err
		}
		if _, ended := records[outcomeName(id)]; ended {
			if record.Outcome, err = read(outcomeName(id)); err != nil {
				return nil, err
			}
		}
		list = append(list, record)
	}
	sortRecords(list)
	return list, nil
}

func sortRecords(list []Record) {
	slices.SortFunc(list, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
}

// Restore writes the content of a backup, as one change: all of it, or nothing.
func (d *Directory) Restore(_ context.Context, base Revision, content *Content) error {
	return d.write(content.Files, func(have generator.Files) ([]step, error) {
		if RevisionOf(generator.Select(have)) != base {
			return nil, fmt.Errorf("writing fleet into %s: %w", d.path, ErrMoved)
		}
		stored, err := d.stored()
		if err != nil {
			return nil, err
		}
		added, err := content.addedTo(stored)
		if err != nil {
			return nil, fmt.Errorf("writing fleet into %s: nothing was written: %w", d.path, err)
		}
		var list []step
		for _, record := range added {
			if record.Change != nil {
				list = append(list, step{Path: recordName(record.ID), After: record.Change})
			}
			if record.Outcome != nil {
				list = append(list, step{Path: outcomeName(record.ID), After: record.Outcome})
			}
		}
		return list, nil
	})
}

// restoredMessage returns the commit message of a record that is restored.
func restoredMessage(record *Record) string {
	var change audit.Change
	if err := json.Unmarshal(record.Change, &change); err != nil || !understood(change.Format) {
		return "numaform: restore the record of change " + record.ID + "\n"
	}
	return message(&change)
}
