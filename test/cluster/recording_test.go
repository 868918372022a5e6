package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/testenv"
)

// samples are the values of a scrape by series, as the controller writes them: name and
// labels. They are nil if the controller did not respond.
type samples map[string]float64

// sum returns the sum of the series of a metric with these labels: name, value, and so on.
func (s samples) sum(metric string, labels ...string) (total float64, found bool) {
	for series, value := range s {
		name, rest, _ := strings.Cut(series, "{")
		matches := name == metric
		for pair := range slices.Chunk(labels, 2) {
			matches = matches && strings.Contains(rest, fmt.Sprintf("%s=%q", pair[0], pair[1]))
		}
		if matches {
			total += value
			found = true
		}
	}
	return total, found
}

// condition is a condition on the sum of the series of a metric.
type condition func(value float64, found bool) bool

func is(want float64) condition {
	return func(value float64, found bool) bool { return found && value == want }
}

func atLeast(want float64) condition {
	return func(value float64, found bool) bool { return found && value >= want }
}

func absent(_ float64, found bool) bool { return !found }

// recording contains the scrapes of a controller, and which alerts are expected when.
type recording struct {
	world *world
	// stop ends the recording, and done is closed then.
	stop   context.CancelFunc
	done   chan struct{}
	checks []alertCheck

	// mu guards scrapes: one a second, from the start of the controller on.
	mu      sync.Mutex
	scrapes []samples
}

// alertCheck expects exactly these alerts, each as NAME{LABELS}, if the last of the first
// scrapes is repeated for a time.
type alertCheck struct {
	scrapes int
	after   time.Duration
	alerts  []string
}

// soon is when alerts fire that wait for nothing: Prometheus has evaluated the rules again.
const soon = time.Minute

// begin starts the controller and the recording, and waits until the controller can create
// nodes on all hosts. No alert fires then.
func (r *recording) begin(w *world) {
	w.t.Helper()
	address := freeAddress(w.t)
	w.args = append(w.args, "--metrics-bind-address", address)
	w.start()

	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	r.world, r.done = w, make(chan struct{})
	w.t.Cleanup(r.end)
	go func() {
		defer close(r.done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			found, err := scrape(ctx, "http://"+address+"/metrics")
			if err != nil {
				w.t.Error(err)
				return
			}
			r.mu.Lock()
			r.scrapes = append(r.scrapes, found)
			r.mu.Unlock()
		}
	}()
	r.until("numaform_host_up", is(3))
	r.until("numaform_queue_length", is(0))
	r.fires(61 * time.Minute)
}

// end ends the recording.
func (r *recording) end() {
	r.stop()
	<-r.done
}

// scrape returns the samples that a controller serves.
func scrape(ctx context.Context, url string) (samples, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil // a controller that does not run has no samples
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil
	}
	found := samples{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndex(line, " ")
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if found[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, fmt.Errorf("%w in the line %q of %s", err, line, url)
		}
	}
	return found, nil
}

// until waits until the sum of the series of a metric with these labels meets a condition.
func (r *recording) until(metric string, meets condition, labels ...string) {
	r.world.t.Helper()
	r.world.eventually(4*time.Minute, func(context.Context) string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.scrapes) == 0 {
			return "no scrape yet"
		}
		value, found := r.scrapes[len(r.scrapes)-1].sum(metric, labels...)
		if !meets(value, found) {
			return fmt.Sprintf("the sum of %s with %q is %g (exists: %t)", metric, labels, value, found)
		}
		return ""
	})
}

// fires expects exactly these alerts if everything stays as it is for a time.
func (r *recording) fires(after time.Duration, alerts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.world.t.Logf("%d scrapes, and %s later: %q", len(r.scrapes), after, alerts)
	r.checks = append(r.checks, alertCheck{scrapes: len(r.scrapes), after: after, alerts: slices.Clone(alerts)})
}

// evaluate checks with promtool that the expected alerts of the chart fire, and no others.
func (r *recording) evaluate(t *testing.T) {
	t.Helper()
	rules := chartAlerts(t)
	var used strings.Builder
	for _, rule := range rules {
		used.WriteString(rule.Expr)
	}
	var tests []promtoolTest
	for i, check := range r.checks {
		query := promtoolQuery{Expr: `ALERTS{alertstate="firing"}`, At: (time.Duration(check.scrapes-1)*time.Second + check.after).String()}
		for _, alert := range check.alerts {
			name, labels, _ := strings.Cut(strings.TrimSuffix(alert, "}"), "{")
			query.Want = append(query.Want, promtoolSample{
				Labels: fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing",severity=%q,%s}`, name, rules[name].Labels["severity"], labels), Value: 1,
			})
		}
		input := promtoolInput(r.scrapes[:check.scrapes], check.after, func(metric string) bool { return strings.Contains(used.String(), metric) })
		tests = append(tests, promtoolTest{Name: fmt.Sprintf("check %d", i), Interval: "1s", Input: input, Queries: []promtoolQuery{query}})
	}
	promtool(t, tests)
}

// allAlertsFired checks that each alert of the chart is expected, and so fired, in a
// recording.
func allAlertsFired(t *testing.T, recordings []*recording) {
	t.Helper()
	fired := map[string]bool{}
	for _, r := range recordings {
		for _, check := range r.checks {
			for _, alert := range check.alerts {
				name, _, _ := strings.Cut(alert, "{")
				fired[name] = true
			}
		}
	}
	for name := range chartAlerts(t) {
		if !fired[name] {
			t.Errorf("no fault makes %s fire", name)
		}
	}
}

// dashboardHasSeries checks that each series in a query of the dashboard was scraped, with the
// labels by which the query selects and groups it.
func dashboardHasSeries(t *testing.T, recordings []*recording) {
	t.Helper()
	labels := map[string]string{} // by metric
	for _, r := range recordings {
		for _, found := range r.scrapes {
			for series := range found {
				metric, rest, _ := strings.Cut(series, "{")
				labels[metric] = rest
			}
		}
	}
	metrics := regexp.MustCompile(`\b(?:numaform|karpenter)_\w+`)
	selected := regexp.MustCompile(`\b((?:numaform|karpenter)_\w+)\{([^}]+)\}`)
	selector := regexp.MustCompile(`(\w+)(?:=~|!=|=|!~)"`)
	groups := regexp.MustCompile(`\bby \(([^)]+)\)`)
	hasLabel := func(query, metric, label string) {
		if !strings.Contains(labels[metric], label+`="`) {
			t.Errorf("%s: the series of %s have no label %s: %s", query, metric, label, labels[metric])
		}
	}
	for _, query := range dashboardQueries(t) {
		used := metrics.FindAllString(query, -1)
		for _, metric := range used {
			if _, scraped := labels[metric]; !scraped {
				t.Errorf("%s: no controller served %s", query, metric)
			}
		}
		for _, series := range selected.FindAllStringSubmatch(query, -1) {
			for _, label := range selector.FindAllStringSubmatch(series[2], -1) {
				hasLabel(query, series[1], label[1])
			}
		}
		for _, by := range groups.FindAllStringSubmatch(query, -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				for _, metric := range used {
					hasLabel(query, metric, label)
				}
			}
		}
	}
}

// dashboardQueries returns the queries of the chart's dashboard: the queries of its panels,
// and one for each variable that lists the values of a label.
func dashboardQueries(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels     []struct{ Targets []struct{ Expr string } }
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	if err := json.Unmarshal(chartFile(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	var queries []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, target.Expr)
		}
	}
	values := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, variable := range dashboard.Templating.List {
		if found := values.FindStringSubmatch(variable.Query); found != nil {
			queries = append(queries, fmt.Sprintf("count by (%s) (%s)", found[2], found[1]))
		} else if variable.Type == "query" {
			t.Errorf("the query %s of a variable is not label_values(METRIC, LABEL)", variable.Query)
		}
	}
	if len(queries) < 40 {
		t.Fatalf("the dashboard has only %d queries", len(queries))
	}
	return queries
}

// chartAlert is an alert of the chart.
type chartAlert struct {
	Alert  string            `json:"alert"`
	Expr   string            `json:"expr"`
	Labels map[string]string `json:"labels"`
}

// chartAlerts returns the alerts of the chart by name.
func chartAlerts(t *testing.T) map[string]chartAlert {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []chartAlert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(chartFile(t, "alerts.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	alerts := map[string]chartAlert{}
	for _, group := range file.Groups {
		for _, alert := range group.Rules {
			alerts[alert.Alert] = alert
		}
	}
	return alerts
}

// chartFiles is the directory of the chart's alerts and dashboard.
const chartFiles = "../../charts/numaform/files"

func chartFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartFiles, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The input of promtool test rules.
type (
	promtoolTest struct {
		Name     string           `json:"name"`
		Interval string           `json:"interval"`
		Input    []promtoolSeries `json:"input_series"`
		Queries  []promtoolQuery  `json:"promql_expr_test"`
	}
	promtoolSeries struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	promtoolQuery struct {
		Expr string           `json:"expr"`
		At   string           `json:"eval_time"`
		Want []promtoolSample `json:"exp_samples"`
	}
	promtoolSample struct {
		Labels string  `json:"labels"`
		Value  float64 `json:"value"`
	}
)

// promtoolInput returns the series of some metrics in scrapes, one a second, of which the last
// one is repeated for a time. As in Prometheus, a series that is missing from a scrape ends at
// once.
func promtoolInput(scrapes []samples, repeated time.Duration, wanted func(metric string) bool) []promtoolSeries {
	series := map[string]bool{}
	for _, scrape := range scrapes {
		for name := range scrape {
			if metric, _, _ := strings.Cut(name, "{"); wanted(metric) {
				series[name] = true
			}
		}
	}
	var input []promtoolSeries
	for _, name := range slices.Sorted(maps.Keys(series)) {
		var values []string
		exists := false
		for i, scrape := range scrapes {
			value, served := scrape[name]
			word := "_"
			switch {
			case served:
				word = strconv.FormatFloat(value, 'f', -1, 64)
			case exists:
				word = "stale"
			}
			exists = served
			if i == len(scrapes)-1 && word != "stale" {
				word += fmt.Sprintf("x%d", int(repeated.Seconds()))
			}
			values = append(values, word)
		}
		input = append(input, promtoolSeries{Series: name, Values: strings.Join(values, " ")})
	}
	return input
}

// promtool runs tests with the alerts of the chart.
func promtool(t *testing.T, tests []promtoolTest) {
	t.Helper()
	rules, err := filepath.Abs(filepath.Join(chartFiles, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "15s", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "recorded.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), testenv.Promtool(t), "test", "rules", path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
