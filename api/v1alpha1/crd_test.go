package v1alpha1_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
)

const crds = "../../charts/numaform/crds/"

// schema is the part of a CRD's schema that these tests read.
type schema struct {
	Properties           map[string]schema `json:"properties"`
	Items                *schema           `json:"items"`
	AdditionalProperties *schema           `json:"additionalProperties"`
	Preserve             bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

type definition struct {
	Spec struct {
		Group    string `json:"group"`
		Scope    string `json:"scope"`
		Versions []struct {
			Name         string         `json:"name"`
			Subresources map[string]any `json:"subresources"`
			Schema       struct {
				OpenAPI schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// TestCRDsHaveEveryField checks that the CRDs have every field of the types, and that they
// drop unknown fields, so that the API server warns about them.
func TestCRDsHaveEveryField(t *testing.T) {
	for file, typ := range map[string]reflect.Type{
		"numaform.dev_proxmoxnodeclasses.yaml": reflect.TypeFor[v1alpha1.ProxmoxNodeClass](),
		"numaform.dev_proxmoxtemplates.yaml":   reflect.TypeFor[v1alpha1.ProxmoxTemplate](),
		"numaform.dev_scaleplans.yaml":         reflect.TypeFor[v1alpha1.ScalePlan](),
	} {
		data, err := os.ReadFile(crds + file)
		if err != nil {
			t.Fatal(err)
		}
		var crd definition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		version := crd.Spec.Versions[0]
		if crd.Spec.Group != v1alpha1.Group || crd.Spec.Scope != "Cluster" || version.Name != "v1alpha1" {
			t.Errorf("%s is of %s %s, scope %s", file, crd.Spec.Group, version.Name, crd.Spec.Scope)
		}
		if _, ok := version.Subresources["status"]; !ok {
			t.Errorf("%s has no subresource status: who may write the spec could write the status", file)
		}
		for _, part := range []string{"Spec", "Status"} {
			field, _ := typ.FieldByName(part)
			checkFields(t, typ.Name()+"."+part, field.Type, version.Schema.OpenAPI.Properties[strings.ToLower(part)])
		}
	}
}

func checkFields(t *testing.T, path string, typ reflect.Type, s schema) {
	t.Helper()
	if s.Preserve {
		t.Errorf("%s keeps fields that are not known", path)
	}
	switch typ.Kind() {
	case reflect.Pointer:
		checkFields(t, path, typ.Elem(), s)
	case reflect.Slice:
		if s.Items == nil {
			t.Errorf("%s is no list in the CRD", path)
			return
		}
		checkFields(t, path+"[]", typ.Elem(), *s.Items)
	case reflect.Map:
		if s.AdditionalProperties == nil {
			t.Errorf("%s is no map in the CRD", path)
		}
	case reflect.Struct:
		if strings.HasSuffix(typ.PkgPath(), "meta/v1") && (typ.Name() == "Time" || typ.Name() == "Duration") {
			return
		}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			next, ok := s.Properties[name]
			if !ok {
				t.Errorf("the CRD lacks %s.%s", path, name)
				continue
			}
			checkFields(t, path+"."+name, typ.Field(i).Type, next)
		}
	}
}

// TestPagesNameEveryField checks that the page of each CRD documents every field.
func TestPagesNameEveryField(t *testing.T) {
	for page, typ := range map[string]reflect.Type{
		"proxmoxnodeclass.md": reflect.TypeFor[v1alpha1.ProxmoxNodeClass](),
		"proxmoxtemplate.md":  reflect.TypeFor[v1alpha1.ProxmoxTemplate](),
		"scaleplan.md":        reflect.TypeFor[v1alpha1.ScalePlan](),
	} {
		text, err := os.ReadFile("../../docs/crds/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"Spec", "Status"} {
			field, _ := typ.FieldByName(part)
			for _, name := range fieldNames(field.Type) {
				if !strings.Contains(string(text), name+"`") && !strings.Contains(string(text), "`"+name+".") {
					t.Errorf("%s does not name %s", page, name)
				}
			}
		}
	}
}

// fieldNames returns the names of a type's fields, including nested ones.
func fieldNames(typ reflect.Type) []string {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return fieldNames(typ.Elem())
	case reflect.Struct:
		if !strings.HasSuffix(typ.PkgPath(), "api/v1alpha1") {
			return nil
		}
		var names []string
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			names = append(append(names, name), fieldNames(typ.Field(i).Type)...)
		}
		return names
	}
	return nil
}
