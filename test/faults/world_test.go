package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// The hosts of a world. Pods need nodes on the first.
const (
	busyHost = "pve-2"
	idleHost = "pve-3"
)

// The secrets in numaform's configuration. The tests search for them in everything that
// numaform writes.
const (
	tokenCanary    = "c0ffee00-7a57-4ed0-8bad-5ec2e7ca9a21"
	passwordCanary = "canary-in-the-password"
)

// world is the environment of a fleet: a simulated Proxmox with unmanaged VMs, a backend,
// an engine that can be stopped at gates, and numaform's files.
type world struct {
	t       *testing.T
	dir     string
	sim     *pvesim.Server
	backend *backend
	doorman *doorman
	env     []string
	// tmp is the directory for temporary files.
	tmp   string
	hosts []topology.Host
	// foreign are the original configurations of unmanaged VMs, by VMID.
	foreign map[int]string
	runs    int
	// discards discards numaform's output.
	discards bool
	// marked is the number of calls at the last mark.
	marked int
}

// setting changes a world before it starts.
type setting func(w *world, config *pvesim.Config)

// newWorld creates a world that ends with the test, with its states in the backend.
func newWorld(t *testing.T, settings ...setting) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), backend: newBackend(t), doorman: newDoorman(t), foreign: map[int]string{}}
	w.copyFixture()
	for _, dir := range []string{"bin", "kept", "said"} {
		w.must(os.Mkdir(filepath.Join(w.dir, dir), 0o755))
	}
	// Socket paths must be short, so t.TempDir is too long.
	var err error
	w.tmp, err = os.MkdirTemp("", "nf")
	w.must(err)
	t.Cleanup(func() { w.must(os.RemoveAll(w.tmp)) })
	w.hosts, err = pvesim.LoadHosts(filepath.Join(w.dir, "hosts"), testenv.Region, testenv.Template)
	w.must(err)
	config := hostagent.On(pvesim.Config{Hosts: w.hosts, RootPassword: passwordCanary, Delays: pvesim.Delays{
		Clone: 300 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Destroy: 100 * time.Millisecond,
	}}.WithToken(pvesim.DefaultToken, tokenCanary), hostagent.Agent{Rules: claim.Rules{Clusters: []string{clusterID}}})
	w.edit("numaform.yaml", "backend: {type: local}", "backend: {type: http, config: {address: '"+w.backend.url+"/states'}}")
	for _, set := range settings {
		set(w, &config)
	}
	w.simulate(config)
	w.installShim()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// copyFixture copies the configuration of the fixture, and two hosts of the quickstart.
func (w *world) copyFixture() {
	w.must(os.CopyFS(w.dir, os.DirFS(filepath.Join("testdata", "fixture"))))
	w.must(os.Mkdir(filepath.Join(w.dir, "hosts"), 0o755))
	for _, host := range []string{busyHost, idleHost} {
		content, err := fs.ReadFile(examples.Quickstart(), "hosts/"+host+".json")
		w.must(err)
		w.must(os.WriteFile(filepath.Join(w.dir, "hosts", host+".json"), content, 0o600))
	}
}

// simulate starts Proxmox with an unmanaged VM on each host. One of the VMs has a VMID in
// numaform's range.
func (w *world) simulate(config pvesim.Config) {
	var err error
	w.sim, err = pvesim.New(config)
	w.must(err)
	w.must(w.sim.Start("127.0.0.1:0"))
	w.t.Cleanup(func() {
		if err := w.sim.Close(); err != nil {
			w.t.Error(err)
		}
	})
	w.must(os.WriteFile(filepath.Join(w.dir, "pve-root-ca.pem"), w.sim.CertPEM(), 0o600))
	w.must(os.WriteFile(filepath.Join(w.dir, "token"), []byte(tokenCanary), 0o600))
	w.stranger(150, busyHost)
	w.stranger(2001, idleHost)
}

// stranger adds a running unmanaged VM.
func (w *world) stranger(vmid int, host string) {
	w.must(w.sim.PutGuest(pvesim.Guest{VMID: vmid, Host: host, Running: true, Config: map[string]string{
		"name": fmt.Sprintf("accounting-%d", vmid), "cores": "2", "memory": "4096", "description": "do not touch",
		"scsi0": fmt.Sprintf("local-lvm:vm-%d-disk-0,size=32G", vmid),
	}}))
	guest, _ := w.sim.Guest(vmid)
	w.foreign[vmid] = guest.Raw
}

// installShim installs the shim as numaform's engine.
func (w *world) installShim() {
	self, err := os.Executable()
	w.must(err)
	path := filepath.Join(w.dir, "bin", shimName)
	w.must(os.Symlink(self, path))
	config, err := json.Marshal(shimConfig{
		Engine: testenv.Engine(w.t), Address: w.doorman.listener.Addr().String(), Kept: filepath.Join(w.dir, "kept"),
	})
	w.must(err)
	w.must(os.WriteFile(path+".json", config, 0o600))
	env := slices.DeleteFunc(testenv.CleanEnv(), func(entry string) bool { return strings.HasPrefix(entry, "TMPDIR=") })
	w.env = append(env, asNumaform+"=1",
		"TMPDIR="+w.tmp, "NUMAFORM_CONFIG="+filepath.Join(w.dir, "numaform.yaml"), "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "state"),
		"NUMAFORM_CLUSTERS_0_URL="+w.sim.URL(), "NUMAFORM_ENGINE_BINARY="+path,
		"NUMAFORM_ENGINE_PLUGIN_DIR="+testenv.PluginDir(w.t))
}

// localState makes numaform store the states in files.
func localState(w *world, _ *pvesim.Config) {
	w.edit("numaform.yaml", "backend: {type: http, config: {address: '"+w.backend.url+"/states'}}", "backend: {type: local}")
}

// asRoot makes numaform log in with a password and pin by affinity. Root may query guest
// agents, so the provider does when it imports a VM, and waits 15 minutes for an agent that
// does not respond.
func asRoot(w *world, config *pvesim.Config) {
	config.GuestAgents = true
	w.edit("numaform.yaml", "  token_id: numaform@pve!scaler\n  token_secret_file: token\n",
		"  username: root@pam\n  password: "+passwordCanary+"\n")
	w.edit("manifests/pools.yaml", "pinWith: HostAgent", "pinWith: Affinity")
}

// delays sets the durations of Proxmox tasks.
func delays(d pvesim.Delays) setting {
	return func(_ *world, config *pvesim.Config) { config.Delays = d }
}

// edit replaces text in a file of the world.
func (w *world) edit(name, old, replacement string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	content, err := os.ReadFile(path)
	w.must(err)
	if !bytes.Contains(content, []byte(old)) {
		w.t.Fatalf("%s does not contain %q", name, old)
	}
	w.must(os.WriteFile(path, bytes.ReplaceAll(content, []byte(old), []byte(replacement)), 0o600))
}

// fleet returns the fleet's directory.
func (w *world) fleet() string { return filepath.Join(w.dir, "fleet") }

// nodeFiles returns the paths of the node files by the names of their VMs.
func (w *world) nodeFiles() map[string]string {
	paths, err := filepath.Glob(filepath.Join(w.fleet(), "*", "*", "node-*.tf"))
	w.must(err)
	files := map[string]string{}
	for _, path := range paths {
		files[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "node-"), ".tf")] = path
	}
	return files
}

// write replaces a file of the world.
func (w *world) write(name, content string) {
	w.t.Helper()
	w.must(os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600))
}
