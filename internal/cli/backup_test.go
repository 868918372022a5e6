package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/store"
)

// backupStage is a fleet that a controller in a namespace changes, and an administrator's machine.
type backupStage struct {
	dir, config, namespace string
}

// newBackupStage returns a stage whose numaform.yaml has the given fleet.
func newBackupStage(t *testing.T, name, fleet string) *backupStage {
	t.Helper()
	namespace(t, name)
	s := &backupStage{config: simulated(t), namespace: name}
	s.dir = filepath.Dir(s.config)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.config, string(text)+"fleet: "+fleet+"\n")
	return s
}

// run runs a command of the administrator.
func (s *backupStage) run(t *testing.T, want string, args ...string) string {
	t.Helper()
	return says(t, 0, want, append(args, "--config", s.config, "-n", s.namespace)...)
}

// controller opens the fleet's store as the controller does.
func (s *backupStage) controller(t *testing.T) *store.Sealed {
	t.Helper()
	config, err := operator.Load(s.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := config.OpenStore(nil, operator.Kubeconfig{Path: controlPlane(t).Kubeconfig, Namespace: s.namespace})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// change records a change of the controller.
func (s *backupStage) change(t *testing.T) {
	t.Helper()
	fleet, at := s.controller(t), time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	change := audit.Change{ID: at.Format("20060102T150405Z") + "-000001", Time: at, ClusterID: "test", Kind: audit.KindScaleUp, Why: "a test"}
	_, base, err := fleet.Read(t.Context())
	if err == nil {
		err = fleet.Begin(t.Context(), base, generator.Files{}, change)
	}
	if err == nil {
		err = fleet.End(t.Context(), audit.Outcome{ID: change.ID, Time: at})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reinstall deletes everything in the namespace, and creates what the chart creates.
func (s *backupStage) reinstall(t *testing.T) {
	t.Helper()
	c := kubeClient(t)
	for _, object := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}, &coordinationv1.Lease{}} {
		if err := c.DeleteAllOf(t.Context(), object, client.InNamespace(s.namespace)); err != nil {
			t.Fatal(err)
		}
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: control.ConfigMapName, Namespace: s.namespace, Labels: map[string]string{"helm.sh/chart": "numaform"}}}
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// TestRestorePause restores a pause after the chart has created an empty ConfigMap, but not after
// a user has resumed the restored fleet.
func TestRestorePause(t *testing.T) {
	const name = "restore-pause"
	s := newBackupStage(t, name, fmt.Sprintf("{dir: work, configmap: {namespace: %[1]s, name: fleet}, backend: {type: kubernetes, config: {namespace: %[1]s}}}", name))
	s.change(t)
	says(t, 0, "numaform is paused", "pause", "-n", name)
	file := filepath.Join(s.dir, "backup.tar.gz")
	s.run(t, "Wrote the fleet in ConfigMaps restore-pause/fleet to "+file+": 0 files, 1 change, 0 states, 1 ConfigMap and the key of the history", "backup", "--plain", "-o", file)

	s.reinstall(t)
	s.run(t, "ConfigMap restore-pause/numaform-control: missing or empty", "restore", file)
	if state(t, name).Paused {
		t.Error("restore without --write paused numaform")
	}
	s.run(t, "Wrote ConfigMap restore-pause/numaform-control", "restore", file, "--write")
	if !state(t, name).Paused {
		t.Error("the restored numaform is not paused")
	}
	var object corev1.ConfigMap
	if err := kubeClient(t).Get(t.Context(), client.ObjectKey{Namespace: name, Name: control.ConfigMapName}, &object); err != nil || object.Labels["helm.sh/chart"] == "" {
		t.Errorf("the chart's ConfigMap was replaced: %v, %v", object.Labels, err)
	}

	says(t, 0, "numaform is resumed", "resume", "-n", name)
	s.run(t, "newer than the backup by 1 change", "restore", file, "--write")
	if state(t, name).Paused {
		t.Error("the second restore paused numaform again")
	}
}
