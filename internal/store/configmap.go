package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
)

// The labels and annotations of a fleet's ConfigMaps.
const (
	fleetLabel = "numaform.dev/fleet"
	partLabel  = "numaform.dev/part"
	dayLabel   = "numaform.dev/day"

	// directoryAnnotation is the directory of the files in a ConfigMap.
	directoryAnnotation = "numaform.dev/directory"
	// Only the root has the next three: headAnnotation is the ID of the last change,
	// stageAnnotation the ID of a change whose files are not all in their ConfigMaps yet,
	// and fenceAnnotation the number of the lock under which the root was written.
	headAnnotation  = "numaform.dev/head"
	stageAnnotation = "numaform.dev/stage"
	fenceAnnotation = "numaform.dev/fence"
	// previousAnnotation is the ID of the change before the record's change.
	previousAnnotation = "numaform.dev/previous"
)

// The values of partLabel.
const (
	partFiles   = "files"
	partChange  = "change"
	partOutcome = "outcome"
)

// The keys of a record.
const (
	recordKey = "record.json"
	stageKey  = "files.json.gz"
)

const (
	// maxConfigMap is the maximum size of a ConfigMap's data in Kubernetes, in bytes.
	maxConfigMap = 1 << 20
	// maxStage limits the unpacked size of a staged write.
	maxStage = 64 << 20
	// completeAttempts limits the attempts to complete a write that another process completes
	// at the same time.
	completeAttempts = 10
)

// ConfigMap is a fleet in ConfigMaps: one for each host, one for each module, one for the
// rest (the root), and two for each change in the history.
type ConfigMap struct {
	client    kubernetes.Interface
	namespace string
	name      string
	clock     clock.WithTicker
	interrupt interrupt
	// fence is the number of the lock that this store holds; 0 means none. Each new lock
	// has a higher number.
	fence atomic.Int64

	// mu guards written, the resource version of the last ConfigMap that this store wrote, and
	// ahead, the last lock that was renewed in the future.
	mu      sync.Mutex
	written string
	ahead   aheadLock
}

var _ Store = (*ConfigMap)(nil)

// NewConfigMap returns the fleet with that name in a namespace. It does no I/O.
func NewConfigMap(client kubernetes.Interface, namespace, name string) (*ConfigMap, error) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return nil, fmt.Errorf("fleet.configmap.name %q is not valid: %s", name, problems[0])
	}
	return &ConfigMap{client: client, namespace: namespace, name: name, clock: clock.RealClock{}}, nil
}

func (c *ConfigMap) maps() v1.ConfigMapInterface { return c.client.CoreV1().ConfigMaps(c.namespace) }

func (c *ConfigMap) where() string { return "ConfigMap " + c.namespace + "/" + c.name }

func (c *ConfigMap) changeName(id string) string { return c.name + "-" + strings.ToLower(id) }

// partName returns the name of a directory's ConfigMap: readable, and unique by a hash.
func (c *ConfigMap) partName(dir string) string {
	if dir == "" {
		return c.name
	}
	hash := sha256.Sum256([]byte(dir))
	slug := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(dir))
	return c.name + "-" + strings.Trim(slug[:min(len(slug), 40)], "-") + "-" + hex.EncodeToString(hash[:4])
}

// partOf returns the directory whose ConfigMap contains a file: a host's, a module's, or
// the fleet's.
func partOf(name string) string {
	if IsModule(name) || strings.Count(name, "/") == 2 || generator.IsTemplate(name) {
		return path.Dir(name)
	}
	return ""
}

// key returns the key of a file in the ConfigMap of its directory. Keys must not contain
// slashes.
func key(dir, name string) string {
	return strings.ReplaceAll(strings.TrimPrefix(name, dir+"/"), "/", "..")
}

// nameOf returns the file of a key.
func nameOf(dir, key string) string { return path.Join(dir, strings.ReplaceAll(key, "..", "/")) }

// stored is a fleet as stored in its ConfigMaps.
type stored struct {
	parts map[string]*corev1.ConfigMap // by directory; the root's is ""
	// files are the files after the staged write.
	files generator.Files
	// staged is an interrupted write, or nil.
	staged *staged
}

func (s *stored) head() string {
	if root := s.parts[""]; root != nil {
		return root.Annotations[headAnnotation]
	}
	return ""
}

// part returns the ConfigMap of a directory with its current files.
func (s *stored) part(c *ConfigMap, dir string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.partName(dir), Namespace: c.namespace}}
	if old := s.parts[dir]; old != nil {
		m = old.DeepCopy()
	}
	metav1.SetMetaDataLabel(&m.ObjectMeta, fleetLabel, c.name)
	metav1.SetMetaDataLabel(&m.ObjectMeta, partLabel, partFiles)
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, directoryAnnotation, dir)
	m.Data = map[string]string{}
	m.BinaryData = map[string][]byte{}
	for name, content := range s.files {
		switch {
		case partOf(name) != dir:
		case utf8.Valid(content):
			m.Data[key(dir, name)] = string(content)
		default:
			m.BinaryData[key(dir, name)] = content
		}
	}
	return m
}

// root returns the root, or nil if it does not exist.
func (c *ConfigMap) root(ctx context.Context) (*corev1.ConfigMap, error) {
	root, err := c.maps().Get(ctx, c.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", c.where(), err)
	}
	return root, nil
}

// list lists ConfigMaps. The result contains everything that was written before the given
// root was read, because each write of a fleet ends with its root, and everything that this
// store wrote. Without a resource version, the API server would wait up to 100 ms for
// its watch cache whenever another kind of object has changed, such as a Lease
// (Kubernetes v1.35, staging/src/k8s.io/apiserver/pkg/storage/cacher/progress/watch_progress.go).
func (c *ConfigMap) list(ctx context.Context, root *corev1.ConfigMap, options metav1.ListOptions) (*corev1.ConfigMapList, error) {
	if root == nil || options.Continue != "" {
		return c.maps().List(ctx, options)
	}
	exact := options
	c.mu.Lock()
	options.ResourceVersion = newer(root.ResourceVersion, c.written)
	c.mu.Unlock()
	if options.ResourceVersion != "" {
		options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	list, err := c.maps().List(ctx, options)
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		// The API server's watch cache is late, or its data was restored from a backup.
		c.mu.Lock()
		c.written = ""
		c.mu.Unlock()
		return c.maps().List(ctx, exact)
	}
	return list, err
}

// wrote records that this store wrote a ConfigMap.
func (c *ConfigMap) wrote(m *corev1.ConfigMap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = newer(c.written, m.ResourceVersion)
}

// newer returns the newer of two resource versions, which may be empty.
func newer(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); a == "" || err == nil && order < 0 {
		return b
	}
	return a
}

// Read returns the fleet's files and their revision, with an interrupted write applied.
func (c *ConfigMap) Read(ctx context.Context) (generator.Files, Revision, error) {
	found, err := c.load(ctx)
	if err != nil {
		return nil, "", err
	}
	files := generator.Select(found.files)
	return files, RevisionOf(files), nil
}

// load reads a consistent version of the whole fleet, and applies an interrupted write to
// the files that were read.
func (c *ConfigMap) load(ctx context.Context) (*stored, error) {
	root, err := c.root(ctx)
	if err != nil {
		return nil, err
	}
	list, err := c.list(ctx, root, metav1.ListOptions{LabelSelector: fleetLabel + "=" + c.name + "," + partLabel + "=" + partFiles})
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", c.where(), err)
	}
	found := &stored{parts: map[string]*corev1.ConfigMap{}, files: generator.Files{}}
	for i := range list.Items {
		m := &list.Items[i]
		dir := m.Annotations[directoryAnnotation]
		if m.Name != c.partName(dir) {
			return nil, fmt.Errorf("reading fleet %s: ConfigMap %[2]s has the annotation of directory %[3]q, but not the name of that directory's ConfigMap: delete ConfigMap %[2]s", c.where(), m.Name, dir)
		}
		found.parts[dir] = m
		for key, content := range m.Data {
			found.files[nameOf(dir, key)] = []byte(content)
		}
		for key, content := range m.BinaryData {
			found.files[nameOf(dir, key)] = content
		}
	}

	root = found.parts[""]
	if root == nil || root.Annotations[stageAnnotation] == "" {
		return found, nil
	}
	name := c.changeName(root.Annotations[stageAnnotation])
	if found.staged, err = c.readStage(ctx, name); err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s, which contains an interrupted write: %w: restore this ConfigMap, or remove the annotation %s of %s to keep the current files",
			c.namespace, name, err, stageAnnotation, c.where())
	}
	if err := found.staged.applyTo(found.files); err != nil {
		return nil, fmt.Errorf("%w: remove the annotation %s of %s to keep the current files, or restore the ConfigMap of the interrupted write", err, stageAnnotation, c.where())
	}
	return found, nil
}

// readStage reads the steps that are packed in the record of a change.
func (c *ConfigMap) readStage(ctx context.Context, name string) (*staged, error) {
	m, err := c.maps().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(m.BinaryData[stageKey]))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, maxStage))
	if err != nil {
		return nil, err
	}
	next := &staged{}
	return next, json.Unmarshal(content, next)
}

// Begin makes files the desired state, together with the change's record. The update of
// the root commits the write, and succeeds only if the root is unchanged since it was
// read, so a holder that was paused and lost the lock cannot write.
func (c *ConfigMap) Begin(ctx context.Context, base Revision, files generator.Files, change audit.Change) error {
	record, err := encodeChange(change)
	if err != nil {
		return err
	}
	if err := checkPaths(c.where(), files); err != nil {
		return err
	}
	found, err := c.loadComplete(ctx)
	if err != nil {
		return err
	}
	fence := c.fence.Load()
	if RevisionOf(generator.Select(found.files)) != base || fence != 0 && fence < fenceOf(found.parts[""]) {
		return fmt.Errorf("writing fleet %s: %w", c.where(), ErrMoved)
	}
	if err := checkOwner(c.where(), found.files, files); err != nil {
		return err
	}
	next := staged{Steps: steps(found.files, files)}
	if err := next.applyTo(found.files); err != nil {
		return err
	}
	if err := c.checkFits(found, next); err != nil {
		return fmt.Errorf("writing fleet %s: nothing was written: %w", c.where(), err)
	}

	// The record, which also contains the steps, is valid once the root names it.
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if err := errors.Join(json.NewEncoder(w).Encode(next), w.Close()); err != nil {
		return fmt.Errorf("recording change %s: %w", change.ID, err)
	}
	m := c.record(c.changeName(change.ID), partChange, change.ID)
	m.Annotations = map[string]string{previousAnnotation: found.head()}
	m.Data = map[string]string{recordKey: string(record)}
	m.BinaryData = map[string][]byte{stageKey: packed.Bytes()}
	if err := c.add(ctx, "record", m, change.ID); err != nil {
		return err
	}

	root := found.part(c, "")
	root.Annotations[headAnnotation] = change.ID
	onlyRoot := !slices.ContainsFunc(next.dirs(), func(dir string) bool { return dir != "" })
	if !onlyRoot {
		root.Annotations[stageAnnotation] = change.ID
	}
	if fence > 0 {
		root.Annotations[fenceAnnotation] = strconv.FormatInt(fence, 10)
	}
	err = c.savePart(ctx, "root", found, "", root)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return c.checkConflict(ctx, change.ID)
	}
	if err != nil {
		return fmt.Errorf("writing fleet %s: %w", c.where(), err)
	}
	if onlyRoot {
		return nil
	}
	found.staged = &next
	_, err = c.completed(ctx, found)
	return err
}

// dirs returns the directories of the files that a write changes, sorted.
func (s *staged) dirs() []string {
	var dirs []string
	for _, step := range s.Steps {
		dirs = append(dirs, partOf(step.Path))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// checkFits returns an error if Kubernetes would refuse a file's name or a ConfigMap's size
// after a write.
func (c *ConfigMap) checkFits(found *stored, next staged) error {
	for _, s := range next.Steps {
		dir := partOf(s.Path)
		k := key(dir, s.Path)
		if problems := validation.IsConfigMapKey(k); len(problems) > 0 || nameOf(dir, k) != s.Path {
			return fmt.Errorf("file %q cannot be a key of a ConfigMap: rename its host, or store the fleet in a git repository or a directory", s.Path)
		}
	}
	for _, dir := range next.dirs() {
		if err := checkSize(found.part(c, dir)); err != nil {
			return err
		}
	}
	return nil
}

func checkSize(m *corev1.ConfigMap) error {
	size := 0
	for key, content := range m.Data {
		size += len(key) + len(content)
	}
	for key, content := range m.BinaryData {
		size += len(key) + len(content)
	}
	if size > maxConfigMap {
		return fmt.Errorf("ConfigMap %s would have %d bytes, but Kubernetes allows %d: store the fleet in a git repository or a directory",
			m.Name, size, maxConfigMap)
	}
	return nil
}

// checkConflict handles a conflict at the update of the root. If the conflicting update is
// this change itself, because a response was lost, it completes the write. Otherwise it
// deletes the change's record and returns ErrMoved.
func (c *ConfigMap) checkConflict(ctx context.Context, id string) error {
	found, err := c.load(ctx)
	if err != nil {
		return err
	}
	if found.head() == id {
		_, err := c.loadComplete(ctx)
		return err
	}
	// Neither the root nor another record names this record, so a failure to delete it
	// does no harm.
	err = c.maps().Delete(ctx, c.changeName(id), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(fmt.Errorf("writing fleet %s: %w", c.where(), ErrMoved), err)
}

// loadComplete loads the fleet and completes an interrupted write.
func (c *ConfigMap) loadComplete(ctx context.Context) (*stored, error) {
	found, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	return c.completed(ctx, found)
}

// completed completes the staged write of a fleet, if it has one. It loads the fleet again
// if another process completes the write at the same time, and returns the fleet.
func (c *ConfigMap) completed(ctx context.Context, found *stored) (*stored, error) {
	for attempt := 1; found.staged != nil; attempt++ {
		err := c.complete(ctx, found)
		concurrent := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		switch {
		case err == nil:
			found.staged = nil
		case !concurrent || attempt == completeAttempts:
			return nil, fmt.Errorf("writing fleet %s: %w", c.where(), err)
		default:
			if found, err = c.load(ctx); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// complete writes the staged files to their ConfigMaps. It never deletes a ConfigMap, so that
// a delayed write always fails with a conflict.
func (c *ConfigMap) complete(ctx context.Context, found *stored) error {
	for _, dir := range found.staged.dirs() {
		if dir == "" {
			continue
		}
		if err := c.savePart(ctx, dir, found, dir, found.part(c, dir)); err != nil {
			return err
		}
	}
	root := found.part(c, "")
	delete(root.Annotations, stageAnnotation)
	return c.savePart(ctx, "root, again", found, "", root)
}

// savePart saves the ConfigMap of a directory, and sets it in found.
func (c *ConfigMap) savePart(ctx context.Context, step string, found *stored, dir string, m *corev1.ConfigMap) error {
	saved, err := c.save(ctx, step, m)
	if err == nil {
		found.parts[dir] = saved
	}
	return err
}

// save creates or updates a ConfigMap, if it is unchanged since it was read. It returns the
// ConfigMap as stored.
func (c *ConfigMap) save(ctx context.Context, step string, m *corev1.ConfigMap) (saved *corev1.ConfigMap, err error) {
	if err := c.interrupt.before(step); err != nil {
		return nil, err
	}
	if m.ResourceVersion == "" {
		saved, err = c.maps().Create(ctx, m, metav1.CreateOptions{})
	} else {
		saved, err = c.maps().Update(ctx, m, metav1.UpdateOptions{})
	}
	if err == nil {
		c.wrote(saved)
	}
	return saved, err
}
