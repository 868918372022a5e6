package real_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// pinnedPool is a pool whose VMs the host agent pins.
const pinnedPool = `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: workers}
spec:
  template: {name: ` + testenv.Template + `}
  clone: linked
  metadata: {type: cdrom}
  placement: {policy: Dedicated, pinWith: HostAgent}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: workers}
      requirements: []
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 5s}
`

// TestHostAgentPins runs the host agent of this machine on a VM that the controller created:
// the kernel then allows the thread of its vCPU only the CPU that was planned, also after
// the agent and another program have moved it.
func TestHostAgentPins(t *testing.T) {
	enginetest.Nightly(t)
	w := newWorld(t, []topology.Host{numaHost(t, "one", 9001, 1, 2)}, `[{"name": "d1.1VCPU-1GB", "capacity": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "8Gi"}}]`,
		func(c *pvesim.Config) {
			// The simulated agent only publishes that pins are possible.
			*c = hostagent.On(*c, hostagent.Agent{Rules: claim.Rules{Clusters: []string{clusterID}}})
		})
	w.manifest(pinnedPool)
	w.pod("web", "100m", "64Mi")
	vmid, _ := w.launched("web")
	guest, _ := w.proxmox.Guest(vmid)
	marker, _ := fleet.ParseMarker(guest.Config["description"])
	if len(marker.Pins) != 1 {
		t.Fatalf("VM %d declares the pins %v, want one", vmid, marker.Pins)
	}
	w.showAgent(vmid, guest.Config["description"])
	settings := agent.DefaultSettings()
	settings.Clusters, settings.MetricsDir = []string{clusterID}, ""
	a, err := agent.New(agent.Options{
		Root: w.guests, StateDir: filepath.Join(t.TempDir(), "state"), Settings: settings, Interval: 500 * time.Millisecond, Version: "1.0.0",
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })

	w.vcpuRunsOn(vmid, marker.Pins[0])
	w.stage("the vCPU of VM %d runs on CPU %d only", vmid, marker.Pins[0])
	other := 1 - marker.Pins[0]
	threads := w.threads(vmid)
	if err := (qemu.Kernel{}).SetAffinity(threads[0].TID, topology.CPUs(other)); err != nil {
		t.Fatal(err)
	}
	w.vcpuRunsOn(vmid, marker.Pins[0])
	marker.Pins[0] = other
	w.showAgent(vmid, marker.String())
	w.vcpuRunsOn(vmid, other)
	w.stage("the vCPU of VM %d runs on CPU %d only", vmid, other)
	w.deletePod("web")
	w.nothingIsLeft(vmid)
}

// showAgent writes what the host agent reads of a host, besides QEMU's PID files, into the
// directory of the guests: the configuration of a VM, and the CPUs and processes of this machine.
func (w *world) showAgent(vmid int, description string) {
	w.t.Helper()
	var conf strings.Builder
	for line := range strings.Lines(description) {
		fmt.Fprintf(&conf, "#%s\n", strings.TrimRight(line, "\n"))
	}
	conf.WriteString("cores: 1\n")
	for name, text := range map[string]string{
		fmt.Sprintf("etc/pve/qemu-server/%d.conf", vmid): conf.String(),
		"etc/pve/lxc/.keep":             "",
		"sys/devices/system/cpu/online": "0-1\n",
	} {
		path := filepath.Join(w.guests, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc", filepath.Join(w.guests, "proc")); err != nil && !errors.Is(err, os.ErrExist) {
		w.t.Fatal(err)
	}
}

// threads returns the threads of a VM's process, of which the first runs its vCPU.
func (w *world) threads(vmid int) []qemu.Thread {
	w.t.Helper()
	reader := qemu.Reader{Root: w.guests}
	guests, err := reader.Running()
	i := slices.IndexFunc(guests, func(guest qemu.Guest) bool { return guest.VMID == vmid })
	if err != nil || i < 0 {
		w.t.Fatalf("VM %d has no process: %v", vmid, err)
	}
	threads, err := reader.Threads(guests[i].Run)
	if err != nil || qemu.VCPUs(threads) != 1 {
		w.t.Fatalf("VM %d has the threads %v (%v), want one vCPU", vmid, threads, err)
	}
	return threads
}

// vcpuRunsOn waits until the kernel allows the vCPU of a VM one CPU only.
func (w *world) vcpuRunsOn(vmid, cpu int) {
	w.t.Helper()
	w.eventually(time.Minute, func(context.Context) string {
		allowed, err := (qemu.Kernel{}).Affinity(w.threads(vmid)[0].TID)
		if err != nil {
			return err.Error()
		}
		if !allowed.Equal(topology.CPUs(cpu)) {
			return fmt.Sprintf("the vCPU of VM %d may run on CPUs %s, want %d", vmid, allowed, cpu)
		}
		return ""
	})
}
