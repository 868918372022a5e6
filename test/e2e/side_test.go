package e2e_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// fiveHosts returns the files of the quickstart with two additional hosts.
func fiveHosts(t *testing.T) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	err := fs.WalkDir(examples.Quickstart(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(examples.Quickstart(), name)
		files[name] = &fstest.MapFile{Data: content, Mode: 0o600}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const third = "    pve-3: hosts/pve-3.json\n"
	more := third
	for _, host := range []string{"pve-4", "pve-5"} {
		files["hosts/"+host+".json"] = &fstest.MapFile{Data: bytes.ReplaceAll(files["hosts/pve-2.json"].Data, []byte("pve-2"), []byte(host)), Mode: 0o600}
		more += strings.ReplaceAll(third, "pve-3", host)
	}
	files["numaform.yaml"].Data = bytes.Replace(files["numaform.yaml"].Data, []byte(third), []byte(more), 1)
	return files
}

// TestFiveAppliesSideBySide checks that, if one of five hosts that each clone a VM goes
// down or its provider exits, the other hosts finish in the same apply, and the next apply
// completes the failed host. `make test` only takes down the host, because test/faults
// kills single providers.
func TestFiveAppliesSideBySide(t *testing.T) {
	t.Parallel()
	const victim = "pve-3"
	for name, tt := range map[string]struct{ lose, back func(*testing.T, *demo.Stage) }{
		"host": {
			func(_ *testing.T, stage *demo.Stage) { stage.Sim.SetHostOnline(victim, false) },
			func(_ *testing.T, stage *demo.Stage) { stage.Sim.SetHostOnline(victim, true) },
		},
		"provider": {
			func(t *testing.T, stage *demo.Stage) { panicProvider(t, stage, victim) },
			func(*testing.T, *demo.Stage) {},
		},
	} {
		if name == "provider" && !enginetest.EveryCase() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stage := open(t, demo.Config{Example: fiveHosts(t), Region: testenv.Region, Template: testenv.Template, Clusters: []string{"quickstart"}})
			cloning, gate := make(chan string, 64), make(chan struct{})
			stage.Sim.AddFault(pvesim.Fault{Method: "POST", Path: `/clone$`, Hit: func(ctx context.Context, call pvesim.Call) {
				cloning <- strings.Split(strings.TrimPrefix(call.Path, "/nodes/"), "/")[0]
				select {
				case <-gate:
				case <-ctx.Done():
				}
			}})
			release := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(release)
			done := make(chan int, 1)
			go func() {
				_, code := stage.Numaform(context.Background(), "apply", "-f", stage.Manifests(), "--auto-approve")
				done <- code
			}()
			for hosts := map[string]bool{}; len(hosts) < 5; {
				select {
				case host := <-cloning:
					hosts[host] = true
				case <-time.After(2 * time.Minute):
					t.Fatalf("clones on %v, want them on five hosts at once", hosts)
				}
			}
			tt.lose(t, stage)
			release()
			if code := <-done; code != cli.ExitFailed {
				t.Fatalf("exit code %d, want %d", code, cli.ExitFailed)
			}
			desired, _ := readFleet(t, stage.Fleet())
			made := map[string]int{}
			for _, vm := range desired.VMs {
				guest, ok := stage.Sim.Guest(int(vm.VMID))
				if ok && guest.Running {
					made[string(vm.Host.Host)]++
				} else if vm.Host.Host != victim {
					t.Errorf("vm %s on %s was not created", vm.Name, vm.Host)
				}
			}
			if len(made) < 4 {
				t.Errorf("VMs on %v, want them on the four other hosts", made)
			}
			tt.back(t, stage)
			before := complete(t, stage)
			stage.Sim.ResetCalls()
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			compare(t, stage)
			unchanged(t, stage, before)
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
		})
	}
}

// panicProvider makes the provider of a host dump its goroutines and exit during its calls,
// as a panic does.
func panicProvider(t *testing.T, stage *demo.Stage, host string) {
	t.Helper()
	mark := func(pid string) string {
		content, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
		if err != nil {
			return "" // the process ended
		}
		for entry := range strings.SplitSeq(string(content), "\x00") {
			if strings.HasPrefix(entry, "NUMAFORM_RUN=") {
				return entry
			}
		}
		return ""
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	engine := slices.IndexFunc(processes, func(process string) bool {
		cwd, err := os.Readlink(filepath.Join(process, "cwd"))
		return err == nil && strings.HasPrefix(cwd, stage.Dir) && path.Base(cwd) == host && mark(path.Base(process)) != ""
	})
	if engine < 0 {
		t.Fatalf("no engine of %s runs", host)
	}
	of, killed := mark(path.Base(processes[engine])), 0
	for i, process := range processes {
		if i == engine || mark(path.Base(process)) != of {
			continue
		}
		pid, err := strconv.Atoi(path.Base(process))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		killed++
	}
	if killed != 1 {
		t.Fatalf("%d providers of %s, want one", killed, host)
	}
}
