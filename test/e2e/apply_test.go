package e2e_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/test/startcheck"
	"github.com/numaform/numaform/topology"
)

func TestApplyMakesWhatWasPlanned(t *testing.T) {
	t.Parallel()
	for _, pin := range []fleet.PinWith{fleet.PinWithAffinity, fleet.PinWithHostAgent} {
		t.Run(string(pin), func(t *testing.T) {
			t.Parallel()
			stage := quickstart(t)
			if pin == fleet.PinWithAffinity {
				asRoot(t, stage)
			}
			run(t, stage, cli.ExitChanges, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			compare(t, stage)
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
		})
	}
}

// compare reads every VM back from Proxmox and compares it with the fleet's files. Then it
// checks all guests of each host together.
func compare(t *testing.T, stage *demo.Stage) {
	t.Helper()
	desired, _ := readFleet(t, kept(t, stage))
	guests := map[int]pvesim.GuestState{}
	for _, guest := range stage.Sim.Guests() {
		if guest.Config["template"] != "1" {
			guests[guest.VMID] = guest
		}
	}
	pinned := 0
	for _, vm := range desired.VMs {
		guest, ok := guests[int(vm.VMID)]
		if !ok {
			t.Errorf("vm %s does not exist", vm.Name)
			continue
		}
		delete(guests, int(vm.VMID))
		threads, _ := hostagent.Threads(stage.Sim, int(vm.VMID))
		compareVM(t, vm, guest, threads.Threads)
		if vm.Policy.Pinned() {
			pinned++
		}
	}
	if pinned == 0 {
		t.Error("no vm is pinned, so no pins were checked")
	}
	for _, id := range slices.Sorted(maps.Keys(guests)) {
		t.Errorf("guest %d (%s) is not in the fleet", id, guests[id].Config["name"])
	}
	for _, err := range startFaults(t, stage) {
		t.Error(err)
	}
}

// compareVM compares the running values of a guest with its file.
func compareVM(t *testing.T, vm fleet.VM, guest pvesim.GuestState, threads pvesim.Threads) {
	t.Helper()
	if !guest.Running || guest.Host != string(vm.Host.Host) || guest.Runtime["name"] != vm.Name {
		t.Errorf("vm %s: running %t on %s as %q", vm.Name, guest.Running, guest.Host, guest.Runtime["name"])
	}
	affinity := ""
	if vm.PinWith == fleet.PinWithAffinity {
		affinity = vm.CPUs.String()
	}
	if guest.Runtime["affinity"] != affinity {
		t.Errorf("vm %s: affinity %q, want %q", vm.Name, guest.Runtime["affinity"], affinity)
	}
	marker, ok := fleet.ParseMarker(guest.Config["description"])
	if !ok || marker.Key != vm.Key {
		t.Errorf("vm %s: marker %v, want key %s", vm.Name, marker, vm.Key)
	}
	if vm.PinWith == fleet.PinWithHostAgent && !slices.Equal(marker.Pins, vm.VCPUPins) {
		t.Errorf("vm %s: pins %v in the description, want %v", vm.Name, marker.Pins, vm.VCPUPins)
	}
	if vm.PinWith == fleet.PinWithHostAgent && !slices.Equal(threads.Pins(), vm.VCPUPins) {
		t.Errorf("vm %s: its vCPUs run on %v, want %v", vm.Name, threads.VCPUs, vm.VCPUPins)
	}
	for i, cell := range vm.Cells {
		got, err := topology.ParseNUMA(guest.Runtime["numa"+strconv.Itoa(i)])
		if err != nil || got.MemoryMiB != cell.MemoryMiB || got.Policy != cell.Policy ||
			!got.GuestCPUs.Equal(cell.GuestCPUs) || !got.HostNodes.Equal(cell.HostNodes) {
			t.Errorf("vm %s: numa%d is %+v (%v), want %+v", vm.Name, i, got, err, cell)
		}
	}
	if extra := guest.Runtime["numa"+strconv.Itoa(len(vm.Cells))]; extra != "" {
		t.Errorf("vm %s: numa%d is %q, want none", vm.Name, len(vm.Cells), extra)
	}
	if got := guest.Runtime["memory"]; got != strconv.FormatInt(vm.MemoryMiB, 10) {
		t.Errorf("vm %s: memory %s, want %d", vm.Name, got, vm.MemoryMiB)
	}
}

// startFaults returns the faults that startcheck finds in the running guests of each host,
// with their values in Proxmox.
func startFaults(t *testing.T, stage *demo.Stage) []error {
	t.Helper()
	hosts, err := stage.Hosts()
	if err != nil {
		t.Fatal(err)
	}
	var faults []error
	for h := range hosts {
		var guests []startcheck.Guest
		for _, guest := range stage.Sim.Guests() {
			if guest.Running && guest.Host == string(hosts[h].Name) {
				guests = append(guests, startGuest(t, guest))
			}
		}
		faults = append(faults, startcheck.Check(&hosts[h], guests)...)
	}
	return faults
}

func startGuest(t *testing.T, guest pvesim.GuestState) startcheck.Guest {
	t.Helper()
	number := func(key string) int {
		n, err := strconv.Atoi(guest.Runtime[key])
		if err != nil {
			t.Errorf("guest %d: %s is %q", guest.VMID, key, guest.Runtime[key])
		}
		return n
	}
	affinity, err := topology.ParseCPUSet(guest.Runtime["affinity"])
	if err != nil {
		t.Errorf("guest %d: %v", guest.VMID, err)
	}
	marker, _ := fleet.ParseMarker(guest.Config["description"])
	result := startcheck.Guest{
		VMID: guest.VMID, Sockets: number("sockets"), Cores: number("cores"), MemoryMiB: int64(number("memory")),
		NUMAEnabled: guest.Runtime["numa"] == "1", NUMA: map[int]topology.NUMACell{},
		Affinity: affinity, Pins: marker.Pins, Exclusive: !affinity.IsEmpty() || len(marker.Pins) > 0,
	}
	for key, value := range guest.Runtime {
		n, err := strconv.Atoi(strings.TrimPrefix(key, "numa"))
		if !strings.HasPrefix(key, "numa") || err != nil {
			continue
		}
		if result.NUMA[n], err = topology.ParseNUMA(value); err != nil {
			t.Errorf("guest %d: %v", guest.VMID, err)
		}
	}
	return result
}

func TestAffinityNeedsATicket(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	edit(t, stage, "manifests/nodepools.yaml", "pinWith: HostAgent", "pinWith: Affinity")
	run(t, stage, cli.ExitFailed, "apply", "-f", stage.Manifests(), "--auto-approve")
	for _, call := range stage.Sim.Calls() {
		if call.Method != "GET" {
			t.Errorf("numaform called %s %s", call.Method, call.Path)
		}
	}
	edit(t, stage, "manifests/nodepools.yaml", "pinWith: Affinity", "pinWith: HostAgent")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)
}
