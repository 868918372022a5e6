package scheduling_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/scheduling"
)

func loadFiles(t *testing.T, files map[string]string) ([]client.Object, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return scheduling.Load([]string{dir})
}

func TestLoadSetsDefaults(t *testing.T) {
	objects, err := loadFiles(t, map[string]string{
		"a.yaml": `# only a comment
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  containers:
  - name: c
    image: i
    resources: {limits: {cpu: 2, memory: 1Gi}, requests: {memory: 512Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: runs, namespace: other}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
`,
		"sub/b.yml":  `{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 4, memory: 8Gi}}}`,
		"sub/c.json": `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other"}}]}`,
		"README.md":  "not read",
	})
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]client.Object{}
	for _, o := range objects {
		byName[o.GetNamespace()+"/"+o.GetName()] = o
		if o.GetUID() == "" || o.GetCreationTimestamp().Unix() != 1577836800 {
			t.Errorf("%s has UID %q of %v", o.GetName(), o.GetUID(), o.GetCreationTimestamp())
		}
	}
	pod := byName["default/waits"].(*corev1.Pod)
	if pod.Status.Phase != corev1.PodPending || len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0].Reason != corev1.PodReasonUnschedulable {
		t.Errorf("the pod that waits has status %+v", pod.Status)
	}
	requests := pod.Spec.Containers[0].Resources.Requests
	if requests.Cpu().Value() != 2 || requests.Memory().Value() != 512<<20 {
		t.Errorf("requests are %v", requests)
	}
	if pod := byName["other/runs"].(*corev1.Pod); pod.Status.Phase != corev1.PodRunning || len(pod.Status.Conditions) != 0 {
		t.Errorf("the pod that runs has status %+v", pod.Status)
	}
	node := byName["/n1"].(*corev1.Node)
	if node.Status.Capacity.Cpu().Value() != 4 || node.Status.Allocatable.Pods().Value() != 110 || node.Labels[corev1.LabelHostname] != "n1" {
		t.Errorf("the node is %+v", node)
	}
	if len(objects) != 4 {
		t.Errorf("%d objects are read, want 4", len(objects))
	}
}

func TestLoadExpandsWorkloads(t *testing.T) {
	objects, err := loadFiles(t, map[string]string{"all.yaml": deployment("web", 3, "1", "1Gi", "") + `
apiVersion: v1
kind: Pod
metadata: {name: web-abc, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-5d, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u, controller: true}]}
spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: i}]}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {parallelism: 4, completions: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
`})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range objects {
		names = append(names, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetName())
	}
	want := []string{
		"Pod web-abc", "Pod web-0", "Pod web-1",
		"Pod db-0", "PersistentVolumeClaim data-db-0", "Pod db-1", "PersistentVolumeClaim data-db-1",
		"Pod once-0", "Pod once-1",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("objects differ:\n%s", diff)
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown field", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {kontainers: []}\n", `m.yaml: document 2: Pod "a": unknown field "spec.kontainers"`},
		{"unknown kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "v1 ConfigMap is not supported"},
		{"unknown group", "apiVersion: example.com/v1\nkind: Pod\nmetadata: {name: a}\n", "example.com/v1 Pod is not supported"},
		{"a tab", "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: a\n", "document 1: line 4: found character that cannot start any token: invalid YAML: indent with spaces, never with tabs"},
		{"the configuration", "clusterID: a\nclusters: []\n", "document 1: it is a configuration of numaform: pass it with --config"},
		{"a kubeconfig", "apiVersion: v1\nkind: Config\n", "v1 Config is not supported: it is a kubeconfig: pass it with --kubeconfig"},
		{"a class of KPP", "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\n", "it belongs to karpenter-provider-proxmox: convert it with numaform convert kpp"},
		{"another version", "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {name: a}\n", "karpenter.sh/v1beta1 NodePool is not supported: did you mean apiVersion: karpenter.sh/v1, kind: NodePool?"},
		{"a mistyped kind", "apiVersion: apps/v1\nkind: deploymnt\nmetadata: {name: a}\n", "did you mean apiVersion: apps/v1, kind: Deployment?"},
		{"a mistyped policy", "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\nspec: {disruption: {consolidationPolicy: WhenEmty}, template: {spec: {nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: a}, requirements: []}}}\n", `NodePool "a": spec.disruption.consolidationPolicy: "WhenEmty" is not supported: must be one of [WhenEmpty WhenEmptyOrUnderutilized Balanced]`},
		{"a mistyped annotation", "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a, annotations: {numaform.dev/min-node: \"2\"}}\nspec: {template: {spec: {nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: a}, requirements: []}}}\n", `NodePool "a": it has the annotation numaform.dev/min-node, which numaform does not read: did you mean numaform.dev/min-nodes?`},
		{"an annotation of a class", "apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c, annotations: {numaform.dev/scale-up: manual}}\nspec: {template: {name: t}}\n", `ProxmoxNodeClass "c": it has the annotation numaform.dev/scale-up, which numaform does not read: it must be one of numaform.dev/nodeclass-hash, `},
		{"a mistyped label of an overlay", "apiVersion: karpenter.sh/v1alpha1\nkind: NodeOverlay\nmetadata: {name: o}\nspec: {price: \"1\", requirements: [{key: numaform.dev/placment, operator: In, values: [Shared]}]}\n", `NodeOverlay "o": spec.requirements contains the label numaform.dev/placment, which numaform does not set: did you mean numaform.dev/placement?`},
		{"a duplicate key", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  nodeName: a\n  nodeName: b\n", `Pod: line 6: duplicate key "nodeName": correct`},
		{"a number for a list", "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\nspec: {template: {spec: {requirements: 1}}}\n", "unexpected number in spec.template.spec.requirements, must be a list: correct"},
		{"memory in thousandths", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, resources: {requests: {memory: 2048m}}}]}\n", "containers[0].resources.requests.memory: 2048m is a fraction of a byte"},
		{"no kind", "a: b\n", "document 1: it has neither apiVersion nor kind"},
		{"no yaml", "{", "document 1: line 1: did not find expected node content: invalid YAML: indent with spaces"},
		{"no object", "a", "document 1: unexpected string: must be a Kubernetes object with apiVersion and kind"},
		{"no object in a list", "apiVersion: v1\nkind: List\nitems: [1]\n", "item 0: unexpected number: must be a Kubernetes object"},
		{"a value in the wrong place", "apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\nspec: {template: t}\n", `"c": unexpected string in spec.template: correct`},
		{"no amount", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, resources: {requests: {cpu: 2cores}}}]}\n", `"a": invalid quantity: write one such as 2, 500m or 4Gi`},
		{"less than nothing", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, resources: {requests: {cpu: -1}}}]}\n", `Pod "a": spec.containers[0].resources.requests.cpu "-1" must not be negative`},
		{"less than nothing in a template", deployment("a", 1, "-1", "1Gi", ""), `Deployment "a": spec.template.spec.containers[0].resources.requests.cpu "-1" must not be negative`},
		{"more pods than a cluster has", deployment("a", 2147483647, "1", "1Gi", ""), `Deployment "a": requests 2147483647 pods, but a cluster has at most 150000`},
		{"a long name", "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + strings.Repeat("a", 254) + "}\n", "have at most 253 characters"},
		{"two unknown fields", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {kontainers: [], nodNaem: b}\n", ": correct or remove them"},
		{"a word for a price", "apiVersion: karpenter.sh/v1alpha1\nkind: NodeOverlay\nmetadata: {name: o}\nspec: {requirements: [], priceAdjustment: cheap}\n", `spec.priceAdjustment "cheap" is not a number: write one such as +0.1 or -15%`},
		{"no name", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}\n", "metadata.name is empty"},
		{"no containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "spec.containers is empty"},
		{"in a list", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap}]\n", "item 0: v1 ConfigMap is not supported"},
		{"bad class", "apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\nspec: {template: {name: t}, clone: half}\n", `ProxmoxNodeClass "c": spec.clone: Unsupported value: "half"`},
		{"pool without class", "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: p}\nspec: {template: {spec: {requirements: []}}}\n", `NodePool "p": spec.template.spec.nodeClassRef is empty`},
		{"pool with a bad requirement", strings.Replace(nodePool("p", "c", ""), "requirements: []", "requirements: [{key: a, operator: Equals, values: [b]}]", 1), `NodePool "p"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := loadFiles(t, map[string]string{"m.yaml": test.text})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := scheduling.Load([]string{filepath.Join(t.TempDir(), "missing")}); err == nil {
		t.Error("a file that is not there is no error")
	}
	if _, err := scheduling.Load([]string{t.TempDir()}); err == nil {
		t.Error("an empty directory is no error")
	}
}

func TestTwiceTheSameObjectIsAnError(t *testing.T) {
	objects, err := loadFiles(t, map[string]string{"a.yaml": classes})
	if err != nil {
		t.Fatal(err)
	}
	_, err = scheduling.FromObjects(append(objects, objects...)).Decide(t.Context(), scheduling.Request{Snapshot: lab()})
	if err == nil || !strings.Contains(err.Error(), "duplicate ProxmoxNodeClass dedicated") {
		t.Errorf("error is %v", err)
	}
	// A duplicate workload is an error although workloads are replaced with their pods.
	few, more := deployment("a", 1, "1", "1Gi", ""), deployment("a", 9, "1", "1Gi", "")
	_, err = loadFiles(t, map[string]string{"a.yaml": classes + few, "b/c.yaml": more})
	if err == nil || !strings.Contains(err.Error(), `c.yaml: Deployment "a" is already defined in `) || !strings.HasSuffix(err.Error(), "a.yaml: remove one of them") {
		t.Errorf("error is %v", err)
	}
	if objects, err = loadFiles(t, map[string]string{"a.yaml": few, "b.yaml": deployment("b", 1, "1", "1Gi", "")}); err != nil || len(objects) != 2 {
		t.Errorf("error is %v, objects %v", err, objects)
	}
}
