package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// rival returns a second fleet on the same Proxmox.
func rival(t *testing.T, of *demo.Stage) *demo.Stage {
	t.Helper()
	talk := &testWriter{t: t}
	t.Cleanup(talk.stop)
	other, err := demo.Open(demo.Config{
		Example: examples.Quickstart(), Region: testenv.Region, Template: testenv.Template, Sim: of.Sim,
		Dir: t.TempDir(), PluginDir: testenv.PluginDir(t), Environ: testenv.CleanEnv(), Stdout: io.Discard, Stderr: talk,
	})
	if err != nil {
		t.Fatal(err)
	}
	edit(t, other, "numaform.yaml", "clusterID: quickstart", "clusterID: rival")
	edit(t, other, "numaform.yaml", "{lower: 2000, upper: 2999}", "{lower: 3000, upper: 3999}")
	return other
}

// twoPods request exclusive cores on pve-2, and need a VM each.
const twoPods = `apiVersion: apps/v1
kind: Deployment
metadata: {name: cache, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: cache}}
  template:
    metadata:
      labels: {app: cache}
    spec:
      nodeSelector: {example.com/latency: low, topology.kubernetes.io/zone: pve-2}
      tolerations:
      - {key: example.com/latency, operator: Equal, value: low, effect: NoSchedule}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector: {matchLabels: {app: cache}}
      containers:
      - name: cache
        image: registry.example/cache:1
        resources:
          requests: {cpu: "3", memory: 6Gi}
`

// runs is the number of times two clusters scale concurrently; `make test-faults` uses 20.
var runs = flag.Int("runs", 2, "number of times two clusters scale concurrently")

// TestTwoClustersOnOneProxmox checks that no CPU and no VMID is assigned twice, and that
// unmanaged VMs are not changed, when two fleets with different clusterIDs scale
// concurrently.
func TestTwoClustersOnOneProxmox(t *testing.T) {
	t.Parallel()
	for run := range *runs {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			t.Parallel()
			one := quickstart(t)
			two := rival(t, one)
			stranger := pvesim.Guest{VMID: 100, Host: "pve-2", Running: true, Config: map[string]string{
				"name": "accounting", "cores": "2", "sockets": "1", "memory": "2048", "affinity": "4-5",
			}}
			if err := one.Sim.PutGuest(stranger); err != nil {
				t.Fatal(err)
			}
			before, _ := one.Sim.Guest(100)
			var group sync.WaitGroup
			for _, stage := range []*demo.Stage{one, two} {
				if err := os.WriteFile(filepath.Join(stage.Manifests(), "pods.yaml"), []byte(twoPods), 0o600); err != nil {
					t.Fatal(err)
				}
				group.Go(func() {
					if out, code := stage.Numaform(context.Background(), "apply", "-f", stage.Manifests(), "--auto-approve"); code != cli.ExitOK {
						t.Errorf("exit code %d\n%s", code, out)
					}
				})
			}
			group.Wait()
			for _, err := range startFaults(t, one) {
				t.Error(err)
			}
			if after, _ := one.Sim.Guest(100); after.Raw != before.Raw || !after.Running {
				t.Error("an unmanaged VM was changed")
			}
			count(t, one, two)
		})
	}
}

// count checks that the VMs of each fleet exist, and no others do.
func count(t *testing.T, stages ...*demo.Stage) {
	t.Helper()
	want := map[int]fleet.VM{}
	for _, stage := range stages {
		desired, _ := readFleet(t, stage.Fleet())
		if len(desired.VMs) != 2 {
			t.Errorf("fleet %s has %d VMs, want 2", desired.ClusterID, len(desired.VMs))
		}
		for _, vm := range desired.VMs {
			want[int(vm.VMID)] = vm
		}
	}
	for _, guest := range stages[0].Sim.Guests() {
		if guest.VMID < 2000 || guest.Config["template"] == "1" {
			continue
		}
		vm, wanted := want[guest.VMID]
		if !wanted || !guest.Running || !strings.Contains(guest.Config["description"], string(vm.Key)) {
			t.Errorf("guest %d (%s) does not match a VM of a fleet", guest.VMID, guest.Config["name"])
		}
		delete(want, guest.VMID)
	}
	for id := range want {
		t.Errorf("vm %d does not exist", id)
	}
}
