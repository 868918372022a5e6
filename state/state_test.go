package state_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/state"
)

// engine returns the engine on PATH or, if there is none, the one that make builds.
func engine(t testing.TB) *state.Engine {
	t.Helper()
	enginetest.Long(t, "an engine")
	tools, err := filepath.Abs("../.tools/bin")
	if err != nil {
		t.Fatal(err)
	}
	e, err := state.FindEngine(t.Context(), state.EngineConfig{Dirs: []string{tools}, Helper: os.Args[0]})
	if err != nil {
		t.Fatalf("%v (run make tools)", err)
	}
	return e
}

// eachEngine runs a test with the engine that the function engine returns and, if that is
// OpenTofu, also with the Terraform on PATH, if there is one.
func eachEngine(t *testing.T, test func(t *testing.T, engine *state.Engine)) {
	t.Helper()
	found := []*state.Engine{engine(t)}
	if path, err := exec.LookPath("terraform"); err == nil && found[0].Name() != "terraform" {
		terraform, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: path, Helper: os.Args[0]})
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, terraform)
	}
	for _, engine := range found {
		t.Run(engine.Name(), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// with returns an edit of a Config that sets the engine.
func with(engine *state.Engine) func(*state.Config) {
	return func(c *state.Config) { c.Engine = engine }
}

// log is a writer that can be read concurrently.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

const localBackend = "terraform {\n  backend \"local\" {}\n}\n"

func httpBackend(b *backend) string {
	return fmt.Sprintf("terraform {\n  backend \"http\" {\n    address = %q\n    lock_address = %q\n    unlock_address = %q\n    retry_max = 0\n  }\n}\n", b.URL, b.URL, b.URL)
}

func resource(name, input string) string {
	return fmt.Sprintf("resource \"terraform_data\" %q {\n  input = %q\n}\n", name, input)
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// root creates a directory with two resources.
func root(t testing.TB, backend string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "main.tf", backend)
	write(t, dir, "a.tf", resource("a", "1"))
	write(t, dir, "b.tf", resource("b", "1"))
	return dir
}

func open(t testing.TB, dir string, edit func(*state.Config)) *state.Workspace {
	t.Helper()
	config := state.Config{Dir: dir, Engine: engine(t), LockTimeout: time.Second, Log: io.Discard}
	if edit != nil {
		edit(&config)
	}
	w, err := state.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func mustRead(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func mustPlan(t testing.TB, w *state.Workspace, options state.PlanOptions) *state.Plan {
	t.Helper()
	plan, err := w.Plan(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func mustApply(t testing.TB, w *state.Workspace, plan *state.Plan) *state.Result {
	t.Helper()
	result, err := w.Apply(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func addresses(t testing.TB, w *state.Workspace) []string {
	t.Helper()
	resources, err := w.Resources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range resources {
		all = append(all, r.Address)
	}
	return all
}

var both = []string{"terraform_data.a", "terraform_data.b"}

func TestPlanAndApply(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	for name, backend := range map[string]string{"local": localBackend, "http": httpBackend(b)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planAndApply(t, root(t, backend))
		})
	}
}

func planAndApply(t *testing.T, dir string) {
	t.Helper()
	var events []state.Event
	w := open(t, dir, func(c *state.Config) { c.Progress = func(e state.Event) { events = append(events, e) } })
	plan := mustPlan(t, w, state.PlanOptions{})
	if !plan.Changes || len(plan.JSON.ResourceChanges) != 2 || len(plan.SHA256+plan.Digest) != 128 {
		t.Errorf("plan: changes %v, %d resources, hashes %q %q", plan.Changes, len(plan.JSON.ResourceChanges), plan.SHA256, plan.Digest)
	}
	if !strings.HasSuffix(plan.Text, "Plan: 2 to add, 0 to change, 0 to destroy.") {
		t.Errorf("plan text is %q", plan.Text)
	}
	result := mustApply(t, w, plan)
	slices.Sort(result.Done)
	if diff := cmp.Diff(&state.Result{Done: both}, result); diff != "" {
		t.Errorf("result: %s", diff)
	}
	if !slices.ContainsFunc(events, func(e state.Event) bool {
		return e.Kind == state.EventComplete && e.Address == both[0] && e.Action == "create"
	}) {
		t.Errorf("events: %v", events)
	}
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" {
		t.Errorf("state: %s", diff)
	}
	if again := mustPlan(t, w, state.PlanOptions{Refresh: true}); again.Changes {
		t.Errorf("the second plan changes something:\n%s", again.Text)
	}
}

func TestPlansAreHiddenAndRemoved(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	private := filepath.Join(dir, ".terraform", "numaform")
	info, err := os.Stat(private)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("plans lie in %v, %v, want a directory only for us", info, err)
	}
	mustApply(t, w, plan)
	mustPlan(t, w, state.PlanOptions{})
	if left, _ := filepath.Glob(filepath.Join(private, "plans", "*")); len(left) != 1 {
		t.Errorf("plans %v, want that which is not applied", left)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(private, "plans", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestApplyTwice(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	mustApply(t, w, plan)
	if _, err := w.Apply(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "already applied") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := w.Apply(t.Context(), nil); err == nil {
		t.Error("applied nil")
	}
}

func TestApplyOfAChangedFile(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	files, err := filepath.Glob(filepath.Join(dir, ".terraform", "numaform", "plans", "*.tfplan"))
	if err != nil || len(files) != 1 {
		t.Fatalf("plans: %v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "changed on disk") {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestStalePlan(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	first, second := mustPlan(t, w, state.PlanOptions{}), mustPlan(t, w, state.PlanOptions{})
	mustApply(t, w, first)
	result, err := w.Apply(t.Context(), second)
	if !errors.Is(err, state.ErrStalePlan) || len(result.Done) > 0 {
		t.Errorf("got %v, %v, want a stale plan", result, err)
	}
}

func TestDigestSurvivesPlanningAgain(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	first, second := mustPlan(t, w, state.PlanOptions{}), mustPlan(t, w, state.PlanOptions{})
	if first.Digest != second.Digest {
		t.Error("the same change has two digests")
	}
	write(t, dir, "b.tf", resource("b", "2"))
	third := mustPlan(t, w, state.PlanOptions{})
	if third.Digest == first.Digest {
		t.Error("another change has the same digest")
	}
	mustApply(t, w, third)
	write(t, dir, "c.tf", resource("c", "3"))
	all, some := mustPlan(t, w, state.PlanOptions{}), mustPlan(t, w, state.PlanOptions{Targets: []string{"terraform_data.c"}})
	if all.Digest != some.Digest {
		t.Error("a change has another digest if what it leaves alone is not planned")
	}
	if all.Digest == third.Digest {
		t.Error("another change has the same digest")
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	b.setLock(`{"ID":"0a1b","Operation":"OperationTypeApply","Info":"","Who":"ann@laptop","Version":"1.11.4","Created":"2026-01-02T03:04:05.678Z","Path":""}`)
	for name, try := range map[string]func() error{
		"plan":  func() error { _, err := w.Plan(t.Context(), state.PlanOptions{}); return err },
		"apply": func() error { _, err := w.Apply(t.Context(), plan); return err },
		"lock":  func() error { return w.Locked(t.Context()) },
	} {
		err := try()
		var locked *state.LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("%s: got %v, want a LockedError", name, err)
		}
		want := state.LockedError{LockInfo: state.LockInfo{ID: "0a1b", Operation: "OperationTypeApply", Who: "ann@laptop", Created: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)}, Holder: state.HolderUnknown, Dir: w.Dir()}
		if engine(t).Name() == "terraform" { // it does not pass on the holder from the http backend
			want.Operation, want.Who, want.Created = "an operation", "someone", time.Time{}
		}
		if diff := cmp.Diff(want, *locked); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if !strings.Contains(err.Error(), "(lock 0a1b, holder unknown)") {
			t.Errorf("%s: message is %q", name, err)
		}
	}
	if err := w.Unlock(t.Context(), "0a1b"); err != nil || b.locked() {
		t.Errorf("unlocking: %v, locked %v", err, b.locked())
	}
	if err := w.Locked(t.Context()); err != nil {
		t.Errorf("a free lock: %v", err)
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	mustPlan(t, w, state.PlanOptions{})
	other := open(t, dir, nil)
	if _, err := other.Plan(t.Context(), state.PlanOptions{}); !errors.Is(err, state.ErrBusy) {
		t.Errorf("got %v, want busy", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mustPlan(t, other, state.PlanOptions{})
}

func TestInitOncePerContent(t *testing.T) {
	t.Parallel()
	out := &log{}
	dir := root(t, localBackend)
	write(t, dir, "../m/main.tf", "variable \"x\" {}\n"+`resource "terraform_data" "x" { input = var.x }`)
	write(t, dir, "../n/main.tf", `resource "terraform_data" "x" {}`)
	call := func(name string, x int) {
		write(t, dir, name+".tf", fmt.Sprintf("module %q {\n  source = \"../m\"\n  x = %d\n}\n", name, x))
	}
	w := open(t, dir, func(c *state.Config) { c.Log = out })
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"first", func() {}, 1},
		{"nothing", func() {}, 1},
		{"a resource's input", func() { write(t, dir, "a.tf", resource("a", "2")) }, 1},
		{"a module call", func() { call("x", 1) }, 2},
		{"a module's input", func() { call("x", 2) }, 2},
		{"another call of that module", func() { call("y", 1) }, 2},
		{"a call of another module", func() { write(t, dir, "z.tf", "module \"z\" {\n  source = \"../n\"\n}\n") }, 3},
		{"a file of another syntax", func() { write(t, dir, "l.tf.json", `{"locals": {"l": 1}}`) }, 4},
		{"its content", func() { write(t, dir, "l.tf.json", `{"locals": {"l": 2}}`) }, 5},
		{"no engine data", func() {
			if err := os.Remove(filepath.Join(dir, ".terraform", "numaform", "init")); err != nil {
				t.Fatal(err)
			}
		}, 6},
	}
	for _, step := range steps {
		step.do()
		mustPlan(t, w, state.PlanOptions{})
		if got := out.count("Initializing the backend"); got != step.want {
			t.Errorf("after %s: %d inits, want %d", step.name, got, step.want)
		}
	}
}

func TestImport(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	plan := mustPlan(t, w, state.PlanOptions{Imports: []generator.Import{{Address: "terraform_data.a", ID: "0a1b"}}})
	if !strings.Contains(plan.Text, "1 to import, 1 to add") {
		t.Errorf("plan is %s", plan.Text)
	}
	if _, err := os.Stat(filepath.Join(dir, generator.ImportFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the import file is still there: %v", err)
	}
	result := mustApply(t, w, plan)
	slices.Sort(result.Done)
	if !cmp.Equal(result.Done, both) {
		t.Errorf("result is %+v, want a imported and b created", result)
	}
	if got := addresses(t, w); !cmp.Equal(got, both) {
		t.Errorf("the state has %v, want %v", got, both)
	}
	_, err := w.Plan(t.Context(), state.PlanOptions{Imports: []generator.Import{{Address: "x y", ID: "1"}}})
	if err == nil || !strings.Contains(err.Error(), "invalid address") {
		t.Errorf("got %v", err)
	}
}

func TestLeftoversAreSweptAtTheStart(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	write(t, dir, generator.ImportFile, "import {\n  to = terraform_data.none\n  id = \"1\"\n}\n")
	secrets := []string{"plans/9.tfplan", "push.tfstate", "decrypt-1/terraform.tfstate", "decrypt-2/terraform.tfstate"}
	left := []string{generator.ImportFile}
	for _, name := range secrets {
		name = ".terraform/numaform/" + name
		write(t, dir, name, "secret")
		left = append(left, name)
	}
	w := open(t, dir, nil)
	mustPlan(t, w, state.PlanOptions{})
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
}

func TestPlanningFails(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	write(t, dir, "b.tf", `resource "terraform_data" "b" { nope = "s3cretcanary" }`)
	w := open(t, dir, func(c *state.Config) { c.Env = map[string]string{"PROXMOX_VE_API_TOKEN": "s3cretcanary"} })
	_, err := w.Plan(t.Context(), state.PlanOptions{})
	var failed *state.CommandError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "Unsupported argument") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want the engine's reason and the directory", err)
	}
	if strings.Contains(fmt.Sprintf("%+v", err), "canary") {
		t.Errorf("the error shows a secret: %v", err)
	}
}

// TestInvalidState checks that the error about an invalid state names the directory and the
// fix.
func TestInvalidState(t *testing.T) {
	t.Parallel()
	const (
		first    = `{"version":4,"terraform_version":"1.9.0","serial":1,"lineage":"a","outputs":{},"resources":[`
		resource = `{"mode":"%s","type":"terraform_data","name":"a","provider":"provider[\"terraform.io/builtin/terraform\"]","instances":[%s]}]}`
		instance = `{"schema_version":0,"attributes":{"id":"1"}}`
	)
	for name, content := range map[string]string{
		"truncated":         `{"version": 4`,
		"an instance twice": first + fmt.Sprintf(resource, "managed", instance+","+instance),
		"an unknown mode":   first + fmt.Sprintf(resource, "borrowed", instance),
		"no provider":       first + strings.Replace(fmt.Sprintf(resource, "managed", instance), `"provider":`, `"other":`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := root(t, localBackend)
			write(t, dir, "terraform.tfstate", content)
			_, err := open(t, dir, nil).Plan(t.Context(), state.PlanOptions{})
			if err == nil || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "try again") ||
				!strings.Contains(err.Error(), "or move it elsewhere (with the local backend, it is terraform.tfstate in the host's directory") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCancelledBeforeApply(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Apply(ctx, plan); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := addresses(t, w); len(got) > 0 {
		t.Errorf("applied %v", got)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]state.Config{
		"no directory": {Engine: &state.Engine{Path: "/x"}},
		"no engine":    {Dir: "x"},
		"variables":    {Dir: "x", Engine: &state.Engine{Path: "/x"}, Env: map[string]string{"TF_VAR_x": "1"}},
		"arguments":    {Dir: "x", Engine: &state.Engine{Path: "/x"}, Env: map[string]string{"TF_CLI_ARGS_plan": "-destroy"}},
		"another root": {Dir: "/r/other/h", Engine: &state.Engine{Path: "/x"}, Root: "/r/o", Files: map[string][]byte{}},
		"above a root": {Dir: "/r", Engine: &state.Engine{Path: "/x"}, Root: "/r/o", Files: map[string][]byte{}},
	} {
		if _, err := state.New(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
