// Package backends_test runs workspaces with real backends: a Kubernetes API server,
// PostgreSQL, S3, an HTTP state server and local files. In make nightly, each backend is
// tested with every available engine.
package backends_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
)

// shared contains the servers that take seconds to start, for all tests that need no server
// of their own.
type shared struct {
	cluster  func() (*testenv.Cluster, error)
	database func() (*testenv.Database, error)
	// mu guards the list of servers to close.
	mu sync.Mutex
}

// servers are the servers of this run.
var servers shared

// open prepares the servers, which start when a test first needs them. It returns a
// function that stops the started servers.
func (s *shared) open() (end func() error) {
	var closers []func() error
	s.cluster = sync.OnceValues(func() (*testenv.Cluster, error) {
		c, err := testenv.StartControlPlane(filepath.Join("..", "..", ".tools", "bin"))
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			closers = append(closers, c.Close)
		}
		return c, err
	})
	s.database = sync.OnceValues(func() (*testenv.Database, error) {
		d, err := testenv.StartPostgres()
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			closers = append(closers, d.Close)
		}
		return d, err
	})
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var errs []error
		for _, closer := range closers {
			errs = append(errs, closer())
		}
		return errors.Join(errs...)
	}
}

func TestMain(m *testing.M) {
	if err := confine.Main(); err != nil { // this process is the confined helper of a test
		panic(err)
	}
	if child := os.Getenv(childVariable); child != "" {
		os.Exit(applyAsChild(child))
	}
	if os.Getenv(commandVariable) != "" {
		os.Exit(cli.Run(context.Background(), cli.Process{
			Version: "test", Args: os.Args[1:], Environ: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		}))
	}
	for _, name := range []string{"NUMAFORM_GIT_TOKEN", "PGP_PASSPHRASE", "TF_TOKEN_example_com", "PROXMOX_VE_PASSWORD"} {
		if err := os.Setenv(name, strange); err != nil {
			panic(err)
		}
	}
	if err := testenv.RunAtOnce("4"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	end := servers.open()
	code := m.Run()
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// engines returns OpenTofu as built by make and, if it is on PATH, Terraform, which cannot
// be built from modules.
func engines(t testing.TB) []*state.Engine {
	t.Helper()
	built, err := filepath.Abs(filepath.Join("..", "..", ".tools", "bin", "tofu"))
	if err != nil {
		t.Fatal(err)
	}
	binaries := []string{built}
	if terraform, err := exec.LookPath("terraform"); err == nil {
		binaries = append(binaries, terraform)
	} else {
		t.Log("no terraform on PATH: only OpenTofu is tested")
	}
	var found []*state.Engine
	for _, binary := range binaries {
		engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: binary})
		if err != nil {
			t.Fatalf("%v (run make tools)", err)
		}
		found = append(found, engine)
	}
	return found
}

// site is a backend with its server. The server may be shared with other tests.
type site struct {
	fleet.Backend
	// env contains the server's address and credentials for the engine. secrets must not be
	// in any file.
	env     map[string]string
	secrets []string
	// locks returns the current number of locks.
	locks func(t testing.TB) int
	// outlives is set if a lock outlives the engine that took it.
	outlives bool
	// down makes the server unreachable, and up restores it.
	down, up func(t testing.TB)
}

// tells reports whether an engine reports the holder of a lock in the backend.
func (s *site) tells(engine *state.Engine) bool {
	return s.Type == "kubernetes" || s.Type == "s3" || s.Type == "http" && engine.Name() == "tofu"
}

// kinds returns the tested backends.
func kinds() []string { return []string{"local", "http", "s3", "pg", "kubernetes"} }

// newSite opens a backend. If own is set, the server is not shared, so that the test may
// make it unreachable.
func newSite(t testing.TB, kind string, own bool) *site {
	t.Helper()
	switch kind {
	case "http":
		return httpSite(t)
	case "s3":
		return s3Site(t)
	case "pg":
		return pgSite(t, own)
	case "kubernetes":
		return kubernetesSite(t, own)
	}
	return &site{Backend: fleet.Backend{Type: "local"}, locks: func(testing.TB) int { return 0 }}
}

func httpSite(t testing.TB) *site {
	server := testenv.HTTPState(t)
	server.Demand("numaform", "canary-of-http")
	return &site{
		Backend:  fleet.Backend{Type: "http", Config: map[string]string{"address": server.URL + "/states", "retry_max": "0"}},
		env:      map[string]string{"TF_HTTP_USERNAME": "numaform", "TF_HTTP_PASSWORD": "canary-of-http"},
		secrets:  []string{"canary-of-http"},
		locks:    func(testing.TB) int { return len(server.Locks()) },
		outlives: true,
		down:     func(testing.TB) { server.Refuse("GET", "POST", "LOCK", "UNLOCK") },
		up:       func(testing.TB) { server.Refuse() },
	}
}

func s3Site(t testing.TB) *site {
	bucket := testenv.S3(t)
	return &site{
		Backend: fleet.Backend{Type: "s3", Config: bucket.Settings()}, env: bucket.Env(),
		secrets: []string{testenv.S3AccessKey, testenv.S3SecretKey}, outlives: true,
		locks: func(t testing.TB) int { return len(bucket.Locks(t)) },
		down:  func(testing.TB) { bucket.Down(true) },
		up:    func(testing.TB) { bucket.Down(false) },
	}
}

func pgSite(t testing.TB, own bool) *site {
	t.Helper()
	var database *testenv.Database
	if own {
		database = testenv.Postgres(t)
	} else {
		var err error
		if database, err = servers.database(); err != nil {
			t.Fatal(err)
		}
	}
	// A separate database, because locks are counted by database.
	name := "x" + strings.ToLower(rand.Text()[:10])
	query := func(t testing.TB, statement string) string {
		t.Helper()
		text, err := database.Query(t.Context(), statement)
		must(t, err)
		return strings.TrimSpace(text)
	}
	query(t, "CREATE DATABASE "+name)
	return &site{
		Backend: fleet.Backend{Type: "pg"}, secrets: []string{database.Password()},
		env: map[string]string{"PG_CONN_STR": strings.Replace(database.URL(), "/postgres?", "/"+name+"?", 1)},
		locks: func(t testing.TB) int {
			text := query(t, "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = '"+name+"'")
			count, err := strconv.Atoi(text)
			must(t, err)
			return count
		},
		down: func(t testing.TB) { must(t, database.Stop()) },
		up:   func(t testing.TB) { must(t, database.Resume()) },
	}
}

func kubernetesSite(t testing.TB, own bool) *site {
	t.Helper()
	var cluster *testenv.Cluster
	if own {
		cluster = testenv.ControlPlane(t)
	} else {
		var err error
		if cluster, err = servers.cluster(); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	space, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "states-"}}, metav1.CreateOptions{})
	must(t, err)
	return &site{
		Backend: fleet.Backend{Type: "kubernetes", Config: map[string]string{"namespace": space.Name}},
		env:     map[string]string{"KUBE_CONFIG_PATH": cluster.Kubeconfig}, secrets: []string{cluster.Config.BearerToken},
		locks: func(t testing.TB) int {
			leases, err := client.CoordinationV1().Leases(space.Name).List(t.Context(), metav1.ListOptions{})
			must(t, err)
			held := 0
			for i := range leases.Items {
				if leases.Items[i].Spec.HolderIdentity != nil {
					held++
				}
			}
			return held
		},
		outlives: true,
		down:     func(t testing.TB) { must(t, cluster.Stop()) },
		up:       func(t testing.TB) { must(t, cluster.Resume()) },
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// childVariable makes this test binary run one apply instead of the tests. Its value is the
// configuration, a child in JSON.
const childVariable = "NUMAFORM_TEST_APPLY"

// commandVariable makes this test binary run as numaform's command line.
const commandVariable = "TEST_AS_NUMAFORM"

// child is the configuration of the process that childVariable describes: the part of a
// state.Config that can be encoded as JSON.
type child struct {
	Dir, PluginDir     string
	Engine             *state.Engine
	Env, BackendConfig map[string]string
}

// applyAsChild plans and applies in a directory, as a separate numaform process.
func applyAsChild(text string) int {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return 2
	}
	w, err := state.New(state.Config{Dir: c.Dir, PluginDir: c.PluginDir, Engine: c.Engine, Env: c.Env, BackendConfig: c.BackendConfig})
	if err != nil {
		return 3
	}
	ctx := context.Background()
	plan, err := w.Plan(ctx, state.PlanOptions{})
	if err != nil {
		return 4
	}
	if _, err := w.Apply(ctx, plan); err != nil {
		return 5
	}
	return 0
}

// search returns the regular files below a directory that contain text.
func search(t testing.TB, dir, text string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), text) {
			found = append(found, path)
		}
		return err
	})
	must(t, err)
	return found
}
