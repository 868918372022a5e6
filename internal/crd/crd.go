// Package crd validates ProxmoxNodeClasses as an API server does: by the schema and the CEL
// rules of the CustomResourceDefinition, with its defaults. It validates manifests on disk,
// and objects that an API server with an older definition has accepted. Start at Admit.
package crd

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/charts"
)

// definition is the compiled schema of ProxmoxNodeClasses.
type definition struct {
	structural *schema.Structural
	openAPI    validation.SchemaValidator
	rules      *cel.Validator
}

// nodeClass compiles the definition once, because that takes some milliseconds.
var nodeClass = sync.OnceValues(func() (*definition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(charts.ProxmoxNodeClass, &crd); err != nil {
		return nil, fmt.Errorf("parsing the ProxmoxNodeClass definition: %w", err)
	}
	var properties apiextensions.JSONSchemaProps
	published := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(published, &properties, nil); err != nil {
		return nil, fmt.Errorf("converting the ProxmoxNodeClass schema: %w", err)
	}
	structural, err := schema.NewStructural(&properties)
	if err != nil {
		return nil, fmt.Errorf("compiling the ProxmoxNodeClass schema: %w", err)
	}
	openAPI, _, err := validation.NewSchemaValidator(&properties)
	if err != nil {
		return nil, fmt.Errorf("compiling the ProxmoxNodeClass schema: %w", err)
	}
	return &definition{
		structural: structural,
		openAPI:    openAPI,
		rules:      cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
})

// Admit decodes a manifest into a class as an API server does on creation: it sets the
// defaults of the definition, and returns an error that names the invalid fields. Unlike
// an API server, it also rejects unknown fields and duplicate keys.
func Admit(manifest []byte, nc *v1alpha1.ProxmoxNodeClass) error {
	content, err := yaml.YAMLToJSONStrict(manifest)
	if err != nil {
		return err
	}
	var object map[string]any
	if err := json.Unmarshal(content, &object); err != nil {
		return err
	}
	d, err := nodeClass()
	if err != nil {
		return err
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(object, d.structural)
	defaulting.Default(object, d.structural)
	if err := d.validate(object); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, nc, true)
}

// Validate returns an error that names the invalid fields of a class that is already
// decoded.
func Validate(nc *v1alpha1.ProxmoxNodeClass) error {
	d, err := nodeClass()
	if err != nil {
		return err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(nc)
	if err != nil {
		return err
	}
	return d.validate(object)
}

// validate checks everything except the status, which only numaform writes.
func (d *definition) validate(object map[string]any) error {
	delete(object, "status")
	faults := validation.ValidateCustomResource(nil, object, d.openAPI)
	faults = append(faults, listtype.ValidateListSetsAndMaps(nil, d.structural, object)...)
	// As in the API server's hasBlockingErr (k8s.io/apiextensions-apiserver v0.35,
	// pkg/registry/customresource), rules are not evaluated on an object with such a fault.
	blocking := []field.ErrorType{
		field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong,
		field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid,
	}
	if !slices.ContainsFunc(faults, func(fault *field.Error) bool { return slices.Contains(blocking, fault.Type) }) {
		broken, _ := d.rules.Validate(context.Background(), nil, d.structural, object, nil, celconfig.RuntimeCELCostBudget)
		faults = append(faults, broken...)
	}
	if len(faults) == 0 {
		return nil
	}

	name, _, _ := unstructured.NestedString(object, "metadata", "name")
	return fmt.Errorf("%s %q: %w", v1alpha1.KindProxmoxNodeClass, name, faults.ToAggregate())
}
