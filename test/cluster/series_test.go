package cluster_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSeriesOfDashboard checks that a controller serves every series that the dashboard and the
// alerts of the chart name, with the labels that they use.
func TestSeriesOfDashboard(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	w := newWorld(t, worldConfig{args: []string{"--metrics-bind-address", address, "--drift-every", "10s"}})
	path := filepath.Join(w.dir, "numaform.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.write("numaform.yaml", string(text)+"notifications: {targets: [{name: a, type: webhook, url: 'http://127.0.0.1:1'}]}\n")
	w.start()
	w.classAndPool("workers", "", "")
	w.pods("web", 1, "1", "1Gi")
	w.running("web", 1, 2*time.Minute)

	used := seriesOfChart(t)
	if len(used) < 20 {
		t.Fatalf("only %d series were found", len(used))
	}
	// These series exist only during a fault. TestDocumented of internal/controllers/metrics
	// checks their names and labels.
	faults := []string{"numaform_state_lock_age_seconds", "numaform_orphaned_vms", "numaform_closed_offerings"}
	w.eventually(time.Minute, func(ctx context.Context) string {
		served, err := scrape(ctx, address)
		if err != nil {
			return err.Error()
		}
		var missing []string
		for series, labels := range used {
			line, found := served[series]
			if !found && !slices.Contains(faults, series) {
				missing = append(missing, series)
			}
			for _, label := range labels {
				if found && !strings.Contains(line, label+`="`) {
					missing = append(missing, fmt.Sprintf("label %s of %s", label, series))
				}
			}
		}
		if len(missing) > 0 {
			return "the controller does not serve " + strings.Join(missing, ", ")
		}
		return ""
	})
}

// scrape returns a line of each series that the controller serves.
func scrape(ctx context.Context, address string) (map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	served := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if end := strings.IndexAny(line, "{ "); end > 0 && line[0] != '#' {
			served[line[:end]] = line
		}
	}
	return served, nil
}

// seriesOfChart returns the series in the dashboard and the alerts of the chart, with the
// labels that select them.
func seriesOfChart(t *testing.T) map[string][]string {
	t.Helper()
	used := map[string][]string{}
	series := regexp.MustCompile(`\b((?:numaform|karpenter|controller_runtime|workqueue|operator)_[a-z_]+)\b(?:\{([^}]*)\})?`)
	label := regexp.MustCompile(`([a-z_]+)(?:=~|!=|=|!~)`)
	for _, name := range []string{"alerts.yaml", "dashboard.json"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "charts", "numaform", "files", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range series.FindAllStringSubmatch(string(text), -1) {
			used[match[1]] = slices.Clone(used[match[1]])
			for _, found := range label.FindAllStringSubmatch(match[2], -1) {
				used[match[1]] = append(used[match[1]], found[1])
			}
		}
	}
	return used
}
