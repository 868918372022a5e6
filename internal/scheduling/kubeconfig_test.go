package scheduling_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// kinds are the kinds in these tests' API server, by group and version.
var kinds = map[string][]string{
	"v1":                     {"Pod pods", "Node nodes", "Namespace namespaces", "PersistentVolume persistentvolumes", "PersistentVolumeClaim persistentvolumeclaims"},
	"apps/v1":                {"DaemonSet daemonsets"},
	"policy/v1":              {"PodDisruptionBudget poddisruptionbudgets"},
	"storage.k8s.io/v1":      {"StorageClass storageclasses", "CSINode csinodes", "VolumeAttachment volumeattachments"},
	"karpenter.sh/v1":        {"NodePool nodepools", "NodeClaim nodeclaims"},
	"karpenter.sh/v1alpha1":  {"NodeOverlay nodeoverlays"},
	"numaform.dev/v1alpha1":  {"ProxmoxNodeClass proxmoxnodeclasses"},
	"example.com/v1":         {"Other others"},
	"without.example.com/v1": nil,
}

// apiServer starts a server for discovery, and for lists with the items given by resource,
// and returns the path of its kubeconfig. The server lacks the API group in missing, and
// fails the test on any request other than GET.
func apiServer(t *testing.T, missing string, items map[string][]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s: a snapshot only reads", r.Method, r.URL)
		}
		if missing != "" && strings.HasPrefix(r.URL.Path, "/apis/"+missing) {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		answer := discover(missing, r.URL.Path)
		if answer == nil {
			resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			answer = json.RawMessage(`{"metadata": {"resourceVersion": "1"}, "items": [` + strings.Join(items[resource], ",") + `]}`)
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: lab, context: {cluster: c, user: u}}]
current-context: lab
`, server.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func discover(missing, path string) any {
	version := strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
	switch path {
	case "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "/apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for groupVersion := range kinds {
			group, version, ok := strings.Cut(groupVersion, "/")
			if !ok || group == missing {
				continue
			}
			v := metav1.GroupVersionForDiscovery{GroupVersion: groupVersion, Version: version}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
		}
		return list
	}
	resources, known := kinds[version]
	if !known {
		return nil
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
	for _, resource := range resources {
		kind, plural, _ := strings.Cut(resource, " ")
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: plural, Kind: kind, Namespaced: kind == "Pod" || kind == "PersistentVolumeClaim", Verbs: metav1.Verbs{"list"},
		})
	}
	return list
}

func TestFromKubeconfig(t *testing.T) {
	file := apiServer(t, "", map[string][]string{
		"proxmoxnodeclasses": {`{"metadata": {"name": "shared"}, "spec": {"template": {"name": "debian"}}}`},
		"nodepools":          {`{"metadata": {"name": "general"}, "spec": {"template": {"spec": {"nodeClassRef": {"group": "numaform.dev", "kind": "ProxmoxNodeClass", "name": "shared"}}}}}`},
		"nodeclaims": {`{"metadata": {"name": "general-x", "annotations": {"numaform.dev/vm": "general-2000"}, "labels": {"karpenter.sh/nodepool": "general"}},
			"spec": {"nodeClassRef": {"group": "numaform.dev", "kind": "ProxmoxNodeClass", "name": "shared"}}}`},
		"nodes": {`{"metadata": {"name": "old"}, "spec": {"providerID": "proxmox://lab/2007"}}`},
		"pods": {
			`{"metadata": {"name": "a", "namespace": "default", "uid": "1"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
			  "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}`,
			`{"metadata": {"name": "b", "namespace": "default", "uid": "2"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
			  "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}`,
			`{"metadata": {"name": "new", "namespace": "default", "uid": "3"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}`,
			`{"metadata": {"name": "sits", "namespace": "default", "uid": "4"}, "spec": {"nodeName": "old", "containers": [{"name": "c"}]}, "status": {"phase": "Running"}}`,
		},
	})
	c, err := scheduling.FromKubeconfig(t.Context(), file, "lab")
	if err != nil {
		t.Fatal(err)
	}
	// The NodeClaim of VM 2000 has no provider ID and no resources yet.
	d := decide(t, c, lab(), keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared))
	want := outcome{New: []string{"general c1.4VCPU-8GB"}, Existing: []string{"general-2000 1"}}
	if diff := cmp.Diff(want, outcomeOf(d)); diff != "" {
		t.Errorf("outcome differs:\n%s\n%v", diff, d.Refused)
	}
	ids, err := c.VMIDs(t.Context())
	if diff := cmp.Diff(map[topology.RegionName][]fleet.VMID{"lab": {2007}}, ids); err != nil || diff != "" {
		t.Errorf("VMIDs differ (%v):\n%s", err, diff)
	}
	if err := c.Drained(t.Context(), "old"); err == nil || !strings.Contains(err.Error(), "(1, including default/sits)") {
		t.Errorf("node old: %v", err)
	}
}

// TestOverlaysOfACluster checks that only overlays that a controller found valid are used:
// if the feature gate is disabled, no controller validates them.
func TestOverlaysOfACluster(t *testing.T) {
	for ready, want := range map[string]string{"True": "t1.4VCPU-12GB", "False": "c1.4VCPU-8GB", "Unknown": "c1.4VCPU-8GB"} {
		file := apiServer(t, "", map[string][]string{
			"proxmoxnodeclasses": {`{"metadata": {"name": "shared"}, "spec": {"template": {"name": "debian"}}}`},
			"nodepools":          {`{"metadata": {"name": "general"}, "spec": {"template": {"spec": {"nodeClassRef": {"group": "numaform.dev", "kind": "ProxmoxNodeClass", "name": "shared"}}}}}`},
			"nodeoverlays": {fmt.Sprintf(`{"metadata": {"name": "dear"}, "spec": {"price": "9", "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["c1.4VCPU-8GB"]}]},
				"status": {"conditions": [{"type": "Ready", "status": %q}]}}`, ready)},
			"pods": {`{"metadata": {"name": "a", "namespace": "default", "uid": "1"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
				"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}`},
		})
		c, err := scheduling.FromKubeconfig(t.Context(), file, "lab")
		if err != nil {
			t.Fatal(err)
		}
		if d := decideOverlaid(t, c); len(d.New) != 1 || d.New[0].Spec.InstanceType != want {
			t.Errorf("ready %s: %+v, want a %s", ready, d.New, want)
		}
	}
}

func TestFromKubeconfigSaysWhatIsMissing(t *testing.T) {
	for missing, want := range map[string]string{
		"karpenter.sh": "kind NodePool.karpenter.sh is not installed: apply the CRDs",
		"numaform.dev": "kind ProxmoxNodeClass.numaform.dev is not installed: apply the CRDs",
	} {
		_, err := scheduling.FromKubeconfig(t.Context(), apiServer(t, missing, nil), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s the error is %v, want one with %q", missing, err, want)
		}
	}
	if _, err := scheduling.FromKubeconfig(t.Context(), filepath.Join(t.TempDir(), "none"), ""); err == nil {
		t.Error("a kubeconfig that is not there is no error")
	}
	if _, err := scheduling.FromKubeconfig(t.Context(), apiServer(t, "", nil), "other"); err == nil {
		t.Error("a context that is not there is no error")
	}
}
