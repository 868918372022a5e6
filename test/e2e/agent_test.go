package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// hostAgents checks the host agents of an applied fleet: pins, a change of pins, a refusal,
// and that a removal leaves no pins.
func hostAgents(t *testing.T, stage *demo.Stage) {
	t.Helper()
	other := stranger("pve-2")
	other.VMID = 150
	if err := stage.Sim.PutGuest(other); err != nil {
		t.Fatal(err)
	}
	pinned := pinnedVMs(t, stage)
	asPlanned(t, stage, pinned)
	one := pinned[0]
	before, _ := hostagent.Threads(stage.Sim, int(one.VMID))
	repin(t, stage, one)
	if vm := drift(t, stage, cli.ExitChanges)[int(one.VMID)]; !vm.Repairable || !slices.Equal(vm.attributes(), []string{"description"}) {
		t.Errorf("vm with changed pins: %+v", vm)
	}
	run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests(), "--repair", "--auto-approve")
	asPlanned(t, stage, pinned)
	if after, _ := hostagent.Threads(stage.Sim, int(one.VMID)); after.PID != before.PID || !after.Started.Equal(before.Started) {
		t.Errorf("vm %s was restarted: process %d of %s, before %d of %s", one.Name, after.PID, after.Started, before.PID, before.Started)
	}
	refused(t, stage, one)
	run(t, stage, cli.ExitOK, "remove", one.Name, "-f", stage.Manifests(), "--auto-approve")
	if _, exists := hostagent.Threads(stage.Sim, int(one.VMID)); exists {
		t.Errorf("vm %s runs after its removal", one.Name)
	}
	asPlanned(t, stage, pinned[1:])
	if taken := takenOn(stage, one.Host.Host).Intersection(topology.CPUs(one.VCPUPins...)); !taken.IsEmpty() {
		t.Errorf("CPUs %s of %s are still pinned", taken, one.Host)
	}
}

// TestAgentsTakeWhatIsPlanned checks that host agents that limit pins accept all pins that
// are planned for their hosts.
func TestAgentsTakeWhatIsPlanned(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{20, 50, 90} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			t.Parallel()
			rules := claim.Rules{Clusters: []string{"quickstart"}, MaxPercent: percent, Reserved: topology.CPUs(0)}
			stage := quickstart(t, func(config *pvesim.Config) { *config = hostagent.On(*config, hostagent.Agent{Rules: rules}) })
			edit(t, stage, "manifests/nodepools.yaml", `policy: Shared, overcommit: "2"`, "policy: Dedicated, pinWith: HostAgent")
			out := run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--no-engine", "--out", stage.Fleet())
			if bounded := strings.Contains(out, "numaform-agent"); bounded != (percent == 20) {
				t.Errorf("plan mentions the agents' limits: %t\n%s", bounded, out)
			}
			pinned := pinnedVMs(t, stage)
			for _, vm := range pinned {
				config := map[string]string{"name": vm.Name, "cores": fmt.Sprint(vm.VCPUs), "memory": "1024"}
				config["description"] = fleet.Marker{ClusterID: "quickstart", Key: vm.Key, Pins: vm.VCPUPins}.String()
				if err := stage.Sim.PutGuest(pvesim.Guest{VMID: int(vm.VMID), Host: string(vm.Host.Host), Config: config, Running: true}); err != nil {
					t.Fatal(err)
				}
			}
			for _, vm := range pinned {
				if threads, _ := hostagent.Threads(stage.Sim, int(vm.VMID)); !slices.Equal(threads.Pins(), vm.VCPUPins) {
					t.Errorf("vm %s on %s: vCPUs run on %v, want %v; refused: %+v", vm.Name, vm.Host, threads.VCPUs, vm.VCPUPins, threads.Refused)
				}
			}
		})
	}
}

// pinnedVMs returns the VMs that the host agent must pin.
func pinnedVMs(t *testing.T, stage *demo.Stage) []fleet.VM {
	t.Helper()
	desired, _ := readFleet(t, stage.Fleet())
	pinned := slices.DeleteFunc(desired.VMs, func(vm fleet.VM) bool { return vm.PinWith != fleet.PinWithHostAgent })
	hosts := map[topology.HostID]bool{}
	for _, vm := range pinned {
		hosts[vm.Host] = true
	}
	if len(pinned) < 3 || len(hosts) < 2 {
		t.Fatalf("%d pinned VMs on %d hosts: too few for this test", len(pinned), len(hosts))
	}
	return pinned
}

// asPlanned checks that vCPUs run on their planned CPUs, other guests do not, and no
// affinity is set.
func asPlanned(t *testing.T, stage *demo.Stage, pinned []fleet.VM) {
	t.Helper()
	wanted := map[int][]int{}
	for _, vm := range pinned {
		wanted[int(vm.VMID)] = vm.VCPUPins
	}
	for _, guest := range stage.Sim.Guests() {
		threads, runs := hostagent.Threads(stage.Sim, guest.VMID)
		if affinity := guest.Config["affinity"]; affinity != "" {
			t.Errorf("guest %d has the affinity %s, which requires root", guest.VMID, affinity)
		}
		if want := wanted[guest.VMID]; want != nil && !slices.Equal(threads.Pins(), want) {
			t.Errorf("guest %d: vCPUs run on %v, want %v; refused: %+v", guest.VMID, threads.VCPUs, want, threads.Refused)
		} else if want == nil && runs && !threads.Others.Intersection(takenOn(stage, topology.HostName(guest.Host))).IsEmpty() {
			t.Errorf("guest %d may run on %s, where others are pinned", guest.VMID, threads.Others)
		}
	}
}

// takenOn returns the CPUs of a host to which vCPUs are pinned.
func takenOn(stage *demo.Stage, host topology.HostName) topology.CPUSet {
	taken := topology.CPUSet{}
	for _, guest := range stage.Sim.Guests() {
		if threads, runs := hostagent.Threads(stage.Sim, guest.VMID); runs && guest.Host == string(host) {
			taken = taken.Union(topology.CPUs(threads.Pins()...))
		}
	}
	return taken
}

// repin reverses the pins of a running VM, using only the token. The pins take effect
// immediately.
func repin(t *testing.T, stage *demo.Stage, vm fleet.VM) {
	t.Helper()
	guest, _ := stage.Sim.Guest(int(vm.VMID))
	marker, ok := fleet.ParseMarker(guest.Config["description"])
	if !ok {
		t.Fatalf("vm %s has no marker", vm.Name)
	}
	turned := marker
	turned.Pins = slices.Clone(marker.Pins)
	slices.Reverse(turned.Pins)
	describe(t, stage, guest, strings.Replace(guest.Config["description"], marker.String(), turned.String(), 1))
	if threads, _ := hostagent.Threads(stage.Sim, guest.VMID); !slices.Equal(threads.Pins(), turned.Pins) {
		t.Errorf("vm %s declares %v, and its vCPUs run on %v", vm.Name, turned.Pins, threads.VCPUs)
	}
}

// describe writes a guest's description with the token.
func describe(t *testing.T, stage *demo.Stage, guest pvesim.GuestState, text string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(stage.Sim.CertPEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer client.CloseIdleConnections()
	path := fmt.Sprintf("%s/api2/json/nodes/%s/qemu/%d/config", stage.Sim.URL(), guest.Host, guest.VMID)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, path, strings.NewReader(url.Values{"description": {text}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("PUT %s: %s", path, answer.Status)
	}
}

// refused lowers the limit on pinned CPUs of a VM's host, checks that the refusal is
// reported, and restores the limit.
func refused(t *testing.T, stage *demo.Stage, vm fleet.VM) {
	t.Helper()
	agent := hostagent.Agent{Rules: claim.Rules{Clusters: []string{"quickstart"}, MaxPercent: 1}, Isolation: "enforce"}
	host := string(vm.Host.Host)
	if err := hostagent.Set(stage.Sim, host, agent); err != nil {
		t.Fatal(err)
	}
	threads, _ := hostagent.Threads(stage.Sim, int(vm.VMID))
	if threads.Pins() != nil || threads.Refused == nil || threads.Refused.Reason != claim.ReasonCeiling {
		t.Errorf("vm %s is over the ceiling and runs on %v: %+v", vm.Name, threads.VCPUs, threads.Refused)
	}
	refusal := fmt.Sprintf("refuses to pin VM %d %s as declared: more than max_pinned_percent of the host would be pinned, or no core would remain free (ceiling)", vm.VMID, vm.Name)
	for _, args := range [][]string{{"topology", "--host", host}, {"doctor", "-f", stage.Manifests()}} {
		said := run(t, stage, cli.ExitOK, args...)
		if !strings.Contains(strings.Join(strings.Fields(said), " "), refusal) { // lines are wrapped
			t.Errorf("%s does not say that the agent %s:\n%s", args[0], refusal, said)
		}
	}
	agent.MaxPercent = 90
	if err := hostagent.Set(stage.Sim, host, agent); err != nil {
		t.Fatal(err)
	}
}

// onlyTheToken checks that no user logged in, and that all calls used the token.
func onlyTheToken(t *testing.T, stage *demo.Stage) {
	t.Helper()
	calls := stage.Sim.Calls()
	for _, call := range calls {
		if call.User != pvesim.DefaultToken || call.Path == "/access/ticket" {
			t.Errorf("%s %s by %q", call.Method, call.Path, call.User)
		}
	}
	if len(calls) == 0 {
		t.Error("no calls, so nothing was checked")
	}
}
