package chart_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/numaform/numaform/internal/testenv"
)

func TestLint(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--values", "test/chart/testdata/full.yaml"}} {
		if out, err := testenv.Helm(root, append([]string{"lint", "--strict", "charts/numaform"}, args...)...); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

func TestEveryContainerIsHardened(t *testing.T) {
	t.Parallel()
	for _, release := range releases(t) {
		t.Run(release.name, func(t *testing.T) {
			t.Parallel()
			pod := deployment(t, release.values).Spec.Template.Spec
			if pod.SecurityContext == nil || !is(pod.SecurityContext.RunAsNonRoot) ||
				pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("pod's security context is %+v", pod.SecurityContext)
			}
			if pod.HostNetwork || pod.HostPID || pod.HostIPC || is(pod.EnableServiceLinks) {
				t.Error("the pod shares a namespace of the host, or gets variables of Services")
			}
			for _, container := range pod.Containers { // init containers are the user's
				checkContainer(t, container)
			}
			for _, volume := range pod.Volumes {
				if volume.HostPath != nil {
					t.Errorf("volume %s is a hostPath", volume.Name)
				}
			}
		})
	}
}

func checkContainer(t *testing.T, container corev1.Container) {
	t.Helper()
	got := container.SecurityContext
	if got == nil || !is(got.ReadOnlyRootFilesystem) || got.AllowPrivilegeEscalation == nil || *got.AllowPrivilegeEscalation || is(got.Privileged) {
		t.Errorf("container %s: security context is %+v", container.Name, got)
	}
	if got != nil && (len(got.Capabilities.Add) > 0 || !slices.Equal(got.Capabilities.Drop, []corev1.Capability{"ALL"})) {
		t.Errorf("container %s: capabilities are %+v", container.Name, got.Capabilities)
	}
	if container.Resources.Requests.Memory().IsZero() || container.Resources.Limits.Memory().IsZero() || container.LivenessProbe == nil || container.ReadinessProbe == nil {
		t.Errorf("container %s has no memory request, memory limit, or probes", container.Name)
	}
}

func is(b *bool) bool { return b != nil && *b }

// deployment returns the Deployment of a release.
func deployment(t *testing.T, values map[string]any) *appsv1.Deployment {
	t.Helper()
	var found appsv1.Deployment
	convert(t, ofKind(t, testenv.RenderChart(t, testenv.Chart{Values: values}), "Deployment")[0], &found)
	return &found
}

// convert decodes an object strictly: an unknown field is an error.
func convert(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// TestStaysOffNodesThatItMayDrain checks that the node affinity excludes numaform's nodes
// in every release.
func TestStaysOffNodesThatItMayDrain(t *testing.T) {
	t.Parallel()
	for _, release := range releases(t) {
		pod := deployment(t, release.values).Spec.Template.Spec
		want := []corev1.NodeSelectorRequirement{{Key: "karpenter.sh/nodepool", Operator: corev1.NodeSelectorOpDoesNotExist}}
		for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			if diff := cmp.Diff(want, term.MatchExpressions); diff != "" {
				t.Errorf("%s: node affinity (-want +got):\n%s", release.name, diff)
			}
		}
	}
}

// TestAdditionsToPods checks that the additions of the user reach the pod, besides the rules
// of the chart.
func TestAdditionsToPods(t *testing.T) {
	t.Parallel()
	pod := deployment(t, fullValues(t)).Spec.Template.Spec
	if len(pod.InitContainers) != 1 || pod.InitContainers[0].Name != "credentials" {
		t.Errorf("init containers are %+v", pod.InitContainers)
	}
	hasName := func(v corev1.Volume) bool { return v.Name == "credentials" }
	mounted := func(m corev1.VolumeMount) bool { return m.Name == "credentials" && m.MountPath == "/credentials" }
	if !slices.ContainsFunc(pod.Volumes, hasName) || !slices.ContainsFunc(pod.Containers[0].VolumeMounts, mounted) || len(pod.Volumes) != 5 {
		t.Errorf("volumes are %+v, mounts %+v", pod.Volumes, pod.Containers[0].VolumeMounts)
	}
	if len(pod.HostAliases) != 1 || pod.HostAliases[0].IP != "10.0.0.11" {
		t.Errorf("host aliases are %+v", pod.HostAliases)
	}
	affinity := pod.Affinity
	if len(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil ||
		affinity.PodAffinity == nil || len(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) != 1 ||
		len(affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 0 {
		t.Errorf("affinity is %+v", affinity)
	}
	if plain := deployment(t, leastValues()).Spec.Template.Spec.Affinity; plain.PodAffinity != nil || len(plain.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Errorf("default affinity is %+v", plain)
	}
}

// TestUnconfigured checks that a release runs no pods until it is configured.
func TestUnconfigured(t *testing.T) {
	t.Parallel()
	if got := *deployment(t, nil).Spec.Replicas; got != 0 {
		t.Errorf("replicas = %d without a clusterID and clusters, want 0", got)
	}
	if got := *deployment(t, leastValues()).Spec.Replicas; got != 2 {
		t.Errorf("replicas = %d, want 2", got)
	}
}

// TestFilesLieBesideTheConfig checks that the configuration and the secrets are mounted in
// one directory, so that relative paths work as on a laptop.
func TestFilesLieBesideTheConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"a Secret of the user's", leastValues(), []string{"configmap numaform", "secret proxmox"}},
		{"a Secret of the chart's", fullValues(t), []string{"configmap scaler", "secret scaler"}},
		{"no Secret", nil, []string{"configmap numaform"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, volume := range deployment(t, tt.values).Spec.Template.Spec.Volumes {
				if volume.Projected == nil {
					continue
				}
				for _, source := range volume.Projected.Sources {
					if source.ConfigMap != nil {
						got = append(got, "configmap "+source.ConfigMap.Name)
					}
					if source.Secret != nil {
						got = append(got, "secret "+source.Secret.Name)
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("sources (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNodePools checks the annotations, labels and spec keys of a rendered NodePool.
func TestNodePools(t *testing.T) {
	t.Parallel()
	pool := ofKind(t, testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}), "NodePool")[0]
	want := map[string]string{"numaform.dev/scale-up": "auto", "numaform.dev/scale-down": "manual"}
	if diff := cmp.Diff(want, pool.GetAnnotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if labels := pool.GetLabels(); labels["team"] != "blue" || labels["app.kubernetes.io/name"] != "numaform" {
		t.Errorf("labels %v", labels)
	}
	spec, _, err := unstructured.NestedMap(pool.Object, "spec")
	if got := slices.Sorted(maps.Keys(spec)); err != nil || !slices.Equal(got, []string{"limits", "template"}) {
		t.Errorf("spec has %v, %v", got, err)
	}
}

// egress returns the traffic that a release's NetworkPolicy allows, as "protocol port
// peer".
func egress(t *testing.T, chart testenv.Chart) []string {
	t.Helper()
	var policy networkingv1.NetworkPolicy
	convert(t, ofKind(t, testenv.RenderChart(t, chart), "NetworkPolicy")[0], &policy)
	allowed := map[string]bool{}
	for _, rule := range policy.Spec.Egress {
		if len(rule.Ports) == 0 || len(rule.To) == 0 {
			t.Errorf("a rule allows every port or address: %+v", rule)
		}
		for _, port := range rule.Ports {
			for _, peer := range rule.To {
				to := "kube-dns"
				if peer.IPBlock != nil {
					to = peer.IPBlock.CIDR
				}
				allowed[fmt.Sprintf("%s %s %s", *port.Protocol, port.Port, to)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(allowed))
}

// TestEgress checks that the NetworkPolicy allows exactly the addresses that numaform uses.
func TestEgress(t *testing.T) {
	t.Parallel()
	cluster := func(url string, more ...any) map[string]any {
		return map[string]any{"region": "r", "url": url, "urls": append([]any{}, more...)}
	}
	for _, tt := range []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"full", fullValues(t), []string{
			"TCP 4318 192.0.2.90/32", "TCP 443 192.0.2.16/28", "TCP 443 192.0.2.70/31", "TCP 443 192.0.2.80/32", "TCP 53 169.254.20.10/32", "TCP 5432 192.0.2.54/32",
			"TCP 587 192.0.2.70/31", "TCP 6443 192.0.2.1/32", "TCP 6443 2001:db8::1/128", "TCP 8006 192.0.2.16/28", "TCP 8080 192.0.2.70/31", "UDP 53 169.254.20.10/32",
		}},
		{"addresses", map[string]any{
			"config": map[string]any{
				"clusterID": "prod", "clusters": []any{cluster("https://10.0.0.5:8006/api2/json", "https://[2001:db8::5]:443/"), cluster("https://10.0.1.5/")},
				"fleet": map[string]any{"configmap": nil, "git": map[string]any{"remote": "ssh://git@10.0.2.1:2222/fleet.git"}},
			},
			"networkPolicy": map[string]any{"apiServerCIDRs": []any{"10.96.0.1/32"}},
		}, []string{
			"TCP 2222 10.0.2.1/32", "TCP 443 10.0.1.5/32", "TCP 443 10.96.0.1/32", "TCP 443 2001:db8::5/128", "TCP 53 kube-dns",
			"TCP 6443 10.96.0.1/32", "TCP 8006 10.0.0.5/32", "UDP 53 kube-dns",
		}},
		{"git as scp writes it", map[string]any{
			"config":        map[string]any{"fleet": map[string]any{"configmap": nil, "git": map[string]any{"remote": "git@git.example:infra/fleet.git"}}},
			"networkPolicy": map[string]any{"gitCIDRs": []any{"10.0.2.0/24"}},
		}, []string{"TCP 22 10.0.2.0/24", "TCP 53 kube-dns", "UDP 53 kube-dns"}},
		{"notifications to addresses", map[string]any{
			"config": map[string]any{"notifications": map[string]any{"targets": []any{
				map[string]any{"name": "a", "type": "webhook", "url": "http://10.0.3.1/hook"},
				map[string]any{"name": "b", "type": "mail", "server": "[2001:db8::9]:465"},
			}}},
		}, []string{"TCP 465 2001:db8::9/128", "TCP 53 kube-dns", "TCP 80 10.0.3.1/32", "UDP 53 kube-dns"}},
		{"a collector", map[string]any{
			"tracing":       map[string]any{"endpoint": "https://collector.example/otlp"},
			"networkPolicy": map[string]any{"tracingTo": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.4.0/24"}}}},
		}, []string{"TCP 443 10.0.4.0/24", "TCP 53 kube-dns", "UDP 53 kube-dns"}},
		{"nothing configured", nil, []string{"TCP 53 kube-dns", "UDP 53 kube-dns"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, egress(t, testenv.Chart{Values: tt.values, Underived: true})); diff != "" {
				t.Errorf("egress (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEgressOfACluster checks that helm derives the API server's address and port from the
// cluster.
func TestEgressOfACluster(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: cluster.Config.Host, CertificateAuthorityData: cluster.Config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"c": {
			Token: cluster.Config.BearerToken, ClientCertificateData: cluster.Config.CertData, ClientKeyData: cluster.Config.KeyData,
		}},
		Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "c"}}, CurrentContext: "c",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	// An API server on a loopback address, as in this test, does not publish its address.
	clients := cluster.Client(t)
	_, err = clients.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
		Ports:     []discoveryv1.EndpointPort{{Port: ptr.To[int32](16443)}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	service, err := clients.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := testenv.Helm(root, "template", "numaform", "charts/numaform", "--dry-run=server", "--kubeconfig", path,
		"--show-only", "templates/networkpolicy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []string{"192.0.2.7/32", service.Spec.ClusterIP + "/32", "port: 16443\n", "port: 443\n"} {
		if !strings.Contains(string(out), allowed) {
			t.Errorf("%q is not allowed:\n%s", allowed, out)
		}
	}
}

// TestEgressThatCannotBeDerived checks that helm refuses a release whose addresses cannot
// be derived, and that the message names the value to set.
func TestEgressThatCannotBeDerived(t *testing.T) {
	t.Parallel()
	known := []any{"192.0.2.1/32"}
	with := func(policy, fleet map[string]any) map[string]any {
		values := leastValues()
		values["networkPolicy"] = policy
		if fleet != nil {
			values["config"].(map[string]any)["fleet"] = fleet
		}
		return values
	}
	notifying := with(map[string]any{"apiServerCIDRs": known, "proxmoxCIDRs": known}, nil)
	notifying["config"].(map[string]any)["notifications"] = map[string]any{"targets": []any{map[string]any{"name": "chat", "type": "slack", "url_file": "url"}}}
	traced := with(map[string]any{"apiServerCIDRs": known, "proxmoxCIDRs": known}, nil)
	traced["tracing"] = map[string]any{"endpoint": "http://collector:4318"}
	for want, values := range map[string]map[string]any{
		"networkPolicy.apiServerCIDRs is empty": with(map[string]any{"proxmoxCIDRs": known}, nil),
		"config.clusters[0] is reached by the name pve-1.example:8006, but a NetworkPolicy supports only addresses: set networkPolicy.proxmoxCIDRs": with(map[string]any{"apiServerCIDRs": known}, nil),
		"config.fleet.git.remote is reached by the name git.example": with(map[string]any{"apiServerCIDRs": known, "proxmoxCIDRs": known},
			map[string]any{"configmap": nil, "git": map[string]any{"remote": "https://git.example/fleet.git"}}),
		"config.fleet.backend.type is s3": with(map[string]any{"apiServerCIDRs": known, "proxmoxCIDRs": known},
			map[string]any{"backend": map[string]any{"type": "s3"}}),
		"config.notifications.targets[0] (chat) is reached by a name": notifying,
		"networkPolicy.tracingTo is empty":                            traced,
		"networkPolicy/proxmoxCIDRs/0":                                with(map[string]any{"proxmoxCIDRs": []any{"pve-1.example"}}, nil),
	} {
		if got := testenv.RefuseChart(t, testenv.Chart{Values: values, Underived: true}); !strings.Contains(got, want) {
			t.Errorf("%s\nwant %q", got, want)
		}
	}
	off := with(map[string]any{"enabled": false}, nil)
	testenv.RenderChart(t, testenv.Chart{Values: off, Underived: true})
}

// TestSecretsStayOutOfConfigMaps checks that no object contains a secret of the full values
// in plain text.
func TestSecretsStayOutOfConfigMaps(t *testing.T) {
	t.Parallel()
	for _, object := range testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}) {
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000", "hooks.slack.com", "syt_0123456789", "hunter22"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s %s contains a token", object.GetKind(), object.GetName())
			}
		}
	}
}
