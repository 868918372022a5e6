package cli_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/numaform/numaform/internal/cli"
)

const (
	module = "github.com/numaform/numaform"
	// schemaDir contains the published schemas.
	schemaDir = "../../docs/schemas"
	// schemaURL is the base of the IDs of schemas.
	schemaURL = "https://numaform.dev/schemas/"
)

// TestSchemas checks that docs/schemas has the schema of each JSON output, and no other
// file. To update it, run go test ./internal/cli -run TestSchemas -update.
func TestSchemas(t *testing.T) {
	t.Parallel()
	names := []string{"README.md"}
	for _, output := range cli.Outputs() {
		name := output.Name + ".json"
		names = append(names, name)
		got := schemaOf(t, output, true)
		path := filepath.Join(schemaDir, name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is not up to date: run make schemas (-want +got):\n%s", path, diff)
		}
	}
	entries, err := os.ReadDir(schemaDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !slices.Contains(names, entry.Name()) {
			t.Errorf("%s: no output has this schema: remove it", filepath.Join(schemaDir, entry.Name()))
		}
	}
}

// TestOutputsMatchSchemas checks outputs of fixed values against the strict form of their
// schemas, in which unknown properties are errors.
func TestOutputsMatchSchemas(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, hosts := range []int{3, 40} {
		v := views(t, hosts)
		for name, value := range v.Data(findings(hosts)) {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, output(t, name), text)
			checked++
		}
		snapshot, err := v.Snapshot.Print()
		if err != nil {
			t.Fatal(err)
		}
		validate(t, output(t, "topology"), snapshot)
	}
	if checked != 10 {
		t.Errorf("%d outputs were checked, want 10", checked)
	}
	for name, text := range map[string]string{"status": `{"cluster_id": 1}`, "get-vms": `{}`, "doctor": `{"failing": 1}`} {
		if err := compiled(t, output(t, name)).Validate(parsed(t, []byte(text))); err == nil {
			t.Errorf("the schema of %s accepts %s", name, text)
		}
	}
}

// output returns the output with the schema of that name.
func output(t *testing.T, name string) cli.Output {
	t.Helper()
	all := cli.Outputs()
	at := slices.IndexFunc(all, func(o cli.Output) bool { return o.Name == name })
	if at < 0 {
		t.Fatalf("no output has the schema %s", name)
	}
	return all[at]
}

func validate(t *testing.T, of cli.Output, text []byte) {
	t.Helper()
	if err := compiled(t, of).Validate(parsed(t, text)); err != nil {
		t.Errorf("%s: %v", of.Name, err)
	}
}

func compiled(t *testing.T, output cli.Output) *validator.Schema {
	t.Helper()
	compiler := validator.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource(schemaURL, parsed(t, schemaOf(t, output, false))); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(schemaURL)
	if err != nil {
		t.Fatalf("%s: %v", output.Name, err)
	}
	return schema
}

func parsed(t *testing.T, text []byte) any {
	t.Helper()
	value, err := validator.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// schemaOf returns the schema of an output. An open schema allows further properties,
// because later versions may add some.
func schemaOf(t *testing.T, output cli.Output, open bool) []byte {
	t.Helper()
	docs, err := comments()
	if err != nil {
		t.Fatal(err)
	}
	reflector := jsonschema.Reflector{
		AllowAdditionalProperties: open,
		Anonymous:                 true,
		Namer:                     nameOfType,
		Mapper:                    textType,
		LookupComment: func(typ reflect.Type, field string) string {
			return docs[strings.TrimSuffix(typ.PkgPath()+"."+typ.Name()+"."+field, ".")]
		},
	}
	schema := reflector.Reflect(output.Type)
	schema.ID = jsonschema.ID(schemaURL + output.Name + ".json")
	schema.Title = "Output of " + output.Command
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// nameOfType returns a unique name of a type: the package and the name, or only the name
// for the types of the command line.
func nameOfType(typ reflect.Type) string {
	name := typ.Name()
	if name == "" {
		return ""
	}
	if typ.PkgPath() == module+"/internal/cli" {
		return strings.ToUpper(name[:1]) + name[1:]
	}
	return filepath.Base(typ.PkgPath()) + "." + name
}

// textType returns the schema of a type that marshals itself, usually to a string, or nil
// for other types.
func textType(typ reflect.Type) *jsonschema.Schema {
	switch typ.String() {
	case "time.Time":
		return nil
	case "v1.Time":
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case "v1.FieldsV1":
		return &jsonschema.Schema{Type: "object"}
	}
	text, marshaler := reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[json.Marshaler]()
	if typ.Implements(text) || reflect.PointerTo(typ).Implements(text) || typ.Implements(marshaler) || reflect.PointerTo(typ).Implements(marshaler) {
		return &jsonschema.Schema{Type: "string"}
	}
	return nil
}

// comments returns the comments of types and fields by "path.Type" and "path.Type.Field".
// jsonschema.Reflector.AddGoComments omits unexported types.
var comments = sync.OnceValues(func() (map[string]string, error) {
	docs := map[string]string{}
	for _, dir := range []string{
		"api/v1alpha1", "fleet", "internal/audit", "internal/cli", "internal/conformance", "internal/doctor", "internal/scaler",
		"internal/scheduling", "internal/status", "planner", "state", "state/guard", "topology",
	} {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, declaration := range file.Decls {
				types, ok := declaration.(*ast.GenDecl)
				if !ok || types.Tok != token.TYPE {
					continue
				}
				for _, spec := range types.Specs {
					addComments(docs, module+"/"+dir, spec.(*ast.TypeSpec), types.Doc)
				}
			}
		}
	}
	return docs, nil
})

// addComments adds the comments of a type and of its fields.
func addComments(docs map[string]string, pkg string, spec *ast.TypeSpec, doc *ast.CommentGroup) {
	name := pkg + "." + spec.Name.Name
	docs[name] = sentence(doc, spec.Doc)
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range fields.Fields.List {
		for _, each := range field.Names {
			docs[name+"."+each.Name] = sentence(field.Doc)
		}
	}
}

// sentence returns the first comment without markers, in one line.
func sentence(groups ...*ast.CommentGroup) string {
	for _, group := range groups {
		if group == nil {
			continue
		}
		lines := strings.Split(group.Text(), "\n")
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "+") })
		return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	}
	return ""
}
