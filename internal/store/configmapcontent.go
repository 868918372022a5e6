package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/generator"
)

// The ConfigMap of a restore contains the steps of its write, as a change's record does. It
// is deleted afterwards.
const (
	partRestore  = "restore"
	restoreStage = "restore"
)

// Content returns the files and the history, with an interrupted write applied.
func (c *ConfigMap) Content(ctx context.Context) (*Content, error) {
	found, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	content := &Content{Files: generator.Select(found.files)}
	content.Records, err = c.stored(ctx, found)
	return content, err
}

// stored returns the history as it is stored, by the chain of records from the root.
func (c *ConfigMap) stored(ctx context.Context, found *stored) ([]Record, error) {
	if found.head() == "" {
		return nil, nil
	}
	records, err := c.recordsOf(ctx, found.parts[""], time.Time{})
	if err != nil {
		return nil, err
	}
	var list []Record
	seen := map[string]bool{}
	for id, from := found.head(), c.name; id != "" && !seen[id]; {
		seen[id] = true
		m := records[c.changeName(id)]
		if m == nil {
			return nil, c.lostRecord(c.changeName(id), from)
		}
		record := Record{ID: id, Change: []byte(m.Data[recordKey])}
		if ended := records[c.changeName(id)+outcomeSuffix]; ended != nil {
			record.Outcome = []byte(ended.Data[recordKey])
		}
		list = append(list, record)
		id, from = m.Annotations[previousAnnotation], m.Name
	}
	slices.Reverse(list)
	return list, nil
}

// missingFrom reads the fleet, and returns the records of a backup that it lacks. It returns
// ErrMoved if the fleet is no longer at base.
func (c *ConfigMap) missingFrom(ctx context.Context, base Revision, content *Content) (found *stored, added []Record, err error) {
	if err := checkPaths(c.where(), content.Files); err != nil {
		return nil, nil, err
	}
	if found, err = c.loadComplete(ctx); err != nil {
		return nil, nil, err
	}
	fence := c.fence.Load()
	if RevisionOf(generator.Select(found.files)) != base || fence != 0 && fence < fenceOf(found.parts[""]) {
		return nil, nil, fmt.Errorf("writing fleet %s: %w", c.where(), ErrMoved)
	}
	if err := checkOwner(c.where(), found.files, content.Files); err != nil {
		return nil, nil, err
	}
	have, err := c.stored(ctx, found)
	if err != nil {
		return nil, nil, err
	}
	if added, err = content.addedTo(have); err != nil {
		return nil, nil, fmt.Errorf("writing fleet %s: nothing was written: %w", c.where(), err)
	}
	return found, added, nil
}

// Restore writes the content of a backup. The update of the root commits it, as in Begin.
func (c *ConfigMap) Restore(ctx context.Context, base Revision, content *Content) error {
	failed := func(err error) error { return fmt.Errorf("writing fleet %s: %w", c.where(), err) }
	found, added, err := c.missingFrom(ctx, base, content)
	if err != nil {
		return err
	}
	fence := c.fence.Load()
	next := staged{Steps: steps(found.files, content.Files)}
	if len(next.Steps)+len(added) == 0 {
		return nil
	}
	if err := next.applyTo(found.files); err != nil {
		return err
	}
	if err := c.checkFits(found, next); err != nil {
		return failed(fmt.Errorf("nothing was written: %w", err))
	}

	// Neither records nor steps have an effect before the root names them.
	previous := found.head()
	for i := range added {
		if err := c.restoreRecord(ctx, &added[i], previous); err != nil {
			return err
		}
		if added[i].Change != nil {
			previous = added[i].ID
		}
	}
	if err := c.writeStage(ctx, next); err != nil {
		return failed(err)
	}
	root := found.part(c, "")
	if previous != "" {
		root.Annotations[headAnnotation] = previous
	}
	root.Annotations[stageAnnotation] = restoreStage
	if fence > 0 {
		root.Annotations[fenceAnnotation] = strconv.FormatInt(fence, 10)
	}
	err = c.savePart(ctx, "root", found, "", root)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		err = ErrMoved
	}
	if err != nil {
		return failed(err)
	}
	found.staged = &next
	if _, err := c.completed(ctx, found); err != nil {
		return err
	}
	if err := c.dropStage(ctx); err != nil {
		return failed(err)
	}
	return nil
}

// writeStage writes the ConfigMap with the steps of a restore.
func (c *ConfigMap) writeStage(ctx context.Context, next staged) error {
	stage := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.changeName(restoreStage), Namespace: c.namespace, Labels: map[string]string{fleetLabel: c.name, partLabel: partRestore},
		},
		Immutable: new(true),
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(w).Encode(next), w.Close()); err != nil {
		return err
	}
	stage.BinaryData = map[string][]byte{stageKey: packed.Bytes()}
	if err := checkSize(stage); err != nil {
		return err
	}
	if err := c.dropStage(ctx); err != nil {
		return err
	}
	_, err := c.save(ctx, "stage", stage)
	return err
}

// restoreRecord adds a record of a backup, unless an interrupted restore has added it.
func (c *ConfigMap) restoreRecord(ctx context.Context, record *Record, previous string) error {
	var list []*corev1.ConfigMap
	if record.Change != nil {
		m := c.record(c.changeName(record.ID), partChange, record.ID)
		m.Annotations = map[string]string{previousAnnotation: previous}
		m.Data = map[string]string{recordKey: string(record.Change)}
		list = append(list, m)
	}
	if record.Outcome != nil {
		m := c.record(c.changeName(record.ID)+outcomeSuffix, partOutcome, record.ID)
		m.Data = map[string]string{recordKey: string(record.Outcome)}
		list = append(list, m)
	}
	for _, m := range list {
		existing, err := c.find(ctx, m.Name)
		if err != nil {
			return err
		}
		if existing == nil {
			if err := c.add(ctx, m.Labels[partLabel], m, record.ID); err != nil {
				return err
			}
			continue
		}
		if maps.Equal(existing.Data, m.Data) && existing.Annotations[previousAnnotation] == m.Annotations[previousAnnotation] {
			continue
		}
		return fmt.Errorf("restoring change %s: ConfigMap %s/%s exists with another content and is not part of the history: delete it, then run the command again",
			record.ID, c.namespace, m.Name)
	}
	return nil
}

// dropStage deletes the ConfigMap of an earlier restore. The root does not name it.
func (c *ConfigMap) dropStage(ctx context.Context) error {
	err := c.maps().Delete(ctx, c.changeName(restoreStage), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
