package cli_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

func controlPlane(t *testing.T) *testenv.Cluster {
	t.Helper()
	return plane.Cluster(t)
}

func kubeClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	group := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypes(group, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, group)
	c, err := client.New(controlPlane(t).Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// numaform runs the command line against a kubeconfig.
func numaform(ctx context.Context, t *testing.T, kubeconfig string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, talk bytes.Buffer
	code = cli.Run(ctx, cli.Process{
		Version: "test", Args: append(args, "--kubeconfig", kubeconfig), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk,
	})
	return code, out.String(), talk.String()
}

// says runs the command line and checks its exit code and output.
func says(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	got, stdout, stderr := numaform(t.Context(), t, controlPlane(t).Kubeconfig, args...)
	if text := stdout + stderr; got != code || !strings.Contains(text, want) {
		t.Errorf("numaform %s: exit code %d, want %d; it says\n%s\nwant %q", strings.Join(args, " "), got, code, text, want)
	}
	return stdout
}

func namespace(t *testing.T, name string) {
	t.Helper()
	err := kubeClient(t).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// state reads the state of the switch in a namespace.
func state(t *testing.T, namespace string) control.State {
	t.Helper()
	c, err := kubernetes.NewForConfig(controlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	state, err := control.New(c, namespace).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestPauseAndResume(t *testing.T) {
	namespace(t, "numaform")
	namespace(t, "elsewhere")
	says(t, 0, "numaform is paused", "pause")
	says(t, 0, "numaform is paused", "pause", "-n", "elsewhere")
	if s := state(t, "numaform"); !s.Paused || s.By != "admin" {
		t.Errorf("state is %+v", s)
	}
	says(t, 0, "numaform is resumed", "resume")
	if s := state(t, "numaform"); s.Paused {
		t.Errorf("state is %+v", s)
	}
	if s := state(t, "elsewhere"); !s.Paused {
		t.Errorf("state elsewhere is %+v", s)
	}
	says(t, 2, `numaform: pause: unexpected argument "everything"`, "pause", "everything")
	says(t, 1, `namespaces "nowhere" not found`, "pause", "-n", "nowhere")
}

// TestStatusShowsRequests checks that status shows who paused numaform and which hosts are being
// evacuated, and that it reports why this is unknown instead of failing.
func TestStatusShowsRequests(t *testing.T) {
	namespace(t, "shown")
	says(t, 0, "numaform is paused", "pause", "-n", "shown")
	k, err := kubernetes.NewForConfig(controlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := control.New(k, "shown").Evacuate(t.Context(), topology.HostID{Region: "lab", Host: "pve-9"}, "admin"); err != nil {
		t.Fatal(err)
	}
	malformed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: control.ConfigMapName}, Data: map[string]string{"paused": "maybe"}}
	if err := kubeClient(t).Create(t.Context(), malformed); err != nil {
		t.Fatal(err)
	}
	const paused = "by an unknown user: the controller starts no changes"
	for _, test := range []struct {
		name, kubeconfig, namespace string
		want, without               []string
	}{
		{
			"paused", controlPlane(t).Kubeconfig, "shown",
			[]string{"; paused", "by admin: the controller starts no changes", "lab/pve-9: it gets no new nodes"},
			[]string{"Problems"},
		},
		{"not paused", controlPlane(t).Kubeconfig, "kube-system", nil, []string{"aused", "evacuated", "Problems"}},
		{"malformed", controlPlane(t).Kubeconfig, "default", []string{paused, `paused: "maybe" is invalid`}, nil},
		{"forbidden", kubeconfig(t, "mallory"), "shown", []string{"whether numaform is paused is unknown: ", "ask an administrator for the Role numaform-switch"}, []string{paused}},
	} {
		out, err := cli.StatusOfRequests(t.Context(), test.kubeconfig, test.namespace)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: status lacks %q:\n%s", test.name, want, out)
			}
		}
		for _, without := range test.without {
			if strings.Contains(out, without) {
				t.Errorf("%s: status contains %q:\n%s", test.name, without, out)
			}
		}
	}
}

// claim creates a NodeClaim on a host.
func claim(t *testing.T, name string, host topology.HostID) *karpv1.NodeClaim {
	t.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelTopologyRegion: string(host.Region), corev1.LabelTopologyZone: string(host.Host),
		}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: "shared"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		},
	}
	if err := kubeClient(t).Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	return claim
}

func TestEvacuate(t *testing.T) {
	namespace(t, "numaform")
	pve1 := topology.HostID{Region: "lab", Host: "pve-1"}
	c := kubeClient(t)
	says(t, 2, "its region is unknown", "evacuate", "pve-1")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{
		corev1.LabelTopologyRegion: "lab", corev1.LabelTopologyZone: "pve-1",
	}}}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	first := claim(t, "first", pve1)
	claim(t, "second", topology.HostID{Region: "lab", Host: "pve-2"})
	says(t, 0, "lab/pve-1 gets no new nodes. Its nodes (1)", "evacuate", "pve-1")
	if s := state(t, "numaform"); !slices.Contains(s.Evacuated, pve1) || s.EvacuatedBy != "admin" {
		t.Errorf("state is %+v", s)
	}
	says(t, 2, "are mutually exclusive", "evacuate", "lab/pve-1", "--end", "--wait")
	says(t, 2, "must be REGION/HOST", "evacuate", "lab/")
	says(t, 2, "must be positive", "evacuate", "lab/pve-1", "--wait", "--poll", "0s")

	// A waiting user sees the remaining nodes, and can interrupt.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	talk := &watched{until: "1 node left: first", then: cancel}
	code := cli.Run(ctx, cli.Process{
		Args:   []string{"evacuate", "lab/pve-1", "--wait", "--poll", "20ms", "--kubeconfig", controlPlane(t).Kubeconfig},
		Stdout: io.Discard, Stderr: talk,
	})
	if code != 1 || !strings.Contains(talk.String(), "the evacuation continues in the background") || strings.Contains(talk.String(), "changes nothing") {
		t.Errorf("exit code %d, it says %s", code, talk)
	}
	if err := c.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	says(t, 0, "lab/pve-1 has no numaform nodes and gets no new ones. After maintenance, run numaform evacuate lab/pve-1 --kubeconfig ", "evacuate", "lab/pve-1", "--wait", "--poll", "20ms")
	// Without the Node, no label shows the region of the host.
	if err := c.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	says(t, 0, "lab/pve-1 accepts new nodes again", "evacuate", "pve-1", "--end")
	if s := state(t, "numaform"); len(s.Evacuated) != 0 {
		t.Errorf("state is %+v", s)
	}
}

// watched is an output that calls then after each write, as soon as the output contains
// until.
type watched struct {
	bytes.Buffer

	until string
	then  func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.until) {
		w.then()
	}
	return n, err
}

// kubeconfig writes a kubeconfig of a user without permissions.
func kubeconfig(t *testing.T, user string) string {
	t.Helper()
	config := controlPlane(t).Config
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: config.BearerToken, Impersonate: user}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWithoutRights(t *testing.T) {
	user := kubeconfig(t, "mallory")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"plans"}, "ask an administrator for the ClusterRole numaform-approver"},
		{[]string{"approve", "some", "--hash", strings.Repeat("a", 64)}, "ask an administrator for the ClusterRole numaform-approver"},
		{[]string{"pause"}, "ask an administrator for the Role numaform-switch"},
		{[]string{"evacuate", "lab/pve-9"}, "ask an administrator for the Role numaform-switch"},
	} {
		code, _, stderr := numaform(t.Context(), t, user, tt.args...)
		if code != 1 || !strings.Contains(stderr, tt.want) {
			t.Errorf("numaform %q: exit code %d, it says %s", tt.args, code, stderr)
		}
	}
	code, _, stderr := numaform(t.Context(), t, filepath.Join(t.TempDir(), "missing"), "plans")
	if code != 1 || !strings.Contains(stderr, "correct --kubeconfig") {
		t.Errorf("exit code %d, it says %s", code, stderr)
	}
}
