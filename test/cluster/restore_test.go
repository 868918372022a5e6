package cluster_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/testenv"
)

// numaform runs a command as an administrator, on a machine of its own.
func (s *scene) numaform(args ...string) (string, error) {
	command := exec.Command(binary, append(args, "--config", "numaform.yaml", "--kubeconfig", s.plane.Kubeconfig)...)
	command.Dir = s.dir
	command.Env = append(testenv.CleanEnv(), "NUMAFORM_STATE_DIR="+filepath.Join(s.dir, "cli-state"))
	out, err := command.CombinedOutput()
	return string(out), err
}

// loseNamespace deletes what the deletion of numaform's namespace deletes: fleet, history, key,
// states, locks, and the records of join tokens.
func (s *scene) loseNamespace() {
	s.t.Helper()
	for _, object := range []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}, &coordinationv1.Lease{}} {
		if err := s.api.DeleteAllOf(context.Background(), object, client.InNamespace(namespace)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// raw returns the configurations of the fleet's VMs, by VMID.
func (s *scene) raw() map[int]string {
	found := map[int]string{}
	for _, guest := range s.guestsOf(clusterID) {
		found[guest.VMID] = guest.Raw
	}
	return found
}

// TestNamespaceDeleted deletes everything in numaform's namespace, and restores it from a
// backup: no VM is created, changed or destroyed, the nodes stay, and the next controller
// continues. It then does the same with the backup of that moment, after a node was replaced:
// the VM that is newer than the backup is named and not destroyed.
func TestNamespaceDeleted(t *testing.T) {
	enginetest.Nightly(t)
	s := newScene(t, worldConfig{})
	s.run()
	t.Cleanup(func() { s.stop(syscall.SIGTERM) })
	for _, app := range []string{"a", "b"} {
		s.pods(app, 1, "500m", "512Mi", apart)
	}
	s.running("a", 1, 3*time.Minute)
	s.running("b", 1, 3*time.Minute)
	s.settled(2)
	file := filepath.Join(s.dir, "backup.tar.gz")
	if out, err := s.numaform("backup", "--plain", "-o", file, "--namespace", namespace); err != nil || !strings.Contains(out, "and the key of the history") {
		t.Fatalf("backup while the controller runs: %v\n%s", err, out)
	}
	if out, err := s.numaform("restore", file, "--write", "--namespace", namespace); err == nil || !strings.Contains(out, "scale its Deployment to 0") {
		t.Fatalf("restore while the controller runs: %v\n%s", err, out)
	}
	guests := s.raw()
	s.stop(syscall.SIGTERM)
	s.loseNamespace()
	out, err := s.numaform("restore", file, "--write", "--namespace", namespace)
	if err != nil || strings.Count(out, "exists: its file is restored") != 2 {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	t.Logf("restore:\n%s", out)
	if diff := cmp.Diff(guests, s.raw()); diff != "" {
		t.Fatalf("VMs after the restore (-before +after):\n%s", diff)
	}
	s.run()
	s.settled(2)
	s.pods("c", 1, "500m", "512Mi", apart)
	s.running("c", 1, 3*time.Minute)
	s.settled(3)
	for vmid, raw := range guests {
		if now := s.raw()[vmid]; now != raw {
			t.Errorf("VM %d (-before +after):\n%s", vmid, cmp.Diff(raw, now))
		}
	}
	s.check()

	// An older backup: the node of c is newer.
	newer := s.raw()
	s.stop(syscall.SIGTERM)
	s.loseNamespace()
	out, err = s.numaform("restore", file, "--write", "--namespace", namespace)
	if err != nil || strings.Count(out, "newer than the backup") != 1 {
		t.Fatalf("restore of an older backup: %v\n%s", err, out)
	}
	t.Logf("restore of an older backup:\n%s", out)
	s.run()
	s.pods("d", 1, "500m", "512Mi", apart)
	s.running("d", 1, 3*time.Minute)
	for _, app := range []string{"a", "b", "c"} {
		s.running(app, 1, 3*time.Minute)
	}
	now := s.raw()
	for vmid, raw := range newer {
		if now[vmid] != raw {
			t.Errorf("VM %d after the restore of an older backup (-before +after):\n%s", vmid, cmp.Diff(raw, now[vmid]))
		}
	}
	var claims karpv1.NodeClaimList
	s.list(&claims)
	t.Logf("%d VMs and %d NodeClaims after the restore of an older backup, %d VMs before", len(now), len(claims.Items), len(newer))
	s.checkPins()
	s.checkForeign()
}
