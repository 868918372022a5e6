package guestsim_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/pvesim"
)

// subject returns the common name in a certificate request.
func subject(t *testing.T, csr *certificatesv1.CertificateSigningRequest) string {
	t.Helper()
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		t.Fatalf("request %s is not PEM", csr.Name)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return request.Subject.CommonName
}

// TestGuestJoins checks a node from the start of its VM to its removal.
func TestGuestJoins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approve(corev1.ConditionTrue, "joins")
	w.start(2001, "joins", w.seed("joins", w.token("joinss")))
	node := w.ready("joins")

	if node.Spec.ProviderID != "proxmox://homelab/joins" || node.Labels["karpenter.sh/nodepool"] != "workers" || node.Labels["topology.kubernetes.io/zone"] != "pve-1" {
		t.Errorf("providerID %s, labels %v", node.Spec.ProviderID, node.Labels)
	}
	taints := map[string]bool{}
	for _, taint := range node.Spec.Taints {
		taints[taint.ToString()] = true
	}
	if !taints["karpenter.sh/unregistered:NoExecute"] || !taints["example.com/starting=1:NoSchedule"] {
		t.Errorf("taints %v", taints)
	}
	got := map[corev1.ResourceName]string{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", "pods"} {
		whole, left := node.Status.Capacity[name], node.Status.Allocatable[name]
		got[name] = whole.String() + " " + left.String()
	}
	want := map[corev1.ResourceName]string{
		"cpu": "4 3900m", "memory": "7964Mi 7664880845", "ephemeral-storage": "20431772Ki 18829921076", "pods": "110 110",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("capacity and allocatable (-want +got):\n%s", diff)
	}
	if address := node.Status.Addresses[0]; address.Type != corev1.NodeInternalIP || address.Address != "10.0.7.209" {
		t.Errorf("addresses %v", node.Status.Addresses)
	}
	w.runsPods("joins")

	w.proxmox.RemoveGuest(2001)
	before := w.renewed("joins")
	w.within("ending the heartbeat", func(context.Context) bool { return w.renewed("joins").Equal(before) })
	if _, err := w.kube.CoreV1().Nodes().Get(t.Context(), "joins", metav1.GetOptions{}); err != nil {
		t.Errorf("the Node was deleted with its VM: %v", err)
	}
	w.noProblems()
}

// TestRestartOfTheAPIServer checks that nodes survive the restart.
func TestRestartOfTheAPIServer(t *testing.T) {
	w := newWorld(t)
	w.approve(corev1.ConditionTrue, "lasts")
	w.start(2003, "lasts", w.seed("lasts", w.token("lastss")))
	w.ready("lasts")
	if err := w.cluster.Restart(); err != nil {
		t.Fatal(err)
	}
	before := w.renewed("lasts")
	w.within("resuming the heartbeat", func(context.Context) bool { return w.renewed("lasts").After(before) })
	w.runsPods("lasts")
	w.noProblems()
}

// runsPods removes the taints as Karpenter does, and checks that pods start and terminate.
func (w *world) runsPods(node string) {
	w.t.Helper()
	patch := []byte(`{"spec": {"taints": null}}`)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.t.Fatal(err)
	}
	pods := w.kube.CoreV1().Pods("default")
	pod, err := pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
		Spec: corev1.PodSpec{
			NodeSelector:   map[string]string{corev1.LabelHostname: node},
			InitContainers: []corev1.Container{{Name: "first", Image: "busybox"}},
			Containers:     []corev1.Container{{Name: "main", Image: "pause"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.within("running a pod", func(ctx context.Context) bool {
		pod, err = pods.Get(ctx, "on-"+node, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
	if pod.Status.PodIP == "" || pod.Status.HostIP == "" || !pod.Status.ContainerStatuses[0].Ready || pod.Status.InitContainerStatuses[0].State.Terminated == nil {
		w.t.Errorf("status %+v", pod.Status)
	}
	if err := pods.Delete(w.t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.within("removing a pod", func(ctx context.Context) bool {
		_, err := pods.Get(ctx, "on-"+node, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// renewed waits long enough for two heartbeats, then returns the renewal time of the
// node's lease.
func (w *world) renewed(node string) time.Time {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 1200*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	lease, err := w.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(w.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return lease.Spec.RenewTime.Time
}

// TestKubeletStops checks that a guest remains the same node and requests no second
// certificate after its kubelet, and then its VM, stop and start.
func TestKubeletStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approve(corev1.ConditionTrue, "stops")
	w.start(2002, "stops", w.seed("stops", w.token("stopss")))
	uid := w.ready("stops").UID
	if err := w.guests.StopKubelet("stops"); err != nil {
		t.Fatal(err)
	}
	before := w.renewed("stops")
	if after := w.renewed("stops"); !after.Equal(before) {
		t.Errorf("the lease was renewed at %s", after)
	}
	if err := w.guests.StartKubelet("stops"); err != nil {
		t.Fatal(err)
	}
	w.within("resuming the heartbeat", func(context.Context) bool { return w.renewed("stops").After(before) })

	guest, _ := w.proxmox.Guest(2002)
	w.guests.Power(pvesim.PowerEvent{Kind: pvesim.PoweredOff, Guest: guest})
	if err := w.guests.StartKubelet("stops"); err == nil {
		t.Error("a kubelet starts in a VM that is off")
	}
	before = w.renewed("stops")
	w.guests.Power(pvesim.PowerEvent{Kind: pvesim.PoweredOn, Guest: guest})
	w.within("the heartbeat after a restart", func(context.Context) bool { return w.renewed("stops").After(before) })
	if again := w.ready("stops").UID; again != uid {
		t.Errorf("the Node was re-created: UID %s, was %s", again, uid)
	}
	requests, err := w.kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for i := range requests.Items {
		if subject(t, &requests.Items[i]) == "system:node:stops" {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("requested %d certificates, want 1", asked)
	}
	w.noProblems()
}

// TestStolenToken checks that a certificate for any node can be requested with the token of
// another node's seed.
func TestStolenToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	documents := guestsim.Documents{}
	seed := w.seed("victim", w.token("stolen"))
	documents.UserData, documents.MetaData = []byte(seed["user-data"]), []byte(seed["meta-data"])
	join, err := guestsim.NewJoin(documents)
	if err != nil {
		t.Fatal(err)
	}
	request, err := join.RequestCertificate(t.Context(), "somebody-else")
	if err != nil {
		t.Fatal(err)
	}
	defer request.Close()
	csr, err := w.kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), request.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if csr.Spec.Username != "system:bootstrap:stolen" || subject(t, csr) != "system:node:somebody-else" {
		t.Errorf("%s requests %s", csr.Spec.Username, subject(t, csr))
	}
}

// TestEndedAtOnce checks that guests end without an error even if they are ended right
// after their start.
func TestEndedAtOnce(t *testing.T) {
	t.Parallel()
	guests, err := guestsim.New(guestsim.Config{Cluster: plane.Cluster(t).Config, Heartbeat: time.Second, Retry: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := guests.Run(ctx); err != nil {
		t.Error(err)
	}
}

// TestRefusals checks that refusals by the cluster are recorded as problems.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.approve(corev1.ConditionFalse, "denied")
	w.start(2010, "denied", w.seed("denied", w.token("denied")))
	w.start(2011, "guesses", w.seed("guesses", "guesss.0123456789abcdef"))
	w.start(2012, "renamed", w.seed("another", w.token("rename")))
	w.problem("vm denied: certificate: waiting for certificate request")
	w.problem(": denied: Test: of a test")
	w.problem("vm guesses: certificate: requesting the certificate of node guesses: Unauthorized")
	w.problem(`vm renamed: seed: reading meta-data: local-hostname is "another": the VM's name is "renamed"`)
}

// TestFaults checks that guests without a seed, or with a fault, do not join, and that
// guests with baked-in join data do.
func TestFaults(t *testing.T) {
	t.Parallel()
	var baked guestsim.Documents
	w := newWorld(t, func(cfg *guestsim.Config) {
		cfg.Cluster = plane.Cluster(t).Config
		cfg.BakedIn = func(vm pvesim.GuestState) (guestsim.Documents, bool) { return baked, vm.Config["name"] == "baked" }
		cfg.CloudProviderID = func(vm pvesim.GuestState) string { return fmt.Sprintf("proxmox://homelab/%d", vm.VMID) }
	})
	seed := w.seed("baked", w.token("bakedd"))
	baked.MetaData = []byte(seed["meta-data"])
	baked.UserData = external(seed["user-data"])
	w.guests.SetFault("hangs", guestsim.Fault{NeverJoins: true})
	w.guests.SetFault("old", guestsim.Fault{IgnoresSeed: true})
	w.guests.SetFault("slow", guestsim.Fault{BootDelay: time.Hour})
	w.approve(corev1.ConditionTrue, "baked", "hangs", "old", "slow")
	for i, name := range []string{"hangs", "old", "slow"} {
		w.start(2030+i, name, w.seed(name, w.token(fmt.Sprintf("fault%d", i))))
	}
	w.start(2040, "empty", nil)
	w.start(2041, "baked", nil)
	node := w.ready("baked")
	if node.Spec.ProviderID != "proxmox://homelab/2041" || len(node.Status.Addresses) != 1 {
		t.Errorf("providerID %s, addresses %v", node.Spec.ProviderID, node.Status.Addresses)
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == "node.cloudprovider.kubernetes.io/uninitialized" {
			t.Errorf("taints %v", node.Spec.Taints)
		}
	}
	for _, name := range []string{"hangs", "old", "slow", "empty"} {
		if _, err := w.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s joined: %v", name, err)
		}
	}
	w.noProblems()
}

// TestManyGuests checks that a hundred guests join and end without leaking goroutines. It
// does not run in parallel because it would also count the goroutines of other tests.
func TestManyGuests(t *testing.T) {
	plane.Cluster(t)
	before := goleak.IgnoreCurrent()
	t.Run("guests", func(t *testing.T) {
		w := newWorld(t)
		names := make([]string, 100)
		for i := range names {
			names[i] = fmt.Sprintf("many-%03d", i)
		}
		w.approve(corev1.ConditionTrue, names...)
		began := time.Now()
		for i, name := range names {
			w.start(3000+i, name, w.seed(name, w.token(fmt.Sprintf("many%02d", i))))
		}
		for _, name := range names {
			w.ready(name)
		}
		t.Logf("%d guests joined after %s", len(names), time.Since(began))
		w.noProblems()
	})
	// The tests' own clients keep their connections open.
	if err := goleak.Find(before, goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"), goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop")); err != nil {
		t.Error(err)
	}
}
