package bench_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/testenv"
)

const (
	// maxRegression is the maximum ratio of a figure to the committed figure.
	maxRegression = 1.10
	// figuresFile contains the committed figures.
	figuresFile = "testdata/figures.json"
)

var (
	update = flag.Bool("update", false, "write the measured figures to "+figuresFile+", and the committed ones to docs/performance.md")
	rounds = flag.Int("rounds", 3, "number of times BenchmarkRoad measures each row; the result is the minimum of each figure")
)

// figures are the results of a benchmark, by unit.
type figures map[string]float64

// committed are figures by kind of machine and benchmark.
type committed map[string]map[string]figures

func readCommitted() (committed, error) {
	c := committed{}
	text, err := os.ReadFile(figuresFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("reading %s: %w", figuresFile, err)
	}
	return c, nil
}

func (c committed) write() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(figuresFile, append(text, '\n'), 0o644)
}

// machine returns the kind of this machine: the model and the number of CPUs.
func machine() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if key, model, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return fmt.Sprintf("%s, %d CPUs", strings.TrimSpace(model), runtime.NumCPU())
		}
	}
	return "unknown"
}

// report prints figures, and compares them with the committed figures for this kind of
// machine, if they exist. With -update, it writes them instead.
func (f figures) report(b *testing.B) {
	b.Helper()
	for unit, value := range f {
		b.ReportMetric(value, unit)
	}
	b.ReportMetric(0, "ns/op")
	all, err := readCommitted()
	if err != nil {
		b.Fatal(err)
	}
	f[referenceUnit] = reference(b).Seconds()
	b.ReportMetric(f[referenceUnit], referenceUnit)
	name := strings.TrimPrefix(b.Name(), "Benchmark")
	if *update {
		if all[machine()] == nil {
			all[machine()] = map[string]figures{}
		}
		for unit, value := range f {
			f[unit] = rounded(value)
		}
		all[machine()][name] = f
		if err := all.write(); err != nil {
			b.Fatal(err)
		}
		return
	}
	before, found := all[machine()][name]
	if !found {
		b.Logf("%s has no figures of %s for this kind of machine (%s), so these are not compared", figuresFile, name, machine())
	}
	for _, problem := range f.regressions(before) {
		b.Error(problem + ": find the cause, or commit the new figure with -update")
	}
}

// regressions describes the figures that are more than maxRegression above earlier ones,
// and those that are missing. It assumes that the machine is now slower or faster than it was
// by the ratio of the reference times.
func (f figures) regressions(before figures) []string {
	slower := 1.0
	if before[referenceUnit] > 0 && f[referenceUnit] > 0 {
		slower = f[referenceUnit] / before[referenceUnit]
	}
	var problems []string
	for _, unit := range slices.Sorted(maps.Keys(before)) {
		value, measured := f[unit]
		expected := before[unit]
		switch {
		case strings.HasSuffix(unit, "cpu-s"), unit == "x-direct" && expected < 1: // a standby VM needs no clone
			expected *= slower
		case unit == "x-direct": // the direct calls mostly wait for a clone
			expected = 1 + (expected-1)*slower
		}
		switch {
		case !measured:
			problems = append(problems, fmt.Sprintf("%s was not measured, was %.4g", unit, before[unit]))
		case compared(unit) && value > expected*maxRegression+slack(unit):
			problem := fmt.Sprintf("%s is %.4g, was %.4g", unit, value, before[unit])
			if expected != before[unit] {
				problem += fmt.Sprintf(" on a machine that needed %.2f times as long as now for the reference", 1/slower)
			}
			problems = append(problems, problem)
		}
	}
	return problems
}

// referenceUnit is the unit of the figure that tells how fast the machine was.
const referenceUnit = "reference-s"

// reference returns the CPU time of the engine's plan of resources without a provider: the
// minimum of some runs, because other load on the machine only adds to it. A virtual machine
// can be twice as slow as at another time.
func reference(b *testing.B) time.Duration {
	b.Helper()
	dir := b.TempDir()
	config := "resource \"terraform_data\" \"work\" {\n  count = 100\n  input = range(count.index)\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	least := time.Duration(math.MaxInt64)
	for range 2 * repetitions {
		plan := exec.CommandContext(b.Context(), testenv.Engine(b), "plan", "-input=false", "-lock=false")
		plan.Dir, plan.Env = dir, testenv.CleanEnv()
		if out, err := plan.CombinedOutput(); err != nil {
			b.Fatalf("planning the reference: %v\n%s", err, out)
		}
		least = min(least, plan.ProcessState.UserTime()+plan.ProcessState.SystemTime())
	}
	return least
}

// rounded returns a value with three significant digits, or as an integer.
func rounded(value float64) float64 {
	if value >= 100 {
		return float64(int(value + 0.5))
	}
	var short float64
	_, _ = fmt.Sscanf(fmt.Sprintf("%.3g", value), "%g", &short) // printed by Sprintf
	return short
}

// compared reports whether a figure must not grow. Wall-clock times depend too much on
// other load, unless they are relative to direct calls.
func compared(unit string) bool {
	return !strings.HasSuffix(unit, "-s") || strings.HasSuffix(unit, "cpu-s")
}

// slack returns the growth that is noise in a small figure: one request, two ticks.
func slack(unit string) float64 {
	switch {
	case strings.HasSuffix(unit, "cpu-s"):
		return 2 * tick.Seconds()
	case strings.HasSuffix(unit, "requests"):
		return 1
	}
	return 0
}

// TestRegressions checks which changes of figures fail a benchmark.
func TestRegressions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, now figures
		want        []string
	}{
		"no committed figures": {nil, figures{"cpu-s": 9}, nil},
		"equal":                {figures{"cpu-s": 2, "peak-MiB": 300}, figures{"cpu-s": 2, "peak-MiB": 300}, nil},
		"less":                 {figures{"x-direct": 1.2}, figures{"x-direct": 1.1}, nil},
		"up to a tenth more":   {figures{"peak-MiB": 300}, figures{"peak-MiB": 330}, nil},
		"more memory":          {figures{"peak-MiB": 300}, figures{"peak-MiB": 331}, []string{"peak-MiB is 331, was 300"}},
		"a larger ratio":       {figures{"x-direct": 1.2}, figures{"x-direct": 1.33}, []string{"x-direct is 1.33, was 1.2"}},
		"more CPU time":        {figures{"engine-cpu-s": 2}, figures{"engine-cpu-s": 2.3}, []string{"engine-cpu-s is 2.3, was 2"}},
		"two ticks of a short": {figures{"cpu-s": 0.1}, figures{"cpu-s": 0.13}, nil},
		"one request of few":   {figures{"proxmox-requests": 4}, figures{"proxmox-requests": 5}, nil},
		"two requests of few":  {figures{"proxmox-requests": 4}, figures{"proxmox-requests": 6}, []string{"proxmox-requests is 6, was 4"}},
		"more time":            {figures{"last-delete-s": 5}, figures{"last-delete-s": 9}, nil},
		"a machine twice as slow": {
			figures{"cpu-s": 2, "x-direct": 1.2, "peak-MiB": 300, referenceUnit: 0.2}, figures{"cpu-s": 4, "x-direct": 1.4, "peak-MiB": 300, referenceUnit: 0.4}, nil,
		},
		"a standby VM on a machine twice as slow": {figures{"x-direct": 0.2, referenceUnit: 0.2}, figures{"x-direct": 0.4, referenceUnit: 0.4}, nil},
		"more CPU time on a slower machine": {
			figures{"cpu-s": 2, referenceUnit: 0.2},
			figures{"cpu-s": 5, referenceUnit: 0.4},
			[]string{"cpu-s is 5, was 2 on a machine that needed 0.50 times as long as now for the reference"},
		},
		"more CPU time on a faster machine": {
			figures{"cpu-s": 2, referenceUnit: 0.4},
			figures{"cpu-s": 2, referenceUnit: 0.2},
			[]string{"cpu-s is 2, was 2 on a machine that needed 2.00 times as long as now for the reference"},
		},
		"a figure is missing":     {figures{"cpu-s": 2, "last-delete-s": 5}, figures{"cpu-s": 2}, []string{"last-delete-s was not measured, was 5"}},
		"an additional figure":    {figures{"cpu-s": 2}, figures{"cpu-s": 2, "peak-MiB": 300}, nil},
		"several, sorted by unit": {figures{"peak-MiB": 1, "cpu-s": 1}, figures{"peak-MiB": 2, "cpu-s": 2}, []string{"cpu-s is 2, was 1", "peak-MiB is 2, was 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.now.regressions(c.before)); diff != "" {
				t.Errorf("regressions (-want +got):\n%s", diff)
			}
		})
	}
}

// least measures a row several times, and reports the minimum of each figure, because other
// load on the machine only adds to it. It returns these figures.
func least(b *testing.B, measure func() figures) figures {
	b.Helper()
	minimum := measure()
	for range *rounds - 1 {
		for unit, value := range measure() {
			minimum[unit] = min(minimum[unit], value)
		}
	}
	minimum.report(b)
	return minimum
}
