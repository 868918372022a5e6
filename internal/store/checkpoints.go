package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/translog"
)

// CheckpointPlace is a place outside the fleet's store with copies of the checkpoints of its
// history. Whoever can write it can remove checkpoints, but cannot forge any.
type CheckpointPlace interface {
	// Load returns the signed checkpoints.
	Load(ctx context.Context) ([][]byte, error)
	// Save adds or replaces the checkpoint of the log with an ID.
	Save(ctx context.Context, log string, checkpoint []byte) error
	String() string
}

// maxCheckpoints limits the content of a place.
const maxCheckpoints = 1 << 20

// CheckpointDir is a directory with a file for each log.
type CheckpointDir string

var _ CheckpointPlace = CheckpointDir("")

// checkpointSuffix is the suffix of the files.
const checkpointSuffix = ".checkpoint"

// String returns the word "directory" and the path.
func (d CheckpointDir) String() string { return "directory " + string(d) }

// Load reads the files.
func (d CheckpointDir) Load(context.Context) ([][]byte, error) {
	files, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoints of the history: %w: correct history.checkpoint_dir", err)
	}
	var list [][]byte
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), checkpointSuffix) {
			continue
		}
		content, err := readRegular(filepath.Join(string(d), file.Name()), maxCheckpoints)
		if err != nil {
			return nil, fmt.Errorf("reading the checkpoints of the history: %w", err)
		}
		list = append(list, translog.Split(content)...)
	}
	return list, nil
}

// Save writes the file.
func (d CheckpointDir) Save(_ context.Context, log string, checkpoint []byte) error {
	err := os.MkdirAll(string(d), 0o755)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(string(d), log+checkpointSuffix), checkpoint, 0o644)
	}
	if err != nil {
		return fmt.Errorf("copying the checkpoint of the history: %w: correct history.checkpoint_dir", err)
	}
	return nil
}

// CheckpointConfigMap is a ConfigMap with a key for each log.
type CheckpointConfigMap struct {
	Client          kubernetes.Interface
	Namespace, Name string
}

var _ CheckpointPlace = CheckpointConfigMap{}

// String returns the word "ConfigMap", the namespace and the name.
func (c CheckpointConfigMap) String() string { return "ConfigMap " + c.Namespace + "/" + c.Name }

// Load reads the ConfigMap.
func (c CheckpointConfigMap) Load(ctx context.Context) ([][]byte, error) {
	m, err := c.Client.CoreV1().ConfigMaps(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoints of the history: %w", err)
	}
	var list [][]byte
	for _, log := range slices.Sorted(maps.Keys(m.Data)) {
		list = append(list, translog.Split([]byte(m.Data[log]))...)
	}
	return list, nil
}

// Save creates or updates the ConfigMap.
func (c CheckpointConfigMap) Save(ctx context.Context, log string, checkpoint []byte) error {
	configMaps := c.Client.CoreV1().ConfigMaps(c.Namespace)
	m, err := configMaps.Get(ctx, c.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace}, Data: map[string]string{log: string(checkpoint)},
		}, metav1.CreateOptions{})
	case err == nil && m.Data[log] != string(checkpoint):
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		m.Data[log] = string(checkpoint)
		_, err = configMaps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("copying the checkpoint of the history: %w", err)
	}
	return nil
}
