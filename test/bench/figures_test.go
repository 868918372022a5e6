package bench_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
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
	before := all[machine()][name]
	for _, unit := range slices.Sorted(maps.Keys(before)) {
		if most := before[unit]*maxRegression + slack(unit); compared(unit) && f[unit] > most {
			b.Errorf("%s is %.4g, was %.4g: find the cause, or commit the new figure with -update", unit, f[unit], before[unit])
		}
	}
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
