package e2e_test

import (
	"testing"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestSecurityGroups checks that apply completes the rules of VMs with security groups
// after a request to create a rule failed.
func TestSecurityGroups(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	edit(t, stage, "manifests/nodepools.yaml", "  placement: {policy: Shared, overcommit: \"2\"}\n",
		"  placement: {policy: Shared, overcommit: \"2\"}\n  networks: [{bridge: vmbr0, firewall: true}]\n  securityGroups: [k8s]\n")
	stage.Sim.AddFault(pvesim.Fault{Method: "POST", Path: `/qemu/\d+/firewall/rules$`, Times: 1, Status: 500, Reason: "can't lock file"})
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--auto-approve")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
