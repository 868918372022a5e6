package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/shell"
)

// manifestsDir is the directory next to numaform.yaml that init writes manifests to.
const manifestsDir = "manifests"

// Files next to numaform.yaml that init writes.
const (
	initReadme = "README.md"
	// removeUser is the file with the commands that delete numaform's token and user in
	// Proxmox.
	removeUser = "remove-user.sh"
)

// writeFiles writes, next to numaform.yaml, a class and a NodePool for nodes on shared CPUs,
// example pods, a README.md with the next commands, and the commands that delete numaform's
// token. It does not overwrite existing files, and returns the paths of the files that it
// wrote and of those that it kept.
func (o *initOptions) writeFiles() (written, kept []string, err error) {
	dir := filepath.Dir(o.config)
	if err := os.MkdirAll(filepath.Join(dir, manifestsDir), 0o755); err != nil {
		return nil, nil, fmt.Errorf("writing the manifests: %w", err)
	}
	reach := o.reach()
	reach.PoolExists = o.found.hasPool(o.pool)
	token, rest := reach.PveumDelete(o.tokenID)
	removal := "# Run these commands as root on a Proxmox host. They delete numaform's API token.\n" + token + "\n" +
		"# To also delete the user and the roles, remove the # from the lines below. Do so only if the commands of\n" +
		"# numaform init created them and nothing else uses them.\n"
	for _, line := range rest {
		removal += "# " + line + "\n"
	}
	for _, file := range []struct{ name, text string }{
		{initReadme, o.readme()},
		{filepath.Join(manifestsDir, "nodepool.yaml"), o.nodePool()},
		{filepath.Join(manifestsDir, "pods.yaml"), examplePods},
		{removeUser, removal},
	} {
		path := filepath.Join(dir, file.name)
		switch err := writeNew(path, file.text); {
		case errors.Is(err, fs.ErrExist):
			kept = append(kept, path)
		case err != nil:
			return written, kept, fmt.Errorf("writing %s: %w", path, err)
		default:
			written = append(written, path)
		}
	}
	return written, kept, nil
}

// writeNew writes a new file that all users can read, or nothing.
func writeNew(path, text string) error { return writeNewMode(path, text, 0o644) }

// writeNewMode writes a new file, or nothing.
func writeNewMode(path, text string, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// readme describes the files and the next commands.
func (o *initOptions) readme() string {
	host, yaml := o.host(), filepath.Base(o.config)
	config := ""
	if yaml != "numaform.yaml" {
		config = " --config " + shell.Quote(yaml)
	}
	var secrets []string
	if o.caFile != "" && !o.insecure {
		secrets = append(secrets, proxmox.CopyCA(o.url, o.caFile))
	}
	secrets = append(secrets, shell.Line("chmod", "600", o.secretFile))
	return `# numaform: ` + o.clusterID + `

| file | content |
|---|---|
| ` + yaml + ` | the configuration; it contains no secret |
| ` + o.secretFile + ` | the secret of the API token: do not commit it |
| manifests/nodepool.yaml | the ProxmoxNodeClass and the NodePool of the nodes |
| manifests/pods.yaml | pods that need a node, for a first plan |
| ` + removeUser + ` | the commands that delete numaform's token and, after an edit, its user and roles in Proxmox |
| fleet/ | the HCL of each VM, after the first apply |

## Next commands

The commands that ` + "`numaform init`" + ` wrote to standard output create the user in Proxmox, and print the secret of its token.
Run them as root on a Proxmox host, and store the secret in the file ` + o.secretFile + `. Then:

` + "```sh\n" + strings.Join(secrets, "\n") + `
numaform doctor` + config + ` -f manifests     # check all requirements; each problem has a fix
numaform plan` + config + ` -f manifests       # show the VMs that the pods need
numaform apply` + config + ` -f manifests      # create them, after your confirmation
numaform status` + config + `                  # show the VMs and their hosts
` + "```" + `

With a cluster, use --kubeconfig instead of -f manifests.

## Remove everything

If ` + "`numaform status" + config + "`" + ` lists VMs, remove them:

` + "```sh" + `
numaform undo` + config + ` -f manifests       # revert the last change
` + "```" + `

Run it only once, and not if there is no VM: it would revert the removal, and create the VMs again. If VMs of earlier changes
remain, remove each with ` + "`numaform remove" + config + " -f manifests NODE`" + `. When no VM remains, delete the token in Proxmox:

` + "```sh" + `
` + shell.Line("ssh", "root@"+host, "sh") + ` <` + removeUser + `
` + "```" + `

` + removeUser + ` also has the commands that delete the user and the roles, as comments. Not deleted: the VM template (` + "`qm destroy VMID`" + `) and this directory.
`
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
