package hostile_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/statesim"
	"github.com/numaform/numaform/internal/testenv"
)

const (
	region = "homelab"
	host   = "pve-2"
	// rootDir is the directory of the host in the fleet.
	rootDir = region + "/" + host
	// foreignVMID is the VMID of an unmanaged guest outside the fleet's range.
	foreignVMID = 150
)

// place is the storage of a fleet.
type place string

const (
	inGit       place = "git"
	inDirectory place = "directory"
)

// program is a version of numaform.
type program struct {
	name, path string
}

func baseline(t *testing.T) program {
	t.Helper()
	return program{name: "baseline", path: filepath.Join(testenv.Baseline(t), "numaform")}
}

func current() program { return program{name: "current", path: binary} }

// engines returns the engines to test by name: OpenTofu as built by make and, if it is on
// PATH, Terraform, which cannot be built from modules.
func engines(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{"tofu": testenv.Engine(t)}
	if terraform, err := exec.LookPath("terraform"); err == nil {
		found["terraform"] = terraform
	} else {
		t.Log("no terraform on PATH: only OpenTofu is tested")
	}
	return found
}

// world is a fleet that a numaform program created on a simulated Proxmox. It has two VMs,
// and a third was removed.
type world struct {
	t        *testing.T
	numaform program
	place    place
	// dir contains all files: the configuration, home, the fleet or its working copy, and
	// its repository.
	dir, tmp string
	env      []string
	sim      *pvesim.Server
	states   *statesim.Server
	listener *listener
	// removed is the path of the removed VM's node file, and removedContent its content.
	removed        string
	removedContent []byte
	// kept is a directory with the files of the world before an attack. before are the
	// files of the fleet at that time, guests and guestsBefore the guests, and statesBefore
	// the states.
	kept         string
	before       files
	guests       map[int]string
	guestsBefore []pvesim.GuestState
	statesBefore map[string][]byte
	calls        int
	// providers detects when a provider program of this world is opened.
	providers *opened
	// measures makes run measure memory.
	measures bool
}

const manifests = `apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec:
  region: homelab
  template: {name: debian-13-k8s}
  clone: linked
  placement: {policy: Shared, overcommit: "2"}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  limits: {cpu: "64", memory: 256Gi}
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {topology.kubernetes.io/zone: pve-2}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector: {matchLabels: {app: web}}
      containers:
      - {name: web, image: registry.example/web:1, resources: {requests: {cpu: 500m, memory: 512Mi}}}
`

// nothing is a cluster without pending pods, whose only Node is not part of the fleet.
const nothing = `apiVersion: v1
kind: Node
metadata: {name: control-plane}
spec: {unschedulable: true}
`

// newWorld creates a fleet in a place, with a numaform program and an engine.
func newWorld(t *testing.T, numaform program, where place, engine string) *world {
	t.Helper()
	w := &world{
		t: t, numaform: numaform, place: where, dir: t.TempDir(), kept: filepath.Join(t.TempDir(), "kept"),
		states: testenv.HTTPState(t), listener: newListener(t),
	}
	w.states.Demand("numaform", backendCanary)
	// Socket paths must be short, so t.TempDir is too long.
	var err error
	w.tmp, err = os.MkdirTemp("", "nf")
	w.must(err)
	t.Cleanup(func() { w.must(os.RemoveAll(w.tmp)) })
	w.simulate()
	w.configure(engine)
	w.must(os.WriteFile(w.path("pods.yaml"), []byte(manifests), 0o600))
	w.must(os.WriteFile(w.path("nothing.yaml"), []byte(nothing), 0o600))
	if where == inGit {
		w.git(w.dir, nil, "init", "--quiet", "--bare", "--initial-branch=main", w.path("remote.git"))
	}
	w.grow()
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) path(elements ...string) string {
	return filepath.Join(append([]string{w.dir}, elements...)...)
}

func (w *world) simulate() {
	for _, name := range []string{"hosts/" + host + ".json"} {
		content, err := fs.ReadFile(examples.Quickstart(), name)
		w.must(err)
		w.must(os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
		w.must(os.WriteFile(w.path(name), content, 0o600))
	}
	settings, err := fs.ReadFile(examples.Quickstart(), "nodes-settings.json")
	w.must(err)
	w.must(os.WriteFile(w.path("nodes-settings.json"), settings, 0o600))
	hosts, err := pvesim.LoadHosts(w.path("hosts"), testenv.Region, testenv.Template)
	w.must(err)
	w.sim = testenv.Proxmox(w.t, func(c *pvesim.Config) {
		c.Hosts = hosts
		*c = c.WithToken(pvesim.DefaultToken, tokenCanary)
	})
	w.must(w.sim.PutGuest(pvesim.Guest{VMID: foreignVMID, Host: host, Running: true, Config: map[string]string{
		"name": "accounting", "cores": "2", "memory": "4096", "description": "do not touch",
		"scsi0": fmt.Sprintf("local-lvm:vm-%d-disk-0,size=32G", foreignVMID),
	}}))
}

func (w *world) configure(engine string) {
	store := "dir: fleet\n  backend: {type: local}"
	if w.place == inGit {
		store = fmt.Sprintf("dir: fleet\n  git: {remote: %q}\n  backend: {type: http, config: {address: %q}}", w.path("remote.git"), w.states.URL+"/states")
	}
	w.must(os.WriteFile(w.path("numaform.yaml"), fmt.Appendf(nil, `clusterID: hostile
clusters:
- region: %s
  url: %s
  ca_file: pve-root-ca.pem
  token_id: %s
  token_secret_file: token
  vmid_range: {lower: 2000, upper: 2999}
  machines: {%s: hosts/%s.json}
topology_file: nodes-settings.json
engine: {version: ">= 1.8", binary: %q, plugin_dir: %q}
fleet:
  %s
`, region, w.sim.URL(), pvesim.DefaultToken, host, host, w.path("bin", filepath.Base(engine)), w.path("mirror"), store), 0o600))
	w.must(os.WriteFile(w.path("pve-root-ca.pem"), w.sim.CertPEM(), 0o600))
	w.must(os.WriteFile(w.path("token"), []byte(tokenCanary), 0o600))
	for _, dir := range []string{"bin", "home", "notes"} {
		w.must(os.Mkdir(w.path(dir), 0o755))
	}
	// numaform may start the engine to read its version before it reads the fleet.
	w.script(w.path("bin", filepath.Base(engine)), fmt.Sprintf("test \"$1\" = version || echo \"engine $* in $PWD\" >>%q\nexec %q \"$@\"\n", w.notes(), engine))
	packages := filepath.Join(filepath.FromSlash(generator.ProviderSource), generator.ProviderVersion, runtime.GOOS+"_"+runtime.GOARCH)
	name := "terraform-provider-proxmox_v" + generator.ProviderVersion
	// The provider is confined and cannot write notes, so the test watches its file
	// instead. The file is a copy, which no other test opens.
	w.must(os.MkdirAll(w.path("mirror", packages), 0o755))
	w.copyTree(filepath.Join(testenv.PluginDir(w.t), packages, name), w.path("mirror", packages, name))
	w.providers = newOpened(w.t)
	env := slices.DeleteFunc(testenv.CleanEnv(), func(entry string) bool {
		return strings.HasPrefix(entry, "TMPDIR=") || strings.HasPrefix(entry, "HOME=") || strings.HasPrefix(entry, "XDG_")
	})
	w.env = append(env, "HOME="+w.path("home"), "TMPDIR="+w.tmp, "NUMAFORM_GIT_TOKEN="+gitCanary,
		"TF_HTTP_USERNAME=numaform", "TF_HTTP_PASSWORD="+backendCanary, "GIT_CONFIG_NOSYSTEM=1")
}

// script writes an executable shell script.
func (w *world) script(path, text string) {
	w.must(os.MkdirAll(filepath.Dir(path), 0o755))
	w.must(os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
}

// notes returns the path of the file in which programs record their start.
func (w *world) notes() string { return w.path("notes", "started") }

// started returns the records of started programs, and clears them. It includes a provider
// if its file was opened, because it may have been started.
func (w *world) started() []string {
	var notes []string
	if w.providers.any() {
		notes = append(notes, "provider")
	}
	content, err := os.ReadFile(w.notes())
	if os.IsNotExist(err) {
		return notes
	}
	w.must(err)
	w.must(os.Remove(w.notes()))
	return append(notes, strings.Split(strings.TrimSpace(string(content)), "\n")...)
}

// result is the result of a numaform command.
type result struct {
	code int
	// said is the whole output, stderr the output to stderr.
	said, stderr string
	// memoryMiB is the peak memory, if measured.
	memoryMiB int64
}

// commandTimeout limits the duration of a numaform command.
const commandTimeout = 3 * time.Minute

// run runs a command and waits until it ends.
func (w *world) run(args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.numaform.path, args...)
	report := filepath.Join(w.t.TempDir(), "memory")
	env := w.env
	if w.measures {
		self, err := os.Executable()
		w.must(err)
		cmd = exec.CommandContext(ctx, self, slices.Concat([]string{w.numaform.path}, args)...)
		env = append(slices.Clone(env), launchVariable+"="+report)
	}
	var out, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, env, &out, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	if ctx.Err() != nil {
		w.t.Fatalf("numaform %s did not end\n%s", strings.Join(args, " "), stderr.String())
	}
	r := result{code: cmd.ProcessState.ExitCode(), said: out.String() + stderr.String(), stderr: stderr.String()}
	if w.measures {
		text, err := os.ReadFile(report)
		w.must(err)
		r.memoryMiB, err = strconv.ParseInt(string(text), 10, 64)
		w.must(err)
	}
	return r
}

// grow creates three VMs, removes one, and takes a snapshot.
func (w *world) grow() {
	w.t.Helper()
	w.watchProviders()
	if r := w.run("apply", "-f", "pods.yaml", "--auto-approve"); r.code != 0 {
		w.t.Fatalf("creating VMs: exit code %d\n%s", r.code, r.said)
	}
	before := w.files()
	nodes := before.nodes()
	if len(nodes) != 3 {
		w.t.Fatalf("node files %v, want 3", nodes)
	}
	w.removed = nodes[2]
	w.removedContent = before[w.removed].content
	if r := w.run("remove", nodeOf(w.removed), "-f", "nothing.yaml", "--auto-approve"); r.code != 0 {
		w.t.Fatalf("removing a VM: exit code %d\n%s", r.code, r.said)
	}
	if notes := w.started(); !slices.Contains(notes, "provider") {
		w.t.Fatalf("the start of a provider was not detected: %v", notes)
	}
	w.snapshot()
}

// nodeOf returns the VM name in the name of a node file.
func nodeOf(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "node-"), ".tf")
}

// mutable returns the files of the world that an attack or numaform can change.
func mutable() []string { return []string{"home", "fleet", "remote.git"} }

// snapshot records the files, guests and states for restore.
func (w *world) snapshot() {
	w.t.Helper()
	w.must(os.RemoveAll(w.kept))
	w.must(os.Mkdir(w.kept, 0o755))
	for _, name := range mutable() {
		if _, err := os.Lstat(w.path(name)); err == nil {
			w.copyTree(w.path(name), filepath.Join(w.kept, name))
		}
	}
	w.before = w.files()
	w.guests, w.guestsBefore = w.found(), w.sim.Guests()
	w.statesBefore = w.states.States()
	w.listener.seen()
	w.started()
	w.calls = len(w.sim.Calls())
}

// restore restores the files recorded by snapshot.
func (w *world) restore() {
	w.t.Helper()
	for _, name := range mutable() {
		w.must(os.RemoveAll(w.path(name)))
		if _, err := os.Lstat(filepath.Join(w.kept, name)); err == nil {
			w.copyTree(filepath.Join(w.kept, name), w.path(name))
		}
	}
	w.watchProviders()
}

// watchProviders watches the existing provider files: the one in the mirror, and numaform's
// copies.
func (w *world) watchProviders() {
	w.t.Helper()
	for _, root := range []string{"mirror", "home", "fleet"} {
		err := filepath.WalkDir(w.path(root), func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && strings.HasPrefix(entry.Name(), "terraform-provider-") {
				err = w.providers.watch(name)
			}
			return err
		})
		if !os.IsNotExist(err) {
			w.must(err)
		}
	}
	w.providers.any()
}

// copyTree copies a directory with its links and modes.
func (w *world) copyTree(from, to string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.t.Context(), "cp", "-a", from, to).CombinedOutput(); err != nil {
		w.t.Fatalf("copying %s: %v\n%s", from, err, out)
	}
}

// found returns the current guests of Proxmox by VMID.
func (w *world) found() map[int]string {
	guests := map[int]string{}
	for _, guest := range w.sim.Guests() {
		guests[guest.VMID] = fmt.Sprintf("%s running=%v\n%s", guest.Host, guest.Running, guest.Raw)
	}
	return guests
}

// writes returns the calls since snapshot that change Proxmox.
func (w *world) writes() []string {
	var writes []string
	calls := w.sim.Calls()
	for _, call := range calls[w.calls:] {
		if call.Method != "GET" && !strings.HasPrefix(call.Path, "/access/") {
			writes = append(writes, call.Method+" "+call.Path)
		}
	}
	w.calls = len(calls)
	return writes
}

// git runs git as the attacker or an operator.
func (w *world) git(dir string, stdin []byte, args ...string) string {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), "git", args...)
	command.Dir, command.Stdin = dir, bytes.NewReader(stdin)
	command.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.tmp, "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Eve", "GIT_AUTHOR_EMAIL=eve@example.org", "GIT_COMMITTER_NAME=Eve", "GIT_COMMITTER_EMAIL=eve@example.org",
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		w.t.Fatalf("git %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// exposed describes the files, git objects, states and guests that contain credentials.
func (w *world) exposed() []string {
	w.t.Helper()
	var found []string
	search := func(where string, content []byte) {
		if canaries := leaked(content); len(canaries) > 0 {
			found = append(found, fmt.Sprintf("%s contains %v", where, canaries))
		}
	}
	for _, root := range []string{w.dir, w.tmp} {
		w.must(filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || name == w.path("token") || strings.HasPrefix(name, w.path("mirror")) {
				return err
			}
			info, err := entry.Info()
			if err != nil || info.Size() > 16<<20 {
				return err
			}
			content, err := os.ReadFile(name)
			search(name, content)
			return err
		}))
	}
	if w.place == inGit {
		search("an object of the repository", []byte(w.git(w.path("remote.git"), nil, "cat-file", "--batch-all-objects", "--batch", "--buffer")))
	}
	for name, content := range w.states.States() {
		search("state "+name, content)
	}
	for vmid, raw := range w.found() {
		search(fmt.Sprintf("guest %d", vmid), []byte(raw))
	}
	slices.Sort(found)
	return found
}

// sameGuests returns the differences between the guests of Proxmox and the guests of the
// snapshot.
func (w *world) sameGuests() []string {
	var differences []string
	now := w.found()
	for _, vmid := range slices.Sorted(maps.Keys(w.guests)) {
		if now[vmid] != w.guests[vmid] {
			differences = append(differences, fmt.Sprintf("guest %d was changed:\n%s\nbefore:\n%s", vmid, now[vmid], w.guests[vmid]))
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(now)) {
		if _, existed := w.guests[vmid]; !existed {
			differences = append(differences, fmt.Sprintf("guest %d was created:\n%s", vmid, now[vmid]))
		}
	}
	return differences
}

// statesChanged describes the states that differ from the snapshot.
func (w *world) statesChanged() []string {
	var changed []string
	now := w.states.States()
	for name, content := range now {
		if !bytes.Equal(content, w.statesBefore[name]) {
			changed = append(changed, "state "+name+" was changed")
		}
	}
	for name := range w.statesBefore {
		if _, exists := now[name]; !exists {
			changed = append(changed, "state "+name+" was removed")
		}
	}
	return changed
}
