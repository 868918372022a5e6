package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/audit"
)

// End adds the outcome of a change. It returns fs.ErrExist if the change already has one.
func (d *Directory) End(_ context.Context, outcome audit.Outcome) error {
	record, err := encodeOutcome(outcome)
	if err != nil {
		return err
	}
	return d.exclusive(func() error {
		if err := d.resume(); err != nil {
			return err
		}
		_, err := os.Stat(d.target(recordName(outcome.ID)))
		if err == nil {
			err = d.checkAbsent(outcomeName(outcome.ID))
		}
		if err == nil {
			err = d.execute(step{Path: outcomeName(outcome.ID), After: record})
		}
		if err != nil {
			return fmt.Errorf("recording the outcome of change %s: %w", outcome.ID, err)
		}
		return nil
	})
}

// checkAbsent returns an error if a record already exists.
func (d *Directory) checkAbsent(name string) error {
	_, err := os.Lstat(d.target(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fs.ErrExist
	}
	return fmt.Errorf("adding the record %s: nothing was written: %w", d.target(name), err)
}

// History returns the changes that began at or after since, and at least the last one. It
// opens no records of earlier changes, because the file names contain the time.
func (d *Directory) History(_ context.Context, since time.Time) ([]audit.Entry, error) {
	return d.history(since, nil)
}

// Proofs returns the complete history after audit.Entry.Reduce.
func (d *Directory) Proofs(context.Context) ([]audit.Entry, error) {
	return d.history(time.Time{}, (*audit.Entry).Reduce)
}

func (d *Directory) history(since time.Time, reduce func(*audit.Entry)) (list []audit.Entry, err error) {
	err = d.shared(func() error {
		records, err := d.records()
		if err != nil {
			return err
		}
		var ids []string
		for name := range records {
			if id := strings.TrimSuffix(filepath.Base(name), ".json"); changeID.MatchString(id) {
				ids = append(ids, id)
			}
		}
		list, err = entries(ids, since, func(id string) loadEntry {
			return func() (entry audit.Entry, err error) {
				if err := d.record(records, recordName(id), id, &entry.Change); err != nil {
					return entry, err
				}
				if _, ended := records[outcomeName(id)]; ended {
					entry.Outcome = &audit.Outcome{}
					err = d.record(records, outcomeName(id), id, entry.Outcome)
				}
				return entry, err
			}
		}, reduce)
		return err
	})
	return list, err
}

// records returns all records by path, with the content of the records in an interrupted
// write and nil for the others.
func (d *Directory) records() (map[string][]byte, error) {
	next, err := d.staged()
	if err != nil {
		return nil, err
	}
	var found []fs.DirEntry
	dir, err := os.Open(filepath.Join(d.path, HistoryDir))
	if err == nil {
		found, err = dir.ReadDir(-1) // os.ReadDir would sort them
		err = errors.Join(err, dir.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the history of fleet %s: %w", d.path, err)
	}
	records := map[string][]byte{}
	for _, entry := range found {
		records[HistoryDir+"/"+entry.Name()] = nil
	}
	for _, s := range next.Steps {
		if strings.HasPrefix(s.Path, HistoryDir+"/") {
			records[s.Path] = s.After
		}
	}
	return records, nil
}

// record decodes the record with that path. It reads the file if records does not have the
// content.
func (d *Directory) record(records map[string][]byte, name, id string, record decodable) error {
	content := records[name]
	if content == nil {
		var err error
		content, err = readRegular(d.target(name), maxRecord)
		if _, failed := errors.AsType[*fs.PathError](err); failed {
			return fmt.Errorf("reading the history of fleet %s: %w", d.path, err)
		}
		if err != nil {
			return &RecordError{Where: d.target(name), Hint: recordHint, Err: err}
		}
	}
	return decode(d.target(name), recordHint, id, content, record)
}
