package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/numaform/numaform/generator"
)

// The labels and annotations of a fleet's ConfigMaps.
const (
	fleetLabel = "numaform.dev/fleet"
	partLabel  = "numaform.dev/part"
	dayLabel   = "numaform.dev/day"

	// directoryAnnotation is the directory of the files in a ConfigMap.
	directoryAnnotation = "numaform.dev/directory"
	// On the root, headAnnotation is the last change, stageAnnotation a change whose
	// files are not all in their ConfigMaps yet, and fenceAnnotation the number of the
	// lock under which the root was written.
	headAnnotation  = "numaform.dev/head"
	stageAnnotation = "numaform.dev/stage"
	fenceAnnotation = "numaform.dev/fence"
	// previousAnnotation is the change before a record's.
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

// maxConfigMap is Kubernetes' limit for a ConfigMap's data, in bytes.
const maxConfigMap = 1 << 20

// pageSize is the number of records fetched per request.
const pageSize = 500

// maxDays is the maximum number of days in a label selector for records.
const maxDays = 31

func (c *ConfigMap) maps() v1.ConfigMapInterface { return c.client.CoreV1().ConfigMaps(c.namespace) }

func (c *ConfigMap) where() string { return "ConfigMap " + c.namespace + "/" + c.name }

func (c *ConfigMap) changeName(id string) string { return c.name + "-" + strings.ToLower(id) }

func (c *ConfigMap) outcomeName(id string) string { return c.changeName(id) + "-outcome" }

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
	if IsModule(name) || strings.Count(name, "/") == 2 {
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
	// files are the files after stage is applied; stage is nil if nothing is staged.
	files generator.Files
	stage *staged
}

func (s *stored) head() string {
	if root := s.parts[""]; root != nil {
		return root.Annotations[headAnnotation]
	}
	return ""
}

// root returns the root, or nil.
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

// load reads a consistent version of the whole fleet.
func (c *ConfigMap) load(ctx context.Context) (*stored, error) {
	list, err := c.maps().List(ctx, metav1.ListOptions{LabelSelector: fleetLabel + "=" + c.name + "," + partLabel + "=" + partFiles})
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s: %w", c.where(), err)
	}
	found := &stored{parts: map[string]*corev1.ConfigMap{}, files: generator.Files{}}
	for i := range list.Items {
		m := &list.Items[i]
		dir := m.Annotations[directoryAnnotation]
		if m.Name != c.partName(dir) {
			return nil, fmt.Errorf("reading fleet %s: ConfigMap %s says that it holds %q, and that is not its name: delete it", c.where(), m.Name, dir)
		}
		found.parts[dir] = m
		for key, content := range m.Data {
			found.files[nameOf(dir, key)] = []byte(content)
		}
		for key, content := range m.BinaryData {
			found.files[nameOf(dir, key)] = content
		}
	}
	return found, c.overlay(ctx, found)
}

// overlay applies an interrupted write to the files that were read.
func (c *ConfigMap) overlay(ctx context.Context, found *stored) error {
	root := found.parts[""]
	if root == nil || root.Annotations[stageAnnotation] == "" {
		return nil
	}
	id := root.Annotations[stageAnnotation]
	m, err := c.maps().Get(ctx, c.changeName(id), metav1.GetOptions{})
	if err == nil {
		found.stage = &staged{}
		var content []byte
		if content, err = unpack(m.BinaryData[stageKey]); err == nil {
			err = json.Unmarshal(content, found.stage)
		}
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %s/%s, which holds a write that was cut off: %w: restore it, or remove the annotation %s of %s to keep the files as they are",
			c.namespace, c.changeName(id), err, stageAnnotation, c.where())
	}
	for _, s := range found.stage.Steps {
		var current []byte
		if content, exists := found.files[s.Path]; exists {
			current = present(content)
		}
		if !same(current, s.Before) && !same(current, s.After) {
			return fmt.Errorf("fleet file %s was changed after a write of it was cut off: remove the annotation %s of %s to keep the files as they are, "+
				"or restore this one", s.Path, stageAnnotation, c.where())
		}
		found.files[s.Path] = s.After
		if s.After == nil {
			delete(found.files, s.Path)
		}
	}
	return nil
}

// touched returns the directories of the files that a write changes, sorted.
func (s *stored) touched(next staged) []string {
	var dirs []string
	for _, step := range next.Steps {
		dirs = append(dirs, partOf(step.Path))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// part returns the ConfigMap of a directory with its current files.
func (s *stored) part(c *ConfigMap, dir string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: c.partName(dir), Namespace: c.namespace}}
	if old := s.parts[dir]; old != nil {
		m = old.DeepCopy()
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[fleetLabel], m.Labels[partLabel] = c.name, partFiles
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[directoryAnnotation] = dir
	m.Data, m.BinaryData = map[string]string{}, map[string][]byte{}
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

// fit applies a write to the files that were read. It refuses a write too large for
// Kubernetes, and returns the directories, without the root, that the write changes.
func (c *ConfigMap) fit(found *stored, next staged) ([]string, error) {
	found.files = maps.Clone(found.files)
	for _, s := range next.Steps {
		k := key(partOf(s.Path), s.Path)
		if problems := validation.IsConfigMapKey(k); len(problems) > 0 || nameOf(partOf(s.Path), k) != s.Path {
			return nil, fmt.Errorf("writing fleet %s: nothing was written: file %q cannot stand in a ConfigMap: rename its host, or use another store", c.where(), s.Path)
		}
		found.files[s.Path] = s.After
		if s.After == nil {
			delete(found.files, s.Path)
		}
	}
	dirs := found.touched(next)
	for _, dir := range dirs {
		if err := checkSize(found.part(c, dir)); err != nil {
			return nil, fmt.Errorf("writing fleet %s: nothing was written: %w", c.where(), err)
		}
	}
	return slices.DeleteFunc(dirs, func(dir string) bool { return dir == "" }), nil
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
		return fmt.Errorf("ConfigMap %s would hold %d KiB and Kubernetes takes %d: keep the fleet in a git repository or a directory",
			m.Name, size>>10, maxConfigMap>>10)
	}
	return nil
}

// record returns a ConfigMap of the history, which is immutable.
func (c *ConfigMap) record(name, part, id string) *corev1.ConfigMap {
	immutable := true
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: c.namespace,
			Labels: map[string]string{fleetLabel: c.name, partLabel: part, dayLabel: id[:8]},
		},
		Immutable: &immutable,
	}
}

// recordsOf fetches the records of the days from since to the last change, or all records
// if these are too many days.
func (c *ConfigMap) recordsOf(ctx context.Context, since time.Time, head string) (map[string]*corev1.ConfigMap, error) {
	selector := fleetLabel + "=" + c.name + "," + partLabel + " in (" + partChange + "," + partOutcome + ")"
	if days := daysTo(since, head); len(days) > 0 {
		selector += "," + dayLabel + " in (" + strings.Join(days, ",") + ")"
	}
	records := map[string]*corev1.ConfigMap{}
	options := metav1.ListOptions{LabelSelector: selector, Limit: pageSize}
	for {
		list, err := c.maps().List(ctx, options)
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

// daysTo returns the days from one minute before since to the day of a change; none if
// there are more than maxDays.
func daysTo(since time.Time, id string) []string {
	last, err := time.Parse(idTime, id[:min(len(id), len(idTime))])
	if err != nil || since.IsZero() {
		return nil
	}
	first := since.UTC().Add(-time.Minute).Truncate(24 * time.Hour)
	if first.After(last) {
		first = last
	}
	var days []string
	for day := first; !day.After(last); day = day.AddDate(0, 0, 1) {
		if days = append(days, day.Format("20060102")); len(days) > maxDays {
			return nil
		}
	}
	return days
}

// find returns a record, or nil. It fetches a record that is not among the records of the
// requested days.
func (c *ConfigMap) find(ctx context.Context, records map[string]*corev1.ConfigMap, name string) (*corev1.ConfigMap, error) {
	if m := records[name]; m != nil {
		return m, nil
	}
	if strings.HasSuffix(name, "-outcome") && records[strings.TrimSuffix(name, "-outcome")] != nil {
		return nil, nil // its day was fetched
	}
	m, err := c.maps().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the history of fleet %s: %w", c.where(), err)
	}
	return m, nil
}
