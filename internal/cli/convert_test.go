package cli_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/cli"
)

// peers are the objects of two autoscalers in a cluster, as far as the commands read them.
const peers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: proxmoxnodeclasses.karpenter.proxmox.sinextra.dev}
spec:
  group: karpenter.proxmox.sinextra.dev
  names: {kind: ProxmoxNodeClass, listKind: ProxmoxNodeClassList, plural: proxmoxnodeclasses, singular: proxmoxnodeclass}
  scope: Cluster
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Secret
metadata: {name: proxmox-config, namespace: default}
stringData:
  config.yaml: |
    clusters:
    - {region: lab, url: "https://192.0.2.1:8006/api2/json", token_id: a@pve!b, token_secret: geheim}
---
apiVersion: v1
kind: Secret
metadata: {name: node-templates, namespace: default}
stringData: {user-data: "#!/bin/sh\n"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: karpenter, namespace: default}
spec:
  selector: {matchLabels: {app: karpenter}}
  template:
    metadata: {labels: {app: karpenter}}
    spec:
      containers:
      - {name: a, image: "registry.example/karpenter-provider-proxmox:v0.12.0", args: [-proxmox-vmid=5000]}
      volumes: [{name: config, secret: {secretName: proxmox-config}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kproximate, namespace: default}
data: {pmUrl: "https://192.0.2.2:8006/api2/json", pmUserID: root@pam, kpNodeTemplateName: k3s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kproximate-worker, namespace: default}
spec:
  selector: {matchLabels: {app: kproximate}}
  template:
    metadata: {labels: {app: kproximate}}
    spec:
      containers:
      - {name: a, image: ghcr.io/jedrw/kproximate-worker, envFrom: [{configMapRef: {name: kproximate}}, {secretRef: {name: missing}}]}
---
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: workers}
spec:
  instanceTemplateRef: {kind: ProxmoxUnmanagedTemplate, name: gone}
  metadataOptions: {type: cdrom, templatesRef: {name: node-templates, namespace: default}}
`

// TestConvertReadsACluster checks that convert reads the objects of an autoscaler, and the
// Secrets and ConfigMaps that they use, and that it changes nothing.
func TestConvertReadsACluster(t *testing.T) {
	c := kubeClient(t)
	for document := range strings.SplitSeq(peers, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), object); err != nil {
			t.Fatal(err)
		}
		created := func() error { return c.Create(t.Context(), object) }
		err := created()
		for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); err = created() { // the API of the CRD needs a moment
			c = kubeClient(t)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kubeClient(t).Delete(context.Background(), object) })
	}
	out := filepath.Join(t.TempDir(), "kpp")
	says(t, cli.ExitOK, "ProxmoxUnmanagedTemplate gone is not in the input", "convert", "kpp", "--out", out)
	for name, want := range map[string]string{
		"numaform.yaml": "lower: 5000", "secrets/lab-token": "geheim\n", "manifests/secrets.yaml": "user-data: |", "manifests/nodeclasses.yaml": "name: node-templates",
	} {
		content, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s: %v; it does not contain %q:\n%s", name, err, want, content)
		}
		if info, err := os.Stat(filepath.Join(out, name)); err == nil && strings.Contains(name, "secrets") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	says(t, cli.ExitOK, "username: root@pam", "convert", "kproximate")
	says(t, cli.ExitFailed, "found no NodeSmithProvider", "convert", "kubenodesmith")
}
