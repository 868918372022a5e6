package real_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

const (
	clusterID = "real"
	namespace = "numaform"
	// pause is the image that make guest-image puts in the guest.
	pause = "registry.k8s.io/pause:3.10.1"
)

// world is a Kubernetes cluster whose nodes are VMs that QEMU runs. numaform's controller
// runs in it with the permissions granted by the chart.
type world struct {
	t       *testing.T
	plane   *testenv.Cluster
	proxmox *pvesim.Server
	// reader reads Proxmox with the fleet's token.
	reader *proxmox.Client
	// api is an administrator's client without a cache.
	api client.Client
	dir string
	// guests is the directory with the files of the VMs.
	guests     string
	kubeconfig string
	// args are additional flags of the controller.
	args []string
	// controller is nil if numaform runs in a guest. Its node is then control.
	controller *process
	control    string
	began      time.Time

	// mu guards consoles, the text of the serial consoles of VMs that have stopped, by VMID.
	// The copies of a world for subtests share both.
	mu       *sync.Mutex
	consoles map[int]string
}

// newWorld starts a cluster, a Proxmox and the controller. types are the instance types.
func newWorld(t *testing.T, hosts []topology.Host, types string, change ...func(*pvesim.Config)) *world {
	t.Helper()
	w := newSite(t, hosts, change...)
	w.write("types.json", types)
	w.install()
	w.configure()
	w.start()
	w.stage("the control plane, Proxmox and the controller run")
	return w
}

// newSite starts a cluster and a Proxmox, without numaform.
func newSite(t *testing.T, hosts []topology.Host, change ...func(*pvesim.Config)) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), began: time.Now(), mu: &sync.Mutex{}, consoles: map[int]string{}}
	w.plane = testenv.FullControlPlane(t)
	// Karpenter registers its own kinds in this scheme.
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(w.plane.Config)
	config.QPS = -1 // parallel subtests poll
	var err error
	if w.api, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	// The paths of sockets in a test's own directory would be too long.
	if w.guests, err = os.MkdirTemp("", "real-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(w.guests) })
	t.Cleanup(w.showConsoles)
	image := filepath.Join(enginetest.ModuleRoot(t), ".tools", "guest", "image.qcow2")
	w.proxmox = testenv.Proxmox(t, func(c *pvesim.Config) {
		c.Hosts, c.QEMU, c.OnPower = hosts, &pvesim.QEMU{Image: image, Dir: w.guests}, w.powered
		*c = c.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
		c.Tokens = append(c.Tokens, pvesim.Token{ID: rootToken, Secret: rootTokenSecret, FullPrivileges: true})
		for _, change := range change {
			change(c)
		}
	})
	w.reader = testenv.Client(t, w.proxmox)
	return w
}

// install creates the objects of the chart, except the controller's Deployment, because the
// controller runs as a process, and objects without effect here.
func (w *world) install() {
	w.t.Helper()
	objects := testenv.RenderChart(w.t, testenv.Chart{})
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"}, o.GetKind())
	})
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.plane.Install(ctx, objects); err != nil {
		w.t.Fatal(err)
	}
	var err error
	if _, w.kubeconfig, err = w.plane.ServiceAccount(ctx, namespace, "numaform"); err != nil {
		w.t.Fatal(err)
	}
}

// configure writes numaform.yaml. Guests reach the API server by the address that QEMU gives
// to this machine in their network.
func (w *world) configure() {
	w.t.Helper()
	w.write("numaform.yaml", fmt.Sprintf(`clusterID: %s
clusters:
- region: %s
  url: %s
  ca_file: %s
  token_id: %s
  token_secret_file: token
  vmid_range: {lower: 2000, upper: 2999}
engine: {binary: %s, plugin_dir: %s}
fleet:
  dir: fleet
  configmap: {namespace: %[8]s, name: fleet}
  backend: {type: kubernetes, config: {namespace: %[8]s}}
instance_types_file: types.json
join: {api_server: %[9]s, ca_file: kube-ca.pem}
`, clusterID, testenv.Region, w.proxmox.URL(), testenv.CertFile(w.t, w.proxmox), pvesim.DefaultToken,
		testenv.Engine(w.t), testenv.PluginDir(w.t), namespace, fromGuest(w.plane.Config.Host)))
	w.write("token", pvesim.DefaultTokenSecret)
	w.write("kube-ca.pem", string(w.plane.Config.CAData))
}

// fromGuest returns the URL by which guests reach a server on this machine's loopback
// interface.
func fromGuest(url string) string {
	return strings.Replace(url, "127.0.0.1", testenv.GuestLoopback, 1)
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// manifest creates the objects of a manifest.
func (w *world) manifest(text string) {
	w.t.Helper()
	objects, err := testenv.Decode([]byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, object := range objects {
		if err := w.api.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

// process is a running controller.
type process struct {
	command *exec.Cmd
	done    chan struct{}
	// err is the result of the controller, once done is closed.
	err error
	log output
}

// output collects the output of a process.
type output struct {
	// mu guards text.
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts the controller, which is stopped when the test ends.
func (w *world) start() {
	w.t.Helper()
	w.run()
	w.t.Cleanup(w.stop)
}

// run starts a controller.
func (w *world) run() {
	w.t.Helper()
	command := exec.Command(binary, append([]string{
		"controller", "--config", "numaform.yaml", "--kubeconfig", w.kubeconfig, "--namespace", namespace,
		"--log-level", "debug", "--metrics-bind-address", "0", "--health-probe-bind-address", "0",
	}, w.args...)...)
	command.Dir = w.dir
	command.Env = append(testenv.CleanEnv(), "KUBECONFIG="+w.kubeconfig, "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "state"))
	p := &process{command: command, done: make(chan struct{})}
	command.Stdout, command.Stderr = &p.log, &p.log
	if err := command.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.controller = p
	go func() {
		p.err = command.Wait()
		close(p.done)
	}()
}

// stop stops the controller and waits until it exits.
func (w *world) stop() {
	p := w.controller
	select {
	case <-p.done:
		w.t.Errorf("the controller exited unexpectedly: %v", p.err)
	default:
		_ = p.command.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-p.done:
	case <-time.After(2 * time.Minute):
		w.t.Error("the controller did not exit within two minutes")
		_ = p.command.Process.Kill()
		<-p.done
	}
	if w.t.Failed() {
		w.t.Logf("the controller's log:\n%s", &p.log)
	}
}

// powered keeps the console of a guest that has stopped, because Proxmox deletes its files.
func (w *world) powered(event pvesim.PowerEvent) {
	if event.Kind != pvesim.PoweredOff {
		return
	}
	text, err := os.ReadFile(filepath.Join(w.guests, strconv.Itoa(event.Guest.VMID), "serial.log"))
	if err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.consoles[event.Guest.VMID] = string(text)
}

// stage logs what has happened, and when.
func (w *world) stage(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%4.0f s: %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// showConsoles logs the end of the guests' serial consoles if the test has failed.
func (w *world) showConsoles() {
	if !w.t.Failed() {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(w.guests, "*", "serial.log"))
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			w.t.Log(err)
			continue
		}
		lines := strings.Split(string(text), "\n")
		w.t.Logf("the end of %s:\n%s", path, strings.Join(lines[max(0, len(lines)-80):], "\n"))
	}
}

// eventually polls until ask returns "", and fails the test with ask's last result after
// limit.
func (w *world) eventually(limit time.Duration, ask func(ctx context.Context) string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	missing := "not polled yet"
	var exited <-chan struct{}
	if w.controller != nil {
		exited = w.controller.done
	}
	for {
		if answer := ask(ctx); ctx.Err() == nil {
			missing = answer
		}
		if missing == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-exited:
			w.t.Fatalf("the controller exited unexpectedly: %v", w.controller.err)
		case <-ctx.Done():
			w.t.Fatalf("not within %s: %s", limit, missing)
		}
	}
}
