package real_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/csr"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// joins is the number of nodes that join, one after another.
var joins = flag.Int("real.joins", 1, "number of nodes that join in TestJoin")

// joinLimit is the time limit from a pending pod to a running one. The emulator of a machine
// with two busy CPUs needs minutes to boot a guest.
const joinLimit = 10 * time.Minute

// smallType is the instance type of a guest that boots quickly.
const smallType = `[{"name": "r1.2VCPU-2GB", "capacity": {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "8Gi"}}]`

const smallPool = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: workers}
spec:
  template: {name: ` + testenv.Template + `}
  clone: linked
  metadata: {type: cdrom}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  template:
    metadata: {labels: {team: a}}
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}
      taints: [{key: team, value: a, effect: NoSchedule}]
      startupTaints: [{key: example.org/starting, effect: NoSchedule}]
      requirements: []
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 5s}
`

// TestJoin checks the whole way of a node, from a pending pod to a pod that runs in a guest,
// and back until nothing is left: the guest boots with QEMU, reads its seed, and joins with
// kubelet.
func TestJoin(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, []topology.Host{testenv.Host(t, "pve-1", "nuc-i7-1165g7-4c8t", 9001)}, smallType)
	w.manifest(smallPool)
	for i := range max(1, *joins) {
		w.comesAndGoes(fmt.Sprintf("web-%d", i+1))
	}
}

// joinCommand does in a guest without a seed what numaform's own user-data does.
const joinCommand = `set -e
mkdir -p /etc/kubernetes/pki /var/lib/kubelet
echo {{ bootstrapKubeconfig .Kubernetes | b64enc }} | base64 -d >/etc/kubernetes/bootstrap-kubelet.conf
echo {{ .Kubernetes.RootCA | b64enc }} | base64 -d >/etc/kubernetes/pki/ca.crt
echo {{ toYaml .Kubernetes.KubeletConfiguration | b64enc }} | base64 -d >/var/lib/kubelet/config.yaml
printf '\nresolvConf: /run/systemd/resolve/resolv.conf\n' >>/var/lib/kubelet/config.yaml
echo {{ kubeletFlags .Kubernetes.KubeletArgs | b64enc }} | base64 -d >/var/lib/kubelet/kubeadm-flags.env
modprobe -a overlay br_netfilter
sysctl -w net.ipv4.ip_forward=1
systemctl enable kubelet
systemctl restart kubelet
`

// TestJoinByAgent checks the same as TestJoin, but the guest has no seed: its guest agent runs
// a command with which it joins.
func TestJoinByAgent(t *testing.T) {
	enginetest.Nightly(t)
	hosts := []topology.Host{testenv.Host(t, "pve-1", "nuc-i7-1165g7-4c8t", 9001)}
	w := newWorld(t, hosts, smallType, func(c *pvesim.Config) {
		c.Roles = append(c.Roles, pvesim.Role{Name: "NumaformAgent", Privileges: []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"}})
		user, _, _ := strings.Cut(pvesim.DefaultToken, "!")
		c.ACL = append(c.ACL, pvesim.ACL{Path: "/vms", Subject: user, Role: "NumaformAgent"})
	})
	err := w.api.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "join"}, StringData: map[string]string{"join-command": joinCommand},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.manifest(strings.Replace(smallPool, "{type: cdrom}", "{type: agent, templatesRef: {name: join}}", 1))
	w.comesAndGoes("web")
}

// comesAndGoes creates a pod, waits until it runs on a new node, and checks the node. Then it
// deletes the pod and waits until nothing is left.
func (w *world) comesAndGoes(pod string) {
	w.t.Helper()
	w.began = time.Now()
	w.pod(pod, "100m", "64Mi")
	vmid, node := w.launched(pod)
	claim := w.registered(vmid, node)
	w.certified(node)
	w.ready(node)
	w.removeStartupTaint(node)
	w.initialized(node)
	w.nodeIsAsPlanned(node, claim, vmid)
	w.runs(pod, vmid)
	if took := time.Since(w.began); took > joinLimit {
		w.t.Errorf("pod %s ran after %s, want at most %s", pod, took, joinLimit)
	}
	w.deletePod(pod)
	w.nothingIsLeft(vmid)
}

// pod creates a pod that tolerates the taint of the pool.
func (w *world) pod(name, cpu, memory string, change ...func(*corev1.Pod)) {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "pause", Image: pause, ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
				}},
			}},
		},
	}
	for _, change := range change {
		change(pod)
	}
	w.eventually(time.Minute, func(ctx context.Context) string { // the controllers create the ServiceAccount
		if err := w.api.Create(ctx, pod); err != nil {
			return err.Error()
		}
		return ""
	})
}

// launched waits until the VM for a pending pod runs, and returns its VMID and name.
func (w *world) launched(pod string) (vmid int, name string) {
	w.t.Helper()
	w.eventually(5*time.Minute, func(context.Context) string {
		for _, guest := range w.proxmox.Guests() {
			marker, ok := fleet.ParseMarker(guest.Config["description"])
			if ok && marker.ClusterID == clusterID && guest.Running {
				vmid, name = guest.VMID, guest.Config["name"]
				return ""
			}
		}
		return "no VM runs for pod " + pod
	})
	w.stage("VM %d (%s) runs", vmid, name)
	return vmid, name
}

// registered waits until the node of a VM exists and its NodeClaim refers to it.
func (w *world) registered(vmid int, name string) *karpv1.NodeClaim {
	w.t.Helper()
	var found *karpv1.NodeClaim
	boots := w.milestones(vmid)
	w.eventually(joinLimit, func(ctx context.Context) string {
		boots()
		var claims karpv1.NodeClaimList
		if err := w.api.List(ctx, &claims); err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(claims.Items, func(c karpv1.NodeClaim) bool { return c.Status.NodeName == name })
		if i < 0 {
			return "no NodeClaim has registered node " + name
		}
		found = &claims.Items[i]
		return ""
	})
	w.stage("node %s is registered", name)
	return found
}

// milestone is a text on the console of a guest that boots, and its meaning.
type milestone struct{ text, says string }

// bootMilestones returns the milestones of a boot in order.
func bootMilestones() []milestone {
	return []milestone{
		{"Linux version", "the guest's kernel starts"},
		{"running 'init-local'", "cloud-init reads the seed"},
		{"running 'init'", "cloud-init configures the guest"},
		{"running 'modules:final'", "cloud-init runs the commands of the seed"},
	}
}

// milestones returns a function that reads a guest's console and logs how far the guest has
// booted.
func (w *world) milestones(vmid int) func() {
	ahead := bootMilestones()
	return func() {
		console, err := w.console(vmid)
		for err == nil && len(ahead) > 0 && strings.Contains(console, ahead[0].text) {
			w.stage("%s", ahead[0].says)
			ahead = ahead[1:]
		}
	}
}

// console returns the text of the serial console of a running VM.
func (w *world) console(vmid int) (string, error) {
	text, err := os.ReadFile(filepath.Join(w.guests, strconv.Itoa(vmid), "serial.log"))
	return string(text), err
}

// certified checks that the kubelet of a node logged in with the token in its seed to request
// its certificate, and that numaform approved the request.
func (w *world) certified(name string) {
	w.t.Helper()
	requests, err := w.requests(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(requests) == 0 {
		w.t.Errorf("node %s has joined without a certificate request", name)
	}
	for i := range requests {
		request := &requests[i]
		if request.Spec.Username != "system:serviceaccount:numaform:numaform-bootstrap" {
			w.t.Errorf("user %s requested the certificate of %s", request.Spec.Username, name)
		}
		for _, condition := range request.Status.Conditions {
			if condition.Type != certificatesv1.CertificateApproved || condition.Reason != csr.ReasonApproved || len(request.Status.Certificate) == 0 {
				w.t.Errorf("certificate request of %s: %s, %s: %s", name, condition.Type, condition.Reason, condition.Message)
			}
		}
	}
}

// requests returns the requests for the client certificate of a node.
func (w *world) requests(ctx context.Context, node string) (found []certificatesv1.CertificateSigningRequest, err error) {
	var requests certificatesv1.CertificateSigningRequestList
	if err := w.api.List(ctx, &requests); err != nil {
		return nil, err
	}
	for i := range requests.Items {
		request := &requests.Items[i]
		block, _ := pem.Decode(request.Spec.Request)
		if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || block == nil {
			continue
		}
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return nil, err
		}
		if parsed.Subject.CommonName == "system:node:"+node {
			found = append(found, *request)
		}
	}
	return found, nil
}

// ready waits until kubelet reports a node as ready.
func (w *world) ready(name string) {
	w.t.Helper()
	w.becomes(name, corev1.ConditionTrue, joinLimit)
	w.stage("node %s is ready", name)
}

// becomes waits until a node's condition Ready has a status.
func (w *world) becomes(name string, wanted corev1.ConditionStatus, limit time.Duration) {
	w.t.Helper()
	w.eventually(limit, func(ctx context.Context) string {
		var node corev1.Node
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err.Error()
		}
		if status := nodeutils.GetCondition(&node, corev1.NodeReady).Status; status != wanted {
			return fmt.Sprintf("condition Ready of node %s is %q, want %s", name, status, wanted)
		}
		return ""
	})
}

// removeStartupTaint removes the startup taint of the pool, which must be on the node.
func (w *world) removeStartupTaint(name string) {
	w.t.Helper()
	w.eventually(time.Minute, func(ctx context.Context) string {
		var node corev1.Node
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err.Error()
		}
		before := len(node.Spec.Taints)
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "example.org/starting" })
		if len(node.Spec.Taints) == before {
			return "node " + name + " does not have the startup taint of its pool"
		}
		if err := w.api.Update(ctx, &node); err != nil {
			return err.Error()
		}
		return ""
	})
}

// initialized waits until Karpenter has initialized a node.
func (w *world) initialized(name string) {
	w.t.Helper()
	w.eventually(2*time.Minute, func(ctx context.Context) string {
		var node corev1.Node
		if err := w.api.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err.Error()
		}
		if node.Labels[karpv1.NodeInitializedLabelKey] != "true" {
			return fmt.Sprintf("node %s is not initialized; its taints are %v", name, node.Spec.Taints)
		}
		return ""
	})
	w.stage("node %s is initialized", name)
}

// nodeIsAsPlanned checks what kubelet reports about its node.
func (w *world) nodeIsAsPlanned(name string, claim *karpv1.NodeClaim, vmid int) {
	w.t.Helper()
	var node corev1.Node
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		w.t.Fatal(err)
	}
	guest, _ := w.proxmox.Guest(vmid)
	if want := fleet.ProviderID(testenv.Region, fleet.VMID(vmid)); node.Spec.ProviderID != want {
		w.t.Errorf("provider ID %q, want %q", node.Spec.ProviderID, want)
	}
	for key, want := range map[string]string{
		corev1.LabelTopologyRegion: string(testenv.Region), corev1.LabelTopologyZone: guest.Host, corev1.LabelHostname: name,
		karpv1.NodePoolLabelKey: "workers", corev1.LabelInstanceTypeStable: claim.Labels[corev1.LabelInstanceTypeStable],
		karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true", "team": "a",
	} {
		if got := node.Labels[key]; got != want || got == "" {
			w.t.Errorf("label %s=%q, want %q", key, got, want)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "team" || node.Spec.Taints[0].Value != "a" {
		w.t.Errorf("taints %v, want only the pool's", node.Spec.Taints)
	}
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		promised, got := claim.Status.Allocatable[resource], node.Status.Allocatable[resource]
		more := got.AsApproximateFloat64()/promised.AsApproximateFloat64() - 1
		w.t.Logf("%s %s allocatable, predicted %s: %+.2f %%", got.String(), resource, promised.String(), 100*more)
		if more < 0 || more > 0.06 || math.IsNaN(more) {
			w.t.Errorf("%s %s allocatable, predicted %s: want at least that, and at most 6 %% more", got.String(), resource, promised.String())
		}
	}
	info := node.Status.NodeInfo
	w.t.Logf("%s, kernel %s, %s, kubelet %s", info.OSImage, info.KernelVersion, info.ContainerRuntimeVersion, info.KubeletVersion)
	if !strings.HasPrefix(info.ContainerRuntimeVersion, "containerd://") {
		w.t.Errorf("container runtime %s", info.ContainerRuntimeVersion)
	}
	if !strings.Contains(guest.Config["smbios1"], "uuid="+strings.ToLower(info.SystemUUID)) {
		w.t.Errorf("kubelet runs on machine %s, want the VM's: smbios1 is %s", info.SystemUUID, guest.Config["smbios1"])
	}
}

// runs waits until a pod runs and its container is ready, and checks that containerd runs
// the container in the guest.
func (w *world) runs(name string, vmid int) {
	w.t.Helper()
	var pod corev1.Pod
	w.eventually(joinLimit, func(ctx context.Context) string {
		if err := w.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &pod); err != nil {
			return err.Error()
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.Ready && status.State.Running != nil && strings.HasPrefix(status.ContainerID, "containerd://") {
				return ""
			}
		}
		return fmt.Sprintf("pod %s does not run: %s %v", name, pod.Status.Phase, pod.Status.ContainerStatuses)
	})
	w.stage("pod %s runs in %s at %s", name, pod.Spec.NodeName, pod.Status.PodIP)
	tasks := w.inGuest(vmid, "ctr --namespace k8s.io tasks list")
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if !regexp.MustCompile(id + ` +[0-9]+ +RUNNING`).MatchString(tasks) {
		w.t.Errorf("container %s does not run in the guest: its containers are\n%s", id, tasks)
	}
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}); err != nil {
		w.t.Fatal(err)
	}
}

// nothingIsLeft waits until the VM, its node, file, token and seed are deleted, and checks
// that the guest has shut down in order.
func (w *world) nothingIsLeft(vmid int) {
	w.t.Helper()
	w.eventually(joinLimit, func(ctx context.Context) string {
		left, err := w.left(ctx)
		if err != nil {
			return err.Error()
		}
		if len(left) > 0 {
			return "left: " + strings.Join(left, ", ")
		}
		return ""
	})
	w.stage("nothing is left of VM %d", vmid)
	w.mu.Lock()
	defer w.mu.Unlock()
	if console := w.consoles[vmid]; !strings.Contains(console, "reboot: Power down") {
		w.t.Errorf("the guest of VM %d did not shut down in order: its console ends with %q", vmid, console[max(0, len(console)-1000):])
	}
}

// left returns what is left of the fleet in Kubernetes, in Proxmox and in the fleet's files.
func (w *world) left(ctx context.Context) (left []string, err error) {
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	var secrets corev1.SecretList
	var files corev1.ConfigMapList
	for _, list := range []client.ObjectList{&nodes, &claims} {
		if err := w.api.List(ctx, list); err != nil {
			return nil, err
		}
	}
	for _, list := range []client.ObjectList{&secrets, &files} {
		if err := w.api.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
	}
	for i := range nodes.Items {
		if name := nodes.Items[i].Name; name != w.control {
			left = append(left, "node "+name)
		}
	}
	for i := range claims.Items {
		left = append(left, "nodeclaim "+claims.Items[i].Name)
	}
	for i := range secrets.Items {
		if _, record := secrets.Items[i].Labels[jointoken.Label]; record {
			left = append(left, "record of join token "+secrets.Items[i].Name)
		}
	}
	for i := range files.Items {
		for name := range files.Items[i].Data {
			if strings.Contains(name, "node-") && strings.HasSuffix(name, ".tf") {
				left = append(left, "file "+name)
			}
		}
	}
	snapshot, err := w.reader.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	for i := range snapshot.Hosts {
		for _, guest := range snapshot.Hosts[i].Guests {
			if guest.ClusterID == clusterID {
				left = append(left, "VM "+guest.Name)
			}
		}
		seeds, err := w.reader.Seeds(ctx, snapshot.Hosts[i].Name)
		if err != nil {
			return nil, err
		}
		for _, seed := range seeds {
			left = append(left, "seed "+seed.Volume)
		}
	}
	return left, nil
}
