package scheduling

import (
	"context"
	"errors"
	"fmt"
	"net"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/numaform/numaform/api/v1alpha1"
)

// Cluster is a Kubernetes cluster to decide for. It is read-only and safe for concurrent
// use.
type Cluster struct {
	client client.Client
	// config is the connection to the cluster from which the objects were read, or nil.
	config *rest.Config
	// err is why the objects cannot be read; Decide returns it.
	err error
}

// FromObjects returns a cluster with those objects, as returned by Load. It takes
// ownership of the objects.
func FromObjects(objects []client.Object) *Cluster {
	scheme, err := newScheme()
	if err != nil {
		return &Cluster{err: err}
	}
	c, err := newMemory(scheme, objects)
	if err != nil {
		return &Cluster{err: err}
	}
	return &Cluster{client: c}
}

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
	objects, err := readAll(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster at %s: %w%s", config.Host, err, mendCluster(err))
	}
	read := FromObjects(objects)
	read.config = config
	return read, nil
}

// mendCluster returns a hint about a cluster that cannot be read, as the end of a
// sentence.
func mendCluster(err error) string {
	var network net.Error
	switch {
	case apierrors.IsForbidden(err):
		return ": ask for a ClusterRole that may list it, or name another user's kubeconfig or --context"
	case apierrors.IsUnauthorized(err):
		return ": log in anew, or name another kubeconfig or --context"
	case errors.As(err, &network):
		return ": check the server in the kubeconfig, and that it can be reached from here"
	}
	return ""
}

func readAll(ctx context.Context, config *rest.Config) ([]client.Object, error) {
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
	for _, list := range []client.ObjectList{
		&v1alpha1.ProxmoxNodeClassList{}, &karpv1.NodePoolList{}, &karpv1.NodeClaimList{},
		&corev1.PodList{}, &corev1.NodeList{}, &corev1.NamespaceList{},
		&corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{},
		&storagev1.StorageClassList{}, &storagev1.CSINodeList{}, &storagev1.VolumeAttachmentList{},
		&appsv1.DaemonSetList{}, &policyv1.PodDisruptionBudgetList{}, &karpv1alpha1.NodeOverlayList{},
	} {
		read, err := readList(ctx, c, list)
		if err != nil {
			return nil, err
		}
		objects = append(objects, read...)
	}
	return objects, nil
}

func readList(ctx context.Context, c client.Client, list client.ObjectList) ([]client.Object, error) {
	err := c.List(ctx, list)
	if isOptional(list) && apimeta.IsNoMatchError(err) {
		return nil, nil
	}
	if noMatch := (*apimeta.NoKindMatchError)(nil); errors.As(err, &noMatch) {
		return nil, fmt.Errorf("kind %s is not installed: apply the CRDs in charts/numaform/crds (%w)", noMatch.GroupKind, err)
	}
	if err != nil {
		return nil, err
	}
	items, err := apimeta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	var objects []client.Object
	for _, item := range items {
		if object, ok := item.(client.Object); ok && counts(object) {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// isOptional reports whether a cluster may lack the kind.
func isOptional(list client.ObjectList) bool {
	switch list.(type) {
	case *karpv1.NodeClaimList, *karpv1alpha1.NodeOverlayList:
		return true
	}
	return false
}

// counts reports whether the cluster's controller uses an object: NodeOverlays are used
// only if the feature gate is enabled, which shows in their Ready condition.
func counts(object client.Object) bool {
	o, ok := object.(*karpv1alpha1.NodeOverlay)
	if !ok {
		return true
	}
	ready := readyCondition(o.Status.Conditions)
	return ready != nil && ready.IsTrue()
}
