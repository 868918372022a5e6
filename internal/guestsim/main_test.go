package guestsim_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

const (
	tokenGroup = "system:bootstrappers:guestsim"
	// podReader may only watch pods: guests write everything with their own credentials.
	podReader = "pod-reader"
)

// plane is the control plane of the package's tests.
var plane = testenv.Shared{Full: true, Prepare: prepare}

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

// world is a cluster and a Proxmox whose guests join it.
type world struct {
	t       *testing.T
	cluster *testenv.Cluster
	kube    kubernetes.Interface
	proxmox *pvesim.Server
	client  *proxmox.Client
	guests  *guestsim.Guests
}

// newWorld starts a Proxmox with guests that run until the test ends.
func newWorld(t *testing.T, change ...func(*guestsim.Config)) *world {
	t.Helper()
	cluster := plane.Cluster(t)
	w := &world{t: t, cluster: cluster, kube: cluster.Client(t)}
	reader := rest.CopyConfig(w.cluster.Config)
	reader.Impersonate.UserName = podReader
	cfg := guestsim.Config{Cluster: reader, Heartbeat: 500 * time.Millisecond, Retry: 100 * time.Millisecond}
	for _, change := range change {
		change(&cfg)
	}
	var err error
	if w.guests, err = guestsim.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.proxmox = testenv.Proxmox(t, func(c *pvesim.Config) { c.OnPower = w.guests.Power })
	w.client = testenv.Client(t, w.proxmox)
	w.run()
	return w
}

func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.guests.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// prepare allows the tests' tokens to request certificates, without automatic approval, and
// the guests to watch pods.
func prepare(cluster *testenv.Cluster) error {
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		return err
	}
	_, err = client.RbacV1().ClusterRoles().Create(context.Background(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: podReader},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}}},
	}, metav1.CreateOptions{})
	for _, binding := range []struct{ role, kind, subject string }{
		{"system:node-bootstrapper", rbacv1.GroupKind, tokenGroup}, {podReader, rbacv1.UserKind, podReader},
	} {
		if err != nil {
			return err
		}
		_, err = client.RbacV1().ClusterRoleBindings().Create(context.Background(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "guestsim-" + binding.kind},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: binding.kind, Name: binding.subject}},
		}, metav1.CreateOptions{})
	}
	return err
}

// token creates a bootstrap token with a six-letter id, and returns it.
func (w *world) token(id string) string {
	w.t.Helper()
	const secret = "0123456789abcdef"
	if _, err := w.kube.CoreV1().Secrets("kube-system").Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": tokenGroup, "expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return id + "." + secret
}

// approve approves or denies the certificate requests of these nodes until the test ends.
func (w *world) approve(approved corev1.ConditionStatus, nodes ...string) {
	w.t.Helper()
	requests := w.kube.CertificatesV1().CertificateSigningRequests()
	judge := func(csr *certificatesv1.CertificateSigningRequest) {
		if len(csr.Status.Conditions) > 0 {
			return
		}
		kind := certificatesv1.CertificateApproved
		if approved != corev1.ConditionTrue {
			kind = certificatesv1.CertificateDenied
		}
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: corev1.ConditionTrue, Reason: "Test", Message: "of a test"}}
		_, _ = requests.UpdateApproval(w.t.Context(), csr.Name, csr, metav1.UpdateOptions{}) // retried in the next iteration
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var done sync.WaitGroup
	w.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			list, err := requests.List(ctx, metav1.ListOptions{})
			for i := 0; err == nil && i < len(list.Items); i++ {
				for _, node := range nodes {
					if subject(w.t, &list.Items[i]) == "system:node:"+node {
						judge(&list.Items[i])
					}
				}
			}
			return false, nil
		})
	})
}

// seed returns the files of the seed with which a VM joins.
func (w *world) seed(name, token string) map[string]string {
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: kubelet, user: {token: %s}}]
contexts: [{name: default, context: {cluster: default, user: kubelet}}]
current-context: default
`, w.cluster.Config.Host, base64.StdEncoding.EncodeToString(w.cluster.CA), token)
	return map[string]string{
		"meta-data": fmt.Sprintf("instance-id: %s-1\nlocal-hostname: %s\n", name, name),
		"user-data": fmt.Sprintf(userData, name, name, base64.StdEncoding.EncodeToString([]byte(kubeconfig)), indented(string(w.cluster.CA))),
	}
}

const userData = `#cloud-config
write_files:
- path: /var/lib/kubelet/kubeadm-flags.env
  content: |
    KUBELET_KUBEADM_ARGS="--hostname-override=%s --node-labels=karpenter.sh/nodepool=workers,topology.kubernetes.io/zone=pve-1"
- path: /var/lib/kubelet/config.yaml
  content: |
    apiVersion: kubelet.config.k8s.io/v1beta1
    kind: KubeletConfiguration
    authentication: {x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
    providerID: proxmox://homelab/%s
    registerWithTaints:
    - {key: karpenter.sh/unregistered, effect: NoExecute}
    - {key: example.com/starting, value: "1", effect: NoSchedule}
    kubeReserved: {cpu: 100m, memory: 256Mi}
    evictionHard: {memory.available: 5%%, nodefs.available: 10%%}
    rotateCertificates: true
- path: /etc/kubernetes/bootstrap-kubelet.conf
  permissions: '0600'
  encoding: b64
  content: %s
- path: /etc/kubernetes/pki/ca.crt
  content: |
%s
runcmd:
- [systemctl, enable, --now, kubelet]
`

// external changes the user data so that a cloud controller manager sets the providerID.
func external(userData string) []byte {
	userData = strings.Replace(userData, "--hostname-override", "--cloud-provider=external --hostname-override", 1)
	return []byte(strings.Replace(userData, "    providerID:", "    clusterDomain:", 1))
}

func indented(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// start creates a running VM of 2 × 2 cores, 8 GiB and a disk of 20 GiB, with the seed in
// its drive unless it is nil.
func (w *world) start(vmid int, name string, seed map[string]string) {
	w.t.Helper()
	config := map[string]string{
		"name": name, "cores": "2", "sockets": "2", "memory": "8192", "smbios1": "uuid=5f7c1a52-0d6e-4c36-9d2f-6f5b8a1e7c40",
		"boot": "order=ide2;scsi0", "scsi0": "local-lvm:vm-1-disk-0,iothread=1,size=20G", "agent": "1",
	}
	if seed != nil {
		volume := fmt.Sprintf("local:iso/numaform-test-%d-0123abcd.iso", vmid)
		files := map[string][]byte{}
		for name, content := range seed {
			files[name] = []byte(content)
		}
		if err := w.client.UploadSeed(w.t.Context(), "pve-1", volume, files); err != nil {
			w.t.Fatal(err)
		}
		config["ide2"] = volume + ",media=cdrom"
	}
	if err := w.proxmox.PutGuest(pvesim.Guest{VMID: vmid, Host: "pve-1", Config: config, Running: true}); err != nil {
		w.t.Fatal(err)
	}
}

// within fails the test if done does not return true within a minute.
func (w *world) within(what string, done func(context.Context) bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	})
	if err != nil {
		w.t.Fatalf("%s: %v; problems: %v", what, err, w.guests.Problems())
	}
}

// ready waits until a Node is ready.
func (w *world) ready(name string) *corev1.Node {
	w.t.Helper()
	var node *corev1.Node
	w.within("waiting for node "+name, func(ctx context.Context) bool {
		var err error
		for _, problem := range w.guests.Problems() {
			if problem.VM == name {
				w.t.Fatal(problem)
			}
		}
		node, err = w.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && isReady(node)
	})
	return node
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// problem waits until a guest reports a problem with that text.
func (w *world) problem(text string) {
	w.t.Helper()
	w.within("waiting for the problem "+text, func(context.Context) bool {
		var all bytes.Buffer
		for _, problem := range w.guests.Problems() {
			fmt.Fprintln(&all, problem)
		}
		return strings.Contains(all.String(), text)
	})
}

func (w *world) noProblems() {
	w.t.Helper()
	for _, problem := range w.guests.Problems() {
		w.t.Error(problem)
	}
}
