package cluster_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/statesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// The names that all worlds use.
const (
	clusterID = "e2e"
	namespace = "numaform"
)

// world is a Kubernetes cluster whose nodes are VMs of a simulated Proxmox. numaform's
// controller runs in it with the permissions granted by the chart.
type world struct {
	t       *testing.T
	plane   *testenv.Cluster
	proxmox *pvesim.Server
	// reader reads Proxmox with the fleet's token.
	reader *proxmox.Client
	guests *guestsim.Guests
	// states is the backend of the Terraform states; nil means Kubernetes.
	states *statesim.Server
	// api is an administrator's client without a cache.
	api        client.Client
	dir        string
	kubeconfig string
	controller *process
	// program is the path of the controller: this numaform, or the baseline.
	program string
	// args are additional flags of the controller, and env additional variables.
	args, env []string
	// granted are the roles and bindings of the installed chart.
	granted []client.Object
	// may lists the expected problems of guests.
	may []string
}

// worldConfig configures a world.
type worldConfig struct {
	// region is the name of the Proxmox cluster; empty means testenv.Region.
	region topology.RegionName
	hosts  []topology.Host
	delays pvesim.Delays
	guests func(*guestsim.Config)
	states *statesim.Server
	// templates allows the controller to create templates.
	templates bool
	// values override the values of the chart.
	values map[string]any
	args   []string
	// chart is the chart's directory and program the controller's path. Empty means the
	// chart and the controller of this checkout.
	chart, program string
}

// newWorld starts a cluster and a Proxmox, but not the controller: call start.
func newWorld(t *testing.T, config worldConfig) *world {
	t.Helper()
	// Tests spend most of their time waiting, so they run in parallel.
	t.Parallel()
	w := &world{t: t, dir: t.TempDir(), states: config.states, args: config.args, program: cmp.Or(config.program, binary)}
	w.plane = testenv.FullControlPlane(t)
	var err error
	if w.api, err = client.New(w.plane.Config, client.Options{Scheme: newScheme(t)}); err != nil {
		t.Fatal(err)
	}
	guests := guestsim.Config{Cluster: w.plane.Config}
	if config.guests != nil {
		config.guests(&guests)
	}
	if w.guests, err = guestsim.New(guests); err != nil {
		t.Fatal(err)
	}
	w.runGuests()
	w.proxmox = testenv.Proxmox(t, func(c *pvesim.Config) {
		c.OnPower, c.Delays, c.GuestAgents = w.guests.Power, config.delays, true
		if config.hosts != nil {
			c.Hosts = config.hosts
		}
		if config.templates {
			mayCreateTemplates(c)
		}
		*c = hostagent.On(*c, hostagent.Agent{Rules: claim.Rules{Clusters: []string{clusterID}}, Isolation: "enforce"})
	})
	w.reader = testenv.Client(t, w.proxmox)
	w.install(testenv.Chart{Dir: config.chart, Values: config.values})
	w.configure(cmp.Or(config.region, testenv.Region), config.templates)
	return w
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	// Karpenter registers its own kinds in this scheme.
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	return scheme.Scheme
}

// runGuests runs the guests until the test ends, and fails the test if guests report
// unexpected problems.
func (w *world) runGuests() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.guests.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		for _, problem := range w.guests.Problems() {
			expected := slices.ContainsFunc(w.may, func(text string) bool { return strings.Contains(problem.String(), text) })
			if !expected {
				w.t.Errorf("a guest reported a problem: %s", problem)
			}
		}
	})
}

// install creates the objects of the chart, except the controller's Deployment, because the
// controller runs as a process, and objects without effect here.
func (w *world) install(chart testenv.Chart) {
	w.t.Helper()
	objects := testenv.RenderChart(w.t, chart)
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"}, o.GetKind())
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.plane.Install(ctx, objects); err != nil {
		w.t.Fatal(err)
	}
	w.granted = nil
	for _, object := range objects {
		if strings.HasPrefix(object.GetAPIVersion(), "rbac.") {
			w.granted = append(w.granted, object)
		}
	}
	var err error
	if _, w.kubeconfig, err = w.plane.ServiceAccount(ctx, namespace, "numaform"); err != nil {
		w.t.Fatal(err)
	}
}

// configure writes numaform.yaml.
func (w *world) configure(region topology.RegionName, templates bool) {
	w.t.Helper()
	backend := fmt.Sprintf("{type: kubernetes, config: {namespace: %s}}", namespace)
	if w.states != nil {
		backend = fmt.Sprintf("{type: http, config: {address: '%s/states', retry_max: '0'}}", w.states.URL)
	}
	more := ""
	if templates {
		more += "\n  template_vmid_range: {lower: 9100, upper: 9199}"
	}
	if w.program == binary { // the baseline has no address pools
		more += "\n  address_pools: [{name: nodes, subnet: 10.44.0.0/24, gateway: 10.44.0.1}]"
	}
	text := fmt.Sprintf(`clusterID: %s
clusters:
- region: %s
  url: %s
  ca_file: %s
  token_id: %s
  token_secret_file: token
  vmid_range: {lower: 2000, upper: 2999}%s
engine: {binary: %s, plugin_dir: %s}
fleet:
  dir: fleet
  configmap: {namespace: %s, name: fleet}
  backend: %s
join: {api_server: %s, ca_file: kube-ca.pem}
`, clusterID, region, w.proxmox.URL(), testenv.CertFile(w.t, w.proxmox), pvesim.DefaultToken,
		more, w.engine(), testenv.PluginDir(w.t), namespace, backend, w.plane.Config.Host)
	w.write("numaform.yaml", text)
	w.write("token", pvesim.DefaultTokenSecret)
	w.write("kube-ca.pem", string(w.plane.Config.CAData))
}

// engine returns the path of a script that runs the engine and records each run.
func (w *world) engine() string {
	w.t.Helper()
	path := filepath.Join(w.dir, "engine")
	script := fmt.Sprintf("#!/bin/sh\necho \"$1 $PWD\" >> %q\nexec %q \"$@\"\n", path+".log", testenv.Engine(w.t))
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// engineRuns returns the number of runs of an engine command, by host.
func (w *world) engineRuns(command string) map[string]int {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "engine.log"))
	if err != nil {
		w.t.Fatal(err)
	}
	runs := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if dir, ok := strings.CutPrefix(strings.TrimSpace(line), command+" "); ok {
			runs[filepath.Base(dir)]++
		}
	}
	return runs
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// process is a running controller.
type process struct {
	command *exec.Cmd
	done    chan struct{}
	// err is the result of the controller, once done is closed.
	err error
	log *logBuffer
}

// start starts the controller and stops it when the test ends.
func (w *world) start() {
	w.t.Helper()
	w.controller = w.startProcess()
	w.t.Cleanup(func() { w.stop(syscall.SIGTERM) })
}

func (w *world) startProcess() *process {
	w.t.Helper()
	args := append([]string{
		"controller", "--config", "numaform.yaml", "--kubeconfig", w.kubeconfig, "--namespace", namespace, "--log-level", "debug",
		"--metrics-bind-address", "0", "--health-probe-bind-address", "0",
	}, w.args...)
	command := exec.Command(w.program, args...)
	command.Dir = w.dir
	command.Env = append(testenv.CleanEnv(), "KUBECONFIG="+w.kubeconfig)
	if w.program == binary { // the baseline has no state directory
		command.Env = append(command.Env, "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "state"))
	} else { // the baseline does not pass --kubeconfig to the engine
		command.Env = append(command.Env, "KUBE_CONFIG_PATH="+w.kubeconfig)
	}
	command.Env = append(command.Env, w.env...)
	p := &process{command: command, done: make(chan struct{}), log: &logBuffer{t: w.t}}
	command.Stdout, command.Stderr = p.log, p.log
	if err := command.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.err = command.Wait()
		close(p.done)
	}()
	return p
}

// stop stops the controller, if it runs, and waits until it exits.
func (w *world) stop(signal syscall.Signal) {
	p := w.controller
	if p == nil {
		return
	}
	w.controller = nil
	select {
	case <-p.done:
		w.t.Errorf("the controller exited unexpectedly: %v\n%s", p.err, p.log.tail())
		return
	default:
	}
	if err := p.command.Process.Signal(signal); err != nil {
		w.t.Error(err)
	}
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		w.t.Error("the controller did not exit within two minutes")
		_ = p.command.Process.Kill()
		<-p.done
	}
	p.log.stop()
}

// logBuffer collects a controller's output, and shows it if the test fails.
type logBuffer struct {
	// mu guards the fields below.
	mu   sync.Mutex
	t    *testing.T
	text bytes.Buffer
}

func (b *logBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *logBuffer) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.t.Failed() {
		b.t.Log(b.text.String())
	}
}

// tail returns the last 60 lines of the log.
func (b *logBuffer) tail() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(b.text.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// contains reports whether the log contains a text.
func (b *logBuffer) contains(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.text.String(), text)
}

// eventually polls until ask returns "", and fails the test with ask's last result after
// limit.
func (w *world) eventually(limit time.Duration, ask func(ctx context.Context) string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	missing := "not polled yet"
	for {
		// A client whose requests are limited gives up before the deadline: its error would
		// hide what is missing.
		if answer := ask(ctx); ctx.Err() == nil && !strings.Contains(answer, "would exceed context deadline") {
			missing = answer
		}
		if missing == "" {
			return
		}
		var ended chan struct{}
		if w.controller != nil {
			ended = w.controller.done
		}
		select {
		case <-ticker.C:
		case <-ended:
			w.t.Fatalf("the controller exited unexpectedly: %v\n%s", w.controller.err, w.controller.log.tail())
		case <-ctx.Done():
			tail := ""
			if w.controller != nil {
				tail = w.controller.log.tail()
			}
			w.t.Fatalf("not within %s: %s; %s\n%s", limit, missing, w.described(), tail)
		}
	}
}

// described returns the output of describe, for a failed test.
func (w *world) described() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return w.describe(ctx)
}

// ours returns the guests in Proxmox with the fleet's marker, by name.
func (w *world) ours() map[string]topology.Guest {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	snapshot, err := w.reader.Snapshot(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]topology.Guest{}
	for i := range snapshot.Hosts {
		for _, guest := range snapshot.Hosts[i].Guests {
			if guest.ClusterID == clusterID {
				found[guest.Name] = guest
			}
		}
	}
	return found
}
