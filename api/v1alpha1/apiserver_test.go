package v1alpha1_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

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

// warnings collects the warnings of the API server.
type warnings struct {
	mu    sync.Mutex // guards texts
	texts []string
}

// HandleWarningHeader collects the text.
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

// written returns a class exactly as a user writes it, without defaults.
func written(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("metadata: {generateName: c-}\nspec: "+spec), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass))
	return object
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
			t.Errorf("no warning names %s: %q", field, seen.texts)
		}
	}
}
