package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
)

// scene is a world in which controllers are killed, with the data to check the invariants.
type scene struct {
	*world
	onlooker *onlooker
	fleet    *store.ConfigMap
	// foreign maps unmanaged VMs to their original configurations.
	foreign map[int]string
	// said contains the logs of all controllers so far.
	said []*logBuffer
}

// newScene starts a world with unmanaged VMs and an engine that can be held.
func newScene(t *testing.T, config worldConfig) *scene {
	t.Helper()
	s := &scene{world: newWorld(t, config), foreign: map[int]string{}}
	s.onlooker = watchOver(s.world)
	var err error
	if s.fleet, err = store.NewConfigMap(s.plane.Client(t), namespace, "fleet"); err != nil {
		t.Fatal(err)
	}
	s.plantForeign()
	s.holdableEngine()
	s.pool()
	return s
}

// pool creates a NodeClass and a NodePool whose nodes are only removed on request, so that
// an unneeded node remains visible.
func (s *scene) pool() {
	s.manifest(fmt.Sprintf(`
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: workers}
spec:
  template: {name: %s}
  metadata: {type: cdrom}
  placement: {policy: Dedicated, pinWith: HostAgent}
  networks: [{bridge: vmbr0, addressPools: [nodes]}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: Never}
`, testenv.Template))
}

// run starts a controller, whose log is searched for secrets at the end.
func (s *scene) run() {
	s.t.Helper()
	s.controller = s.startProcess()
	s.said = append(s.said, s.controller.log)
}

// kill kills the controller with SIGKILL. If withDisk is set, it simulates the loss of the
// machine: it also kills all child processes and deletes the disk.
func (s *scene) kill(withDisk bool) {
	s.t.Helper()
	s.stop(syscall.SIGKILL)
	if !withDisk {
		return
	}
	if err := testenv.LoseDisk(context.Background(), filepath.Join(s.dir, "fleet")); err != nil {
		s.t.Fatal(err)
	}
}

// age makes the fleet's lock of a killed holder expire.
func (s *scene) age() {
	s.t.Helper()
	ctx := context.Background()
	lease := &coordinationv1.Lease{}
	err := s.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "fleet"}, lease)
	if client.IgnoreNotFound(err) != nil {
		s.t.Fatal(err)
	}
	if err != nil || lease.Spec.RenewTime == nil {
		return
	}
	long := metav1.NewMicroTime(lease.Spec.RenewTime.Add(-time.Minute))
	lease.Spec.RenewTime = &long
	if err := s.api.Update(ctx, lease); err != nil {
		s.t.Fatal(err)
	}
}

// trap waits for a point in a change, and holds the process there if possible.
type trap struct {
	// sprung describes the point once it is reached, and returns "" until then.
	sprung func(ctx context.Context) (where string)
	// free releases the held process.
	free func()
}

// await waits until a trap springs.
func (s *scene) await(t *trap) (where string) {
	s.t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if where := t.sprung(context.Background()); where != "" {
			return where
		}
		select {
		case <-ticker.C:
		case <-s.controller.done:
			s.t.Fatalf("the controller exited unexpectedly: %v\n%s", s.controller.err, s.controller.log.tail())
		case <-deadline.C:
			s.t.Fatalf("the trap did not spring: %s\n%s", s.describe(context.Background()), s.controller.log.tail())
		}
	}
}

// holdableEngine installs an engine that waits before a command while the file hold-COMMAND
// exists, and after it while after-COMMAND exists. It records the hash of each applied
// plan.
func (s *scene) holdableEngine() {
	s.t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
here=%q
engine=%q
echo "$1 $PWD" >> "$here/engine.log"
if [ "$1" = apply ]; then
  for plan in "$@"; do case "$plan" in *.tfplan) sha256sum "$plan" >> "$here/engine.applied";; esac; done
fi
if [ -e "$here/hold-$1" ]; then
  echo "$PWD" > "$here/held-$1"
  while [ -e "$here/hold-$1" ]; do sleep 0.05; done
fi
if [ -e "$here/after-$1" ]; then
  "$engine" "$@"
  code=$?
  echo "$PWD" > "$here/held-$1"
  while [ -e "$here/after-$1" ]; do sleep 0.05; done
  exit $code
fi
exec "$engine" "$@"
`, s.dir, testenv.Engine(s.t))
	if err := os.WriteFile(filepath.Join(s.dir, "engine"), []byte(script), 0o700); err != nil {
		s.t.Fatal(err)
	}
}

// holdEngine returns a trap that springs before an engine runs a command ("hold") or after
// it ("after"), and holds the engine there.
func holdEngine(when, command string) func(*scene) *trap {
	return func(s *scene) *trap {
		s.write(when+"-"+command, "")
		held := filepath.Join(s.dir, "held-"+command)
		return &trap{
			sprung: func(context.Context) string {
				if _, err := os.Stat(held); err != nil {
					return ""
				}
				return "the engine is held: " + when + " " + command
			},
			free: func() {
				_ = os.Remove(filepath.Join(s.dir, when+"-"+command)) // it exists
				_ = os.Remove(held)                                   // it may not exist
			},
		}
	}
}

// holdCall returns a trap that springs at a call to Proxmox for which right is nil or
// returns true, and holds the call until its sender is killed or the trap is freed.
func holdCall(fault pvesim.Fault, right func(s *scene, call pvesim.Call) bool) func(*scene) *trap {
	return func(s *scene) *trap {
		reached, free := make(chan string, 64), make(chan struct{})
		fault.Hit = func(ctx context.Context, call pvesim.Call) {
			if right != nil && !right(s, call) {
				return
			}
			reached <- fmt.Sprintf("%s %s of %s is held", call.Method, call.Path, strings.Fields(call.Agent + " ?")[0])
			select {
			case <-ctx.Done():
			case <-free:
			}
		}
		remove := s.proxmox.AddFault(fault)
		return &trap{
			sprung: func(context.Context) string {
				select {
				case where := <-reached:
					return where
				default:
					return ""
				}
			},
			free: func() {
				remove()
				close(free)
			},
		}
	}
}

var vmPath = regexp.MustCompile(`^/nodes/[^/]+/qemu/(\d+)`)

// newest returns the last change of the fleet, or nil.
func (s *scene) newest() *audit.Entry {
	entries := s.history()
	if len(entries) == 0 {
		return nil
	}
	return &entries[len(entries)-1]
}

// history returns all changes of the fleet.
func (s *scene) history() []audit.Entry {
	s.t.Helper()
	entries, err := s.fleet.History(context.Background(), time.Time{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range entries {
		entries[i].OutcomeVerified = entries[i].Outcome != nil // without the key, the store cannot verify outcomes
	}
	return entries
}

// unfinished returns the hosts with unfinished work at the end of a history: the hosts
// whose last change did not succeed.
func unfinished(entries []audit.Entry) (hosts []string) {
	if len(entries) == 0 {
		return nil
	}
	for _, open := range entries[len(entries)-1].Unfinished() {
		well := slices.ContainsFunc(entries, func(e audit.Entry) bool {
			return e.Change.ID == open.Change && e.Outcome != nil &&
				slices.ContainsFunc(e.Outcome.Hosts, func(ended audit.Ended) bool { return ended.Host == open.Host && ended.Error == "" })
		})
		if !well {
			hosts = append(hosts, open.Host.String())
		}
	}
	return hosts
}

// portrait describes the VMs, claims, nodes and the last change.
func (s *scene) portrait() string {
	var vms []string
	for _, guest := range s.guestsOf(clusterID) {
		what := "stopped"
		switch {
		case guest.Config["lock"] != "":
			what = "locked: " + guest.Config["lock"]
		case guest.Running:
			what = "running"
		}
		vms = append(vms, fmt.Sprintf("%d %s", guest.VMID, what))
	}
	change := "no change"
	if last := s.newest(); last != nil {
		change = fmt.Sprintf("change %s (%s) has outcome: %t", last.Change.ID, last.Change.Kind, last.Outcome != nil)
	}
	return fmt.Sprintf("VMs %v, %s, %s", vms, change, strings.SplitN(s.describe(context.Background()), "\n", 2)[0])
}

// podsOn returns the pods that are bound to a node and not finished.
func podsOn(ctx context.Context, reader client.Reader, node string) ([]string, error) {
	var pods corev1.PodList
	if err := reader.List(ctx, &pods); err != nil {
		return nil, err
	}
	var names []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Spec.NodeName == node && !over {
			names = append(names, pod.Name)
		}
	}
	return names, nil
}
