package scheduling

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
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
	kjson "sigs.k8s.io/json"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
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
		"NodePool", "NodeClaim", "NodeOverlay", "Secret", v1alpha1.KindProxmoxNodeClass, v1alpha1.KindProxmoxTemplate, "ScalePlan",
	}
}

// maxManifest is the maximum size of a manifest file in bytes, enough for tens of thousands
// of pods.
const maxManifest = 256 << 20

// Load reads manifests from files, and from the .yaml, .yml and .json files in directories.
// It is strict: unknown kinds, unknown fields and duplicate objects are errors that name
// the file and the document in it. It sets the fields that an API server, Karpenter's
// controllers and a scheduler that found no room would set, and replaces workloads with the
// pods that they still lack.
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
	fileOf := map[[3]string]string{} // by kind, namespace and name
	for _, file := range files {
		data, err := readManifest(file)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		read, err := decodeAll(scheme, file, data)
		objects = append(objects, read...)
		errs = append(errs, err)

		for _, object := range read {
			kind := object.GetObjectKind().GroupVersionKind().Kind
			key := [3]string{kind, cmp.Or(object.GetNamespace(), corev1.NamespaceDefault), object.GetName()}
			first, known := fileOf[key]
			if known && object.GetName() != "" {
				errs = append(errs, fmt.Errorf("reading %s: %s %q is already defined in %s: remove one of them", file, kind, object.GetName(), first))
				continue
			}
			fileOf[key] = file
		}
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

// findFiles returns the manifests at the paths, which may be files or directories, each
// once.
func findFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w: pass a file or directory of manifests with -f", err)
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
			return nil, fmt.Errorf("reading manifests: %s has no .yaml, .yml or .json file: pass the files, or another directory", path)
		}
		files = append(files, below...)
	}

	seen := map[string]bool{}
	return slices.DeleteFunc(files, func(file string) bool {
		target, err := filepath.EvalSymlinks(file)
		if err != nil {
			target = file // reading it reports the error
		}
		duplicate := seen[target]
		seen[target] = true
		return duplicate
	}), nil
}

// filesBelow returns the manifests in a directory and its subdirectories.
func filesBelow(dir string) (files []string, err error) {
	// WalkDir does not follow a symbolic link to the directory.
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// The files of a mounted ConfigMap are also in hidden directories.
		hidden := name != root && strings.HasPrefix(entry.Name(), ".")
		switch {
		case entry.IsDir() && hidden:
			return fs.SkipDir
		case entry.IsDir():
		case slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			files = append(files, name)
		case !hidden && entry.Type()&fs.ModeSymlink != 0:
			if info, err := os.Stat(name); err == nil && info.IsDir() {
				return fmt.Errorf("%s is a link to a directory, which numaform does not follow: pass the directory with another -f, or move the link elsewhere", name)
			}
		}
		return nil
	})
	return files, err
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

// header is the part of a document that is read first: its kind and, if it is a List, its
// items.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Items           []runtime.RawExtension `json:"items"`
}

// readHeader returns the header of a document, or nil if the document is empty.
func readHeader(document []byte) (*header, error) {
	kind := &header{}
	if err := yaml.Unmarshal(document, kind); err != nil {
		if _, invalid := yaml.YAMLToJSON(document); invalid != nil {
			return nil, fmt.Errorf("%s: invalid YAML: indent with spaces, never with tabs, and quote values that contain {, [, # or \": \"", describeDecodeError(err))
		}
		return nil, fmt.Errorf("%s: must be a Kubernetes object with apiVersion and kind", describeDecodeError(err))
	}
	if kind.Kind != "" || kind.APIVersion != "" {
		return kind, nil
	}
	var content any
	if err := yaml.Unmarshal(document, &content); err != nil || content == nil {
		return nil, err
	}
	if keys, ok := content.(map[string]any); ok && keys["clusterID"] != nil {
		return nil, errors.New("it is a configuration of numaform: pass it with --config")
	}
	return nil, errors.New("it has neither apiVersion nor kind: must be a Kubernetes object")
}

// decode decodes one document, which may be a List of objects.
func decode(scheme *runtime.Scheme, document []byte) ([]client.Object, error) {
	kind, err := readHeader(document)
	if kind == nil || err != nil {
		return nil, err
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

	blank, err := scheme.New(kind.GroupVersionKind())
	object, ok := blank.(client.Object)
	if err != nil || !ok || !slices.Contains(readKinds(), kind.Kind) {
		return nil, fmt.Errorf("%s %s is not supported: %s", kind.APIVersion, kind.Kind, unsupportedFix(scheme, kind.TypeMeta))
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return nil, strictError(document, kind.Kind, object, err)
	}
	if object.GetName() == "" && object.GetGenerateName() == "" {
		return nil, fmt.Errorf("%s: metadata.name is empty: set it", kind.Kind)
	}
	if invalid := validation.NameIsDNSSubdomain(object.GetName(), false); object.GetName() != "" && len(invalid) > 0 {
		return nil, fmt.Errorf("%s %q: metadata.name: must consist of a-z, 0-9, - and ., begin and end with a letter or digit, and have at most 253 characters", kind.Kind, object.GetName())
	}
	if nc, ok := object.(*v1alpha1.ProxmoxNodeClass); ok {
		err = crd.Admit(document, nc)
		if mistake := AnnotationMistake(nc, v1alpha1.NodeClassAnnotations()); err == nil && mistake != "" {
			err = fmt.Errorf("%s %q: %s", kind.Kind, nc.Name, mistake)
		}
	} else {
		err = validate(object)
	}
	if err != nil {
		return nil, err
	}
	return []client.Object{object}, nil
}

// kppGroup is the API group of karpenter-provider-proxmox.
const kppGroup = "karpenter.proxmox.sinextra.dev"

// unsupportedFix returns the fix for a manifest of a kind that numaform does not read.
func unsupportedFix(scheme *runtime.Scheme, kind metav1.TypeMeta) string {
	group := kind.GroupVersionKind().Group
	switch {
	case kind.APIVersion == "v1" && kind.Kind == "Config":
		return "it is a kubeconfig: pass it with --kubeconfig"
	case group == kppGroup:
		return "it belongs to karpenter-provider-proxmox: convert it with numaform convert kpp"
	}
	// Suggest the nearest kind, if it differs by at most two letters.
	var meant schema.GroupVersionKind
	least := 3
	known := slices.SortedFunc(maps.Keys(scheme.AllKnownTypes()), func(a, b schema.GroupVersionKind) int {
		return cmp.Compare(a.String(), b.String())
	})
	for _, candidate := range known {
		distance := levenshtein.Distance(strings.ToLower(candidate.Kind), strings.ToLower(kind.Kind), nil)
		if slices.Contains(readKinds(), candidate.Kind) && distance < least {
			meant = candidate
			least = distance
		}
	}
	if meant.Kind != "" {
		return fmt.Sprintf("did you mean apiVersion: %s, kind: %s?", meant.GroupVersion(), meant.Kind)
	}
	return "remove it; supported are " + strings.Join(readKinds(), ", ")
}

// strictError explains why a manifest could not be decoded. It reports unknown fields with
// their paths, which the YAML decoder does not report.
func strictError(document []byte, kind string, object client.Object, err error) error {
	if content, failed := yaml.YAMLToJSON(document); failed == nil {
		blank := object.DeepCopyObject()
		if unknown, failed := kjson.UnmarshalStrict(content, blank); failed == nil && len(unknown) > 0 {
			texts := make([]string, len(unknown))
			for i := range unknown {
				texts[i] = unknown[i].Error()
			}
			them := "it"
			if len(texts) > 1 {
				them = "them"
			}
			return fmt.Errorf("%s %q: %s: correct or remove %s", kind, object.GetName(), strings.Join(texts, ", "), them)
		}
	}
	who := kind
	if object.GetName() != "" {
		who += fmt.Sprintf(" %q", object.GetName())
	}
	return fmt.Errorf("%s: %s: correct or remove it", who, describeDecodeError(err))
}

var (
	// wrongType matches encoding/json's error about a value of the wrong type: what the value
	// was, and the path of the field, if any, and its type.
	wrongType = regexp.MustCompile(`cannot unmarshal ([a-z]+)(?: \S+)? into Go (?:struct field \w+\.(\S+) of type (\S+)|value of type .*)$`)
	// duplicateKey matches the error of the YAML decoder about a duplicate key.
	duplicateKey = regexp.MustCompile(`(?s)^unmarshal errors:\s+(line \d+): key ("[^"]*") already set in map.*$`)
)

// expected describes the values of a Go type, or returns "" for a type without a
// description.
func expected(goType string) string {
	goType = strings.TrimPrefix(goType, "*")
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "map["):
		return "a map such as {key: value}"
	case strings.HasPrefix(goType, "int"):
		return "a number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a string: quote it"
	}
	return ""
}

// describeDecodeError returns a decoder's error without the names of Go types.
func describeDecodeError(err error) string {
	text := err.Error()
	// The libraries add these prefixes, which only say that decoding failed.
	for _, prefix := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: ", "yaml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if found := wrongType.FindStringSubmatch(text); found != nil {
		text = "unexpected " + found[1]
		if found[2] != "" {
			text += " in " + found[2]
		}
		if want := expected(found[3]); want != "" {
			text += ", must be " + want
		}
	}
	text = duplicateKey.ReplaceAllString(text, "$1: duplicate key $2")
	if strings.HasPrefix(text, "quantities must match") {
		text = "invalid quantity: write one such as 2, 500m or 4Gi"
	}
	return text
}

// validate makes some of the checks of an API server, and rejects values that would make
// Karpenter panic or fail silently.
func validate(object client.Object) error {
	switch o := object.(type) {
	case *karpv1.NodePool:
		if o.Spec.Template.Spec.NodeClassRef == nil {
			return fmt.Errorf("NodePool %q: spec.template.spec.nodeClassRef is empty: name a %s", o.Name, v1alpha1.KindProxmoxNodeClass)
		}
		policies := []karpv1.ConsolidationPolicy{karpv1.ConsolidationPolicyWhenEmpty, karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, karpv1.ConsolidationPolicyBalanced}
		if policy := o.Spec.Disruption.ConsolidationPolicy; policy != "" && !slices.Contains(policies, policy) {
			return fmt.Errorf("NodePool %q: spec.disruption.consolidationPolicy: %q is not supported: must be one of %v", o.Name, policy, policies)
		}
		if err := o.RuntimeValidate(context.Background()); err != nil {
			return fmt.Errorf("NodePool %q: %w: correct spec.template", o.Name, err)
		}
		if mistake := AnnotationMistake(o, v1alpha1.NodePoolAnnotations()); isOurs(o.Spec.Template.Spec.NodeClassRef) && mistake != "" {
			return fmt.Errorf("NodePool %q: %s", o.Name, mistake)
		}
	case *karpv1.NodeClaim:
		if o.Spec.NodeClassRef == nil {
			return fmt.Errorf("NodeClaim %q: spec.nodeClassRef is empty: name a node class", o.Name)
		}
	case *karpv1alpha1.NodeOverlay:
		if err := validateOverlay(context.Background(), o); err != nil {
			return fmt.Errorf("NodeOverlay %q: %w", o.Name, err)
		}
	case *corev1.Pod:
		if len(o.Spec.Containers) == 0 {
			return fmt.Errorf("%s %q: spec.containers is empty: add a container", o.Kind, o.Name)
		}
		if err := validateResources(&o.Spec); err != nil {
			return fmt.Errorf("%s %q: spec.%w", o.Kind, o.Name, err)
		}
	}
	if w, ok := asWorkload(object); ok {
		return w.validate()
	}
	return nil
}

// validateResources refuses negative amounts, as an API server does: a pod with negative
// requests would make room for other pods. It also refuses memory requests that are not
// whole bytes, which are probably typing errors.
func validateResources(spec *corev1.PodSpec) error {
	for _, group := range []struct {
		field      string
		containers []corev1.Container
	}{{"initContainers", spec.InitContainers}, {"containers", spec.Containers}} {
		for i := range group.containers {
			requests, limits := group.containers[i].Resources.Requests, group.containers[i].Resources.Limits
			if name := negative(requests); name != "" {
				amount := requests[name]
				return fmt.Errorf("%s[%d].resources.requests.%s %q must not be negative", group.field, i, name, amount.String())
			}
			if name := negative(limits); name != "" {
				amount := limits[name]
				return fmt.Errorf("%s[%d].resources.limits.%s %q must not be negative", group.field, i, name, amount.String())
			}
			memory := requests[corev1.ResourceMemory]
			if memory.MilliValue()%1000 != 0 {
				return fmt.Errorf("%s[%d].resources.requests.memory: %s is a fraction of a byte, because m means one thousandth: use Mi or Gi", group.field, i, memory.String())
			}
		}
	}
	return nil
}

// negative returns the first resource with a negative amount, or "".
func negative(list corev1.ResourceList) corev1.ResourceName {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if amount := list[name]; amount.Sign() < 0 {
			return name
		}
	}
	return ""
}
