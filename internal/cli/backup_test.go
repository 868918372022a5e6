package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
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
	s.configure(t, "fleet: "+fleet)
	return s
}

// configure adds a line to numaform.yaml.
func (s *backupStage) configure(t *testing.T, line string) {
	t.Helper()
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.config, string(text)+line+"\n")
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

// secretKey returns the key of the history in the Secret of the controller.
func (s *backupStage) secretKey(t *testing.T) []byte {
	t.Helper()
	var secret corev1.Secret
	if err := kubeClient(t).Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "numaform-history"}, &secret); err != nil {
		t.Fatal(err)
	}
	return secret.Data["key"]
}

// TestRestoreKeyOfController deletes the namespace of a controller with a fleet in git, and
// restores its key from a backup, also if the administrator's machine has a copy of the key.
func TestRestoreKeyOfController(t *testing.T) {
	remote := filepath.Join(t.TempDir(), "fleet.git")
	if out, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", "--bare", "--initial-branch=main", remote).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := newBackupStage(t, "restore-key", "{dir: work, git: {remote: '"+remote+"'}, backend: {type: local}}")
	s.change(t)
	key := s.secretKey(t)

	// Without the cluster, the machine does not have the key.
	var out bytes.Buffer
	code := cli.Run(t.Context(), cli.Process{
		Args:  []string{"backup", "--config", s.config, "--plain", "-o", filepath.Join(s.dir, "without.tar.gz")},
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out,
	})
	if code != cli.ExitOK || !strings.Contains(out.String(), "no key of the history") || !strings.Contains(out.String(), "add --kubeconfig") {
		t.Errorf("backup without a kubeconfig: exit code %d\n%s", code, &out)
	}

	copied := filepath.Join(s.dir, "copy")
	for _, hasCopy := range []bool{false, true} {
		keyFile := filepath.Join(s.dir, "state", "history", "key")
		if hasCopy {
			keyFile = copied
			put(t, copied, string(key))
			s.configure(t, "history: {key_file: copy}")
		}
		file := filepath.Join(s.dir, fmt.Sprintf("backup-%t.tar.gz", hasCopy))
		s.run(t, "Wrote the fleet in repository "+remote+" to "+file, "backup", "--plain", "-o", file)

		s.reinstall(t)
		if err := os.RemoveAll(keyFile); err != nil {
			t.Fatal(err)
		}
		s.run(t, "missing in Secret restore-key/numaform-history", "restore", file)
		s.run(t, "Wrote the key of the history to Secret restore-key/numaform-history", "restore", file, "--write")
		if !bytes.Equal(s.secretKey(t), key) {
			t.Errorf("with a copy: %t: the Secret contains another key", hasCopy)
		}
		if content, err := os.ReadFile(keyFile); hasCopy != bytes.Equal(content, key) {
			t.Errorf("with a copy: %t: the key on the machine is %q, %v", hasCopy, content, err)
		}
	}
}
