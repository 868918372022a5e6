package chart_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/testenv"
)

func TestSchemaRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, set, want string }{
		{"an unknown value", "replicaCount=2", "replicaCount"},
		{"an unknown value below another", "metrics.serviceMonitor.intervall=1s", "intervall"},
		{"an unknown key of numaform.yaml", "config.clusterId=prod", "clusterId"},
		{"an approval mode", `nodePools.workers.annotations.numaform\.dev/scale-up=automatic`, "/nodePools/workers/annotations/numaform.dev~1scale-up"},
		{"a least number of nodes", `nodePools.workers.annotations.numaform\.dev/min-nodes=some`, "/nodePools/workers/annotations/numaform.dev~1min-nodes"},
		{"a label that is no text", "nodePools.workers.labels.a=1", "/nodePools/workers/labels/a"},
		{"a secret in numaform.yaml", "config.clusters[0].token_secret=x", "token_secret"},
		{"the password of a mail server in numaform.yaml", "config.notifications.targets[0].password=x", "password"},
		{"the token of a target in numaform.yaml", "config.notifications.targets[0].token=x", "token"},
		{"the URL of Slack in numaform.yaml", "config.notifications.targets[0].name=a,config.notifications.targets[0].type=slack,config.notifications.targets[0].url=https://x", "/config/notifications/targets/0"},
		{"a clusterID with capitals", "config.clusterID=Prod", "/config/clusterID"},
		{"a cluster without a URL", "config.clusters[0].insecure=true,config.clusters[1].region=b", "/config/clusters/1"},
		{"plain http", "config.clusters[0].url=http://pve:8006", "/config/clusters/0/url"},
		{"a fleet that the pod takes with it", "config.fleet.backend.type=local", "/config/fleet/backend/type"},
		{"a mode", "mode=dry-run", "/mode"},
		{"three replicas", "replicas=3", "/replicas"},
		{"a gate that is not ours", "featureGates.ReservedCapacity=true", "ReservedCapacity"},
		{"a duration", "scheduling.batchMaxDuration=10", "batchMaxDuration"},
		{"a tag for a digest", "image.digest=latest", "/image/digest"},
		{"no time to stop", "terminationGracePeriodSeconds=30", "/terminationGracePeriodSeconds"},
		{"less time to stop than a VM takes", "config.clusters[0].timeouts.clone=39m", "terminationGracePeriodSeconds is 2400, but creating or deleting a VM in region a may take 2640 seconds"},
		{"less time to stop than a delete takes", "config.clusters[0].timeouts.delete=50m", "creating or deleting a VM in region a may take 3000 seconds"},
		{"less time to stop than a provider takes", "config.clusters[0].insecure=true,terminationGracePeriodSeconds=2160", "may take 2100 seconds"},
		{"templates in a namespace of the cluster's own secrets", "rbac.secretNamespaces={kube-system}", "/rbac/secretNamespaces/0"},
		{"another numaform.yaml", `files.numaform\.yaml=x`, "invalid propertyName"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"template", "numaform", "charts/numaform", "--set", "networkPolicy.enabled=false"}
			if strings.Contains(tt.set, "clusters[0]") {
				args = append(args, "--set", "config.clusters[0].region=a", "--set", "config.clusters[0].url=https://pve:8006")
			}
			out, err := testenv.Helm(root, append(args, "--set", tt.set)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to name %s\n%s", err, tt.want, out)
			}
		})
	}
}

// schema contains the parts of a JSON schema that these tests use.
type schema struct {
	Properties           map[string]*schema
	AdditionalProperties json.RawMessage
	Items                *schema
}

func readSchema(t *testing.T) *schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var top schema
	if err := json.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	return &top
}

// schemaKeys returns the keys below a schema of objects.
func schemaKeys(from *schema, path string) []string {
	if from.Items != nil && from.Items.Properties != nil {
		return schemaKeys(from.Items, path+"[]")
	}
	if from.Properties == nil {
		return []string{path}
	}
	var keys []string
	for key, below := range from.Properties {
		keys = append(keys, schemaKeys(below, strings.TrimPrefix(path+"."+key, "."))...)
	}
	return keys
}

// TestSchemaIsStrict checks that every object with declared keys refuses other keys.
func TestSchemaIsStrict(t *testing.T) {
	t.Parallel()
	var check func(path string, s *schema)
	check = func(path string, s *schema) {
		if s.Properties != nil && string(s.AdditionalProperties) != "false" {
			t.Errorf("%s accepts unknown keys", path)
		}
		for key, below := range s.Properties {
			check(path+"."+key, below)
		}
		if s.Items != nil {
			check(path+"[]", s.Items)
		}
	}
	check("values", readSchema(t))
}

// TestEveryValueIsDocumented checks that the chart's README documents every key of values.yaml
// with its default, and no other key, and that it covers the keys of the schema, apart from
// keys that other pages document.
func TestEveryValueIsDocumented(t *testing.T) {
	t.Parallel()
	values := leaves(readYAML(t, filepath.Join(chartDir, "values.yaml")), "")
	readme, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		row := "\n| `" + name + "` | `" + unescape(string(text)) + "` | "
		_, rest, found := strings.Cut(string(readme), row)
		switch description, _, ended := strings.Cut(rest, " |\n"); {
		case !found:
			t.Errorf("README.md of the chart has no row that begins with %s", row)
		case !ended || len(description) < 10 || strings.Contains(description, "\n"):
			t.Errorf("README.md of the chart does not describe %s", name)
		case strings.Count(string(readme), "\n| `"+name+"` |") > 1:
			t.Errorf("README.md of the chart documents %s twice", name)
		}
	}
	for _, key := range schemaKeys(readSchema(t), "") {
		// A row documents the values below it. Keys of numaform.yaml are in docs/cli.md, and the
		// others are Helm's and Kubernetes's own.
		documented := strings.HasPrefix(key, "config.") || slices.Contains([]string{"global", "resources.limits", "resources.claims"}, key)
		for name := range values {
			documented = documented || key == name || strings.HasPrefix(key, name+".") || strings.HasPrefix(key, name+"[]") || strings.HasPrefix(name, key+".")
		}
		if !documented {
			t.Errorf("values.yaml and README.md of the chart lack %s, which the schema accepts", key)
		}
	}
	for line := range strings.SplitSeq(string(readme), "\n") {
		name, found := strings.CutPrefix(line, "| `")
		name, _, _ = strings.Cut(name, "`")
		if _, known := values[name]; found && !known {
			t.Errorf("README.md of the chart documents %s, which is not in values.yaml", name)
		}
	}
}

// unescape reverts the HTML escaping of json.Marshal.
func unescape(text string) string {
	return strings.NewReplacer(`\u003e`, ">", `\u003c`, "<", `\u0026`, "&").Replace(text)
}

// leaves returns the values that are not objects, and empty objects, by path.
func leaves(value any, path string) map[string]any {
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		return map[string]any{path: value}
	}
	found := map[string]any{}
	for key, below := range object {
		for name, leaf := range leaves(below, strings.TrimPrefix(path+"."+key, ".")) {
			found[name] = leaf
		}
	}
	return found
}

// TestFullValuesSetEverything checks that testdata/full.yaml sets every value, except the
// values in without.
func TestFullValuesSetEverything(t *testing.T) {
	t.Parallel()
	full := leaves(fullValues(t), "")
	// These values exclude others, or are covered by their parents.
	without := []string{
		"config.engine.", "config.fleet.dir", "config.fleet.configmap.name", "secret.existing", "featureGates.", "nodeSelector.",
		"serviceAccount.create", "rbac.create", "rbac.nodes", "rbac.users", "admissionPolicy.enabled",
		"podDisruptionBudget.enabled", "networkPolicy.enabled", "metrics.service.enabled",
	}
	for name := range leaves(readYAML(t, filepath.Join(chartDir, "values.yaml")), "") {
		set := slices.ContainsFunc(without, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		for given := range full {
			set = set || given == name || strings.HasPrefix(given, name+".")
		}
		if !set {
			t.Errorf("testdata/full.yaml does not set %s", name)
		}
	}
}
