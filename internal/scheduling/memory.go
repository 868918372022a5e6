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
	apifields "k8s.io/apimachinery/pkg/fields"
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
	// err is why the objects cannot be used; every read returns it.
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
				return &memory{err: fmt.Errorf("reading manifests: %s %s is there twice: remove one", gvk.Kind, name)}
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

// List copies all objects of the list's kind that match the options to the list. Field
// selectors may use the fields that Karpenter v1.14.1 indexes.
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
				return fmt.Errorf("listing %s: there is no index of %s", gvk.Kind, field.Field)
			}
			matches = matches && value == field.Value
		}
		if matches {
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
