package scale_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cloudprovider"
	"github.com/numaform/numaform/internal/controllers/provenance"
	"github.com/numaform/numaform/internal/fleetsim"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/planner"
	"github.com/numaform/numaform/topology"
)

// The names in the world.
const (
	clusterID = "scale"
	namespace = "numaform"
	// pool is the name of the NodePool and of the ProxmoxNodeClass.
	pool = "workers"
	// instanceType is the only instance type of the NodePool.
	instanceType = "s1.2VCPU-8GB"
)

// size is the size of a world.
type size struct{ regions, hosts, vms, pods int }

// world is a cluster whose nodes are VMs of simulated Proxmox clusters. Everything exists
// from the start: files, states, guests, NodeClaims, Nodes and pods.
type world struct {
	t    *testing.T
	size size
	dir  string
	// binary is the path of the program under test.
	binary     string
	plane      *testenv.Cluster
	kube       *discovery.DiscoveryClient
	api        client.Client
	kubeconfig string
	// sims are the Proxmox clusters of the regions, and hosts all hosts.
	sims  []*pvesim.Server
	hosts []topology.HostID
	// vms is the fleet.
	vms []fleet.VM
	// rows are the figures of each phase.
	rows map[string]map[string]float64
}

// newWorld builds a world without a controller.
func newWorld(t *testing.T, size size) *world {
	t.Helper()
	w := &world{t: t, size: size, dir: t.TempDir(), binary: build(t), rows: map[string]map[string]float64{}}
	w.plane = testenv.ControlPlane(t)
	var err error
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	if w.kube, err = discovery.NewDiscoveryClientForConfig(w.plane.Config); err != nil {
		t.Fatal(err)
	}
	if w.api, err = client.New(w.plane.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	w.step("Proxmox", w.startProxmox)
	w.step("chart", w.install)
	w.configure()
	w.step("fleet", w.writeFleet)
	w.step("nodes", w.createNodes)
	// The controller rereads guests that had just started when it first read them.
	<-time.After(5 * time.Second)
	return w
}

// step runs a step of the preparation and logs its duration.
func (w *world) step(name string, do func()) {
	w.t.Helper()
	began := time.Now()
	do()
	w.t.Logf("%s: %.1f s", name, time.Since(began).Seconds())
}

func region(i int) topology.RegionName { return topology.RegionName(fmt.Sprintf("region-%d", i+1)) }

// startProxmox starts a simulated Proxmox cluster for each region.
func (w *world) startProxmox() {
	w.t.Helper()
	for r := range w.size.regions {
		var hosts []topology.Host
		for i := range w.size.hosts / w.size.regions {
			host := testenv.Host(w.t, topology.HostName(fmt.Sprintf("pve-%d-%d", r+1, i+1)), "epyc-7763-2s-nps1-assumed", 9001+i)
			host.Region = region(r)
			host.Templates[0].DiskGiB = 30 // as large as a node's disk, so that nothing is resized
			host.MemoryMiB = 512 << 10
			for n := range host.NUMANodes {
				host.NUMANodes[n].MemoryMiB = host.MemoryMiB / int64(len(host.NUMANodes))
			}
			hosts = append(hosts, host)
			w.hosts = append(w.hosts, host.ID())
		}
		sim := testenv.Proxmox(w.t, func(config *pvesim.Config) {
			config.Hosts = hosts
			*config = hostagent.On(*config, hostagent.Agent{
				Rules: claim.Rules{Clusters: []string{clusterID}}, Interval: time.Minute,
			})
		})
		w.sims = append(w.sims, sim)
	}
}

// install creates the NodePool and the objects of the chart, except the Deployment and
// objects without effect here.
func (w *world) install() {
	w.t.Helper()
	objects := slices.DeleteFunc(testenv.RenderChart(w.t, testenv.Chart{}), func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"}, o.GetKind())
	})
	more, err := testenv.Decode(fmt.Appendf(nil, `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: %[1]s}
spec:
  template: {name: %[2]s}
  placement: {policy: Dedicated, pinWith: HostAgent}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: %[1]s}
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [%[3]s]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
`, pool, testenv.Template, instanceType))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.plane.Install(w.t.Context(), append(objects, more...)); err != nil {
		w.t.Fatal(err)
	}
	if _, w.kubeconfig, err = w.plane.ServiceAccount(w.t.Context(), namespace, "numaform"); err != nil {
		w.t.Fatal(err)
	}
}

// configure writes numaform.yaml and the files that it refers to.
func (w *world) configure() {
	w.t.Helper()
	w.write("token", pvesim.DefaultTokenSecret)
	w.write("kube-ca.pem", string(w.plane.Config.CAData))
	// Without a policy, a burst of 200 VMs would require approval.
	w.write("policy.yaml", "rules:\n- {name: all, description: The test scales, when: \"true\", decision: allow}\n")
	var text bytes.Buffer
	fmt.Fprintf(&text, "clusterID: %s\nclusters:\n", clusterID)
	for r, sim := range w.sims {
		lower := 10_000 * (r + 1)
		fmt.Fprintf(&text, "- {region: %s, url: %q, ca_file: %q, token_id: %q, token_secret_file: token, vmid_range: {lower: %d, upper: %d}}\n",
			region(r), sim.URL(), testenv.CertFile(w.t, sim), pvesim.DefaultToken, lower, lower+9_999)
	}
	fmt.Fprintf(&text, `engine: {binary: %q, plugin_dir: %q}
fleet:
  dir: fleet
  configmap: {namespace: %[3]s, name: fleet}
  backend: {type: kubernetes, config: {namespace: %[3]s}}
policy:
  files: [policy.yaml]
  replace_default: true
  limits:
    per_change: {creates: 1000, deletes: 1000}
    per_window: {creates: 10000, deletes: 10000}
    per_host: {creates: 1000, deletes: 1000}
    per_pool: {creates: 10000, deletes: 10000}
join: {api_server: %[4]q, ca_file: kube-ca.pem}
`, testenv.Engine(w.t), testenv.PluginDir(w.t), namespace, w.plane.Config.Host)
	w.write("numaform.yaml", text.String())
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// environ returns the environment of a controller. Each replica has a separate state
// directory.
func (w *world) environ(replica string) []string {
	return append(testenv.CleanEnv(), "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, replica), "KUBE_CONFIG_PATH="+w.kubeconfig, "KUBECONFIG="+w.kubeconfig)
}

// writeFleet creates one VM as the controller does, and writes the files, states and guests
// of the others.
func (w *world) writeFleet() {
	w.t.Helper()
	w.t.Setenv("KUBE_CONFIG_PATH", w.kubeconfig) // for the backend of the states
	ctx := w.t.Context()
	config, err := operator.Load(filepath.Join(w.dir, "numaform.yaml"), w.environ("builder"))
	if err != nil {
		w.t.Fatal(err)
	}
	clients, err := config.Connect()
	if err != nil {
		w.t.Fatal(err)
	}
	settings, err := config.ScalerConfig(ctx, w.environ("builder"), operator.Kubeconfig{Path: w.kubeconfig, Namespace: namespace}, true)
	if err != nil {
		w.t.Fatal(err)
	}
	settings.Regions = config.Regions()
	for i := range settings.Regions {
		settings.Regions[i].Live = clients[settings.Regions[i].Name]
	}
	writer := scaler.New(*settings)
	snapshot, _, err := config.Reachable(ctx, clients)
	if err != nil {
		w.t.Fatal(err)
	}

	first, err := writer.Propose(ctx, snapshot, w.requests(snapshot, nil, 1, w.hosts[:1]), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := writer.Apply(ctx, first, func([]scaler.RootPlan) (string, error) { return "", nil }); err != nil {
		w.t.Fatal(err)
	}
	model := w.learn(&first.Added[0])

	if snapshot, _, err = config.Reachable(ctx, clients); err != nil {
		w.t.Fatal(err)
	}
	perHost := w.size.vms / len(w.hosts)
	requests := w.requests(snapshot, first.After.VMs, perHost-1, w.hosts[:1])
	requests = append(requests, w.requests(snapshot, nil, perHost, w.hosts[1:])...)
	change, err := writer.Propose(ctx, snapshot, requests, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.vms = change.After.VMs

	// A ConfigMap for all files at once would be too large.
	const most = 20
	for i := 0; i < len(w.hosts); i += most {
		hosts := w.hosts[:min(i+most, len(w.hosts))]
		part := change.After
		part.VMs = slices.DeleteFunc(slices.Clone(part.VMs), func(vm fleet.VM) bool { return !slices.Contains(hosts, vm.Host) })
		part.Hosts = nil
		files, err := settings.Release.Render(part)
		if err != nil {
			w.t.Fatal(err)
		}
		_, revision, err := settings.Store.Read(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		now := time.Now().UTC()
		record := audit.Change{
			Format: audit.FormatVersion, ID: fmt.Sprintf("%s-%06d%04d", now.Format("20060102T150405Z"), now.Nanosecond()/1000, i),
			Time: now, ClusterID: clusterID, Kind: audit.KindScaleUp, Why: "the test's fleet", Rotations: map[topology.RegionName]fleet.Rotation{},
		}
		for _, vm := range part.VMs {
			record.Rotations[vm.Host.Region] = record.Rotations[vm.Host.Region].Past(vm.VMID)
		}
		if err := settings.Store.Begin(ctx, revision, files, record); err != nil {
			w.t.Fatal(err)
		}
		if err := settings.Store.End(ctx, audit.Outcome{ID: record.ID, Time: now}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.each(len(w.hosts), func(i int) error { return w.writeHost(model, i, change.AfterFiles) })
}

// requests places the given number of VMs on each of the hosts, and returns the requests
// for them.
func (w *world) requests(snapshot *topology.Snapshot, existing []fleet.VM, vms int, hosts []topology.HostID) []scaler.Request {
	w.t.Helper()
	p := planner.New(snapshot, existing)
	var requests []scaler.Request
	for _, host := range hosts {
		spec := fleet.Spec{
			Pool: pool, NodeClass: pool, InstanceType: instanceType, CapacityType: "on-demand",
			VCPUs: 2, MemoryMiB: 8192, Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent,
			Hosts: []topology.HostID{host}, Template: testenv.Template, Clone: fleet.CloneLinked, CPUType: "host",
			Demand: fleet.Demand{Pods: 4, CPUMilli: 1200, MemoryMiB: 2048},
		}
		placed, unplaced := p.Place(slices.Repeat([]fleet.Spec{spec}, vms))
		if len(unplaced) > 0 {
			w.t.Fatalf("placing: %v", unplaced)
		}
		for _, one := range placed {
			requests = append(requests, scaler.Request{Spec: spec, Placement: one.Placement})
		}
	}
	return requests
}

// stateSecret returns the Secret of a host's state, without the state, as the engine's
// backend writes it.
func stateSecret(host topology.HostID) *corev1.Secret {
	suffix := generator.StateName(clusterID, host)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "tfstate-default-" + suffix,
		Labels: map[string]string{
			"app.kubernetes.io/managed-by": "terraform", "tfstate": "true", "tfstateSecretSuffix": suffix, "tfstateWorkspace": "default",
		},
		Annotations: map[string]string{"encoding": "gzip"},
	}}
}

// learn returns a model of a VM that was applied, from its state and its guest in Proxmox.
func (w *world) learn(vm *fleet.VM) *fleetsim.Model {
	w.t.Helper()
	secret := stateSecret(vm.Host)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		w.t.Fatal(err)
	}
	unzip, err := gzip.NewReader(bytes.NewReader(secret.Data["tfstate"]))
	if err != nil {
		w.t.Fatal(err)
	}
	state, err := io.ReadAll(unzip)
	if err != nil {
		w.t.Fatal(err)
	}
	guest, ok := w.sim(vm.Host).Guest(int(vm.VMID))
	if !ok {
		w.t.Fatalf("vm %s was not created", vm.Name)
	}
	model, err := fleetsim.Learn(vm, state, guest)
	if err != nil {
		w.t.Fatal(err)
	}
	return model
}

// sim returns the Proxmox of a host.
func (w *world) sim(host topology.HostID) *pvesim.Server {
	for i, sim := range w.sims {
		if host.Region == region(i) {
			return sim
		}
	}
	w.t.Fatalf("host %s is in no region", host)
	return nil
}

// writeHost writes a host's state and guests.
func (w *world) writeHost(model *fleetsim.Model, i int, files generator.Files) error {
	host := w.hosts[i]
	vms := slices.DeleteFunc(slices.Clone(w.vms), func(vm fleet.VM) bool { return vm.Host != host })
	state, guests, err := model.Host(i, files, vms)
	if err != nil {
		return err
	}
	for _, guest := range guests {
		if i == 0 && guest.VMID == int(w.vms[0].VMID) {
			continue // created by the engine
		}
		if err := w.sim(host).PutGuest(guest); err != nil {
			return err
		}
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(state); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	secret := stateSecret(host)
	if err := client.IgnoreNotFound(w.api.Delete(w.t.Context(), secret.DeepCopy())); err != nil {
		return err
	}
	secret.Data = map[string][]byte{"tfstate": packed.Bytes()}
	return w.api.Create(w.t.Context(), secret)
}

// each calls do for 0 to n-1, up to 16 at a time.
func (w *world) each(n int, do func(i int) error) {
	w.t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	if err := group.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

// desired is a fleet of created VMs, whose other methods are not called.
type desired struct {
	cloudprovider.Fleet

	states []scaler.VMState
}

func (d desired) State(_ context.Context, key fleet.Key) (state scaler.VMState, exists bool, err error) {
	i := slices.IndexFunc(d.states, func(state scaler.VMState) bool { return state.VM.Key == key })
	if i < 0 {
		return state, false, nil
	}
	return d.states[i], true, nil
}

// firstClaims is a client without NodeClaims: none of them belongs to the VM of another one.
type firstClaims struct{ client.Client }

func (c firstClaims) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, claims := list.(*karpv1.NodeClaimList); claims {
		return nil
	}
	return c.Client.List(ctx, list, options...) //nolint:wrapcheck // the client's own error
}

// createNodes creates a NodeClaim, a Node and its pods for each VM.
func (w *world) createNodes() {
	w.t.Helper()
	ctx := w.t.Context()
	np := &karpv1.NodePool{}
	if err := w.api.Get(ctx, client.ObjectKey{Name: pool}, np); err != nil {
		w.t.Fatal(err)
	}
	snapshot := &topology.Snapshot{}
	for _, host := range w.hosts {
		snapshot.Hosts = append(snapshot.Hosts, topology.Host{Region: host.Region, Name: host.Host, Machine: topology.Machine{Arch: "amd64"}})
	}
	w.each(len(w.vms), func(i int) error {
		state := scaler.VMState{VM: w.vms[i], Phase: scaler.PhaseMade, Filed: true, Made: true}
		provider := cloudprovider.New(cloudprovider.Config{
			ClusterID: clusterID, Client: firstClaims{w.api}, Fleet: desired{states: []scaler.VMState{state}},
			Recent:  func(context.Context) (*topology.Snapshot, error) { return snapshot, nil },
			Placing: &sync.Mutex{}, Clock: clock.RealClock{},
		})
		return w.createNode(ctx, provider, &state, np)
	})
	w.each(w.size.pods, func(i int) error { return w.createPod(ctx, fmt.Sprintf("app-%d", i), w.vms[i%len(w.vms)].Name) })
}

// createNode creates the NodeClaim and the Node of a VM as they are after the controllers of
// Karpenter and numaform and the kubelet processed them. Otherwise the controller would
// write to each of them after its start. The few other objects may lack conditions.
func (w *world) createNode(ctx context.Context, provider *cloudprovider.CloudProvider, state *scaler.VMState, np *karpv1.NodePool) error {
	vm := state.VM
	claim := scheduling.NewNodeClaim(vm, np)
	created, err := provider.Create(ctx, claim)
	if err != nil {
		return err
	}
	maps.Copy(claim.Labels, created.Labels)
	maps.Copy(claim.Annotations, created.Annotations)
	maps.Copy(claim.Annotations, provenance.Annotations(state))
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	if err := w.api.Create(ctx, claim); err != nil {
		return err
	}
	claim.Status = created.Status
	claim.Status.NodeName = vm.Name
	conditions := claim.StatusConditions()
	for _, condition := range []string{
		karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized, karpv1.ConditionTypeConsistentStateFound,
	} {
		conditions.SetTrue(condition)
	}
	claim.Status.LastPodEventTime = metav1.Now()
	if err := w.api.Status().Update(ctx, claim); err != nil {
		return err
	}

	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: vm.Name, Labels: maps.Clone(claim.Labels), Annotations: map[string]string{}, Finalizers: []string{karpv1.TerminationFinalizer},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID, BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID},
	}
	maps.Copy(node.Annotations, claim.Annotations)
	maps.Copy(node.Labels, map[string]string{
		corev1.LabelHostname: vm.Name, corev1.LabelOSStable: "linux", karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	})
	if err := w.api.Create(ctx, node); err != nil {
		return err
	}
	// The API server adds this taint, and the controllers of the control plane remove it.
	node.Spec.Taints = nil
	if err := w.api.Update(ctx, node); err != nil {
		return err
	}
	node.Status.Capacity, node.Status.Allocatable = claim.Status.Capacity, claim.Status.Allocatable
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	return w.api.Status().Update(ctx, node)
}

// createPod creates a pod that runs on a node.
func (w *world) createPod(ctx context.Context, name, node string) error {
	pod := newPod(name, "300m", "512Mi")
	pod.Spec.NodeName = node
	if err := w.api.Create(ctx, pod); err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	bound := metav1.NewTime(time.Now().Add(-time.Hour))
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: bound}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
	}
	return w.api.Status().Update(ctx, pod)
}

func newPod(name, cpu, memory string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: "registry.invalid/c",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: quantity.MustParse(cpu), corev1.ResourceMemory: quantity.MustParse(memory),
				}},
			}},
		},
	}
}
