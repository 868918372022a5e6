package backends_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// TestCycle checks the creation of a VM, a plan without changes in a rebuilt working
// directory, and the removal of the VM: no file contains a credential, and no lock remains in
// the backend.
func TestCycle(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		r := newRoot(t, newSite(t, kind, false), engine, 1)
		w := r.open(t, here)
		p := plan(t, w, state.PlanOptions{})
		r.clean(t)
		apply(t, w, p)
		r.unlocked(t)
		if guest, exists := r.sim.Guest(2001); !exists || !guest.Running {
			t.Errorf("the vm exists: %t, running: %t", exists, guest.Running)
		}
		settled(t, w)
		r.clean(t)
		rebuild(t, w)
		settled(t, w)
		r.unlocked(t)
		if diff := cmp.Diff([]string{generator.Address(&r.fleet.VMs[0])}, addresses(t, w)); diff != "" {
			t.Errorf("state: %s", diff)
		}
		must(t, os.Remove(filepath.Join(r.dir, filepath.FromSlash(generator.NodeFile(&r.fleet.VMs[0])))))
		apply(t, w, plan(t, w, state.PlanOptions{}))
		if _, exists := r.sim.Guest(2001); exists || len(addresses(t, w)) > 0 {
			t.Errorf("the vm exists: %v; state: %v", exists, addresses(t, w))
		}
		r.unlocked(t)
	})
}

// unlocked checks that the backend contains no lock.
func (r *root) unlocked(t *testing.T) {
	t.Helper()
	if held := r.locks(t); held != 0 {
		t.Errorf("%d locks are held", held)
	}
}

// clean checks that the fleet's directory contains no credentials, even in private files
// and saved plans.
func (r *root) clean(t *testing.T) {
	t.Helper()
	if len(search(t, r.dir, r.fleet.ClusterID)) == 0 {
		t.Errorf("no file below %s contains the cluster's ID: the search does not work", r.dir)
	}
	for _, secret := range append(r.secrets, pvesim.DefaultTokenSecret) {
		if found := search(t, r.dir, secret); len(found) > 0 {
			t.Errorf("files with the credential: %v", found)
		}
	}
}

// TestNames checks that each backend stores the states of hosts whose names it does not
// support directly.
func TestNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		s := newSite(t, kind, false)
		r := newRoot(t, s, engine, 0)
		r.fleet.Hosts = nil
		for _, name := range []string{"pve-1", "PVE_1", strings.Repeat("h", 62) + "1"} {
			r.fleet.Hosts = append(r.fleet.Hosts, topology.HostID{Region: testenv.Region, Host: topology.HostName(name)})
		}
		r.render(t)
		for i, host := range r.fleet.Hosts {
			r.home = filepath.Join(t.TempDir(), "terraform.tfstate")
			enginetest.Write(t, r.root(host), map[string][]byte{"x.tf": fmt.Appendf(nil, "resource \"terraform_data\" \"x\" {\n  input = %d\n}\n", i)})
			w := r.open(t, host)
			apply(t, w, plan(t, w, state.PlanOptions{}))
			settled(t, w)
		}
	})
}

// TestLockedOut checks that a second checkout of a fleet cannot plan while the first
// applies, and that the error names the holder of the lock if the backend reports it.
func TestLockedOut(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind string, engine *state.Engine) {
		began := time.Now().Add(-time.Second)
		r := newRoot(t, newSite(t, kind, false), engine, 1)
		w := r.open(t, here)
		done, release := r.applyHeld(t, w)
		_, err := r.beside(t, engine).open(t, here).Plan(t.Context(), state.PlanOptions{})
		var locked *state.LockedError
		if !errors.As(err, &locked) || locked.Holder != state.HolderUnknown {
			t.Fatalf("got %v, want a LockedError", err)
		}
		t.Log(err)
		host, hostErr := os.Hostname()
		must(t, hostErr)
		named := strings.HasSuffix(locked.Who, "@"+host) && locked.Operation == "OperationTypeApply" && locked.Created.After(began)
		if want := r.tells(engine) || kind == "local"; named != want {
			t.Errorf("error names the lock's holder: %t, want %t", named, want)
		}
		if held := r.locks(t); kind != "local" && held != 1 { // files have no locks to count
			t.Errorf("%d locks are held during the apply, want 1", held)
		}
		release()
		must(t, <-done)
		settled(t, w)
		r.unlocked(t)
	})
}

// await polls until a condition holds, and fails the test after two minutes.
func await(t testing.TB, what string, so func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		case <-tick.C:
		}
	}
}

// maxState limits the size of a state. It is far below the limit of every backend: OpenTofu
// fails in Kubernetes above 1 MiB.
const maxState = 256 << 10

// TestStatesStaySmall checks that the state of a host with 20 VMs in Kubernetes has at most
// maxState bytes.
func TestStatesStaySmall(t *testing.T) {
	t.Parallel()
	r := newRoot(t, newSite(t, "kubernetes", false), engines(t)[0], 20)
	w := r.open(t, here)
	apply(t, w, plan(t, w, state.PlanOptions{}))
	settled(t, w)
	cluster, err := servers.cluster()
	must(t, err)
	client, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	name := "tfstate-default-" + generator.StateName(r.fleet.ClusterID, here)
	secret, err := client.CoreV1().Secrets(r.Config["namespace"]).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	packed := secret.Data["tfstate"]
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	must(t, err)
	size, err := io.Copy(io.Discard, unpacked)
	must(t, err)
	t.Logf("the state of 20 VMs has %d bytes, %d in its Secret", size, len(packed))
	if size == 0 || size > maxState {
		t.Errorf("the state has %d bytes, want at most %d", size, maxState)
	}
}
