package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/jointoken"
)

// ClusterConfig configures RunCluster. Sim of the Config must be nil, and Change is
// ignored.
type ClusterConfig struct {
	Config
	// Tools is the directory with the programs of etcd and Kubernetes.
	Tools string
	// Manifests are the objects that the chart installs.
	Manifests []byte
}

// wantedPods is the number of replicas of the Deployment.
const wantedPods = 15

// pool is the class and the NodePool of the cluster's nodes.
const pool = `apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: pinned}
spec:
  region: %s
  template: {name: %s}
  clone: linked
  placement: {policy: Dedicated, pinWith: HostAgent}   # whole cores for each node
  metadata: {type: cdrom}                              # nodes join by a seed with a token
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: pinned
  annotations:
    numaform.dev/scale-up: auto
    numaform.dev/scale-down: manual                    # every removal needs approval
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: pinned}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 0s, budgets: [{nodes: "100%%"}]}
`

// deployment requests pods that spread over the hosts.
const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: web, image: registry.example/web:1, resources: {requests: {cpu: 900m, memory: 1Gi}}}
`

// people gives one user permission to approve, and another user permission to view.
const people = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: alice}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: numaform-approver}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bob}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: numaform-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}]
`

// RunCluster demonstrates numaform's controller with a Kubernetes control plane that it
// starts on this machine, and stops everything at the end. It stops at the first scene
// with a wrong result, and returns an error. A problem that a simulated guest reported is
// also an error.
func RunCluster(ctx context.Context, config ClusterConfig) (err error) {
	screen, inner := onScreen(config.Config)
	config.Config = inner
	say(config.Stdout, "A Kubernetes control plane, three Proxmox hosts, and numaform with the permissions of its chart")
	preparing := screen.Start("starting etcd, kube-apiserver, Proxmox and the controller", 0)
	w, err := openWorld(ctx, config)
	preparing.Stop()
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return fmt.Errorf("preparing the demo: %w", err)
	}
	w.screen = screen
	for _, scene := range []func(context.Context) error{
		w.showHosts, w.declare, w.deploy, w.join, w.empty, w.approve, w.gone, w.history,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	for _, problem := range w.guests.Problems() {
		err = errors.Join(err, fmt.Errorf("a simulated guest reported a problem: %s", problem))
	}
	w.say("The end. The controller's log is in " + w.Dir)
	return err
}

func (w *world) showHosts(_ context.Context) error {
	hosts, err := w.Hosts()
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "\n  Kubernetes %s, Proxmox %s\n", w.plane.Config.Host, w.Sim.URL())
	return printHosts(w.Stdout, hosts)
}

// declare creates the users' permissions, the class and the pool, and waits until the class
// is ready.
func (w *world) declare(ctx context.Context) error {
	w.say("A class with exclusive cores, and a NodePool whose nodes are removed only after approval")
	if err := w.create(ctx, people); err != nil {
		return err
	}
	if err := w.apply(ctx, fmt.Sprintf(pool, w.Region, w.Template)); err != nil {
		return err
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	err := w.wait(ctx, "the ProxmoxNodeClass", func(ctx context.Context) (string, error) {
		err := w.api.Get(ctx, client.ObjectKey{Name: "pinned"}, class)
		missing := "it is not Ready"
		for _, condition := range class.Status.Conditions {
			if condition.Status == metav1.ConditionTrue && condition.Type == "Ready" {
				return "", err
			}
			missing += fmt.Sprintf(", %s=%s %s", condition.Type, condition.Status, condition.Message)
		}
		return missing, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "\nThe class is Ready, with hosts %s.\n", strings.Join(class.Status.Hosts, ", "))
	return nil
}

func (w *world) deploy(ctx context.Context) error {
	w.say(fmt.Sprintf("%d pods are pending, and no node exists", wantedPods))
	if err := w.apply(ctx, fmt.Sprintf(deployment, wantedPods)); err != nil {
		return err
	}
	pods := &corev1.PodList{}
	err := w.wait(ctx, "the Deployment's pods", func(ctx context.Context) (string, error) {
		err := w.api.List(ctx, pods, client.InNamespace("default"))
		if len(pods.Items) == wantedPods {
			return "", err
		}
		return fmt.Sprintf("%d of %d pods exist", len(pods.Items), wantedPods), err
	})
	if err != nil {
		return err
	}
	return printPods(w.Stdout, pods.Items)
}

// join waits until the pods run, prints their nodes, and checks that no two nodes share a
// CPU.
func (w *world) join(ctx context.Context) error {
	w.say("VMs are placed, planned, checked and created; each joins with its own token; pods run")
	var nodes []nodeRow
	err := w.wait(ctx, "pods that run on nodes", func(ctx context.Context) (missing string, err error) {
		nodes, missing, err = w.nodes(ctx)
		return missing, err
	})
	if err != nil {
		return err
	}
	if err := printNodes(w.Stdout, nodes); err != nil {
		return err
	}
	if err := exclusive(nodes); err != nil {
		return err
	}
	fmt.Fprintln(w.Stdout, "\nnumaform-agent on each host pins every vCPU to one of these CPUs, and keeps other guests off these CPUs.\nnumaform has an API "+
		"token for Proxmox, not root's password.")
	return nil
}

// empty removes the pods, waits for the plan that needs approval, and checks that no node
// has been tainted.
func (w *world) empty(ctx context.Context) error {
	w.say("The pods are deleted. The removal of their nodes is pending approval: no node is tainted, drained or deleted yet")
	fmt.Fprintln(w.Stdout, "\n$ kubectl scale deployment web --replicas 0")
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	if err := w.api.Patch(ctx, web, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))); err != nil {
		return err
	}
	fmt.Fprintln(w.Stdout, "\nKarpenter checks NodePools that require approval once a minute …")
	if _, err := w.pending(ctx); err != nil {
		return err
	}
	nodes := &corev1.NodeList{}
	if err := w.api.List(ctx, nodes); err != nil {
		return err
	}
	for i := range nodes.Items {
		if tainted := slices.ContainsFunc(nodes.Items[i].Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" }); tainted {
			return fmt.Errorf("node %s was tainted before the approval", nodes.Items[i].Name)
		}
	}
	return w.as(ctx, "alice", cli.ExitOK, "plans")
}

// pending waits for a plan that is pending approval.
func (w *world) pending(ctx context.Context) (*v1alpha1.ScalePlan, error) {
	var plan *v1alpha1.ScalePlan
	err := w.wait(ctx, "a ScalePlan", func(ctx context.Context) (missing string, err error) {
		plan, err = w.waiting(ctx)
		if plan == nil {
			missing = "no plan is pending approval"
		}
		return missing, err
	})
	return plan, err
}

// waiting returns the first plan that is pending approval, or nil.
func (w *world) waiting(ctx context.Context) (*v1alpha1.ScalePlan, error) {
	plans := &v1alpha1.ScalePlanList{}
	if err := w.api.List(ctx, plans); err != nil {
		return nil, err
	}
	for i := range plans.Items {
		if plan := &plans.Items[i]; plan.Status.Phase == v1alpha1.ScalePlanPending && plan.Spec.Approve == "" {
			return plan, nil
		}
	}
	return nil, nil
}

func (w *world) approve(ctx context.Context) error {
	plan, err := w.pending(ctx)
	if err != nil {
		return err
	}
	w.say("The exact change (without the attributes of VMs)")
	if err := w.as(ctx, "alice", cli.ExitOK, "plans", plan.Name); err != nil {
		return err
	}
	w.say("bob can view the change but not approve it")
	if err := w.as(ctx, "bob", cli.ExitFailed, "approve", plan.Name, "--hash", plan.Spec.PlanHash); err != nil {
		return err
	}
	w.say("alice approves exactly this change, by its full hash")
	return w.as(ctx, "alice", cli.ExitOK, "approve", plan.Name, "--hash", plan.Spec.PlanHash)
}

// gone waits until no part of the fleet remains, and approves further plans for nodes that
// were not empty when the first plan was created.
func (w *world) gone(ctx context.Context) error {
	w.say("Nodes are drained, their guests shut down, and the new plan is checked and applied")
	err := w.wait(ctx, "nodes to leave", func(ctx context.Context) (string, error) {
		plan, err := w.waiting(ctx)
		if err != nil {
			return "", err
		}
		if plan != nil {
			if err := w.as(ctx, "alice", cli.ExitOK, "approve", plan.Name, "--hash", plan.Spec.PlanHash); err != nil {
				return "", err
			}
		}
		left, err := w.left(ctx)
		return strings.Join(left, ", "), err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w.Stdout, "\nNo node, no NodeClaim, no join token, and no VM of this fleet remains.")
	return nil
}

// left returns the names of the remaining parts of the fleet.
func (w *world) left(ctx context.Context) (left []string, err error) {
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Node"}, {Group: "karpenter.sh", Version: "v1", Kind: "NodeClaim"},
	} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := w.api.List(ctx, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			left = append(left, kind.Kind+" "+list.Items[i].Name)
		}
	}
	secrets := &corev1.SecretList{}
	if err := w.api.List(ctx, secrets, client.InNamespace(namespace), client.HasLabels{jointoken.Label}); err != nil {
		return nil, err
	}
	for i := range secrets.Items {
		left = append(left, "token "+secrets.Items[i].Name)
	}
	for name := range w.ours() {
		left = append(left, "VM "+name)
	}
	slices.Sort(left)
	return left, nil
}

func (w *world) history(ctx context.Context) error {
	w.say("The history shows all changes")
	return w.as(ctx, administrator, cli.ExitOK, "history")
}
