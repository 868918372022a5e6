package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// memory is a client for objects that never change. It answers reads with copies in name
// order, without the fake client's conversion through JSON; the fake client receives the
// writes, which are never read.
type memory struct {
	client.Client
	scheme *runtime.Scheme
	byKind map[schema.GroupVersionKind][]client.Object
	// bound are the pods of each node, because Karpenter lists them node by node.
	bound map[string][]client.Object
}

func newMemory(scheme *runtime.Scheme, objects []client.Object) (*memory, error) {
	m := &memory{
		Client: fake.NewClientBuilder().WithScheme(scheme).Build(),
		scheme: scheme,
		byKind: map[schema.GroupVersionKind][]client.Object{},
		bound:  map[string][]client.Object{},
	}
	for _, object := range objects {
		gvk, err := apiutil.GVKForObject(object, scheme)
		if err != nil {
			return nil, fmt.Errorf("reading %T %s: %w", object, client.ObjectKeyFromObject(object), err)
		}
		m.byKind[gvk] = append(m.byKind[gvk], object)
	}
	for gvk, all := range m.byKind {
		slices.SortFunc(all, compareKeys)
		for i := 1; i < len(all); i++ {
			if compareKeys(all[i-1], all[i]) == 0 {
				return nil, fmt.Errorf("reading manifests: %s %s is there twice: remove one", gvk.Kind, strings.TrimPrefix(client.ObjectKeyFromObject(all[i]).String(), "/"))
			}
		}
	}
	for _, object := range m.byKind[corev1.SchemeGroupVersion.WithKind("Pod")] {
		if pod, ok := object.(*corev1.Pod); ok {
			m.bound[pod.Spec.NodeName] = append(m.bound[pod.Spec.NodeName], pod)
		}
	}
	return m, nil
}

func compareKeys(a, b client.Object) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// Get copies the object with that name to object.
func (m *memory) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
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

// List copies all objects of the list's kind that match the options to the list.
func (m *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	gvk, err := apiutil.GVKForObject(list, m.scheme)
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	gvk.Kind = gvk.Kind[:len(gvk.Kind)-len("List")]
	var options client.ListOptions
	options.ApplyOptions(opts)
	from, err := m.candidates(gvk, &options)
	if err != nil {
		return err
	}
	var selected []runtime.Object
	for _, object := range from {
		if options.Namespace != "" && object.GetNamespace() != options.Namespace {
			continue
		}
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		selected = append(selected, object.DeepCopyObject())
	}
	return apimeta.SetList(list, selected)
}

// candidates returns the objects that the field selector selects. It supports the fields
// that Karpenter v1.14.1 indexes, and refuses others.
func (m *memory) candidates(gvk schema.GroupVersionKind, options *client.ListOptions) ([]client.Object, error) {
	all := m.byKind[gvk]
	if options.FieldSelector == nil {
		return all, nil
	}
	for _, requirement := range options.FieldSelector.Requirements() {
		if gvk.Kind == "Pod" && requirement.Field == "spec.nodeName" {
			return m.bound[requirement.Value], nil
		}
		var kept []client.Object
		for _, object := range all {
			value, known := fieldOf(object, requirement.Field)
			if !known {
				return nil, fmt.Errorf("listing %s: there is no index of %s", gvk.Kind, requirement.Field)
			}
			if value == requirement.Value {
				kept = append(kept, object)
			}
		}
		all = kept
	}
	return all, nil
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
