package chart_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/testenv"
)

// TestConfigLoads checks that the program loads the rendered numaform.yaml, and that the grace
// period of the pod is more than a minute longer than an engine may take to end.
func TestConfigLoads(t *testing.T) {
	t.Parallel()
	for _, release := range releases(t)[1:] {
		t.Run(release.name, func(t *testing.T) {
			t.Parallel()
			config := loadConfig(t, testenv.RenderChart(t, testenv.Chart{Namespace: "there", Values: release.values}))
			grace := time.Duration(*deployment(t, release.values).Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
			for _, region := range config.Regions() {
				if region.WaitDelay >= grace-time.Minute {
					t.Errorf("region %s: an engine may take %s to end, but the pod has only %s, want a minute more", region.Name, region.WaitDelay, grace)
				}
			}
			if config.Fleet.Backend.Type != "kubernetes" {
				return
			}
			if config.Fleet.ConfigMap.Namespace != "there" || config.Fleet.Backend.Config["namespace"] != "there" {
				t.Errorf("fleet = %+v, want everything in the release's namespace", config.Fleet)
			}
		})
	}
}

// TestFleetOnYourMachine checks that docs/install.md shows the fleet of the chart for commands on
// the user's machine.
func TestFleetOnYourMachine(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n# numaform.yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	path := filepath.Join(t.TempDir(), "numaform.yaml")
	text += "clusterID: prod\nclusters: [{region: r, url: 'https://pve-1.example:8006', token_id: a@pve!b, token_secret: s}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := operator.Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := loadConfig(t, testenv.RenderChart(t, testenv.Chart{Values: leastValues()}))
	want.Fleet.Dir = got.Fleet.Dir
	if diff := cmp.Diff(want.Fleet, got.Fleet); diff != "" {
		t.Errorf("the fleet of the chart, and of docs/install.md (-chart +page):\n%s", diff)
	}
}

// TestSchemaAccepts checks that the chart accepts what the program accepts.
func TestSchemaAccepts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, key string
		value     any
	}{
		{"a region with capitals and an underscore", "region", "Region_1"},
		{"a region with a dot and a hyphen", "region", "dc-1.rack"},
		{"further hosts", "urls", []any{"https://192.0.2.2:8006", "https://192.0.2.3:8006"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			values := leastValues()
			cluster := values["config"].(map[string]any)["clusters"].([]any)[0].(map[string]any)
			if tt.key == "urls" {
				delete(cluster, "url")
			}
			cluster[tt.key] = tt.value
			loadConfig(t, testenv.RenderChart(t, testenv.Chart{Values: values}))
		})
	}
}

// loadConfig writes the files of the release's ConfigMap and loads numaform.yaml.
func loadConfig(t *testing.T, objects []*unstructured.Unstructured) *operator.Config {
	t.Helper()
	dir := t.TempDir()
	for _, object := range ofKind(t, objects, "ConfigMap") {
		data, _, err := unstructured.NestedStringMap(object.Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range data {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	config, err := operator.Load(filepath.Join(dir, "numaform.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestSchemaKnowsNumaformYAML checks that the schema of config has the keys that the
// program accepts, except secrets, which the chart would write to a ConfigMap.
func TestSchemaKnowsNumaformYAML(t *testing.T) {
	t.Parallel()
	want := configKeys(reflect.TypeFor[operator.Config](), "")
	want = slices.DeleteFunc(want, func(key string) bool {
		return slices.Contains([]string{
			"clusters[].token_secret", "clusters[].password", "notifications.targets[].token", "notifications.targets[].password",
		}, key)
	})
	got := schemaKeys(readSchema(t).Properties["config"], "")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys of numaform.yaml in values.schema.json (-want +got):\n%s", diff)
	}
}

// configKeys returns the keys of a struct with yaml tags.
func configKeys(from reflect.Type, path string) []string {
	switch {
	case from.Kind() == reflect.Pointer:
		return configKeys(from.Elem(), path)
	case from.Kind() == reflect.Slice && from.Elem().Kind() == reflect.Struct:
		return configKeys(from.Elem(), path+"[]")
	case from.Kind() != reflect.Struct || from == reflect.TypeFor[time.Duration]():
		return []string{path}
	}
	var keys []string
	for i := range from.NumField() {
		name, _, _ := strings.Cut(from.Field(i).Tag.Get("yaml"), ",")
		key := strings.TrimPrefix(path+"."+name, ".")
		keys = append(keys, configKeys(from.Field(i).Type, key)...)
	}
	return keys
}

// TestFlagsExist checks that the program accepts the flags in the Deployment.
func TestFlagsExist(t *testing.T) {
	t.Parallel()
	for _, release := range releases(t) {
		args := deployment(t, release.values).Spec.Template.Spec.Containers[0].Args
		var out bytes.Buffer
		// The program parses all flags before it prints the help, so a bad value is an
		// error too.
		code := cli.Run(context.Background(), cli.Process{Args: append(args, "--help"), Stdout: &out, Stderr: &out, Stdin: &bytes.Buffer{}})
		if code != cli.ExitOK || args[0] != "controller" {
			t.Errorf("%s: numaform %s exits with %d:\n%s", release.name, strings.Join(args, " "), code, out.String())
		}
		for _, arg := range args[1:] {
			if name, _, _ := strings.Cut(arg, "="); !strings.Contains(out.String(), "      "+name+" ") {
				t.Errorf("%s: numaform controller --help does not list %s", release.name, name)
			}
		}
	}
}
