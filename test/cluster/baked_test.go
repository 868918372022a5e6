package cluster_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// bakedToken is the administrator's bootstrap token in the template.
const bakedToken = "baked0.0123456789abcdef"

// TestJoinWithoutSeed checks that nodes of a class with metadata of type none join with what
// their template contains and the identity in their SMBIOS data: one whose kubelet sets the
// providerID, and one that gets it from a cloud controller manager. numaform creates no
// token, seed or certificate for them.
func TestJoinWithoutSeed(t *testing.T) {
	var w *world
	w = newWorld(t, worldConfig{guests: func(c *guestsim.Config) {
		c.BakedIn = func(vm pvesim.GuestState) (guestsim.Documents, bool) {
			documents, err := w.baked(vm)
			if err != nil {
				t.Error(err)
			}
			return documents, err == nil
		}
		c.CloudProviderID = func(vm pvesim.GuestState) string { return fmt.Sprintf("proxmox://%s/%d", testenv.Region, vm.VMID) }
	}})
	id, secret, _ := strings.Cut(bakedToken, ".")
	if err := w.api.Create(context.Background(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.steadyClass("baked", fmt.Sprintf(`  template: {name: %s}
  metadata: {type: none}
  kubelet:
    kubeReserved: {cpu: 100m, memory: 256Mi}
    systemReserved: {cpu: 50m, memory: 64Mi}
    evictionHard: {memory.available: 100Mi, nodefs.available: 10%%}
    maxPods: 110`, testenv.Template))
	for _, pool := range []string{"kubelet", "external"} {
		w.steadyPool(pool, "baked", anyType, "")
		w.pods(pool, 1, "500m", "1Gi", in(pool))
	}
	w.running("kubelet", 1, 3*time.Minute)
	w.running("external", 1, 3*time.Minute)
	w.initialized(time.Minute)
	w.nodesAreAsPlanned()
	w.labeledAs("kubelet", "external")
	w.joinsWithoutNumaform(2)
}

// baked returns the join data of the template. As docs/join.md proposes, a unit in the
// template reads the VM's name and VMID from the serial number in the SMBIOS data.
func (w *world) baked(vm pvesim.GuestState) (guestsim.Documents, error) {
	var serial []byte
	var err error
	for field := range strings.SplitSeq(vm.Config["smbios1"], ",") {
		if text, ok := strings.CutPrefix(field, "serial="); ok {
			serial, err = base64.StdEncoding.DecodeString(text)
		}
	}
	name, vmid, ok := strings.Cut(string(serial), "/")
	if err != nil || !ok {
		return guestsim.Documents{}, errors.Join(err, fmt.Errorf("VM %d has SMBIOS data %q, without the serial NAME/VMID", vm.VMID, vm.Config["smbios1"]))
	}
	provider, flag := fmt.Sprintf("providerID: proxmox://%s/%s", testenv.Region, vmid), ""
	if strings.HasPrefix(name, "external-") {
		provider, flag = "", "--cloud-provider=external "
	}
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: kubelet, user: {token: %s}}]
contexts: [{name: default, context: {cluster: default, user: kubelet}}]
current-context: default
`, w.plane.Config.Host, base64.StdEncoding.EncodeToString(w.plane.CA), bakedToken)
	return guestsim.Documents{
		MetaData: fmt.Appendf(nil, "instance-id: %s\nlocal-hostname: %s\n", vmid, name),
		UserData: fmt.Appendf(nil, `#cloud-config
write_files:
- path: /var/lib/kubelet/kubeadm-flags.env
  content: |
    KUBELET_KUBEADM_ARGS="%s--hostname-override=%s"
- path: /var/lib/kubelet/config.yaml
  content: |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
    registerWithTaints: [{key: karpenter.sh/unregistered, effect: NoExecute}]
    kubeReserved: {cpu: 100m, memory: 256Mi}
    systemReserved: {cpu: 50m, memory: 64Mi}
    evictionHard: {memory.available: 100Mi, nodefs.available: 10%%}
    maxPods: 110
    %s
- path: /etc/kubernetes/bootstrap-kubelet.conf
  permissions: '0600'
  encoding: b64
  content: %s
- path: /etc/kubernetes/pki/ca.crt
  encoding: b64
  content: %s
runcmd:
- [systemctl, enable, --now, kubelet]
`, flag, name, provider, base64.StdEncoding.EncodeToString([]byte(kubeconfig)), base64.StdEncoding.EncodeToString(w.plane.CA)),
	}, nil
}

// labeledAs checks that there is one node of each NodePool, with the labels of its class and
// without the taint with which it registered.
func (w *world) labeledAs(pools ...string) {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.api.List(context.Background(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	found := map[string]int{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		found[node.Labels[karpv1.NodePoolLabelKey]]++
		for key, want := range map[string]string{"numaform.dev/nodeclass": "baked", "numaform.dev/placement": "Shared", "numaform.dev/template": testenv.Template} {
			if got := node.Labels[key]; got != want {
				w.t.Errorf("node %s has label %s=%q, want %q", node.Name, key, got, want)
			}
		}
		for _, taint := range node.Spec.Taints {
			w.t.Errorf("node %s has the taint %s", node.Name, taint.ToString())
		}
	}
	for _, pool := range pools {
		if found[pool] != 1 {
			w.t.Errorf("%d nodes have the label of NodePool %s, want 1", found[pool], pool)
		}
	}
}

// joinsWithoutNumaform checks that the given number of certificates was requested with the
// template's token and approved by the cluster, and that numaform created no token or seed.
func (w *world) joinsWithoutNumaform(want int) {
	w.t.Helper()
	var requests certificatesv1.CertificateSigningRequestList
	if err := w.api.List(context.Background(), &requests); err != nil {
		w.t.Fatal(err)
	}
	if len(requests.Items) != want {
		w.t.Errorf("%d certificate requests, want %d", len(requests.Items), want)
	}
	for i := range requests.Items {
		request := &requests.Items[i]
		if len(request.Status.Conditions) != 1 || request.Status.Conditions[0].Reason != "AutoApproved" || request.Spec.Username != "system:bootstrap:baked0" {
			w.t.Errorf("certificate request %s of %s has conditions %+v", request.Name, request.Spec.Username, request.Status.Conditions)
		}
	}
	for _, call := range w.proxmox.Calls() {
		if strings.HasSuffix(call.Path, "/upload") {
			w.t.Errorf("numaform uploaded a seed: %s %s", call.Method, call.Path)
		}
	}
	var records corev1.SecretList
	if err := w.api.List(context.Background(), &records, client.InNamespace(namespace), client.HasLabels{jointoken.Label}); err != nil {
		w.t.Fatal(err)
	}
	for i := range records.Items {
		w.t.Errorf("numaform created the join token %s", records.Items[i].Name)
	}
}
