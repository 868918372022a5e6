package cpufreq_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/agent/cpufreq"
	"github.com/numaform/numaform/topology"
)

// tree writes files below a directory.
func tree(t *testing.T, files map[string]string) cpufreq.Tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return cpufreq.Tree{Dir: dir}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	got, err := tree(t, map[string]string{
		"policy10/affected_cpus": "10\n", "policy10/scaling_available_governors": "performance powersave \n",
		"policy2/affected_cpus": "2 3\n", "policy2/scaling_governor": "powersave\n",
		"policy4/related_cpus":   "4\n", // its CPU is offline
		"policy04/affected_cpus": "4\n", "boost": "1\n", "ondemand/up_threshold": "95\n",
	}).Policies()
	want := []cpufreq.Policy{
		{ID: 2, CPUs: topology.CPUs(2, 3)}, {ID: 4}, {ID: 10, CPUs: topology.CPUs(10), Available: []string{"performance", "powersave"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, policies (-want +got):\n%s", err, diff)
	}
	if got, err := (cpufreq.Tree{Dir: filepath.Join(t.TempDir(), "none")}).Policies(); err != nil || len(got) > 0 {
		t.Errorf("a host without: %v, %v", got, err)
	}
	if _, err := tree(t, map[string]string{"policy0/affected_cpus": "all\n"}).Policies(); err == nil {
		t.Error("garbage was read")
	}
}

func TestGovernor(t *testing.T) {
	t.Parallel()
	files := tree(t, map[string]string{"policy0/scaling_governor": "schedutil\n", "policy1/scaling_governor": "../etc\n"})
	if err := files.SetGovernor(0, "performance"); err != nil {
		t.Error(err)
	}
	if got, err := files.Governor(0); err != nil || got != "performance" {
		t.Errorf("governor %q, %v", got, err)
	}
	for _, name := range []string{"", "Performance", "a b", "../x", strings.Repeat("a", 16), "x\n"} {
		if err := files.SetGovernor(0, name); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	if _, err := files.Governor(1); err == nil {
		t.Error("garbage was read")
	}
	if err := files.SetGovernor(2, "performance"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing policy: %v", err)
	}
	if _, err := os.Stat(filepath.Join(files.Dir, "policy2")); err == nil {
		t.Error("the file was created")
	}
}
