package real_test

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

var runInGuest = flag.Bool("real.inguest", false, "run TestInGuest, which boots four guests")

const (
	// controlVMID is the VM of the node that numaform did not create.
	controlVMID = 100
	controlName = "control-1"
	// fleetLimit is the time limit for three guests that boot at once. Karpenter deletes a
	// NodeClaim whose node does not register within 15 minutes.
	fleetLimit = 20 * time.Minute
	// workers is the number of nodes that numaform creates.
	workers = 3
)

// addons are the objects that kubeadm and its add-ons create in a cluster, as far as this
// cluster needs them: the address of the API server, a token with which control-1 joins, and the
// permissions of kube-proxy, which has kubelet's credentials in the guests.
const addons = `
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-public, name: cluster-info}
data: {kubeconfig: %q}
---
apiVersion: v1
kind: Secret
metadata: {namespace: kube-system, name: bootstrap-token-contro}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: contro
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: "true"
  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:nodes}]
`

// controlKubelet is the kubelet configuration of control-1, as kubeadm writes it.
const controlKubelet = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: systemd
clusterDomain: cluster.local
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
registerWithTaints: [{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]
`

// web is a Deployment whose pods need a node each, and its Service.
const web = `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: default, name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      tolerations: [{key: team, operator: Exists}]
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: pause, image: "` + pause + `", imagePullPolicy: Never, resources: {requests: {cpu: 100m, memory: 64Mi}}}
`

// TestInGuest checks that numaform runs in a guest, as pods from its image that helm installs
// with the chart's default values and permissions, and scales the fleet from there from 0 nodes to
// 3 and back. The networks of the guests are real: CNI plugins and kube-proxy connect their pods.
// No program applies the chart's NetworkPolicy. There is one node for numaform's two replicas, so
// both run on it.
func TestInGuest(t *testing.T) {
	enginetest.Nightly(t)
	if !*runInGuest {
		t.Skip("four guests on a machine that runs other tests boot too slowly: run make test-real") //nolint:forbidigo // make test-real runs it
	}
	w := newSite(t, []topology.Host{testenv.Host(t, "pve-1", "nuc-i7-1165g7-4c8t", 9001)})
	w.control = controlName
	defer w.explainPods()
	w.manifest(fmt.Sprintf(addons, w.guestKubeconfig("")))
	w.bootControl()
	w.loadImage()
	w.helmInstall()
	w.joinControl()
	replicas := w.replicasReady()

	w.manifest(strings.NewReplacer(
		"  clone: linked\n", "  clone: linked\n  networks: [{bridge: vmbr0}, {bridge: vmbr1}]\n",
		"      startupTaints: [{key: example.org/starting, effect: NoSchedule}]\n", "",
	).Replace(smallPool))
	w.began = time.Now()
	w.manifest(web)
	pods := w.webRuns()
	vmids := map[string]int{}
	for _, guest := range w.proxmox.Guests() {
		vmids[guest.Config["name"]] = guest.VMID
	}
	w.podsReachEachOther(pods, vmids, replicas)

	w.began = time.Now()
	var deployment appsv1.Deployment
	w.eventually(time.Minute, func(ctx context.Context) string {
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web"}, &deployment); err != nil {
			return err.Error()
		}
		deployment.Spec.Replicas = ptr.To[int32](0)
		if err := w.api.Update(ctx, &deployment); err != nil {
			return err.Error()
		}
		return ""
	})
	for i := range pods {
		w.nothingIsLeft(vmids[pods[i].Spec.NodeName])
	}
	for _, pod := range w.replicasReady() {
		if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts > 0 {
			t.Errorf("pod %s restarted %d times", pod.Name, restarts)
		}
	}
}

// guestKubeconfig returns a kubeconfig for guests, with a token if it is not empty.
func (w *world) guestKubeconfig(token string) string {
	w.t.Helper()
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"kubernetes": {Server: fromGuest(w.plane.Config.Host), CertificateAuthorityData: w.plane.CA}},
	}
	if token != "" {
		config.AuthInfos = map[string]*clientcmdapi.AuthInfo{"token": {Token: token}}
		config.Contexts = map[string]*clientcmdapi.Context{"token": {Cluster: "kubernetes", AuthInfo: "token"}}
		config.CurrentContext = "token"
	}
	text, err := clientcmd.Write(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// bootControl creates the VM of control-1 by the API of Proxmox, as an administrator does, and
// waits until its guest agent responds.
func (w *world) bootControl() {
	w.t.Helper()
	path := fmt.Sprintf("/nodes/pve-1/qemu/%d", controlVMID)
	w.ask(time.Minute, http.MethodPost, "/nodes/pve-1/qemu/9001/clone", url.Values{"newid": {fmt.Sprint(controlVMID)}, "name": {controlName}, "full": {"0"}})
	w.ask(time.Minute, http.MethodPut, path+"/config", url.Values{
		"cores": {"2"}, "memory": {"4096"}, "net0": {"virtio,bridge=vmbr0"}, "net1": {"virtio,bridge=vmbr1"},
	})
	w.ask(time.Minute, http.MethodPost, path+"/status/start", nil)
	w.ask(joinLimit, http.MethodPost, path+"/agent/ping", nil)
	w.stage("the guest agent of %s responds", controlName)
}

// ask sends a request to the API of Proxmox until it succeeds.
func (w *world) ask(limit time.Duration, method, path string, form url.Values) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		if err := w.request(ctx, method, path, form, nil); err != nil {
			return err.Error()
		}
		return ""
	})
}

// loadImage loads numaform's image into the containerd of control-1.
func (w *world) loadImage() {
	w.t.Helper()
	dir := filepath.Join(enginetest.ModuleRoot(w.t), ".tools", "guest")
	if _, err := os.Stat(filepath.Join(dir, "numaform-image.tar")); err != nil {
		w.t.Fatalf("%v: build it with make test-image", err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	w.inGuestWithin(controlVMID, joinLimit, fmt.Sprintf(`set -e
systemctl start containerd
python3 -c 'import urllib.request; urllib.request.urlretrieve("%s/numaform-image.tar", "/var/tmp/image.tar")'
ctr --namespace k8s.io images import /var/tmp/image.tar
rm /var/tmp/image.tar`, fromGuest(server.URL)))
	w.stage("containerd of %s has numaform's image", controlName)
}

// helmInstall installs the chart. All values have their defaults, except those that every user
// must set.
func (w *world) helmInstall() {
	w.t.Helper()
	w.manifest(fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: proxmox}
stringData: {token: %[2]s, pve-root-ca.pem: %[3]q}
`, namespace, pvesim.DefaultTokenSecret, w.proxmox.CertPEM()))
	values, err := yaml.Marshal(map[string]any{
		"config": map[string]any{
			"clusterID": clusterID,
			"clusters": []any{map[string]any{
				"region": testenv.Region, "url": fromGuest(w.proxmox.URL()), "ca_file": "pve-root-ca.pem",
				"token_id": pvesim.DefaultToken, "token_secret_file": "token",
				"vmid_range": map[string]any{"lower": 2001, "upper": 2999},
			}},
			"instance_types_file": "types.json",
		},
		"files":  map[string]any{"types.json": strings.ReplaceAll(strings.ReplaceAll(smallType, "2VCPU", "1VCPU"), `"cpu": "2"`, `"cpu": "1"`)},
		"secret": map[string]any{"existing": "proxmox"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("values.yaml", string(values))
	_, err = testenv.Helm(
		enginetest.ModuleRoot(w.t), "install", "numaform", "charts/numaform", "--namespace", namespace,
		"--kubeconfig", w.plane.Kubeconfig, "--values", filepath.Join(w.dir, "values.yaml"),
	)
	if err != nil {
		w.t.Fatal(err)
	}
	w.stage("helm has installed numaform")
}

// joinControl starts kubelet in control-1 and waits until the node is ready.
func (w *world) joinControl() {
	w.t.Helper()
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	w.inGuest(controlVMID, fmt.Sprintf(`set -e
hostnamectl set-hostname %s
mkdir -p /etc/kubernetes/pki /var/lib/kubelet
echo %s | base64 -d >/etc/kubernetes/bootstrap-kubelet.conf
echo %s | base64 -d >/etc/kubernetes/pki/ca.crt
echo %s | base64 -d >/var/lib/kubelet/config.yaml
modprobe -a overlay br_netfilter
sysctl -w net.ipv4.ip_forward=1
systemctl enable --now kubelet`,
		controlName, encode(w.guestKubeconfig("contro.0123456789abcdef")), encode(string(w.plane.CA)), encode(controlKubelet)))
	w.ready(controlName)
}

// replicasReady waits until all pods of numaform are ready and one of them leads, and returns
// them.
func (w *world) replicasReady() []corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	leader := ""
	w.eventually(joinLimit, func(ctx context.Context) string {
		var deployment appsv1.Deployment
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "numaform"}, &deployment); err != nil {
			return err.Error()
		}
		if ready := deployment.Status.ReadyReplicas; ready != *deployment.Spec.Replicas {
			return fmt.Sprintf("%d of %d pods of numaform are ready: %v", ready, *deployment.Spec.Replicas, deployment.Status.Conditions)
		}
		if err := w.api.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)); err != nil {
			return err.Error()
		}
		var lease coordinationv1.Lease
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "numaform-controller"}, &lease); err != nil {
			return err.Error()
		}
		for i := range pods.Items {
			if leader = pods.Items[i].Name; strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), leader) {
				return ""
			}
		}
		return fmt.Sprintf("no pod of numaform leads: the lease is %+v", lease.Spec)
	})
	for i := range pods.Items {
		pod := &pods.Items[i]
		w.stage("pod %s is ready in %s at %s, leads: %t", pod.Name, pod.Spec.NodeName, pod.Status.PodIP, pod.Name == leader)
	}
	return pods.Items
}

// webRuns waits until all pods of the Deployment web run, on a node each.
func (w *world) webRuns() []corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	before := ""
	w.eventually(fleetLimit, func(ctx context.Context) string {
		if err := w.api.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": "web"}); err != nil {
			return err.Error()
		}
		var nodes corev1.NodeList
		if err := w.api.List(ctx, &nodes); err != nil {
			return err.Error()
		}
		vms, running := 0, 0
		for _, guest := range w.proxmox.Guests() {
			if guest.Running && guest.VMID != controlVMID {
				vms++
			}
		}
		on := map[string]bool{}
		for i := range pods.Items {
			status := pods.Items[i].Status.ContainerStatuses
			if len(status) > 0 && status[0].Ready {
				running++
				on[pods.Items[i].Spec.NodeName] = true
			}
		}
		now := fmt.Sprintf("%d VMs run, %d nodes have joined, %d pods run on %d nodes", vms, len(nodes.Items)-1, running, len(on))
		if now != before {
			w.stage("%s", now)
			before = now
		}
		if running != workers || len(on) != workers || len(pods.Items) != workers {
			return now
		}
		return ""
	})
	return pods.Items
}

// inPod runs a shell command in the network of a pod.
func (w *world) inPod(vmid int, pod *corev1.Pod, command string) string {
	w.t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	return w.inGuest(vmid, fmt.Sprintf(
		`pid=$(ctr --namespace k8s.io tasks list | awk '$1 == "%s" {print $2}'); nsenter --net --target "$pid" sh -c '%s'`, id, command,
	))
}

// fetch is a command that prints the content of a URL, a number of times in which it also
// retries, or only once.
const fetch = `python3 -c "
import ssl, sys, time, urllib.request
context = ssl.create_default_context(cafile=\"/etc/kubernetes/pki/ca.crt\")
context.verify_flags &= ~ssl.VERIFY_X509_STRICT
for left in reversed(range(%[2]d)):
    try:
        print(urllib.request.urlopen(\"%[1]s\", context=context, timeout=10).read().decode())
    except OSError as error:
        if not left:
            sys.exit(str(error))
        time.sleep(1)
    else:
        if %[3]s:
            break
"`

// podsReachEachOther checks that pods reach the API server by its Service, pods in other guests,
// and pods in all guests by a Service. vmids are the VMs by node.
func (w *world) podsReachEachOther(pods []corev1.Pod, vmids map[string]int, replicas []corev1.Pod) {
	w.t.Helper()
	var service, kubernetes corev1.Service
	for name, into := range map[string]*corev1.Service{"web": &service, "kubernetes": &kubernetes} {
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, into); err != nil {
			w.t.Fatal(err)
		}
	}
	get := func(pod *corev1.Pod, address string) string {
		return strings.TrimSpace(w.inPod(vmids[pod.Spec.NodeName], pod, fmt.Sprintf(fetch, address, 30, "True")))
	}
	for i := range pods {
		pod := &pods[i]
		// The pause container cannot serve, so another process serves in its network.
		w.inPod(vmids[pod.Spec.NodeName], pod, fmt.Sprintf(
			`mkdir -p /run/web; echo %s >/run/web/name; setsid python3 -m http.server --directory /run/web 8000 >/dev/null 2>&1 &`, pod.Name,
		))
	}
	for i := range pods {
		pod, next := &pods[i], &pods[(i+1)%len(pods)]
		if got := get(pod, "https://"+kubernetes.Spec.ClusterIP+"/version"); !strings.Contains(got, `"gitVersion"`) {
			w.t.Errorf("in pod %s, the Service kubernetes returns %q", pod.Name, got)
		}
		if got := get(pod, "http://"+next.Status.PodIP+":8000/name"); got != next.Name {
			w.t.Errorf("in pod %s, pod %s returns %q", pod.Name, next.Name, got)
		}
		w.stage("pod %s on %s reaches the API server by its Service, and pod %s on %s", pod.Name, pod.Spec.NodeName, next.Name, next.Spec.NodeName)
	}
	if got := get(&pods[0], "http://"+replicas[0].Status.PodIP+":8081/healthz"); got != "ok" {
		w.t.Errorf("in pod %s, numaform's pod returns %q", pods[0].Name, got)
	}
	answers := map[string]bool{}
	for _, name := range strings.Fields(w.inPod(vmids[pods[0].Spec.NodeName], &pods[0], fmt.Sprintf(fetch, "http://"+service.Spec.ClusterIP+"/name", 30, "False"))) {
		answers[name] = true
	}
	if len(answers) != len(pods) {
		w.t.Errorf("in pod %s, the Service web forwards to %v, want all pods", pods[0].Name, slices.Sorted(maps.Keys(answers)))
	}
	w.stage("pod %s reaches numaform's pod, and %d pods by their Service", pods[0].Name, len(answers))
}

// explainPods logs events and numaform's logs if the test has failed.
func (w *world) explainPods() {
	if !w.t.Failed() {
		return
	}
	var events corev1.EventList
	if err := w.api.List(w.t.Context(), &events); err != nil {
		w.t.Error(err)
	}
	for i := range events.Items {
		event := &events.Items[i]
		w.t.Logf("%s %s/%s: %s: %s", event.LastTimestamp.Format(time.TimeOnly), event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
	}
	if guest, _ := w.proxmox.Guest(controlVMID); guest.Running {
		w.t.Logf("numaform's logs:\n%s", w.inGuest(controlVMID, "ip address; ip route; iptables-save -t nat | head -100; tail -n 300 /var/log/pods/numaform_*/*/*.log; journalctl -u kubelet | tail -n 40"))
	}
}
