package chart_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

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
				t.Error("the pod shares what is the host's, or takes variables of foreign Services")
			}
			for _, container := range append(pod.InitContainers, pod.Containers...) {
				checkContainer(t, container)
			}
			for _, volume := range pod.Volumes {
				if volume.HostPath != nil {
					t.Errorf("volume %s is the host's", volume.Name)
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
		t.Errorf("container %s has no memory, no limit of it, or no probes", container.Name)
	}
}

func is(b *bool) bool { return b != nil && *b }

// deployment returns the one of a release.
func deployment(t *testing.T, values map[string]any) *appsv1.Deployment {
	t.Helper()
	var found appsv1.Deployment
	convert(t, ofKind(t, testenv.RenderChart(t, testenv.Chart{Values: values}), "Deployment")[0], &found)
	return &found
}

// convert reads an object strictly: a field that its type does not have fails.
func convert(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// TestStaysOffNodesThatItMayDrain holds for whatever else values say.
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

// TestUnconfigured is about a release whose configuration is not there yet.
func TestUnconfigured(t *testing.T) {
	t.Parallel()
	if got := *deployment(t, nil).Spec.Replicas; got != 0 {
		t.Errorf("replicas = %d without a clusterID and clusters, want 0", got)
	}
	if got := *deployment(t, leastValues()).Spec.Replicas; got != 2 {
		t.Errorf("replicas = %d, want 2", got)
	}
}

// TestFilesLieBesideTheConfig is about paths: as on a laptop, they are relative.
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

// TestNodePools is about what stands beside the spec of a NodePool.
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

// TestNetworkPolicyReachesProxmox is about ports, which are those of the URLs.
func TestNetworkPolicyReachesProxmox(t *testing.T) {
	t.Parallel()
	var policy networkingv1.NetworkPolicy
	convert(t, ofKind(t, testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}), "NetworkPolicy")[0], &policy)
	ports := map[string]bool{}
	for _, rule := range policy.Spec.Egress {
		for _, port := range rule.Ports {
			ports[fmt.Sprintf("%s %s", *port.Protocol, port.Port)] = true
		}
	}
	want := []string{"TCP 443", "TCP 53", "TCP 5432", "TCP 6443", "TCP 8006", "UDP 53"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(ports))); diff != "" {
		t.Errorf("egress (-want +got):\n%s", diff)
	}
}

// TestSecretsStayOutOfConfigMaps looks for the secrets of the full values.
func TestSecretsStayOutOfConfigMaps(t *testing.T) {
	t.Parallel()
	for _, object := range testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}) {
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s %s tells a token", object.GetKind(), object.GetName())
			}
		}
	}
}
