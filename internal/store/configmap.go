package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// ConfigMap is a fleet in ConfigMaps: one for each host, one for each module, one for the
// rest (the root), and two for each change in the history.
type ConfigMap struct {
	client    kubernetes.Interface
	namespace string
	name      string
	clock     clock.WithTicker
	// interrupt, if a test sets it, ends a write before one of its steps.
	interrupt func(name string) error

	// mu guards fence.
	mu sync.Mutex
	// fence is the number of the lock that this store holds; 0 means none. Each new lock
	// has a higher number.
	fence int64
}

var _ Store = (*ConfigMap)(nil)

// NewConfigMap returns the fleet with that name in a namespace. It does no I/O.
func NewConfigMap(client kubernetes.Interface, namespace, name string) (*ConfigMap, error) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return nil, fmt.Errorf("the fleet's ConfigMaps cannot be named %q: %s", name, problems[0])
	}
	return &ConfigMap{client: client, namespace: namespace, name: name, clock: clock.RealClock{}}, nil
}

// Read returns the fleet's files, after completing an interrupted write.
func (c *ConfigMap) Read(ctx context.Context) (generator.Files, Revision, error) {
	found, err := c.load(ctx)
	if err != nil {
		return nil, "", err
	}
	files := generator.Select(found.files)
	return files, RevisionOf(files), nil
}

// Begin makes files the desired state, together with the change's record. The update of
// the root is decisive and succeeds only if the root is unchanged since it was read: a
// holder that was paused and lost the lock cannot write.
func (c *ConfigMap) Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	if err := inside(c.where(), files); err != nil {
		return err
	}
	found, err := c.settled(ctx)
	if err != nil {
		return err
	}
	if RevisionOf(generator.Select(found.files)) != base || !c.mayWrite(found) {
		return fmt.Errorf("writing fleet %s: %w", c.where(), ErrMoved)
	}
	if err := refuse(c.where(), found.files, files); err != nil {
		return err
	}
	next := staged{Steps: steps(found.files, files)}
	parts, err := c.fit(found, next)
	if err != nil {
		return err
	}
	if err := c.addChange(ctx, found, next, change.ID, record); err != nil {
		return err
	}
	return c.commit(ctx, found, parts, change.ID)
}

// commit makes a change, whose record already exists, the desired state.
func (c *ConfigMap) commit(ctx context.Context, found *stored, parts []string, id string) error {
	root := found.part(c, "")
	root.Annotations[headAnnotation] = id
	delete(root.Annotations, stageAnnotation)
	if len(parts) > 0 {
		root.Annotations[stageAnnotation] = id
	}
	c.signFence(root)
	err := c.save(ctx, "root", root)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return c.lost(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("writing fleet %s: %w", c.where(), err)
	}
	if len(parts) == 0 {
		return nil
	}
	_, err = c.settled(ctx)
	return err
}

// lost handles a conflicting update of the root. The update may have been this change
// itself, if its response was lost.
func (c *ConfigMap) lost(ctx context.Context, id string) error {
	found, err := c.load(ctx)
	if err != nil {
		return err
	}
	if found.head() == id {
		_, err := c.settled(ctx)
		return err
	}
	// No chain leads to the record, so it does not matter if it cannot be deleted.
	err = c.maps().Delete(ctx, c.changeName(id), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(fmt.Errorf("writing fleet %s: %w", c.where(), ErrMoved), err)
}

// settleAttempts limits how often to complete a write that another process is completing
// too.
const settleAttempts = 10

// settled loads the fleet and completes an interrupted write.
func (c *ConfigMap) settled(ctx context.Context) (*stored, error) {
	for attempt := 1; ; attempt++ {
		found, err := c.load(ctx)
		if err != nil || found.stage == nil {
			return found, err
		}
		err = c.settle(ctx, found)
		busy := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if err != nil && (!busy || attempt == settleAttempts) {
			return nil, fmt.Errorf("writing fleet %s: %w", c.where(), err)
		}
	}
}

// settle writes the staged files to their ConfigMaps. It never deletes a ConfigMap, so
// that a delayed, outdated write always fails with a conflict.
func (c *ConfigMap) settle(ctx context.Context, found *stored) error {
	for _, dir := range found.touched(*found.stage) {
		if dir == "" {
			continue
		}
		if err := c.save(ctx, dir, found.part(c, dir)); err != nil {
			return err
		}
	}
	root := found.part(c, "")
	delete(root.Annotations, stageAnnotation)
	return c.save(ctx, "root, again", root)
}

// save creates or updates a ConfigMap, if it is unchanged since it was read.
func (c *ConfigMap) save(ctx context.Context, step string, m *corev1.ConfigMap) (err error) {
	if err := c.interrupted(step); err != nil {
		return err
	}
	if m.ResourceVersion == "" {
		_, err = c.maps().Create(ctx, m, metav1.CreateOptions{})
		return err
	}
	_, err = c.maps().Update(ctx, m, metav1.UpdateOptions{})
	return err
}

// addChange adds the record of a change, with the files that it changes. It becomes part
// of the history once the root refers to it.
func (c *ConfigMap) addChange(ctx context.Context, found *stored, next staged, id string, record []byte) error {
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("recording change %s: %w", id, err)
	}
	packed, err := pack(text)
	if err != nil {
		return fmt.Errorf("recording change %s: %w", id, err)
	}
	m := c.record(c.changeName(id), partChange, id)
	m.Annotations = map[string]string{previousAnnotation: found.head()}
	m.Data = map[string]string{recordKey: string(record)}
	m.BinaryData = map[string][]byte{stageKey: packed}
	return c.add(ctx, "record", m, id)
}

// End adds the outcome of a change, once.
func (c *ConfigMap) End(ctx context.Context, outcome audit.Outcome) error {
	record, err := encodeOutcome(outcome)
	if err != nil {
		return err
	}
	_, err = c.maps().Get(ctx, c.changeName(outcome.ID), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("it has no record: %w", fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("recording the outcome of change %s: %w", outcome.ID, err)
	}
	m := c.record(c.outcomeName(outcome.ID), partOutcome, outcome.ID)
	m.Data = map[string]string{recordKey: string(record)}
	return c.add(ctx, "outcome", m, outcome.ID)
}

// add creates a record, which must not exist yet and never changes.
func (c *ConfigMap) add(ctx context.Context, step string, m *corev1.ConfigMap, id string) error {
	if err := checkSize(m); err != nil {
		return fmt.Errorf("recording change %s: %w", id, err)
	}
	if err := c.interrupted(step); err != nil {
		return err
	}
	_, err := c.maps().Create(ctx, m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = fmt.Errorf("%s: nothing was written: %w", m.Name, fs.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("recording change %s: %w", id, err)
	}
	return nil
}

func (c *ConfigMap) interrupted(step string) error {
	if c.interrupt == nil {
		return nil
	}
	return c.interrupt(step)
}

// pack compresses content.
func pack(content []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(content)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}

// maxStage limits the unpacked size of a staged write.
const maxStage = 64 << 20

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxStage))
}

// History returns the changes reachable from the root: each record refers to the previous
// one. It fetches all records of the period at once, by their days.
func (c *ConfigMap) History(ctx context.Context, since time.Time) ([]audit.Entry, error) {
	root, err := c.root(ctx)
	if err != nil || root == nil {
		return nil, err
	}
	head := root.Annotations[headAnnotation]
	records, err := c.recordsOf(ctx, since, head)
	if err != nil {
		return nil, err
	}
	list := map[string]audit.Entry{}
	for id, before := head, c.name; id != ""; {
		var previous string
		entry, err := readable(id, func(id string) (entry audit.Entry, err error) {
			entry, previous, err = c.entry(ctx, records, id, before)
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
		id, before = previous, c.changeName(id)
	}
	return entries(slices.Collect(maps.Keys(list)), since, func(id string) (audit.Entry, error) { return list[id], nil })
}

// entry reads a change and its outcome, and returns the ID of the previous change.
func (c *ConfigMap) entry(ctx context.Context, records map[string]*corev1.ConfigMap, id, from string) (entry audit.Entry, previous string, err error) {
	m, err := c.find(ctx, records, c.changeName(id))
	if err != nil {
		return entry, "", err
	}
	where := "ConfigMap " + c.namespace + "/" + c.changeName(id)
	if m == nil {
		return entry, "", fmt.Errorf("reading the record %s: %w: restore it from a backup or, if it is lost, name the change before it in the annotation "+
			"of ConfigMap %s that names this one", where, fs.ErrNotExist, from)
	}
	previous = m.Annotations[previousAnnotation]
	if err := decode(where, mendRecord, id, []byte(m.Data[recordKey]), &entry.Change); err != nil {
		return entry, previous, err
	}
	if m, err = c.find(ctx, records, c.outcomeName(id)); m == nil || err != nil {
		return entry, previous, err
	}
	entry.Outcome = &audit.Outcome{}
	where = "ConfigMap " + c.namespace + "/" + c.outcomeName(id)
	return entry, previous, decode(where, mendRecord, id, []byte(m.Data[recordKey]), entry.Outcome)
}
