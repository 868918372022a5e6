package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// manifestsDir is the directory next to numaform.yaml that init writes manifests to.
const manifestsDir = "manifests"

// writeManifests writes a class and a NodePool for nodes on shared CPUs, and example pods,
// next to numaform.yaml. It does not overwrite existing files, and returns the paths of
// the files that it wrote.
func (o *initOptions) writeManifests() (written []string, err error) {
	dir := filepath.Join(filepath.Dir(o.config), manifestsDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("writing the manifests: %w", err)
	}
	files := map[string]string{"nodepool.yaml": o.nodePool(), "pods.yaml": examplePods}
	for _, name := range []string{"nodepool.yaml", "pods.yaml"} {
		path := filepath.Join(dir, name)
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return written, fmt.Errorf("writing the manifests: %w", err)
		}
		_, err = file.WriteString(files[name])
		if err := errors.Join(err, file.Close()); err != nil {
			return written, fmt.Errorf("writing the manifests: %w", err)
		}
		written = append(written, path)
	}
	slices.Sort(written)
	return written, nil
}

// nodePool returns a class that needs no host agent, and its NodePool.
func (o *initOptions) nodePool() string {
	text := "# Nodes on shared CPUs. docs/crds/proxmoxnodeclass.md describes the fields.\n" +
		"apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: workers}\nspec:\n" +
		"  region: " + scalar(o.region) + "\n" +
		"  template: {name: " + scalar(o.template) + "}\n" +
		"  placement: {policy: Shared}\n"
	if o.pool != "" {
		text += "  pool: " + scalar(o.pool) + "\n"
	}
	if len(o.seeds) > 0 {
		text += "  metadata: {type: cdrom, storage: " + scalar(o.seeds[0]) + "}  # nodes join with seeds, which the controller creates\n"
	} else {
		text += "  metadata: {type: none}  # the template contains everything that a node needs to join\n"
	}
	return text + `---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  limits: {cpu: "16", memory: 64Gi}
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
`
}

const examplePods = `# Pods for a first plan: numaform plan -f ` + manifestsDir + `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers:
      - name: hello
        image: registry.k8s.io/pause:3.10
        resources: {requests: {cpu: "500m", memory: 512Mi}}
`
