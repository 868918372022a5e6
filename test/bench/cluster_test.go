package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// namespace is the controller's namespace.
const namespace = "numaform"

// cluster is a Kubernetes cluster with numaform's controller, which has the permissions
// granted by the chart, and a simulated Proxmox whose guests join.
type cluster struct {
	// b is the running benchmark.
	b     *testing.B
	plane *testenv.Cluster
	sim   *pvesim.Server
	api   client.WithWatch
	dir   string
	hosts []topology.Host
	// kubeconfig is the path of the controller's kubeconfig, log contains the controller's
	// output, and stop stops the controller.
	kubeconfig string
	args       []string
	log        *stampedLog
	stop       func()
	// used samples the resources of the running controller and its child processes.
	used *sampler
	// poweredOn and destroyed are the numbers of VMs started and deleted so far.
	poweredOn, destroyed atomic.Int64
	// kept contains the NodeClaims that existed at the last settle.
	kept map[string]bool
}

// testbed is the hardware of a cluster.
type testbed struct {
	// machine is the hosts' machine in topology/machines.
	machine string
	hosts   int
	// buffers enables CapacityBuffers.
	buffers bool
}

// newCluster starts the control plane, Proxmox and the controller.
func newCluster(b *testing.B, bed testbed) *cluster {
	b.Helper()
	c := &cluster{b: b, dir: b.TempDir(), log: &stampedLog{}}
	c.plane = testenv.AuditedControlPlane(b, c.auditLog())
	for i := range bed.hosts {
		host := testenv.Host(b, topology.HostName(fmt.Sprintf("pve-%d", i+1)), bed.machine, 9001+i)
		host.Templates[0].DiskGiB = 30 // as large as a node's disk, so that nothing is resized
		host.MemoryMiB = 512 << 10
		for n := range host.NUMANodes {
			host.NUMANodes[n].MemoryMiB = host.MemoryMiB / int64(len(host.NUMANodes))
		}
		c.hosts = append(c.hosts, host)
	}
	var err error
	if c.api, err = client.NewWithWatch(c.plane.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		b.Fatal(err)
	}
	guests, err := guestsim.New(guestsim.Config{Cluster: c.plane.Config})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- guests.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	c.sim = testenv.Proxmox(b, func(config *pvesim.Config) {
		config.Hosts, config.GuestAgents = c.hosts, true
		config.OnPower = func(event pvesim.PowerEvent) {
			switch event.Kind {
			case pvesim.PoweredOn:
				c.poweredOn.Add(1)
			case pvesim.Destroyed:
				c.destroyed.Add(1)
			}
			guests.Power(event)
		}
		*config = hostagent.On(*config, hostagent.Agent{Rules: claim.Rules{Clusters: []string{"bench"}}})
	})
	chart := testenv.Chart{}
	if bed.buffers {
		chart.Values = map[string]any{"featureGates": map[string]any{"CapacityBuffer": true}}
		c.args = []string{"--feature-gates", "CapacityBuffer=true"}
	}
	c.kubeconfig = c.install(chart)
	c.build()
	c.start()
	b.Cleanup(func() {
		if c.b.Failed() {
			c.b.Log(c.log.tail())
		}
		c.stop()
	})
	for _, class := range []class{{}, {resize: true}, {seeds: true}, {resize: true, seeds: true}} {
		c.pool(class)
	}
	return c
}

// auditLog returns the path of the file in which the API server records requests.
func (c *cluster) auditLog() string { return filepath.Join(c.dir, "audit.log") }

// install creates the objects of the chart, except the Deployment and objects that affect
// only its pods, and returns the path of the controller's kubeconfig.
func (c *cluster) install(chart testenv.Chart) string {
	c.b.Helper()
	objects := slices.DeleteFunc(testenv.RenderChart(c.b, chart), func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"}, o.GetKind())
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.plane.Install(ctx, objects); err != nil {
		c.b.Fatal(err)
	}
	_, kubeconfig, err := c.plane.ServiceAccount(ctx, namespace, "numaform")
	if err != nil {
		c.b.Fatal(err)
	}
	return kubeconfig
}

// build builds the controller and writes its configuration.
func (c *cluster) build() {
	c.b.Helper()
	build := exec.Command("go", "build", "-o", c.dir, "github.com/numaform/numaform/cmd/numaform")
	if out, err := build.CombinedOutput(); err != nil {
		c.b.Fatalf("building numaform: %v\n%s", err, out)
	}
	c.write("token", pvesim.DefaultTokenSecret)
	c.write("kube-ca.pem", string(c.plane.Config.CAData))
	// Without a policy, the creation and removal of 200 VMs would require approval.
	c.write("policy.yaml", "rules:\n- {name: all, description: The benchmark scales, when: \"true\", decision: allow}\n")
	c.write("numaform.yaml", fmt.Sprintf(`clusterID: bench
clusters:
- {region: %s, url: %q, ca_file: %q, token_id: %q, token_secret_file: token, vmid_range: {lower: 2000, upper: 2999}}
engine: {binary: %q, plugin_dir: %q}
fleet:
  dir: fleet
  configmap: {namespace: %[7]s, name: fleet}
  backend: {type: kubernetes, config: {namespace: %[7]s}}
policy:
  files: [policy.yaml]
  replace_default: true
  limits:
    per_change: {creates: 1000, deletes: 1000}
    per_window: {creates: 10000, deletes: 10000}
    per_host: {creates: 1000, deletes: 1000}
    per_pool: {creates: 10000, deletes: 10000}
join: {api_server: %[8]q, ca_file: kube-ca.pem}
`, testenv.Region, c.sim.URL(), testenv.CertFile(c.b, c.sim), pvesim.DefaultToken, testenv.Engine(c.b), testenv.PluginDir(c.b), namespace, c.plane.Config.Host))
}

// start starts the controller, which runs until stop.
func (c *cluster) start() {
	c.b.Helper()
	args := append([]string{
		"controller", "--config", "numaform.yaml", "--kubeconfig", c.kubeconfig,
		"--namespace", namespace, "--log-level", "debug", "--metrics-bind-address", "0", "--health-probe-bind-address", "0",
	}, c.args...)
	command := exec.Command(filepath.Join(c.dir, "numaform"), args...)
	command.Dir, command.Stdout, command.Stderr = c.dir, c.log, c.log
	command.Env = append(testenv.CleanEnv(), "NUMAFORM_STATE_DIR="+filepath.Join(c.dir, "state"), "KUBE_CONFIG_PATH="+c.kubeconfig, "KUBECONFIG="+c.kubeconfig)
	if err := command.Start(); err != nil {
		c.b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	used, sampled := newSampler(ctx, command.Process.Pid)
	c.used = used
	c.stop = func() {
		cancel()
		<-sampled
		_ = command.Process.Signal(syscall.SIGTERM) // it may have exited
		_ = command.Wait()                          // its log gives the reason if it exited unexpectedly
	}
}

func (c *cluster) write(name, text string) {
	c.b.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
		c.b.Fatal(err)
	}
}

// pool creates a NodeClass and a NodePool of VMs with two vCPUs. Pods select the pool by
// name.
func (c *cluster) pool(class class) {
	c.b.Helper()
	more := ""
	if class.resize {
		more += fmt.Sprintf("  bootDevice: {size: %dG}\n", resizedGiB)
	}
	if class.seeds {
		more += "  metadata: {type: cdrom}\n"
	}
	objects, err := testenv.Decode(fmt.Appendf(nil, `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec:
  template: {name: %[2]s}
  placement: {policy: Dedicated, pinWith: HostAgent}
%[3]s---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [s1.2VCPU-8GB]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
`, class.name(), testenv.Template, more))
	if err != nil {
		c.b.Fatal(err)
	}
	for _, object := range objects {
		if err := c.api.Create(context.Background(), object); err != nil {
			c.b.Fatal(err)
		}
	}
}

// pods creates pods of a class, spread over hosts. Each pod needs a separate VM.
func (c *cluster) pods(class class, app string, n int) {
	c.b.Helper()
	labels := map[string]string{"app": app, "kept": strconv.FormatBool(c.kept == nil)}
	var group errgroup.Group
	group.SetLimit(20)
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%03d", app, i), Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"karpenter.sh/nodepool": class.name()},
				// Without this toleration, a node that is not ready yet evicts the pod, and
				// no controller re-creates it.
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
				Containers: []corev1.Container{{
					Name: "c", Image: "registry.invalid/c",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: quantity.MustParse("1200m"), corev1.ResourceMemory: quantity.MustParse("4Gi"),
					}},
				}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
				}},
			},
		}
		group.Go(func() error { return c.api.Create(context.Background(), pod) })
	}
	if err := group.Wait(); err != nil {
		c.b.Fatal(err)
	}
}

// until polls until done returns true.
func (c *cluster) until(what string, limit time.Duration, done func() bool) {
	c.b.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(limit)
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			c.b.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// running waits until all pods of an app run.
func (c *cluster) running(app string, n int) {
	c.b.Helper()
	c.until("pods of "+app+" run", 5*time.Minute, func() bool {
		var pods corev1.PodList
		if err := c.api.List(context.Background(), &pods, client.MatchingLabels{"app": app}); err != nil {
			return false
		}
		return len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })) == n
	})
}

// quiet waits until the controller is idle: no engine runs, and Proxmox receives no writes.
func (c *cluster) quiet() {
	c.b.Helper()
	before, since := -1, time.Now()
	c.until("the controller is idle", 5*time.Minute, func() bool {
		writes := len(slices.DeleteFunc(c.sim.Calls(), func(call pvesim.Call) bool { return call.Method == http.MethodGet }))
		if writes != before || c.used.busy() {
			before, since = writes, time.Now()
		}
		return time.Since(since) > 4*time.Second
	})
}

// settle remembers the existing nodes.
func (c *cluster) settle() {
	c.b.Helper()
	c.kept = map[string]bool{}
	for _, claim := range c.claims() {
		c.kept[claim.Name] = true
	}
}

// restore resets the delays, and deletes the pods and VMs that were created since settle.
func (c *cluster) restore() {
	c.b.Helper()
	c.sim.SetDelays(pvesim.Delays{})
	c.deletePods()
	c.deleteClaims()
	c.until("the nodes are removed", 5*time.Minute, func() bool { return len(c.claims()) == len(c.kept) })
	c.deleteNodes()
	c.quiet()
}

// deleteNodes deletes the Nodes that registered while their VMs were being removed. numaform
// deletes them later, and pods of the next round could be bound to them until then.
func (c *cluster) deleteNodes() {
	c.b.Helper()
	var nodes corev1.NodeList
	if err := c.api.List(context.Background(), &nodes); err != nil {
		c.b.Fatal(err)
	}
	for i := range nodes.Items {
		if c.kept[nodes.Items[i].Name] {
			continue
		}
		if err := client.IgnoreNotFound(c.api.Delete(context.Background(), &nodes.Items[i])); err != nil {
			c.b.Fatal(err)
		}
	}
}

// deletePods deletes the pods that were created since settle.
func (c *cluster) deletePods() {
	c.b.Helper()
	err := c.api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("default"),
		client.MatchingLabels{"kept": "false"}, client.GracePeriodSeconds(0))
	if err != nil {
		c.b.Fatal(err)
	}
}

// deleteClaims deletes the NodeClaims that were created since settle.
func (c *cluster) deleteClaims() {
	c.b.Helper()
	var group errgroup.Group
	for _, claim := range c.claims() {
		if !c.kept[claim.Name] {
			group.Go(func() error { return client.IgnoreNotFound(c.api.Delete(context.Background(), &claim)) })
		}
	}
	if err := group.Wait(); err != nil {
		c.b.Fatal(err)
	}
}

// drained watches NodeClaims from now on. The returned function returns the times at which
// nodes were drained and Karpenter called the CloudProvider's Delete.
func (c *cluster) drained() func() []time.Time {
	c.b.Helper()
	watcher, err := c.api.Watch(context.Background(), &karpv1.NodeClaimList{})
	if err != nil {
		c.b.Fatal(err)
	}
	times := map[string]time.Time{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			claim, ok := event.Object.(*karpv1.NodeClaim)
			if !ok || !claim.StatusConditions().IsTrue(karpv1.ConditionTypeInstanceTerminating) {
				continue
			}
			if times[claim.Name].IsZero() {
				times[claim.Name] = time.Now()
			}
		}
	}()
	return func() []time.Time {
		watcher.Stop()
		<-done
		return slices.Collect(maps.Values(times))
	}
}

// claims returns all NodeClaims.
func (c *cluster) claims() []karpv1.NodeClaim {
	c.b.Helper()
	var list karpv1.NodeClaimList
	if err := c.api.List(context.Background(), &list); err != nil {
		c.b.Fatal(err)
	}
	return list.Items
}

// stampedLog stores the output lines of a process with the time of each.
type stampedLog struct {
	// mu guards lines and rest.
	mu    sync.Mutex
	lines []stampedLine
	rest  []byte
}

type stampedLine struct {
	at   time.Time
	text string
}

// Write implements io.Writer.
func (l *stampedLog) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, text...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		l.lines = append(l.lines, stampedLine{time.Now(), string(line)})
		l.rest = rest
	}
}

// since returns the lines written after a time.
func (l *stampedLog) since(from time.Time) []stampedLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.lines, from, func(line stampedLine, t time.Time) int { return line.at.Compare(t) })
	return slices.Clone(l.lines[i:])
}

// tail returns the last 80 lines.
func (l *stampedLog) tail() string {
	var texts []string
	for _, line := range l.since(time.Time{}) {
		texts = append(texts, line.text)
	}
	return strings.Join(texts[max(0, len(texts)-80):], "\n")
}

// said returns the times at which the controller logged messages with the prefix text.
func (c *cluster) said(since time.Time, text string) []time.Time {
	var times []time.Time
	for _, line := range c.log.since(since) {
		if strings.Contains(line.text, `"msg":"`+text) {
			times = append(times, line.at)
		}
	}
	return times
}
