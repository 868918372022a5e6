package store

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/internal/audit"
)

const (
	// pageSize is the number of records fetched per request.
	pageSize = 500
	// maxDays is the maximum number of days in a label selector for records.
	maxDays = 31
)

// outcomeSuffix is appended to the name of a change's ConfigMap to name the ConfigMap of
// its outcome.
const outcomeSuffix = "-outcome"

// keepHint is the hint for an invalid record of a change, whose ConfigMap also names the
// previous change.
const keepHint = "restore the record from a backup; if the record is lost, keep its ConfigMap: without this ConfigMap, numaform cannot find the earlier changes"

// record returns an immutable ConfigMap of the history, without data.
func (c *ConfigMap) record(name, part, id string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: c.namespace,
			Labels:    map[string]string{fleetLabel: c.name, partLabel: part, dayLabel: id[:8]},
		},
		Immutable: new(true),
	}
}

// add creates a record, which must not exist yet and never changes.
func (c *ConfigMap) add(ctx context.Context, step string, m *corev1.ConfigMap, id string) error {
	err := checkSize(m)
	if err == nil {
		err = c.interrupt.before(step)
	}
	var added *corev1.ConfigMap
	if err == nil {
		added, err = c.maps().Create(ctx, m, metav1.CreateOptions{})
	}
	if err == nil {
		c.wrote(added)
	}
	if apierrors.IsAlreadyExists(err) {
		err = fmt.Errorf("ConfigMap %s/%s: nothing was written: %w", c.namespace, m.Name, fs.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("recording change %s: %w", id, err)
	}
	return nil
}

// End adds the outcome of a change. It returns fs.ErrExist if the change already has one.
func (c *ConfigMap) End(ctx context.Context, outcome audit.Outcome) error {
	record, err := encodeOutcome(outcome)
	if err != nil {
		return err
	}
	_, err = c.maps().Get(ctx, c.changeName(outcome.ID), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("the change has no record: %w", fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("recording the outcome of change %s: %w", outcome.ID, err)
	}
	m := c.record(c.changeName(outcome.ID)+outcomeSuffix, partOutcome, outcome.ID)
	m.Data = map[string]string{recordKey: string(record)}
	return c.add(ctx, "outcome", m, outcome.ID)
}

// History returns the changes reachable from the root: each record refers to the previous
// one. It lists all records of the period by their day label, instead of fetching them one
// by one.
func (c *ConfigMap) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	root, err := c.root(ctx)
	if err != nil || root == nil {
		return nil, err
	}
	head := root.Annotations[headAnnotation]
	records, err := c.recordsOf(ctx, root, since)
	if err != nil {
		return nil, err
	}

	list := map[string]audit.Entry{}
	for id, from := head, c.name; id != ""; {
		var previous string
		entry, err := readable(id, func() (entry audit.Entry, err error) {
			entry, previous, err = c.entry(ctx, records, id, from)
			return entry, err
		})
		if err != nil {
			return nil, err
		}
		list[id] = entry
		if entry.Unreadable == "" && entry.Change.Time.Before(since.Add(-time.Minute)) {
			break
		}
		if _, seen := list[previous]; seen {
			break
		}
		id, from = previous, c.changeName(id)
	}
	return entries(slices.Collect(maps.Keys(list)), since, func(id string) loadEntry {
		return func() (audit.Entry, error) { return list[id], nil }
	}, nil)
}

// recordsOf fetches the records of the days from since to the last change, or all records
// if these are too many days.
func (c *ConfigMap) recordsOf(ctx context.Context, root *corev1.ConfigMap, since time.Time) (map[string]*corev1.ConfigMap, error) {
	head := root.Annotations[headAnnotation]
	selector := fleetLabel + "=" + c.name + "," + partLabel + " in (" + partChange + "," + partOutcome + ")"
	if last, err := time.Parse(idTime, head[:min(len(head), len(idTime))]); err == nil && !since.IsZero() {
		first := since.UTC().Add(-time.Minute).Truncate(24 * time.Hour)
		if first.After(last) {
			first = last
		}
		var days []string
		for day := first; !day.After(last) && len(days) <= maxDays; day = day.AddDate(0, 0, 1) {
			days = append(days, day.Format("20060102"))
		}
		if len(days) <= maxDays {
			selector += "," + dayLabel + " in (" + strings.Join(days, ",") + ")"
		}
	}

	records := map[string]*corev1.ConfigMap{}
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		list, err := c.list(ctx, root, options)
		if err != nil {
			return nil, fmt.Errorf("reading the history of fleet %s: %w", c.where(), err)
		}
		for i := range list.Items {
			records[list.Items[i].Name] = &list.Items[i]
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return records, nil
		}
	}
}

// entry reads a change and its outcome, and returns the ID of the previous change. from is
// the ConfigMap that names the change.
func (c *ConfigMap) entry(ctx context.Context, records map[string]*corev1.ConfigMap, id, from string) (entry audit.Entry, previous string, err error) {
	name := c.changeName(id)
	m := records[name]
	if m == nil {
		if m, err = c.find(ctx, name); err != nil {
			return entry, "", err
		}
	}
	where := "ConfigMap " + c.namespace + "/" + name
	if m == nil {
		return entry, "", c.lostRecord(name, from)
	}
	previous = m.Annotations[previousAnnotation]
	if err := decode(where, keepHint, id, []byte(m.Data[recordKey]), &entry.Change); err != nil {
		return entry, previous, err
	}

	if m = records[name+outcomeSuffix]; m == nil {
		// Another process may have added the outcome since the records were listed.
		if m, err = c.find(ctx, name+outcomeSuffix); m == nil || err != nil {
			return entry, previous, err
		}
	}
	entry.Outcome = &audit.Outcome{}
	return entry, previous, decode(where+outcomeSuffix, recordHint, id, []byte(m.Data[recordKey]), entry.Outcome)
}

// lostRecord returns the error for a record that does not exist. from is the ConfigMap that
// names its change.
func (c *ConfigMap) lostRecord(name, from string) error {
	return fmt.Errorf("reading the record ConfigMap %s/%s: %w: restore it from a backup; if it is lost, replace its ID in the annotations "+
		"of ConfigMap %s with the ID of the previous change", c.namespace, name, fs.ErrNotExist, from)
}

// find fetches a record, or returns nil if it does not exist.
func (c *ConfigMap) find(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	m, err := c.maps().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history of fleet %s: %w", c.where(), err)
	}
	return m, nil
}
