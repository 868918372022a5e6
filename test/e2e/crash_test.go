package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestEngineKilled checks that, after the engines of several hosts are killed at once while
// Proxmox executes a call that creates a VM, another apply creates the missing VMs and
// changes no complete VM. `make nightly` kills during a clone and during a start,
// `make test` during the clone only. test/faults kills single engines at every step.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		name, path string
		skip       int
	}{
		{"third clone", `/clone$`, 2},
		{"last start", `/status/start$`, 4},
	} {
		if at.name == "last start" && !enginetest.EveryCase() {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			t.Parallel()
			stage := quickstart(t)
			call := holding{"POST", at.path}
			stage.Sim.AddFault(pvesim.Fault{Method: call.method, Path: call.path, Skip: at.skip, Times: 1, Delay: holdTime})
			done := make(chan int, 1)
			go func() {
				_, code := stage.Numaform(context.Background(), "apply", "-f", stage.Manifests(), "--auto-approve")
				done <- code
			}()
			open := held(t, stage, []holding{call})
			t.Logf("killing engines at %s %s %v", open.Method, open.Path, open.Params)
			killEngines(t, stage)
			if code := <-done; code != cli.ExitFailed {
				t.Fatalf("apply with a killed engine: exit code %d, want %d", code, cli.ExitFailed)
			}
			before := complete(t, stage)
			stage.Sim.ResetCalls()
			out := run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			t.Logf("plans of the recovery:\n%s", out[strings.Index(out, "Plans"):])
			compare(t, stage)
			unchanged(t, stage, before)
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
		})
	}
}

// holdTime is the delay of the call during which engines are killed.
const holdTime = 1500 * time.Millisecond

type holding struct{ method, path string }

// held waits for a call that takes longer than any call without a delay.
func held(t *testing.T, stage *demo.Stage, holds []holding) pvesim.Call {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-deadline:
			t.Fatalf("no call was held at %v", holds)
		case now := <-tick.C:
			for _, call := range stage.Sim.Calls() {
				if call.Status == 0 && now.Sub(call.Time) > holdTime/3 && matches(holds, call) {
					return call
				}
			}
		}
	}
}

func matches(holds []holding, call pvesim.Call) bool {
	return slices.ContainsFunc(holds, func(h holding) bool {
		return h.method == call.Method && regexp.MustCompile(h.path).MatchString(call.Path)
	})
}

// killEngines kills the engines in the stage's directory but not their providers, as the
// kernel's OOM killer does.
func killEngines(t *testing.T, stage *demo.Stage) {
	t.Helper()
	killed := 0
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process ended
		}
		words := bytes.Split(text, []byte{0})
		cwd, err := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if err != nil || !strings.HasPrefix(cwd, stage.Dir) || len(words) < 2 || string(words[1]) != "apply" {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed == 0 {
		t.Fatal("no engine was running")
	}
	t.Logf("killed %d engines", killed)
}

// complete waits until no process calls Proxmox, and returns the configurations of the
// running VMs.
func complete(t *testing.T, stage *demo.Stage) map[int]string {
	t.Helper()
	settle(t, stage)
	vms := map[int]string{}
	for _, guest := range stage.Sim.Guests() {
		if guest.Running {
			vms[guest.VMID] = guest.Raw
		}
	}
	t.Logf("%d vms run after the kill: %v", len(vms), slices.Sorted(maps.Keys(vms)))
	return vms
}

// settle waits until Proxmox receives no calls for a while: providers outlive their engine.
func settle(t *testing.T, stage *demo.Stage) {
	t.Helper()
	const quiet = 30
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last, same := -1, 0
	for range 600 {
		<-tick.C
		if n := len(stage.Sim.Calls()); n != last {
			last, same = n, 0
			continue
		}
		if same++; same == quiet {
			return
		}
	}
	t.Fatal("the providers of killed engines did not end")
}

// unchanged checks that the recovery did not change a VM that was complete.
func unchanged(t *testing.T, stage *demo.Stage, before map[int]string) {
	t.Helper()
	for _, guest := range stage.Sim.Guests() {
		if raw, ok := before[guest.VMID]; ok && raw != guest.Raw {
			t.Errorf("vm %d was changed by its import:\n%s\nbefore:\n%s", guest.VMID, guest.Raw, raw)
		}
	}
	// After an import, the provider writes agent and name again, with the same values.
	for _, call := range stage.Sim.Calls() {
		for id := range before {
			if call.Method != "GET" && !strings.HasSuffix(call.Path, "/config") && strings.Contains(call.Path, fmt.Sprintf("/qemu/%d/", id)) {
				t.Errorf("vm %d was complete, but was changed: %s %s %v", id, call.Method, call.Path, call.Params)
			}
		}
	}
}
