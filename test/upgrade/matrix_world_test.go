package upgrade_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/statesim"
	"github.com/numaform/numaform/internal/testenv"
)

// The kinds of store and of backend, and the time limit of a command.
const (
	inGit          = "git"
	inGitAlone     = "git without remote"
	inDirectory    = "directory"
	inConfigMaps   = "configmap"
	backendLocal   = "local"
	backendHTTP    = "http"
	backendPG      = "pg"
	backendKube    = "kubernetes"
	commandTimeout = 5 * time.Minute
)

// matrixWorld is a fleet that is upgraded from the baseline to this numaform, and back.
type matrixWorld struct {
	t      *testing.T
	dir    string
	env    []string
	sim    *pvesim.Server
	states *statesim.Server
	// store and backend are the kinds of the fleet's store and of its Terraform backend.
	store, backend string
	// space is the fleet's own namespace, if it has one.
	space string
	// baseline and current are the paths of the programs.
	baseline, current string
}

// matrixPods returns pods that need as many nodes as replicas. Existing VMs of the fleet count
// as such nodes, because their Nodes can still join.
func matrixPods(replicas int) string {
	return fmt.Sprintf(`apiVersion: numaform.dev/v1alpha1
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
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector: {matchLabels: {app: web}}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
      containers:
      - {name: web, image: registry.example/web:1, resources: {requests: {cpu: 500m, memory: 512Mi}}}
`, replicas)
}

// noPods is a cluster without pending pods, whose only Node is not part of the fleet.
const noPods = `apiVersion: v1
kind: Node
metadata: {name: control-plane}
spec: {unschedulable: true}
`

// newMatrixWorld starts a simulated Proxmox with two hosts, without a fleet.
func newMatrixWorld(t *testing.T, store, backend string) *matrixWorld {
	t.Helper()
	w := &matrixWorld{
		t: t, dir: t.TempDir(), states: testenv.HTTPState(t), store: store, backend: backend,
		baseline: filepath.Join(testenv.Baseline(t), "numaform"), current: binary,
	}
	// Socket paths must be short, so t.TempDir is too long.
	tmp, err := os.MkdirTemp("", "nf")
	w.must(err)
	t.Cleanup(func() { w.must(os.RemoveAll(tmp)) })
	env := slices.DeleteFunc(testenv.CleanEnv(), func(entry string) bool {
		return strings.HasPrefix(entry, "TMPDIR=") || strings.HasPrefix(entry, "HOME=") || strings.HasPrefix(entry, "XDG_")
	})
	w.env = append(env, "HOME="+w.path("home"), "TMPDIR="+tmp, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=op", "GIT_AUTHOR_EMAIL=op@example.com", "GIT_COMMITTER_NAME=op", "GIT_COMMITTER_EMAIL=op@example.com")
	w.must(os.Mkdir(w.path("home"), 0o755))
	w.simulate()
	w.configure("")
	for name, replicas := range map[string]int{"one.yaml": 1, "two.yaml": 2, "three.yaml": 3} {
		w.must(os.WriteFile(w.path(name), []byte(matrixPods(replicas)), 0o600))
	}
	w.must(os.WriteFile(w.path("nothing.yaml"), []byte(noPods), 0o600))
	return w
}

func (w *matrixWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *matrixWorld) path(elements ...string) string {
	return filepath.Join(append([]string{w.dir}, elements...)...)
}

func (w *matrixWorld) simulate() {
	w.must(os.Mkdir(w.path("hosts"), 0o755))
	for _, name := range []string{"hosts/pve-2.json", "hosts/pve-3.json", "nodes-settings.json"} {
		content, err := fs.ReadFile(examples.Quickstart(), name)
		w.must(err)
		w.must(os.WriteFile(w.path(name), content, 0o600))
	}
	hosts, err := pvesim.LoadHosts(w.path("hosts"), testenv.Region, testenv.Template)
	w.must(err)
	w.sim = testenv.Proxmox(w.t, func(c *pvesim.Config) {
		c.Hosts = hosts
		c.Delays = pvesim.Delays{Clone: 100 * time.Millisecond, Start: 50 * time.Millisecond, Stop: 50 * time.Millisecond, Destroy: 50 * time.Millisecond}
	})
	w.must(os.WriteFile(w.path("pve-root-ca.pem"), w.sim.CertPEM(), 0o600))
	w.must(os.WriteFile(w.path("token"), []byte(pvesim.DefaultTokenSecret), 0o600))
}

// configure writes numaform.yaml, with additional git settings.
func (w *matrixWorld) configure(git string) {
	w.t.Helper()
	store := "dir: fleet"
	switch w.store {
	case inGit:
		if _, err := os.Stat(w.path("remote.git")); err != nil {
			w.git(w.dir, "init", "--quiet", "--bare", "--initial-branch=main", w.path("remote.git"))
		}
		store += fmt.Sprintf("\n  git: {%sremote: %q}", git, w.path("remote.git"))
	case inGitAlone:
		store += "\n  git: {enabled: true}"
	case inConfigMaps:
		store += fmt.Sprintf("\n  configmap: {namespace: %s, name: fleet}", w.namespace())
	}
	backend := "{type: " + w.backend + "}"
	switch w.backend {
	case backendHTTP:
		backend = fmt.Sprintf("{type: http, config: {address: %q}}", w.states.URL+"/states")
	case backendKube:
		backend = fmt.Sprintf("{type: kubernetes, config: {namespace: %s}}", w.namespace())
	case backendPG:
		w.database()
	}
	w.must(os.WriteFile(w.path("numaform.yaml"), fmt.Appendf(nil, `clusterID: upgrade
clusters:
- region: %s
  url: %s
  ca_file: pve-root-ca.pem
  token_id: %s
  token_secret_file: token
  vmid_range: {lower: 2000, upper: 2999}
  machines: {pve-2: hosts/pve-2.json, pve-3: hosts/pve-3.json}
topology_file: nodes-settings.json
engine: {version: ">= 1.8", binary: %q, plugin_dir: %q}
fleet:
  %s
  backend: %s
`, testenv.Region, w.sim.URL(), pvesim.DefaultToken, testenv.Engine(w.t), testenv.PluginDir(w.t), store, backend), 0o600))
}

// namespace creates a namespace in the shared cluster and returns its name.
func (w *matrixWorld) namespace() string {
	w.t.Helper()
	if w.space != "" {
		return w.space
	}
	cluster, err := servers.cluster()
	w.must(err)
	client, err := kubernetes.NewForConfig(cluster.Config)
	w.must(err)
	space, err := client.CoreV1().Namespaces().Create(w.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "upgrade-"}}, metav1.CreateOptions{})
	w.must(err)
	w.env = append(w.env, "KUBE_CONFIG_PATH="+cluster.Kubeconfig, "KUBECONFIG="+cluster.Kubeconfig)
	w.space = space.Name
	return w.space
}

// database creates a database on the shared server.
func (w *matrixWorld) database() {
	w.t.Helper()
	if slices.ContainsFunc(w.env, func(entry string) bool { return strings.HasPrefix(entry, "PG_CONN_STR=") }) {
		return
	}
	database, err := servers.database()
	w.must(err)
	name := "x" + strings.ToLower(rand.Text()[:10])
	// The baseline fails if two hosts create the sequence concurrently.
	_, err = database.Query(w.t.Context(), "CREATE DATABASE "+name, `\connect `+name, "CREATE SEQUENCE public.global_states_id_seq AS bigint")
	w.must(err)
	w.env = append(w.env, "PG_CONN_STR="+strings.Replace(database.URL(), "/postgres?", "/"+name+"?", 1))
}

// start starts a program.
func (w *matrixWorld) start(ctx context.Context, program string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	w.t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	said := &bytes.Buffer{}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, w.env, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Do not wait for output of a provider that outlives the program.
	cmd.WaitDelay = time.Second
	w.must(cmd.Start())
	return cmd, said
}

// try runs a program until it exits, and returns its exit code and output.
func (w *matrixWorld) try(program string, args ...string) (int, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd, said := w.start(ctx, program, args...)
	_ = cmd.Wait() // the caller checks the exit code
	return cmd.ProcessState.ExitCode(), said.String()
}

// run runs a program and fails the test unless it exits with code want.
func (w *matrixWorld) run(want int, program string, args ...string) string {
	w.t.Helper()
	code, said := w.try(program, args...)
	if code != want {
		w.t.Fatalf("%s %s: exit code %d, want %d\n%s", w.name(program), strings.Join(args, " "), code, want, said)
	}
	return said
}

func (w *matrixWorld) name(program string) string {
	if program == w.baseline {
		return "the baseline's numaform"
	}
	return "numaform"
}

// apply applies the requests of manifests.
func (w *matrixWorld) apply(program, manifests string) string {
	w.t.Helper()
	return w.run(0, program, "apply", "-f", manifests, "--auto-approve")
}

// nothingToDo checks that a plan has no changes.
func (w *matrixWorld) nothingToDo(program string) {
	w.t.Helper()
	w.run(0, program, "plan", "-f", "nothing.yaml", "--detailed-exitcode")
}

// guests returns the VMs of the fleet by VMID.
func (w *matrixWorld) guests() map[int]string {
	found := map[int]string{}
	for _, guest := range w.sim.Guests() {
		if guest.VMID >= 2000 && guest.VMID <= 2999 {
			found[guest.VMID] = fmt.Sprintf("%s running=%v\n%s", guest.Host, guest.Running, guest.Raw)
		}
	}
	return found
}

// same checks that the guests in before are unchanged, that the given number of additional
// guests exists, and that all names are unique.
func (w *matrixWorld) same(before map[int]string, more int) {
	w.t.Helper()
	now := w.guests()
	for vmid, guest := range before {
		if now[vmid] != guest {
			w.t.Errorf("guest %d was changed:\n%s\nbefore:\n%s", vmid, now[vmid], guest)
		}
	}
	if len(now) != len(before)+more {
		w.t.Errorf("guests %v, before %v, want %d more", slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(before)), more)
	}
	names := map[string]int{}
	for _, guest := range w.sim.Guests() {
		if _, ours := now[guest.VMID]; !ours {
			continue
		}
		if other, exists := names[guest.Config["name"]]; exists {
			w.t.Errorf("guests %d and %d are both %s", other, guest.VMID, guest.Config["name"])
		}
		names[guest.Config["name"]] = guest.VMID
	}
}

// settle waits until Proxmox receives no calls for a while, because a provider can outlive
// its parent.
func (w *matrixWorld) settle() {
	w.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last, same := -1, 0
	for range 600 {
		<-tick.C
		if n := len(w.sim.Calls()); n != last {
			last, same = n, 0
			continue
		}
		if same++; same == 20 {
			return
		}
	}
	w.t.Fatal("the calls to Proxmox did not end")
}

// git runs git in a directory, with the environment of the programs.
func (w *matrixWorld) git(dir string, args ...string) string {
	w.t.Helper()
	command := exec.CommandContext(w.t.Context(), "git", args...)
	command.Dir, command.Env = dir, w.env
	out, err := command.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
