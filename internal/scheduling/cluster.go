package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Cluster is a Kubernetes cluster to decide for. It is read-only and safe for concurrent
// use.
type Cluster struct {
	client client.Client
	// config is the connection to the cluster from which the objects were read, or nil.
	config *rest.Config
}

// FromObjects returns a cluster with those objects, as returned by Load. It takes
// ownership of the objects. If they cannot be used, reading the cluster returns the error.
func FromObjects(objects []client.Object) *Cluster { return &Cluster{client: newMemory(objects)} }

// FromClient returns the cluster that a client reads. The client needs the field indexes
// spec.nodeName of Pods, spec.providerID of Nodes and status.providerID of NodeClaims,
// and Karpenter's and numaform's kinds in its scheme.
func FromClient(c client.Client) *Cluster { return &Cluster{client: c} }

// FromKubeconfig reads a cluster once. If the path or the context is empty, the usual
// defaults apply. It writes nothing, and does not see later changes of the cluster.
func FromKubeconfig(ctx context.Context, path, kubeContext string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("neither KUBECONFIG nor ~/.kube/config names a cluster")
	}
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w: name one with --kubeconfig, or manifests with -f", err)
	}
	objects, err := readObjects(ctx, config)
	if err == nil {
		read := FromObjects(objects)
		read.config = config
		return read, nil
	}

	hint := ""
	var network net.Error
	switch {
	case apierrors.IsForbidden(err):
		hint = ": ask for a ClusterRole that may list it, or name another user's kubeconfig or --context"
	case apierrors.IsUnauthorized(err):
		hint = ": log in anew, or name another kubeconfig or --context"
	case errors.As(err, &network):
		hint = ": check the server in the kubeconfig, and that it can be reached from here"
	}
	return nil, fmt.Errorf("reading the cluster at %s: %w%s", config.Host, err, hint)
}

// readObjects reads all objects that a decision may need.
func readObjects(ctx context.Context, config *rest.Config) ([]client.Object, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "numaform"
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	c, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: httpClient})
	if err != nil {
		return nil, err
	}

	var objects []client.Object
	for _, kind := range []struct {
		list client.ObjectList
		// optional is set if a cluster may lack the kind.
		optional bool
	}{
		{list: &v1alpha1.ProxmoxNodeClassList{}},
		{list: &karpv1.NodePoolList{}},
		{list: &karpv1.NodeClaimList{}, optional: true},
		{list: &corev1.PodList{}},
		{list: &corev1.NodeList{}},
		{list: &corev1.NamespaceList{}},
		{list: &corev1.PersistentVolumeList{}},
		{list: &corev1.PersistentVolumeClaimList{}},
		{list: &storagev1.StorageClassList{}},
		{list: &storagev1.CSINodeList{}},
		{list: &storagev1.VolumeAttachmentList{}},
		{list: &appsv1.DaemonSetList{}},
		{list: &policyv1.PodDisruptionBudgetList{}},
		{list: &karpv1alpha1.NodeOverlayList{}, optional: true},
	} {
		err := c.List(ctx, kind.list)
		var noMatch *apimeta.NoKindMatchError
		switch {
		case kind.optional && apimeta.IsNoMatchError(err):
			continue
		case errors.As(err, &noMatch):
			return nil, fmt.Errorf("kind %s is not installed: apply the CRDs in charts/numaform/crds (%w)", noMatch.GroupKind, err)
		case err != nil:
			return nil, err
		}

		items, err := apimeta.ExtractList(kind.list)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			// NodeOverlays are used only if the feature gate is enabled, which shows in
			// their Ready condition.
			if o, ok := item.(*karpv1alpha1.NodeOverlay); ok {
				if ready := readyCondition(o.Status.Conditions); ready == nil || !ready.IsTrue() {
					continue
				}
			}
			if object, ok := item.(client.Object); ok {
				objects = append(objects, object)
			}
		}
	}
	return objects, nil
}

// VMIDs returns the VMIDs that Nodes and NodeClaims still refer to, by region: they must
// not be assigned again.
func (c *Cluster) VMIDs(ctx context.Context) (map[topology.RegionName][]fleet.VMID, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		// A claim that has not been launched identifies its VM by its own name.
		name := claim.Annotations[v1alpha1.AnnotationVM]
		named := fmt.Sprintf("proxmox://%s/%s", claim.Labels[corev1.LabelTopologyRegion], name[strings.LastIndex(name, "-")+1:])
		ids = append(ids, cmp.Or(claim.Status.ProviderID, named))
	}
	used := map[topology.RegionName][]fleet.VMID{}
	for _, id := range ids {
		// Ignore nodes of other providers.
		if region, vmid, err := fleet.ParseProviderID(id); err == nil {
			used[region] = append(used[region], vmid)
		}
	}
	return used, nil
}

// HasNodes reports whether there is any Node. A cluster has some; manifests may not.
func (c *Cluster) HasNodes(ctx context.Context) (bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return false, fmt.Errorf("reading nodes: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// Drained returns why a node must not be removed yet: it runs pods, or may still get
// some. A Node that does not exist never joined. DaemonSets' pods, mirror pods and
// completed ones do not count. A node that Karpenter drains is drained when no pods are
// left for which Karpenter waits.
func (c *Cluster) Drained(ctx context.Context, name string) error {
	var node corev1.Node
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &node)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	gone := apierrors.IsNotFound(err)
	disrupted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.DisruptedNoScheduleTaint) })

	var list corev1.PodList
	if err := c.client.List(ctx, &list, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return fmt.Errorf("listing pods on node %s: %w", name, err)
	}
	var pods []string
	for i := range list.Items {
		pod := &list.Items[i]
		if podutils.IsTerminal(pod) || podutils.IsOwnedByDaemonSet(pod) || podutils.IsOwnedByNode(pod) {
			continue
		}
		if !disrupted || podutils.IsDrainable(pod, clock.RealClock{}) {
			pods = append(pods, client.ObjectKeyFromObject(pod).String())
		}
	}
	switch {
	case len(pods) > 0:
		return fmt.Errorf("node %s still runs pods, %d in all, %s among them: kubectl drain it first", name, len(pods), slices.Min(pods))
	case gone || disrupted || node.Spec.Unschedulable:
		return nil
	}
	return fmt.Errorf("node %s is not cordoned and may get pods any time: kubectl drain it first", name)
}

// Secret returns the content of a Secret. Secrets are read only on request.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	reader := client.Reader(c.client)
	if c.config != nil {
		live, err := client.New(c.config, client.Options{})
		if err != nil {
			return nil, fmt.Errorf("reaching the cluster: %w", err)
		}
		reader = live
	}
	var secret corev1.Secret
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return nil, fmt.Errorf("reading secret %s/%s: %w", namespace, name, err)
	}
	data := map[string][]byte{}
	maps.Copy(data, secret.Data)
	for key, text := range secret.StringData { // from a manifest
		data[key] = []byte(text)
	}
	return data, nil
}

// NodeClasses returns the cluster's ProxmoxNodeClasses, sorted by name.
func (c *Cluster) NodeClasses(ctx context.Context) ([]v1alpha1.ProxmoxNodeClass, error) {
	var list v1alpha1.ProxmoxNodeClassList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading node classes: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ProxmoxNodeClass) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}
