package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	apifields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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
// defaults apply. It writes nothing. The result does not include later changes of the
// cluster, except to Secrets.
func FromKubeconfig(ctx context.Context, path, kubeContext string) (*Cluster, error) {
	config, err := ClientConfig(path, kubeContext)
	if errors.Is(err, ErrNoKubeconfig) {
		return nil, fmt.Errorf("%w: set --kubeconfig, or pass manifests with -f", err)
	}
	if err != nil {
		return nil, err
	}
	objects, err := readObjects(ctx, config)
	if err == nil {
		read := FromObjects(objects)
		read.config = config
		return read, nil
	}

	hint := ""
	switch connection := ConnectionHint(err); {
	case apierrors.IsForbidden(err):
		hint = ": request a ClusterRole that can list it, or select another user with --kubeconfig or --context"
	case apierrors.IsUnauthorized(err):
		hint = ": log in again, or select another user with --kubeconfig or --context"
	case connection != "":
		hint = ": " + connection
	}
	return nil, fmt.Errorf("reading the cluster at %s: %w%s", config.Host, err, hint)
}

// NewClient returns a client without a cache for the kinds that a decision may need, and for
// Leases.
func NewClient(config *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err == nil {
		err = coordinationv1.AddToScheme(scheme)
	}
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "numaform"
	return client.New(config, client.Options{Scheme: scheme})
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
		// optional is set if a cluster may lack the kind, and informative if users may lack
		// the permission to list it, because no decision needs it.
		optional, informative bool
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
		{list: &v1alpha1.ScalePlanList{}, optional: true, informative: true},
	} {
		err := c.List(ctx, kind.list)
		var noMatch *apimeta.NoKindMatchError
		switch {
		case kind.optional && apimeta.IsNoMatchError(err), kind.informative && apierrors.IsForbidden(err):
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
			// NodeOverlays are used only if the feature gate is enabled, which their
			// Ready condition shows.
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
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	var ids []string
	for i := range nodes.Items {
		ids = append(ids, nodes.Items[i].Spec.ProviderID)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		// A claim that has not been launched has no provider ID yet: derive it from the
		// name of its VM.
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

// NodeAddresses returns the addresses of all Nodes, including other providers', with the
// Nodes' names.
func (c *Cluster) NodeAddresses(ctx context.Context) (map[string]string, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	addresses := map[string]string{}
	for i := range nodes.Items {
		for _, address := range nodes.Items[i].Status.Addresses {
			addresses[address.Address] = nodes.Items[i].Name // some are names, which no pool contains
		}
	}
	return addresses, nil
}

// ClassVMIDs returns the ranges of VMIDs of all ProxmoxNodeClasses.
func (c *Cluster) ClassVMIDs(ctx context.Context) ([]fleet.VMIDRange, error) {
	var classes v1alpha1.ProxmoxNodeClassList
	if err := c.client.List(ctx, &classes); err != nil {
		return nil, fmt.Errorf("listing ProxmoxNodeClasses: %w", err)
	}
	var ranges []fleet.VMIDRange
	for i := range classes.Items {
		if r := vmidsOf(classes.Items[i].Spec.VMIDRange); r != (fleet.VMIDRange{}) {
			ranges = append(ranges, r)
		}
	}
	return ranges, nil
}

// inUse returns what new VMs must not get; the addresses of Nodes only if the snapshot has
// address pools.
func (c *Cluster) inUse(ctx context.Context, snapshot *topology.Snapshot) (used inUse, err error) {
	if snapshot.HasAddressPools() {
		if used.nodes, err = c.NodeAddresses(ctx); err != nil {
			return inUse{}, err
		}
	}
	if used.vmids, err = c.VMIDs(ctx); err != nil {
		return inUse{}, err
	}
	used.classes, err = c.ClassVMIDs(ctx)
	return used, err
}

// Leaving returns the keys of the VMs whose NodeClaims are being deleted. The result is never
// nil unless there is an error.
func (c *Cluster) Leaving(ctx context.Context) (map[fleet.Key]bool, error) {
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodeclaims: %w", err)
	}
	leaving := map[fleet.Key]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if key := claim.Annotations[v1alpha1.AnnotationKey]; key != "" && !claim.DeletionTimestamp.IsZero() {
			leaving[fleet.Key(key)] = true
		}
	}
	return leaving, nil
}

// HasNodes reports whether the cluster has any Node. Manifests need not contain one.
func (c *Cluster) HasNodes(ctx context.Context) (bool, error) {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return false, fmt.Errorf("reading nodes: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// Drained returns why a node must not be removed yet: it runs pods, or may still get some.
// It returns nil for a drained node, and for a Node that does not exist and has no pods.
// DaemonSets' pods, mirror pods and completed ones do not count. A node that Karpenter
// drains is drained when no pods are left that Karpenter waits for. Karpenter does not drain
// a node whose NodeClaim was deleted before it registered the node: the node keeps the taint
// with which it joined, and gets no pods.
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
	if len(pods) > 0 {
		return fmt.Errorf("node %s still runs pods (%d, including %s): run kubectl drain %s --ignore-daemonsets first", name, len(pods), slices.Min(pods), name)
	}
	if gone || disrupted || node.Spec.Unschedulable {
		return nil
	}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) }) {
		if claimed, err := c.claimed(ctx, name); err != nil || !claimed {
			return err
		}
	}
	return fmt.Errorf("node %s is not cordoned and can still get pods: run kubectl drain %s --ignore-daemonsets first", name, name)
}

// claimed reports whether a NodeClaim that is not being deleted has the VM with that name.
func (c *Cluster) claimed(ctx context.Context, name string) (bool, error) {
	var claims karpv1.NodeClaimList
	if err := c.client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing nodeclaims: %w", err)
	}
	return slices.ContainsFunc(claims.Items, func(claim karpv1.NodeClaim) bool {
		return claim.Annotations[v1alpha1.AnnotationVM] == name && claim.DeletionTimestamp.IsZero()
	}), nil
}

// NodeExists reports whether there is a Node with that name.
func (c *Cluster) NodeExists(ctx context.Context, name string) (bool, error) {
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading node %s: %w", name, err)
	}
	return true, nil
}

// Secret returns the content of a Secret. FromKubeconfig does not read Secrets, so for its
// cluster, Secret reads from the API server.
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

// PoolMistake is a mistake in a NodePool. If it blocks, the NodePool creates no nodes.
type PoolMistake struct {
	NodePool, Message string
	Blocks            bool
}

// PoolMistakes returns the mistakes in the cluster's NodePools that use ProxmoxNodeClasses,
// sorted by NodePool.
func (c *Cluster) PoolMistakes(ctx context.Context) ([]PoolMistake, error) {
	var list karpv1.NodePoolList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("reading nodepools: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b karpv1.NodePool) int { return cmp.Compare(a.Name, b.Name) })
	var mistakes []PoolMistake
	for i := range list.Items {
		pool := &list.Items[i]
		if !isOurs(pool.Spec.Template.Spec.NodeClassRef) {
			continue
		}
		if message := LabelMistake(pool); message != "" {
			mistakes = append(mistakes, PoolMistake{NodePool: pool.Name, Message: message, Blocks: true})
		}
		if pool.Spec.Replicas != nil {
			mistakes = append(mistakes, PoolMistake{NodePool: pool.Name, Message: "it has spec.replicas: it has nodes only if the controller runs with the feature gate StaticCapacity, " +
				"and no nodes are created for pods"})
		}
		if message := AnnotationMistake(pool, v1alpha1.NodePoolAnnotations()); message != "" {
			mistakes = append(mistakes, PoolMistake{NodePool: pool.Name, Message: message})
		}
	}
	return mistakes, nil
}

// memory is a client for objects that never change. Reads return copies in name order,
// without the fake client's conversion through JSON; the fake client receives the writes,
// which are never read.
type memory struct {
	client.Client
	scheme *runtime.Scheme
	byKind map[schema.GroupVersionKind][]client.Object
	// bound are the pods of each node, because Karpenter lists them node by node.
	bound map[string][]client.Object
	// err is set if the objects cannot be used; every read returns it.
	err error
}

func newMemory(objects []client.Object) *memory {
	scheme, err := newScheme()
	if err != nil {
		return &memory{err: err}
	}
	m := &memory{
		Client: fake.NewClientBuilder().WithScheme(scheme).Build(),
		scheme: scheme,
		byKind: map[schema.GroupVersionKind][]client.Object{},
		bound:  map[string][]client.Object{},
	}
	for _, object := range objects {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return &memory{err: fmt.Errorf("reading %T %s: %w", object, client.ObjectKeyFromObject(object), err)}
		}
		m.byKind[gvk] = append(m.byKind[gvk], object)
	}
	for gvk, all := range m.byKind {
		slices.SortFunc(all, compareKeys[client.Object])
		for i := 1; i < len(all); i++ {
			if compareKeys(all[i-1], all[i]) == 0 {
				name := strings.TrimPrefix(client.ObjectKeyFromObject(all[i]).String(), "/")
				return &memory{err: fmt.Errorf("reading manifests: duplicate %s %s: remove one", gvk.Kind, name)}
			}
		}
	}
	for _, object := range m.byKind[corev1.SchemeGroupVersion.WithKind("Pod")] {
		if pod, ok := object.(*corev1.Pod); ok {
			m.bound[pod.Spec.NodeName] = append(m.bound[pod.Spec.NodeName], pod)
		}
	}
	return m
}

// compareKeys orders objects of one kind by namespace and name.
func compareKeys[T client.Object](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// Get copies the object with that name to object.
func (m *memory) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if m.err != nil {
		return m.err
	}
	gvk, err := apiutil.GVKForObject(object, m.scheme)
	if err != nil {
		return fmt.Errorf("getting %s: %w", key, err)
	}
	if slices.Contains(clusterKinds(), gvk.Kind) {
		key.Namespace = "" // Karpenter gets volumes with the namespace of their pod
	}
	all := m.byKind[gvk]
	i, found := slices.BinarySearchFunc(all, key, func(o client.Object, key client.ObjectKey) int {
		return cmp.Or(cmp.Compare(o.GetNamespace(), key.Namespace), cmp.Compare(o.GetName(), key.Name))
	})
	if found {
		reflect.ValueOf(object).Elem().Set(reflect.ValueOf(all[i].DeepCopyObject()).Elem())
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, key.String())
}

// List copies all objects of the list's kind that match the options to the list, or shares
// them with the list if the options say so. Field selectors may use the fields that Karpenter v1.14.1 indexes.
func (m *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if m.err != nil {
		return m.err
	}
	gvk, err := apiutil.GVKForObject(list, m.scheme)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	var options client.ListOptions
	options.ApplyOptions(opts)
	var fields []apifields.Requirement
	if options.FieldSelector != nil {
		fields = options.FieldSelector.Requirements()
	}

	objects := m.byKind[gvk]
	if gvk.Kind == "Pod" && len(fields) == 1 && fields[0].Field == "spec.nodeName" {
		objects, fields = m.bound[fields[0].Value], nil
	}
	var selected []runtime.Object
	for _, object := range objects {
		if options.Namespace != "" && object.GetNamespace() != options.Namespace {
			continue
		}
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		matches := true
		for _, field := range fields {
			value, known := fieldOf(object, field.Field)
			if !known {
				return fmt.Errorf("listing %s: no index of field %s", gvk.Kind, field.Field)
			}
			matches = matches && value == field.Value
		}
		switch shared := options.UnsafeDisableDeepCopy; {
		case !matches:
		case shared != nil && *shared:
			selected = append(selected, object)
		default:
			selected = append(selected, object.DeepCopyObject())
		}
	}
	return apimeta.SetList(list, selected)
}

func fieldOf(object client.Object, field string) (value string, known bool) {
	switch o := object.(type) {
	case *corev1.Node:
		return o.Spec.ProviderID, field == "spec.providerID"
	case *storagev1.VolumeAttachment:
		return o.Spec.NodeName, field == "spec.nodeName"
	case *karpv1.NodeClaim:
		return o.Status.ProviderID, field == "status.providerID"
	}
	return "", false
}
