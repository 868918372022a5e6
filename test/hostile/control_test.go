package hostile_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/enginetest"
)

var update = flag.Bool("update", false, "rewrite testdata/baseline.txt with the current results of the baseline")

// outcome returns how far an attack got with one command. It checks the worst effect first.
func outcome(saw *seen) string {
	program := func(note string) bool { return !strings.HasPrefix(note, "engine ") && note != "provider" }
	switch {
	case len(leaked(saw.asked)) > 0 || len(leaked([]byte(saw.said))) > 0:
		return "credentials left"
	case slices.ContainsFunc(saw.started, program):
		return "program ran"
	case saw.connections > 0:
		return "listener reached"
	case len(saw.started) > 0:
		return "engine started"
	case saw.memoryMiB > maxMemoryMiB:
		return "memory taken"
	case saw.code == 0:
		return "passed over"
	}
	return "refused"
}

// TestBaselineGenerated is the control for the generated attacks, except attacks with more
// set: it checks that testdata/baseline.txt records how far an attack gets in a plan of the
// baseline. It tries every third attack, or all with -hostile.full. An attack that the
// baseline ignores, or refuses before it starts an engine, only detects a regression.
func TestBaselineGenerated(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	w := newWorld(t, baseline(t), inGit, engines(t)["tofu"])
	var lines []string
	counts, tried := map[string]int{}, map[string]bool{}
	for i, a := range generated() {
		if a.more || !*full && !*update && i%3 != 0 {
			continue
		}
		tried[a.name] = true
		w.launch(a)
		got := outcome(w.watch(planNothing()...))
		counts[got]++
		lines = append(lines, fmt.Sprintf("%-16s  %s\n", got, a.name))
	}
	slices.Sort(lines)
	got := strings.Join(lines, "")
	golden := filepath.Join("testdata", "baseline.txt")
	if *update {
		w.must(os.MkdirAll("testdata", 0o755))
		w.must(os.WriteFile(golden, []byte(got), 0o644))
	}
	content, err := os.ReadFile(golden)
	w.must(err)
	var want strings.Builder
	for line := range strings.Lines(string(content)) {
		if _, name, _ := strings.Cut(line, "  "); tried[strings.TrimSpace(name)] {
			want.WriteString(line)
		}
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("results of attacks on the baseline (-want +got):\n%s", diff)
	}
	if len(lines) < 40 {
		t.Errorf("%d attacks, want at least 40", len(lines))
	}
	t.Logf("%d attacks: %v", len(lines), counts)
}
