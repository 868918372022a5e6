package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/state"
)

// childVariable makes this test binary only apply in the named directory.
const childVariable = "NUMAFORM_TEST_APPLY_IN"

// planVariable makes this test binary plan in the named directory, and wait to be killed.
const planVariable = "NUMAFORM_TEST_PLAN_IN"

func TestMain(m *testing.M) {
	if err := confine.Main(); err != nil { // this binary is the helper of its own tests
		panic(err)
	}
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(applyIn(dir))
	}
	if dir := os.Getenv(planVariable); dir != "" {
		os.Exit(planIn(dir))
	}
	os.Exit(m.Run())
}

func applyIn(dir string) int {
	ctx := context.Background()
	tools, _ := filepath.Abs("../.tools/bin")
	e, err := state.FindEngine(ctx, state.EngineConfig{Dirs: []string{tools}})
	if err != nil {
		return 1
	}
	w, err := state.New(state.Config{Dir: dir, Engine: e, Log: io.Discard})
	if err != nil {
		return 1
	}
	plan, err := w.Plan(ctx, state.PlanOptions{})
	if err != nil {
		return 1
	}
	if _, err = w.Apply(ctx, plan); err != nil {
		return 1
	}
	return 0
}

// engines returns the processes of a workspace.
func engines(t testing.TB, w *state.Workspace) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Split(string(environ), "\x00"), w.Mark()) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// failedSave runs an apply whose state cannot be saved, and returns the backend, the
// workspace and the file with the unsaved state.
func failedSave(t *testing.T, engine *state.Engine) (*backend, *state.Workspace, string) {
	t.Helper()
	return failedSaveIn(t, engine, "")
}

// failedSaveIn is like failedSave, with the errored state in the given file unless
// errored is empty.
func failedSaveIn(t *testing.T, engine *state.Engine, errored string) (*backend, *state.Workspace, string) {
	t.Helper()
	b := newBackend(t)
	dir := root(t, httpBackend(b))
	w := open(t, dir, func(c *state.Config) {
		with(engine)(c)
		c.Errored = errored
	})
	plan := mustPlan(t, w, state.PlanOptions{})
	b.fail(true)
	result, err := w.Apply(t.Context(), plan)
	b.fail(false)
	if err == nil || !strings.Contains(err.Error(), "save state") {
		t.Fatalf("applying to a broken backend: %v", err)
	}
	if len(result.Done) != 2 || b.locked() {
		t.Fatalf("done %v, locked %v", result.Done, b.locked())
	}
	if errored == "" {
		errored = filepath.Join(dir, "errored.tfstate")
	}
	return b, w, errored
}

func TestRecoverPushesTheState(t *testing.T) {
	t.Parallel()
	eachEngine(t, recoverPushesTheState)
}

func recoverPushesTheState(t *testing.T, engine *state.Engine) {
	t.Helper()
	b, w, file := failedSave(t, engine)
	want := fmt.Sprintf("had not accepted: serial %d replaces serial 0, lineage ", serial(t, file))
	if len(b.saved()) > 0 {
		t.Fatal("the state was saved after all")
	}
	recovery, err := w.Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !recovery.Pushed || len(recovery.Outside) != 1 || !strings.Contains(recovery.Outside[0], want) {
		t.Errorf("recovery is %+v", recovery)
	}
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" {
		t.Errorf("state: %s", diff)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	if again, err := w.Recover(t.Context()); err != nil || again.Pushed {
		t.Errorf("the second time: %+v, %v", again, err)
	}
	if plan := mustPlan(t, w, state.PlanOptions{}); plan.Changes {
		t.Errorf("the plan would make it again:\n%s", plan.Text)
	}
}

// serial returns a state's serial.
func serial(t testing.TB, file string) int {
	t.Helper()
	var doc struct{ Serial int }
	if err := json.Unmarshal(mustRead(t, file), &doc); err != nil || doc.Serial < 1 {
		t.Fatalf("serial %d, %v, want a state that was written", doc.Serial, err)
	}
	return doc.Serial
}

// header returns a state with another serial and, unless lineage is empty, another lineage.
func header(t testing.TB, content []byte, lineage string, serial int) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(content, &doc); err != nil {
		t.Fatal(err)
	}
	if lineage != "" {
		doc["lineage"] = lineage
	}
	doc["serial"] = serial
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRecoverRefusesAnotherLineage(t *testing.T) {
	t.Parallel()
	b, w, file := failedSave(t, engine(t))
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b.setState(header(t, content, "00000000-0000-0000-0000-000000000000", 0))
	_, err = w.Recover(t.Context())
	var lineage *state.LineageError
	if !errors.As(err, &lineage) || lineage.File != file {
		t.Errorf("got %v, want a LineageError", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

// TestRecoverSetsAnOldStateAsideInItsDirectory checks that a state that is set aside
// remains in the directory for errored states, separate from the engine's files.
func TestRecoverSetsAnOldStateAsideInItsDirectory(t *testing.T) {
	t.Parallel()
	errored := filepath.Join(t.TempDir(), "errored.tfstate")
	b, w, file := failedSaveIn(t, engine(t), errored)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b.setState(header(t, content, "", 99))
	recovery, err := w.Recover(t.Context())
	if err != nil || filepath.Dir(recovery.SetAside) != filepath.Dir(errored) {
		t.Fatalf("got %+v, %v, want the file set aside beside %s", recovery, err, errored)
	}
	if aside, err := os.ReadFile(recovery.SetAside); err != nil || string(aside) != string(content) {
		t.Errorf("set aside is something else: %v", err)
	}
}

func TestRecoverSetsAnOldStateAside(t *testing.T) {
	t.Parallel()
	b, w, file := failedSave(t, engine(t))
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	newer := header(t, content, "", 99)
	b.setState(newer)
	recovery, err := w.Recover(t.Context())
	if err != nil || recovery.Pushed || recovery.SetAside == "" {
		t.Fatalf("got %+v, %v, want the file set aside", recovery, err)
	}
	aside, err := os.ReadFile(recovery.SetAside)
	if err != nil || string(aside) != string(content) {
		t.Errorf("set aside is something else: %v", err)
	}
	if string(b.saved()) != string(newer) {
		t.Error("the newer state was overwritten")
	}
	write(t, filepath.Dir(file), filepath.Base(file), strings.Replace(string(content), `"b"`, `"other"`, 1))
	again, err := w.Recover(t.Context())
	if err != nil || again.SetAside == "" || again.SetAside == recovery.SetAside {
		t.Errorf("got %+v, %v, want it set aside elsewhere", again, err)
	}
	if kept, err := os.ReadFile(recovery.SetAside); err != nil || string(kept) != string(content) {
		t.Errorf("what was set aside before is overwritten: %v", err)
	}
}

func TestWhatABackendLeavesOpen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ operation, text, want string }{
		"plan":           {"planning", "Error loading state", "nothing was changed; check"},
		"apply, before":  {"applying", "Error acquiring the state lock: dial", "nothing was changed; check"},
		"apply, release": {"applying", "Error releasing the state lock: EOF", "the next run determines what was done; check"},
		"forget":         {"forgetting a.b in", "Error releasing the state lock: EOF", "the next run determines what was done; check"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := &state.CommandError{Operation: tt.operation, Dir: t.TempDir(), Text: tt.text, Backend: "http"}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestRecoverRefusesHalfAState(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"cut off": `{"version":4,`, "empty": `{}`, "old": `{"version":3,"lineage":"x"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := root(t, localBackend)
			write(t, dir, "errored.tfstate", content)
			if _, err := open(t, dir, nil).Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "move it elsewhere") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCancelSavesAndUnlocks(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), nil)
	plan := mustPlan(t, w, state.PlanOptions{})
	saving, release := b.hold()
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.Apply(ctx, plan)
		done <- err
	}()
	<-saving
	if !b.locked() {
		t.Error("it saves without a lock")
	}
	cancel()
	release()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	if b.locked() {
		t.Error("the lock is still held")
	}
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" {
		t.Errorf("state: %s", diff)
	}
}

func TestEngineKilled(t *testing.T) {
	t.Parallel()
	eachEngine(t, engineKilled)
}

func engineKilled(t *testing.T, engine *state.Engine) {
	t.Helper()
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), with(engine))
	plan := mustPlan(t, w, state.PlanOptions{})
	saving, release := b.hold()
	defer release()
	done := make(chan error, 1)
	go func() {
		_, err := w.Apply(t.Context(), plan)
		done <- err
	}()
	<-saving
	for _, pid := range engines(t, w) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	var failed *state.CommandError
	if err := <-done; !errors.As(err, &failed) {
		t.Errorf("got %v, want a CommandError", err)
	}
	stuck(t, b, w, engine)
}

// stuck checks the effect of a dead engine's lock on the next run. OpenTofu passes on the
// holder from the http backend: the holder is provably dead, and the lock is broken.
// Terraform does not: the lock is broken only on request.
func stuck(t *testing.T, b *backend, w *state.Workspace, engine *state.Engine) {
	t.Helper()
	if !b.locked() {
		t.Fatal("a dead engine released its lock")
	}
	recovery, err := w.Recover(t.Context())
	if !recovery.Crashed {
		t.Errorf("got %+v, want a crash found", recovery)
	}
	if engine.Name() == "terraform" {
		var locked *state.LockedError
		if !errors.As(err, &locked) || locked.Holder != state.HolderUnknown {
			t.Fatalf("got %v, want a lock of an unknown holder", err)
		}
		if err := w.Unlock(t.Context(), locked.ID); err != nil {
			t.Fatal(err)
		}
	} else if err != nil || len(recovery.Outside) != 1 || !strings.Contains(recovery.Outside[0], "no process that it started remains") {
		t.Fatalf("got %+v, %v, want a broken lock and the proof", recovery, err)
	}
	// Crashed is set, here and for the next process, until an operation succeeds.
	crashed(t, w, true)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	crashed(t, w, true)
	if plan := mustPlan(t, w, state.PlanOptions{}); !plan.Changes {
		t.Error("the plan changes nothing, though nothing was saved")
	}
	crashed(t, w, false)
}

func crashed(t *testing.T, w *state.Workspace, want bool) {
	t.Helper()
	if recovery, err := w.Recover(t.Context()); err != nil || recovery.Crashed != want {
		t.Errorf("got %+v, %v, want a crash: %t", recovery, err, want)
	}
}

// TestBackendThatFailed checks that a backend's failure to release the lock after an apply
// counts as a crash in the next recovery.
func TestBackendThatFailed(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine *state.Engine) {
		b := newBackend(t)
		w := open(t, root(t, httpBackend(b)), with(engine))
		plan := mustPlan(t, w, state.PlanOptions{})
		b.keep(true)
		_, err := w.Apply(t.Context(), plan)
		b.keep(false)
		var failed *state.CommandError
		if !errors.As(err, &failed) || failed.Backend != "http" || !b.locked() {
			t.Fatalf("got %v, locked %t, want a failure of the backend", err, b.locked())
		}
		recovery, err := w.Recover(t.Context())
		if !recovery.Crashed {
			t.Errorf("got %+v, %v, want a crash found", recovery, err)
		}
	})
}

func TestProcessKilled(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	dir := root(t, httpBackend(b))
	w := open(t, dir, nil)
	saving, release := b.hold()
	defer release()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+dir)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	<-saving
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the child ended well")
	}
	stuck(t, b, w, engine(t))
	if left := engines(t, w); len(left) > 0 {
		t.Errorf("processes %v are left after recovery", left)
	}
}

// TestCopyOfADirectory checks that the record of a run proves nothing in a copy of its
// directory.
func TestCopyOfADirectory(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	lock := &state.LockedError{LockInfo: state.LockInfo{Who: "root@h", Created: began.Add(time.Second)}}
	if !state.Proves("/a", "h", began, lock, "/a") || state.Proves("/a", "h", began, lock, "/b") || state.Proves("", "h", began, lock, "/b") {
		t.Error("want a proof in the directory itself only")
	}
}

func TestAwaitOrphans(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	if found, err := w.AwaitOrphans(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("without orphans: %v, %v", found, err)
	}
	read, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	orphan := exec.CommandContext(t.Context(), "cat")
	orphan.Env = []string{w.Mark()}
	orphan.Stdin = read
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	found, err := w.AwaitOrphans(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(found, []int{orphan.Process.Pid}) {
		t.Errorf("while it works: %v, %v, want %d and a timeout", found, err, orphan.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(hold.Close(), orphan.Wait(), read.Close()) }()
	found, err = w.AwaitOrphans(t.Context())
	if err != nil || len(engines(t, w)) > 0 {
		t.Errorf("after it ended: %v, %v, left %v", found, err, engines(t, w))
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIdleOrphansAreEnded checks that an idle provider whose engine died is killed: it would
// wait for calls forever.
func TestIdleOrphansAreEnded(t *testing.T) {
	t.Parallel()
	passing := clocktesting.NewFakeClock(time.Now())
	w := open(t, root(t, localBackend), func(c *state.Config) { c.Clock = passing })
	read, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	orphan := exec.CommandContext(t.Context(), "cat")
	orphan.Env, orphan.Stdin = []string{w.Mark()}, read
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ended, awaited := make(chan error, 1), make(chan error, 1)
	go func() { ended <- orphan.Wait() }()
	go func() {
		_, err := w.AwaitOrphans(t.Context())
		awaited <- err
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case err := <-awaited:
			if err != nil {
				t.Fatal(err)
			}
			waiting = false
		case <-tick.C:
			passing.Step(time.Second)
		}
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || !strings.Contains(exit.Error(), "killed") {
		t.Errorf("it ended with %v, want it killed", err)
	}
	if err := errors.Join(read.Close(), hold.Close()); err != nil {
		t.Error(err)
	}
}

// counting is a clock that counts the calls of Now.
type counting struct {
	*clocktesting.FakeClock
	asked atomic.Int32
}

func (c *counting) Now() time.Time {
	defer c.asked.Add(1)
	return c.FakeClock.Now()
}

// TestWorkingOrphansAreAwaited checks that a provider whose engine died is not killed while
// it reads and writes, however long that takes.
func TestWorkingOrphansAreAwaited(t *testing.T) {
	t.Parallel()
	passing := &counting{FakeClock: clocktesting.NewFakeClock(time.Now())}
	w := open(t, root(t, localBackend), func(c *state.Config) { c.Clock = passing })
	orphan := exec.CommandContext(t.Context(), "cat")
	orphan.Env = []string{w.Mark()}
	in, err := orphan.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := orphan.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	awaited := make(chan error, 1)
	go func() {
		_, err := w.AwaitOrphans(t.Context())
		awaited <- err
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 12 { // of 10 s each
		_, writeErr := in.Write([]byte("x"))
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil || writeErr != nil {
			t.Fatalf("it ended while it worked: %v, %v", writeErr, err)
		}
		before := passing.asked.Load()
		passing.Step(10 * time.Second)
		for passing.asked.Load() == before {
			<-tick.C
			passing.Step(0) // a tick may have come before the wait
		}
	}
	if err := errors.Join(in.Close(), orphan.Wait()); err != nil {
		t.Errorf("it ended with %v, want it to end by itself", err)
	}
	for waiting := true; waiting; {
		select {
		case err := <-awaited:
			if err != nil {
				t.Error(err)
			}
			waiting = false
		case <-tick.C:
			passing.Step(time.Second)
		}
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	until := began.Add(time.Minute)
	for name, tt := range map[string]struct {
		run, here, who string
		created        time.Time
		want           bool
	}{
		"our own":         {"h", "h", "root@h", began.Add(time.Second), true},
		"at the start":    {"h", "h", "root@h", began, true},
		"before":          {"h", "h", "root@h", began.Add(-time.Second), false},
		"after":           {"h", "h", "root@h", until.Add(time.Second), false},
		"another host":    {"h", "h", "root@x", began.Add(time.Second), false},
		"we moved":        {"h", "x", "root@x", began.Add(time.Second), false},
		"host not known":  {"h", "h", "root", began.Add(time.Second), false},
		"record of other": {"x", "h", "root@h", began.Add(time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := &state.LockedError{LockInfo: state.LockInfo{Who: tt.who, Created: tt.created}}
			if got := state.Held(tt.run, began, until, lock, tt.here); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestRecoverAnEncryptedState checks that the local copy of an encrypted state that the
// backend refused is encrypted too, and that Recover saves it.
func TestRecoverAnEncryptedState(t *testing.T) {
	t.Parallel()
	if engine(t).Name() == "terraform" {
		return // only OpenTofu encrypts states
	}
	b := newBackend(t)
	dir := root(t, httpBackend(b))
	w := open(t, dir, func(c *state.Config) {
		c.Encryption = true
		c.Env = map[string]string{"TF_ENCRYPTION": `key_provider "pbkdf2" "k" {
  passphrase = "canary-of-encryption"
  iterations = 200000
}
method "aes_gcm" "m" {
  keys = key_provider.pbkdf2.k
}
state {
  method   = method.aes_gcm.m
  enforced = true
}`}
	})
	plan := mustPlan(t, w, state.PlanOptions{})
	b.fail(true)
	_, err := w.Apply(t.Context(), plan)
	b.fail(false)
	if err == nil {
		t.Fatal("the apply ended well")
	}
	kept := string(mustRead(t, filepath.Join(dir, "errored.tfstate")))
	if !strings.Contains(kept, "encrypted_data") || strings.Contains(kept, "terraform_data") {
		t.Errorf("kept %.300s, want it encrypted", kept)
	}
	recovery, err := w.Recover(t.Context())
	if err != nil || !recovery.Pushed {
		t.Fatalf("got %+v, %v, want the state saved", recovery, err)
	}
	if diff := cmp.Diff(both, addresses(t, w)); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if saved := string(b.saved()); !strings.Contains(saved, "encrypted_data") || strings.Contains(saved, "terraform_data") {
		t.Errorf("saved %.300s, want it encrypted", saved)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".terraform", "numaform", "decrypt-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v: they hold the state in clear text", left, err)
	}

	// A modified encrypted state is not saved.
	write(t, dir, "errored.tfstate", strings.Replace(kept, `"encrypted_data": "`, `"encrypted_data": "AAAA`, 1))
	saved := b.saved()
	if _, err := w.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "decrypting state "+filepath.Join(dir, "errored.tfstate")) {
		t.Errorf("got %v, want the state named that cannot be decrypted", err)
	}
	if string(b.saved()) != string(saved) {
		t.Error("the backend's state was overwritten")
	}
}

// TestErroredStateIsALink checks that the target of a link in place of an unsaved state is
// not read.
func TestErroredStateIsALink(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	errored := filepath.Join(t.TempDir(), "errored.tfstate")
	w := open(t, root(t, httpBackend(b)), func(c *state.Config) { c.Errored = errored })
	outside := t.TempDir()
	write(t, outside, "x", `{"version": 4, "serial": 1, "lineage": "x"}`)
	link := filepath.Join(w.Dir(), "errored.tfstate")
	if err := os.Symlink(filepath.Join(outside, "x"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), link+" is not a regular file: remove it") {
		t.Errorf("got %v, want the link refused", err)
	}
	if _, err := os.Lstat(errored); !errors.Is(err, os.ErrNotExist) || len(b.saved()) > 0 {
		t.Errorf("the file outside was taken for a state: %v, %s", err, b.saved())
	}
}

// TestRecordOfARunIsCutOff checks that a truncated record of a run does not count as a
// crash and does not prevent plans and applies.
func TestRecordOfARunIsCutOff(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	write(t, dir, ".terraform/numaform/run.json", `{"operation":"apply`)
	w := open(t, dir, nil)
	crashed(t, w, false)
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
}

// TestOrphansOfAFormerDirectory checks that the processes of a run in another directory are
// awaited too, after the record of that run was taken over.
func TestOrphansOfAFormerDirectory(t *testing.T) {
	t.Parallel()
	former, dir := root(t, localBackend), root(t, localBackend)
	record, err := json.Marshal(map[string]string{"operation": "applying", "dir": former})
	if err != nil {
		t.Fatal(err)
	}
	if err := state.TakeOver(record, former, dir); err != nil {
		t.Fatal(err)
	}
	read, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	orphan := exec.CommandContext(t.Context(), "cat")
	orphan.Env, orphan.Stdin = []string{open(t, former, nil).Mark()}, read
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	w := open(t, dir, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	recovery, err := w.Recover(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !recovery.Crashed || !slices.Equal(recovery.Orphans, []int{orphan.Process.Pid}) {
		t.Errorf("got %+v, %v, want to wait for process %d", recovery, err, orphan.Process.Pid)
	}
	if err := errors.Join(hold.Close(), orphan.Wait(), read.Close()); err != nil {
		t.Error(err)
	}
	crashed(t, w, true)
}

// TestRecoverCannotStart checks that an unsaved state in a directory that cannot be
// initialized is not lost, and that the error states the reason.
func TestRecoverCannotStart(t *testing.T) {
	t.Parallel()
	dir := root(t, "terraform {\n  backend \"nowhere\" {}\n}\n")
	write(t, dir, "errored.tfstate", `{"version": 4, "serial": 1, "lineage": "a"}`)
	recovery, err := open(t, dir, nil).Recover(t.Context())
	if err == nil || !strings.Contains(err.Error(), "initializing "+dir) || recovery.Pushed {
		t.Errorf("got %+v, %v, want why the engine cannot start", recovery, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "errored.tfstate")); err != nil {
		t.Errorf("the state is gone: %v", err)
	}
}
