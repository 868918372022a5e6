package e2e_test

import (
	"os"
	"testing"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

// TestHTTPBackend checks that, with the states on a server, a plan has no changes and a VM
// can be removed after the state directory was deleted.
func TestHTTPBackend(t *testing.T) {
	t.Parallel()
	server := testenv.HTTPState(t)
	stage := quickstart(t)
	edit(t, stage, "numaform.yaml", "backend: {type: local}", "backend: {type: http, config: {address: '"+server.URL+"/states'}}")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
	if err := os.RemoveAll(stage.StateDir()); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
	if _, exists := stage.Sim.Guest(2000); exists {
		t.Error("vm 2000 still exists")
	}
	if states, locks := len(server.States()), len(server.Locks()); states != 3 || locks != 0 || server.Taken() == 0 {
		t.Errorf("the server has %d states and %d locks of %d taken, want 3 states and no lock", states, locks, server.Taken())
	}
}

// TestHomelab checks that the homelab example, which has one small host, creates VMs that
// can all start, and that a second plan has no changes.
func TestHomelab(t *testing.T) {
	t.Parallel()
	stage := open(t, demo.Config{Example: examples.HomelabK3s(), Region: testenv.Region, Template: "debian-13-k3s"})
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	made, _ := readFleet(t, stage.Fleet())
	if len(made.VMs) == 0 {
		t.Error("no vm was created")
	}
	for _, err := range startFaults(t, stage) {
		t.Error(err)
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
