package v1alpha1_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/testenv"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

// warnings keeps what the API server warns of.
type warnings struct {
	mu    sync.Mutex // guards texts
	texts []string
}

// HandleWarningHeader keeps the text.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func newClient(t *testing.T, handler rest.WarningHandler) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(plane.Cluster(t).Config)
	if config.WarningHandler = handler; handler == nil {
		config.WarningHandler = rest.NoWarnings{}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// written is a class as a person writes it: nothing is added on the way.
func written(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("metadata: {generateName: c-}\nspec: "+spec), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass))
	return object
}

// What Validate accepts and refuses of manifests, the API server accepts and
// refuses too, and for the same field.
func TestAPIServerAgreesWithValidate(t *testing.T) {
	c := newClient(t, nil)
	for _, spec := range accepted() {
		if err := c.Create(t.Context(), written(t, spec), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for _, test := range refused() {
		err := c.Create(t.Context(), written(t, test.spec), client.DryRunAll)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: error is %v, want that the class is invalid", test.name, err)
			continue
		}
		refusal := parse(t, test.spec).Validate().Error()
		_, field, _ := strings.Cut(refusal, "spec.")
		if field, _, _ = strings.Cut(field, ":"); !strings.Contains(err.Error(), strings.Split(field, "[")[0]) {
			t.Errorf("%s: error %q is not about spec.%s", test.name, err, field)
		}
	}
}

func TestDefaults(t *testing.T) {
	c := newClient(t, nil)
	object := written(t, `{template: {name: t}}`)
	if err := c.Create(t.Context(), object, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	nc := &v1alpha1.ProxmoxNodeClass{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, nc); err != nil {
		t.Fatal(err)
	}
	s := nc.Spec
	if s.Clone != v1alpha1.CloneFull || s.CPUType != "host" || s.Placement.Policy != v1alpha1.PlacementShared ||
		s.Metadata.Type != v1alpha1.MetadataNone || s.TokenTTL == nil || s.TokenTTL.Duration != v1alpha1.DefaultTokenTTL {
		t.Errorf("defaults are %+v", s)
	}
}

func TestUnknownFieldsWarn(t *testing.T) {
	seen := &warnings{}
	c := client.WithFieldValidation(newClient(t, seen), "Warn")
	for _, spec := range []string{
		`{template: {name: t}, netwroks: []}`,
		`{template: {name: t, storage: x}}`,
		`{template: {name: t}, kubelet: {maxPod: 3}}`,
	} {
		if err := c.Create(t.Context(), written(t, spec), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for _, field := range []string{"spec.netwroks", "spec.template.storage", "spec.kubelet.maxPod"} {
		if !slices.ContainsFunc(seen.texts, func(text string) bool { return strings.Contains(text, field) }) {
			t.Errorf("nobody warned of %s: %q", field, seen.texts)
		}
	}
}
