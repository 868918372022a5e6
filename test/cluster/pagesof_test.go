package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// others are the commands that TestPages does not run.
var others = []elsewhere{
	{page: "docs/first-node.md", by: "cmd/numaform/firstnode_test.go:first-node.md"},
	{page: "docs/tutorial.md", by: "cmd/numaform/firstnode_test.go:tutorial.md"},
	{page: "README.md", command: "kubectl create namespace", by: "docs/install.md:kubectl create namespace numaform\n"},
	{page: "README.md", command: "kubectl -n numaform create secret", by: "examples/manifests/README.md:kubectl -n numaform create secret generic proxmox --from-literal=token=… --from-file=pve-root-ca.pem\n"},
	{page: "README.md", command: "helm install", by: "docs/install.md:helm install numaform charts/numaform --namespace numaform --values values.yaml\n"},

	// Questions need a terminal.
	{page: "README.md", command: "numaform init", by: "cmd/numaform/testdata/script/init.txtar:numaform init asks few questions"},
	{page: "docs/cli.md", command: "numaform init", by: "cmd/numaform/testdata/script/init.txtar:numaform init asks few questions"},
	{page: "docs/doctor.md", command: "numaform init", by: "cmd/numaform/testdata/script/init.txtar:numaform init asks few questions"},
	{page: "docs/crds/scaleplan.md", command: "numaform approve", by: "cmd/numaform/testdata/script/approve.txtar:approve"},

	{page: "docs/controller.md", command: "numaform approve", by: "docs/approval.md:$ numaform approve workers-up-0f3b6c1d9a2e --hash 0f3b6c1d9a2e…  "},
	{page: "docs/controller.md", command: "numaform reject", by: "docs/approval.md:$ numaform reject workers-up-0f3b6c1d9a2e --reason"},

	// The resources of other autoscalers.
	{page: "README.md", command: "numaform convert", by: "cmd/numaform/testdata/script/convert.txtar:convert"},
	{page: "docs/cli.md", command: "numaform convert kpp", by: "cmd/numaform/testdata/script/convert.txtar:convert kpp"},
	{page: "docs/migration-kpp.md", command: "numaform convert", by: "cmd/numaform/testdata/script/convert.txtar:convert kpp"},
	{page: "docs/migration-kproximate.md", command: "numaform convert", by: "cmd/numaform/testdata/script/convert.txtar:convert kproximate"},
	{page: "docs/migration-kubenodesmith.md", command: "numaform convert", by: "test/e2e/convert_test.go:kubenodesmith"},
	{page: "README.md", command: "numaform adopt", by: "test/cluster/adopt_test.go:func TestAdopt("},
	{page: "docs/adopt.md", command: "numaform adopt", by: "test/cluster/adopt_test.go:func TestAdopt("},
	{page: "docs/backup.md", command: "numaform adopt", by: "test/cluster/restore_test.go:func TestNamespaceDeleted"},

	// Signatures, with keys and a list of allowed signers.
	{page: "docs/approval.md", command: "numaform approve workers-up-0f3b6c1d9a2e --hash 0f3b6c1d9a2e… --sign-with", by: "test/e2e/sign_test.go:func TestSigningExample"},
	{page: "docs/approval.md", command: "numaform approve workers-up-0f3b6c1d9a2e --statement", by: "test/e2e/sign_test.go:func TestApproveBySignature"},
	{page: "docs/approval.md", command: "numaform approve workers-up-0f3b6c1d9a2e --hash 0f3b6c1d9a2e… --signature", by: "test/e2e/sign_test.go:func TestApproveBySignature"},
	{page: "docs/approval.md", command: "numaform approve workers-up-0f3b6c1d9a2e --hash 0f3b6c1d9a2e… --break-glass", by: "test/e2e/sign_test.go:--break-glass"},
	{page: "docs/approval.md", command: "numaform apply --approve DIGEST --break-glass", by: "test/e2e/sign_test.go:--break-glass"},
	{page: "docs/approval.md", command: "ssh-keygen -Y sign -n numaform-plan-v1 -f ~/.ssh", by: "test/e2e/sign_test.go:func TestSigningExample"},
	{page: "docs/approval.md", command: "numaform plan --statement", by: "test/e2e/sign_test.go:func TestApproveBySignature"},
	{page: "docs/approval.md", command: "numaform apply --approve DIGEST --signature", by: "test/e2e/sign_test.go:func TestApproveBySignature"},

	// A Debian package, root on a Proxmox host, or in a guest.
	{page: "docs/agent.md", command: "apt-get install", why: "installs a package of the next release as root on a Proxmox host"},
	{page: "docs/agent.md", command: "numaform-agent status", by: "cmd/numaform-agent/main_test.go:status"},
	{page: "docs/agent.md", command: "journalctl", why: "the log of systemd on a Proxmox host"},
	{page: "docs/install.md", command: "apt-get update", why: "installs packages as root on a Proxmox host"},
	{page: "docs/install.md", command: "KUBERNETES=", by: "examples/template_test.go:func TestMakeTemplate"},
	{page: "docs/install.md", command: "NODE=k3s", by: "examples/template_test.go:func TestTemplateForWhom"},
	{page: "docs/install.md", command: "skopeo", why: "pushes to a registry of the user"},
	{page: "docs/upgrade.md", command: "skopeo", why: "pushes to a registry of the user"},
	{page: "docs/upgrade.md", command: "git pull", by: "docs/install.md:make build && export PATH"},
	{page: "docs/topology.md", command: "qm create", why: "the simulator creates VMs by its API only"},
	{page: "docs/topology.md", command: "pvenode", why: "the simulator has no pvenode"},
	{page: "docs/host-maintenance.md", command: "pvecm", why: "the simulator cannot remove a host from its cluster"},
	{page: "docs/host-maintenance.md", command: "rm", why: "removes files of a Proxmox host, as root"},
	{page: "docs/join.md", why: "runs in a guest at its boot, as root"},
	{page: "docs/templates.md", command: "export PROXMOX_VE", by: "test/e2e/templates_test.go:func TestTemplates("},
	{page: "docs/templates.md", command: "tofu", by: "test/e2e/templates_test.go:func TestTemplates("},
	{page: "docs/releasing.md", command: "cosign", why: "the keys of a release, which does not exist yet"},
	{page: "docs/releasing.md", command: "sha256sum", by: "test/release/release_test.go:SHA256SUMS"},

	// The control plane of the tests has no kubelet.
	{page: "docs/page.md", command: "kubectl -n numaform port-forward", by: "test/cluster/page_test.go:func TestPage("},
	{page: "docs/troubleshooting.md", command: "kubectl -n numaform logs", why: "no kubelet runs the controller's pod"},

	{page: "docs/notifications.md", command: "numaform notify", by: "internal/cli/notify_test.go:func TestNotifyTest"},
}

// useStage works in the directory of a fleet that the pages share.
const useStage = `
cd "$STAGE"
vm() { command numaform get vms -o json | sed -n 's/.*"name": *"\([^"]*\)".*/\1/p' | head -n 1; }
`

// useCluster reads pods from the cluster, for pages whose commands do not name it.
const useCluster = `
export NUMAFORM_KUBECONFIG="$HOME/.kube/config"
pending() { command kubectl get pods -o name | head -n 1 | sed 's|.*/|default/|'; }
`

// stagePages are the pages whose commands run beside a fleet in a directory, on a simulated
// Proxmox, and a cluster with NodePools and pending pods but without numaform's controller.
var stagePages = map[string]pageCommands{
	"README.md": {
		prepare: `
git config --global url."file://$ROOT".insteadOf https://github.com/numaform/numaform
git config --global --add safe.directory '*'
`,
		words: map[string]string{"NODE": `"$(vm)"`, "NAME": `"$(pending)"`, "[CHANGE]": ""},
		before: map[string]string{
			"numaform doctor": useStage + useCluster,
		},
	},
	"docs/cli.md": {
		prepare: useStage + useCluster + "unset NUMAFORM_KUBECONFIG",
		words:   map[string]string{"NODE": `"$(vm)"`, "NAMESPACE/NAME": `"$(pending)"`},
	},
	"docs/explain.md": {
		prepare: useStage + useCluster,
		words:   map[string]string{"NAMESPACE/NAME": `"$(pending)"`},
	},
	"docs/troubleshooting.md": {
		prepare: useStage + useCluster + "unset NUMAFORM_KUBECONFIG",
		words:   map[string]string{"NAMESPACE/NAME": `"$(pending)"`, "nodepool NAME": "nodepool workers", " --config /etc/numaform/numaform.yaml": ""},
	},
	"docs/faults.md": {
		prepare: useStage,
		words:   map[string]string{"HOST": `"$(command numaform get vms -o json | sed -n 's/.*"host": *"\([^"]*\)".*/\1/p' | head -n 1)"`, " --config /etc/numaform/numaform.yaml": ""},
	},
	"docs/doctor.md":   {prepare: useStage},
	"docs/topology.md": {prepare: useStage},
	"docs/pinning.md":  {prepare: useStage},
	"docs/adopt.md": {
		prepare: `
kubectl -n kube-system create deployment karpenter-provider-proxmox --image registry.invalid/kpp
kubectl apply -f - <<EOF
{apiVersion: v1, kind: Node, metadata: {name: given-back, labels: {karpenter.sh/nodepool: old}, finalizers: [example.com/kept]}}
---
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: given-back, finalizers: [example.com/kept]}
spec: {nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}, requirements: []}
EOF
`,
		words: map[string]string{"NODE": "given-back", "NODECLAIM": "given-back"},
		after: `kubectl delete node given-back; ! kubectl get nodeclaims.karpenter.sh given-back`,
	},
	"docs/configuration.md": {},
	"docs/notifications.md": {prepare: useStage},
	"docs/change-control.md": {
		prepare: useStage + useCluster + `ln -sfn "$ROOT/examples" examples`,
		words:   map[string]string{"DIGEST": `"$digest"`, "[CHANGE]": "", "--kubeconfig …": `--kubeconfig "$NUMAFORM_KUBECONFIG"`, "apply …": "apply"},
		before:  map[string]string{"numaform apply": `command numaform plan --statement plan.txt; digest=$(sed -n 's/^hash: //p' plan.txt)`},
	},
	"docs/policy.md": {
		prepare: `
ln -s "$ROOT/examples" examples
cp -R examples/policy my-cases
cat >my-rules.yaml <<EOF
rules:
- {name: freeze-batch, when: 'pools.exists(p, p == "batch") && change.creates > 0', decision: deny, message: frozen}
EOF
`,
	},
	"examples/policy/README.md": {prepare: `ln -s "$ROOT/examples" examples`},
	"docs/ci.md":                {prepare: useStage + `command numaform topology -o json >lab.json`},
	"docs/backup.md": {
		prepare: useStage + `
cd "$(mktemp -d)"
printf 'a long passphrase\n' >passphrase
printf '%s\n' "$AGE_IDENTITY" >key.txt
restic() { tar -tzf - | grep fleet; }
`,
		words: map[string]string{"age1…": `"$AGE_RECIPIENT"`, " --config /etc/numaform/numaform.yaml": ""},
		before: map[string]string{
			"numaform backup -o fleet.age --recipient":       "rm fleet.age",
			"numaform backup -o fleet.age --passphrase-file": "rm fleet.age",
			"numaform restore fleet.age --identity":          `rm fleet.age; command numaform backup -o fleet.age --recipient "$AGE_RECIPIENT"`,
			"numaform restore fleet.age --passphrase":        `rm fleet.age; command numaform backup -o fleet.age --passphrase-file passphrase`,
		},
	},
	"docs/history.md": {
		prepare: useStage + `
mkdir ../history; cd ../history
cp -R "$STAGE/." .
rm -rf fleet state
export NUMAFORM_CONFIG="$PWD/numaform.yaml" NUMAFORM_STATE_DIR="$PWD/state"
git init -q --bare -b main "$PWD/remote.git"
git config --global url."file://$PWD/remote.git".insteadOf https://git.example.com/fleet.git
sed -i -e 's/^clusterID: .*/clusterID: rival/' -e 's/lower: 2000, upper: 2999/lower: 3000, upper: 3999/' \
	-e "s|^  dir: fleet|  git: {remote: 'file://$PWD/remote.git', branch: main}|" numaform.yaml
numaform apply -f manifests
command numaform history checkpoint >checkpoint.txt
`,
		words: map[string]string{"kubectl -n numaform exec deploy/numaform -- numaform history key --config /etc/numaform/numaform.yaml": "numaform history key"},
		after: `grep -q payload evidence.jsonl; command numaform undo -f manifests --auto-approve`,
	},
}

// releasePages are the pages whose commands install, change and remove a release of the chart
// in the same cluster, one page after another.
var releasePages = map[string]pageCommands{
	"charts/numaform/README.md": {
		prepare: release,
		after:   `helm -n numaform status numaform; helm -n numaform uninstall numaform; kubectl delete namespace numaform`,
	},
	"examples/manifests/README.md": {
		prepare: release,
		words:   map[string]string{"token=…": "token=secret"},
		after:   `kubectl -n numaform get deployment numaform`,
	},
	"docs/page.md": {prepare: release + installed, after: removed},
	"docs/upgrade.md": {
		prepare: release + installed + `
printf 'a long passphrase\n' >passphrase
`,
		before: map[string]string{"numaform doctor": `here=$PWD`, "helm rollback": `helm -n numaform history numaform`},
		after:  `helm -n numaform history numaform | grep -i rollback` + "\n" + removed,
	},
	"docs/crds/proxmoxtemplate.md": {
		prepare: release + proxmoxTemplate,
		words:   map[string]string{"DIGEST": "0123"},
		after:   `kubectl delete proxmoxtemplate debian-13`,
	},
	"docs/install.md": {
		prepare: release + `git config --global url."file://$ROOT".insteadOf https://github.com/numaform/numaform
`,
		before: map[string]string{
			"kubectl create namespace numaform": "cp ../values.yaml ../pve-root-ca.pem ../token .",
			// The page has two ways to remove numaform. TestUninstall checks the first one with
			// a controller.
			"kubectl -n numaform scale deployment numaform --replicas 0": installed + proxmoxTemplate + `
kubectl patch proxmoxtemplate debian-13 --type merge -p '{"metadata":{"finalizers":["numaform.dev/templates"]}}'
`,
		},
		words: map[string]string{" --config /etc/numaform/numaform.yaml": ""},
		after: `kubectl get crds -o name | grep -c numaform && exit 1; ! kubectl get namespace numaform`,
	},
	"docs/templates.md": {},
}

// release has the files that docs/install.md describes.
const release = `
ln -s "$ROOT/charts" charts; ln -s "$ROOT/examples" examples; ln -s "$ROOT/Makefile" Makefile
awk '/^# values.yaml$/ { inside = 1 } /^` + "```" + `$/ { inside = 0 } inside' "$ROOT/docs/install.md" >values.yaml
printf 'certificate\n' >pve-root-ca.pem
printf 'secret\n' >token
`

// proxmoxTemplate creates the ProxmoxTemplate of its page.
const proxmoxTemplate = `
awk '/^` + "```yaml" + `$/ { inside = 1; next } /^` + "```" + `$/ { if (inside) exit } inside' "$ROOT/docs/crds/proxmoxtemplate.md" | kubectl apply -f -
`

const installed = `
kubectl create namespace numaform
kubectl -n numaform create secret generic proxmox --from-literal=token=secret --from-file=pve-root-ca.pem
helm install numaform charts/numaform --namespace numaform --values values.yaml --set page.enabled=true
`

const removed = `
helm uninstall numaform --namespace numaform
kubectl delete namespace numaform
`

// clusterPages are the pages whose commands run while numaform's controller runs, and while
// changes of the NodePool workers require approval.
var clusterPages = map[string]pageCommands{
	"docs/approval.md": {
		prepare: pendingPlan,
		words:   map[string]string{"workers-up-0f3b6c1d9a2e": `"$plan"`, "0f3b6c1d9a2e…": `"$hash"`},
		before:  map[string]string{"numaform reject": "running\npod"},
	},
	"docs/controller.md": {
		prepare: `plan=$(kubectl get scaleplans -o jsonpath='{.items[0].metadata.name}')`,
		words:   map[string]string{"[NAME]": `"$plan"`, "HOST": "homelab/pve-1", "--config /etc/numaform/numaform.yaml": `--config "$NUMAFORM_CONFIG"`},
		before:  map[string]string{"numaform evacuate": "numaform resume"},
		after:   "numaform evacuate homelab/pve-1 --end",
	},
	"docs/crds/scaleplan.md": {
		prepare: pendingPlan + `
kubectl() { command kubectl --as jane@example.com --as-group system:masters --as-group system:authenticated "$@"; }
`,
		words: map[string]string{"workers-down-6b1f0c9e2d44": `"$plan"`},
		after: "running",
	},
	"docs/crds/proxmoxnodeclass.md": {},
	"docs/host-maintenance.md": {
		prepare: `
node() {
	pod=$(command kubectl create -o name -f - <<EOF
{apiVersion: v1, kind: Pod, metadata: {generateName: on-host-}, spec: {containers: [{name: c, image: registry.invalid/c}]}}
EOF
	)
	command kubectl wait "$pod" --for=jsonpath='{.status.phase}'=Running --timeout=180s
	node=$(command kubectl get "$pod" -o jsonpath='{.spec.nodeName}')
	zone=$(command kubectl get node "$node" -o jsonpath='{.metadata.labels.topology\.kubernetes\.io/zone}')
	region=$(command kubectl get node "$node" -o jsonpath='{.metadata.labels.topology\.kubernetes\.io/region}')
}
# elsewhere creates a Node and a NodeClaim on a host with the same name in another region.
elsewhere() {
	command kubectl create -f - <<EOF
{apiVersion: v1, kind: Node, metadata: {name: elsewhere, labels: {topology.kubernetes.io/region: elsewhere, topology.kubernetes.io/zone: $zone}}}
---
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: elsewhere, labels: {topology.kubernetes.io/region: elsewhere, topology.kubernetes.io/zone: $zone}}
spec: {nodeClassRef: {group: example.com, kind: OtherNodeClass, name: other}, requirements: []}
EOF
}
cordoned() { command kubectl get nodes -l "topology.kubernetes.io/zone=$zone" | grep SchedulingDisabled; }
kubectl annotate nodepool workers numaform.dev/scale-up-
node
`,
		words: map[string]string{"pve-2": `"$zone"`, "homelab": `"$region"`},
		before: map[string]string{
			"numaform evacuate pve-2 --end": `if kubectl get node "$node"; then exit 1; fi`,
			"kubectl drain":                 "node\nelsewhere\nnumaform pause\nkubectl delete pod --all",
			"kubectl uncordon":              "cordoned\nif cordoned | grep elsewhere; then exit 1; fi",
			"kubectl delete nodeclaim":      "numaform resume",
		},
		after: "if cordoned; then exit 1; fi\nkubectl delete nodeclaim/elsewhere node/elsewhere\nkubectl annotate nodepool workers numaform.dev/scale-up=manual",
	},
	"docs/events.md": {words: map[string]string{"pod NAME": "pod waiting", "nodepool NAME": "nodepool workers"}},
}

// pendingPlan waits for a ScalePlan that is pending, and for a pod that waits for it.
const pendingPlan = `
pending() {
	plan=$(command kubectl get scaleplans -o jsonpath='{range .items[?(@.status.phase=="Pending")]}{.metadata.name}{"\n"}{end}' | head -n 1)
	[ -n "$plan" ] && hash=$(command kubectl get scaleplan "$plan" -o jsonpath='{.spec.planHash}')
}
pod() {
	pod=$(command kubectl create -o name -f - <<EOF
{apiVersion: v1, kind: Pod, metadata: {generateName: more-}, spec: {containers: [{name: c, image: registry.invalid/c, resources: {requests: {cpu: "3"}}}]}}
EOF
	)
	until_ok pending
}
running() { command kubectl wait "$pod" --for=jsonpath='{.status.phase}'=Running --timeout=180s; }
pod
`

func pageGroups() []map[string]pageCommands {
	return []map[string]pageCommands{stagePages, releasePages, clusterPages}
}

// TestPages runs the commands of the pages for users: those beside a fleet in a directory, and
// those that install the chart. Each page continues with the fleet or the cluster of the one
// before it.
func TestPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stage, err := demo.Open(demo.Config{
		Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart", "rival"},
		Dir: dir, PluginDir: testenv.PluginDir(t), Environ: testenv.CleanEnv(), Stdout: os.Stderr, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stage.Close() })
	// Pods for one host are sufficient.
	pods := filepath.Join(stage.Manifests(), "pods.yaml")
	text, err := os.ReadFile(pods)
	if err != nil {
		t.Fatal(err)
	}
	few := strings.NewReplacer("replicas: 15", "replicas: 0", "replicas: 12", "replicas: 0").Replace(string(text))
	if err := os.WriteFile(pods, []byte(few), 0o600); err != nil {
		t.Fatal(err)
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	plane := testenv.FullControlPlane(t)
	// The user of docs/install.md does not exist on this Proxmox.
	empty := testenv.Proxmox(t, func(c *pvesim.Config) { c.Tokens = []pvesim.Token{{ID: "other@pve!x", Secret: "s"}} })
	var env []string
	for _, entry := range stage.Env() {
		if strings.HasPrefix(entry, "NUMAFORM_") {
			env = append(env, entry)
		}
	}
	m := newMachine(t, shellOf(t, empty.Shell), append(env,
		"STAGE="+dir, "NUMAFORM_ENGINE_BINARY="+testenv.Engine(t), "AGE_IDENTITY="+identity.String(), "AGE_RECIPIENT="+identity.Recipient().String())...)
	m.login(t, plane)
	m.must(t, `
kubectl apply --server-side -f "$ROOT/charts/numaform/crds" >/dev/null
kubectl wait --for=condition=Established crd --all --timeout=60s >/dev/null
kubectl apply -f "$STAGE/manifests"
`)
	m.runPages(t, stagePages, "docs/doctor.md", "docs/topology.md", "docs/explain.md", "docs/troubleshooting.md", "docs/faults.md", "docs/cli.md", "docs/ci.md", "docs/change-control.md", "README.md")
	m.must(t, `kubectl delete -f "$STAGE/manifests"`)
	m.runPages(t, releasePages, "charts/numaform/README.md", "docs/page.md", "docs/crds/proxmoxtemplate.md", "docs/upgrade.md", "docs/templates.md", "docs/install.md", "examples/manifests/README.md")
}

// TestPagesOfController runs the commands of the pages about the controller.
func TestPagesOfController(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.start()
	w.classAndPool("workers", "", "")
	w.patch(&karpv1.NodePool{}, "workers", `{"metadata":{"annotations":{"`+v1alpha1.AnnotationScaleUp+`":"manual"}}}`)
	w.pods("waiting", 1, "900", "1Gi")
	m := newMachine(t, shellOf(t, w.proxmox.Shell),
		"NUMAFORM_CONFIG="+filepath.Join(w.dir, "numaform.yaml"), "NUMAFORM_STATE_DIR="+filepath.Join(w.dir, "other-state"),
		"NUMAFORM_KUBECONFIG="+w.plane.Kubeconfig)
	m.login(t, w.plane)
	m.must(t, `kubectl get pod waiting-00 -o yaml | sed 's/waiting-00/waiting/' | kubectl create -f - || true`)
	m.runPages(t, clusterPages, "docs/crds/scaleplan.md", "docs/approval.md", "docs/controller.md")
}

// login writes the administrator's kubeconfig of a cluster to the usual place.
func (m *machine) login(t *testing.T, plane *testenv.Cluster) {
	t.Helper()
	text, err := os.ReadFile(plane.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.home, ".kube", "config"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}
