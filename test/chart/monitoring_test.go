package chart_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/testenv"
)

// alert is an alert of the chart.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil && !strings.Contains(err.Error(), "name") {
		t.Fatal(err)
	}
	var alerts []alert
	for _, group := range file.Groups {
		alerts = append(alerts, group.Rules...)
	}
	if len(alerts) == 0 {
		t.Fatal("the chart has no alerts")
	}
	return alerts
}

// TestRunbooks checks that each alert has a severity, texts, and exactly one section in
// docs/runbooks.md, to which it links.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, match := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, match[1])
	}
	var names []string
	for _, a := range readAlerts(t) {
		names = append(names, a.Alert)
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) {
			t.Errorf("%s has the labels %v and annotations %v", a.Alert, a.Labels, a.Annotations)
		}
	}
	if !slices.Equal(names, sections) {
		t.Errorf("docs/runbooks.md has the sections %q, want the alerts in their order: %q", sections, names)
	}

	links := 0
	for _, object := range testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}) {
		if object.GetKind() != "PrometheusRule" {
			continue
		}
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			links += strings.Count(string(text), `"runbook_url":"https://wiki.example/numaform#`+strings.ToLower(name)+`"`)
		}
		if !strings.Contains(string(text), "{{ $labels.host }}") {
			t.Errorf("helm rendered the templates of Prometheus:\n%s", text)
		}
	}
	if links != len(names) {
		t.Errorf("%d links to runbooks in the PrometheusRule, want %d", links, len(names))
	}
}

// TestAlertsFire runs the tests of testdata/alerts.yaml with promtool, and checks that each
// alert fires in one of them, and does not fire in another.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Rules []struct {
				Name string `json:"alertname"`
				Want []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, rule := range test.Rules {
			if len(rule.Want) > 0 {
				fires[rule.Name] = true
			} else {
				silent[rule.Name] = true
			}
		}
	}
	for _, a := range readAlerts(t) {
		if !fires[a.Alert] || !silent[a.Alert] {
			t.Errorf("%s fires in a test: %v; is silent in another: %v", a.Alert, fires[a.Alert], silent[a.Alert])
		}
	}

	rules, err := filepath.Abs(filepath.Join(chartDir, "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "alerts.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "[RULES]", "["+rules+"]", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), testenv.Promtool(t), "test", "rules", path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// dashboard is the part of Grafana's JSON model that TestDashboard checks.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               datasource
	Targets                  []struct {
		Expr, LegendFormat, RefID string
		Datasource                datasource
	}
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

type datasource struct{ Type, UID string }

// TestDashboard checks the panels of the dashboard: they do not overlap, have unique IDs, a
// description, a unit and queries, read the data source that the user selects, and each label
// in a legend is a label of the query's result.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chartDir, "files", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != "numaform" || d.SchemaVersion == 0 || len(d.Panels) < 30 || d.Templating.List[0].Type != "datasource" || d.Templating.List[0].Name != "datasource" {
		t.Errorf("UID %q, schema %d, %d panels, variables %v", d.UID, d.SchemaVersion, len(d.Panels), d.Templating.List)
	}
	// Grafana's plugins and units: panels of other types or with other units show nothing.
	types, units := []string{"row", "stat", "timeseries"}, []string{"short", "bytes", "s", "percentunit", "reqps"}
	selected := datasource{Type: "prometheus", UID: "${datasource}"}
	by, legend := regexp.MustCompile(`by \(([^)]*)\)`), regexp.MustCompile(`\{\{(\w+)\}\}`)
	ids := map[int]bool{}
	for i, panel := range d.Panels {
		if ids[panel.ID] || panel.Title == "" || !slices.Contains(types, panel.Type) {
			t.Errorf("panel %d %q of type %s has a used ID, no title or an unknown type", panel.ID, panel.Title, panel.Type)
		}
		ids[panel.ID] = true
		for _, other := range d.Panels[:i] {
			a, b := panel.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", panel.Title, other.Title)
			}
		}
		if a := panel.GridPos; a.X+a.W > 24 || a.W == 0 || a.H == 0 {
			t.Errorf("panel %q is outside of the grid", panel.Title)
		}
		if panel.Type == "row" {
			continue
		}
		if panel.Description == "" || !slices.Contains(units, panel.FieldConfig.Defaults.Unit) || panel.Datasource != selected || len(panel.Targets) == 0 {
			t.Errorf("panel %q has the description %q, the unit %q, the data source %v and %d queries",
				panel.Title, panel.Description, panel.FieldConfig.Defaults.Unit, panel.Datasource, len(panel.Targets))
		}
		refs := map[string]bool{}
		for _, target := range panel.Targets {
			if target.Expr == "" || target.LegendFormat == "" || target.RefID == "" || refs[target.RefID] || target.Datasource != selected {
				t.Errorf("panel %q has the query %+v", panel.Title, target)
			}
			refs[target.RefID] = true
			var labels []string
			for _, group := range by.FindAllStringSubmatch(target.Expr, -1) {
				labels = append(labels, strings.Split(group[1], ", ")...)
			}
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(labels, label[1]) {
					t.Errorf("the legend of panel %q contains %s, which the query %s removes", panel.Title, label[1], target.Expr)
				}
			}
		}
	}
	for _, object := range testenv.RenderChart(t, testenv.Chart{Values: fullValues(t)}) {
		if object.GetKind() != "ConfigMap" || !strings.HasSuffix(object.GetName(), "-dashboard") {
			continue
		}
		data, _ := object.Object["data"].(map[string]any)
		if strings.TrimSpace(data["numaform.json"].(string)) != strings.TrimSpace(string(text)) {
			t.Error("the ConfigMap differs from the dashboard")
		}
		return
	}
	t.Error("the chart has no ConfigMap with the dashboard")
}
