package e2e_test

import (
	"encoding/json"
	"fmt"
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
		"  placement: {policy: Shared, overcommit: \"2\"}\n  networks: [{bridge: vmbr0, firewall: true}, {bridge: vmbr0, firewall: true, securityGroups: [storage]}]\n  securityGroups: [k8s]\n")
	stage.Sim.AddFault(pvesim.Fault{Method: "POST", Path: `/qemu/\d+/firewall/rules$`, Times: 1, Status: 500, Reason: "can't lock file"})
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--auto-approve")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
	filtered := 0
	for _, guest := range stage.Sim.Guests() {
		text, err := stage.Sim.Pvesh("get", fmt.Sprintf("/nodes/%s/qemu/%d/firewall/rules", guest.Host, guest.VMID))
		if err != nil {
			t.Fatal(err)
		}
		var rules []struct{ Type, Action, Iface string }
		if err := json.Unmarshal(text, &rules); err != nil {
			t.Fatal(err)
		}
		if len(rules) == 0 {
			continue
		}
		filtered++
		if got := fmt.Sprint(rules); got != "[{group storage net1} {group k8s }]" {
			t.Errorf("guest %d has the rules %s", guest.VMID, got)
		}
	}
	if filtered == 0 {
		t.Error("no guest has rules")
	}
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
}
