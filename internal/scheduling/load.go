package scheduling

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
)

// newScheme returns a scheme of the kinds that a decision reads.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(karpenterVersion(), &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenterVersion())
	overlays := schema.GroupVersion{Group: karpenterVersion().Group, Version: "v1alpha1"}
	scheme.AddKnownTypes(overlays, &karpv1alpha1.NodeOverlay{}, &karpv1alpha1.NodeOverlayList{})
	metav1.AddToGroupVersion(scheme, overlays)
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}
	return scheme, nil
}

func karpenterVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
}

// readKinds returns the kinds that a manifest may contain.
func readKinds() []string {
	return []string{
		"Pod", "Node", "Namespace", "PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "VolumeAttachment",
		"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job", "PodDisruptionBudget",
		"NodePool", "NodeClaim", "NodeOverlay", "Secret", v1alpha1.KindProxmoxNodeClass,
	}
}

// Load reads manifests from files, and from the .yaml, .yml and .json files in
// directories. It is strict: unknown kinds, unknown fields and duplicate objects are
// errors that name the file and the document in it. It sets the fields that an API
// server, Karpenter's controllers and a scheduler that found no room would have set, and
// replaces workloads by the pods that they still lack.
func Load(paths []string) ([]client.Object, error) {
	files, err := findFiles(paths)
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	var objects []client.Object
	var errs []error
	known := sources{}
	for _, file := range once(files) {
		data, err := readManifest(file)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		read, err := decodeAll(scheme, file, data)
		objects, errs = append(objects, read...), append(errs, err, known.add(file, read))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if objects, err = expandWorkloads(objects); err != nil {
		return nil, err
	}
	for _, object := range objects {
		setDefaults(object)
	}
	return objects, nil
}

// maxManifest limits the size of one manifest file, enough for tens of thousands of pods.
const maxManifest = 256 << 20

func readManifest(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err == nil && len(data) > maxManifest {
		err = fmt.Errorf("%s has more than %d bytes: split it", name, maxManifest)
	}
	return data, err
}

func findFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w: name a file or directory of manifests with -f", err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		below, err := filesBelow(path)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		if len(below) == 0 {
			return nil, fmt.Errorf("reading manifests: %s has no .yaml, .yml or .json file: name the files, or another directory", path)
		}
		files = append(files, below...)
	}
	return files, nil
}

// filesBelow returns the manifests in a directory and its subdirectories.
func filesBelow(dir string) (files []string, err error) {
	// WalkDir does not follow a symbolic link to the directory.
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		// The files of a mounted ConfigMap are also in hidden directories.
		hidden := name != root && strings.HasPrefix(entry.Name(), ".")
		switch {
		case err != nil:
			return err
		case entry.IsDir() && hidden:
			return fs.SkipDir
		case entry.IsDir():
			return nil
		case slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			files = append(files, name)
		case !hidden && leadsToDir(name, entry):
			return fmt.Errorf("%s is a link to a directory, which is not followed: name it with a -f of its own, or move it out", name)
		}
		return nil
	})
	return files, err
}

func leadsToDir(name string, entry fs.DirEntry) bool {
	if entry.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func decodeAll(scheme *runtime.Scheme, file string, data []byte) ([]client.Object, error) {
	reader := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var objects []client.Object
	var errs []error
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, errors.Join(errs...)
		}
		if err == nil {
			var read []client.Object
			read, err = decode(scheme, document)
			objects = append(objects, read...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading %s: document %d: %w", file, number, err))
		}
	}
}

// decode decodes one document, which may be a List of objects.
func decode(scheme *runtime.Scheme, document []byte) ([]client.Object, error) {
	var kind struct {
		metav1.TypeMeta `json:",inline"`
		Items           []runtime.RawExtension `json:"items"`
	}
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, fmt.Errorf("%s: want an object of Kubernetes, which begins with apiVersion and kind", plainly(err))
	}
	if kind.Kind == "" && kind.APIVersion == "" {
		var content any
		if err := yaml.Unmarshal(document, &content); err != nil || content == nil {
			return nil, err
		}
		return nil, errors.New("has neither apiVersion nor kind: want an object of Kubernetes, which begins with them")
	}
	if kind.Kind == "List" && kind.APIVersion == "v1" {
		var objects []client.Object
		for i, item := range kind.Items {
			read, err := decode(scheme, item.Raw)
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i, err)
			}
			objects = append(objects, read...)
		}
		return objects, nil
	}
	object, err := decodeObject(scheme, kind.TypeMeta, document)
	if err != nil {
		return nil, err
	}
	return []client.Object{object}, nil
}

func decodeObject(scheme *runtime.Scheme, kind metav1.TypeMeta, document []byte) (client.Object, error) {
	blank, err := scheme.New(kind.GroupVersionKind())
	object, ok := blank.(client.Object)
	if err != nil || !ok || !slices.Contains(readKinds(), kind.Kind) {
		return nil, fmt.Errorf("%s %s is not read here: remove it; read are %s", kind.APIVersion, kind.Kind, strings.Join(readKinds(), ", "))
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return nil, fmt.Errorf("%s %q: %s: correct it or take it out", kind.Kind, object.GetName(), plainly(err))
	}
	if object.GetName() == "" && object.GetGenerateName() == "" {
		return nil, fmt.Errorf("%s: metadata.name is empty", kind.Kind)
	}
	if wrong := validation.NameIsDNSSubdomain(object.GetName(), false); object.GetName() != "" && len(wrong) > 0 {
		return nil, fmt.Errorf("%s %q: metadata.name: want a-z, 0-9, - and ., beginning and ending with a letter or digit, as Kubernetes does", kind.Kind, object.GetName())
	}
	if err := validate(object); err != nil {
		return nil, err
	}
	return object, nil
}

// validate makes the checks that an API server would have made, and checks for what would
// make Karpenter panic or fail silently.
func validate(object client.Object) error {
	switch o := object.(type) {
	case *v1alpha1.ProxmoxNodeClass:
		return o.Validate()
	case *karpv1.NodePool:
		if o.Spec.Template.Spec.NodeClassRef == nil {
			return fmt.Errorf("NodePool %q: spec.template.spec.nodeClassRef is empty: name a %s", o.Name, v1alpha1.KindProxmoxNodeClass)
		}
		if err := o.RuntimeValidate(context.Background()); err != nil {
			return fmt.Errorf("NodePool %q: %w", o.Name, err)
		}
	case *karpv1.NodeClaim:
		if o.Spec.NodeClassRef == nil {
			return fmt.Errorf("NodeClaim %q: spec.nodeClassRef is empty", o.Name)
		}
	case *karpv1alpha1.NodeOverlay:
		if err := validateOverlay(context.Background(), o); err != nil {
			return fmt.Errorf("NodeOverlay %q: %w", o.Name, err)
		}
	case *corev1.Pod:
		return validatePod(o)
	}
	if w, ok := asWorkload(object); ok {
		return w.validate()
	}
	return nil
}

func validatePod(pod *corev1.Pod) error {
	if len(pod.Spec.Containers) == 0 {
		return fmt.Errorf("%s %q: spec.containers is empty", pod.Kind, pod.Name)
	}
	if err := amountsOf(&pod.Spec); err != nil {
		return fmt.Errorf("%s %q: spec.%w", pod.Kind, pod.Name, err)
	}
	return nil
}
