package cli_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// recorded is the time of all fixed values.
var recorded = time.Date(2126, 1, 2, 3, 4, 5, 0, time.UTC)

// views returns a fleet on a number of hosts. Each host has a Dedicated VM, a Shared VM, a
// container that is not numaform's, and an agent; the second host has two Shared VMs
// instead. With more than 8 hosts, some are down, in maintenance or have an agent that
// stopped, some VMs are missing or drifted, and the last change failed.
func views(t *testing.T, hosts int) *cli.Views {
	t.Helper()
	machine, err := machines.Load("xeon-4108-2s-smt")
	if err != nil {
		t.Fatal(err)
	}
	v := &cli.Views{ClusterID: "prod", Snapshot: topology.Snapshot{Regions: []topology.Region{{Name: "homelab"}}}}
	for i := range hosts {
		host := topology.Host{
			Region: "homelab", Name: topology.HostName(fmt.Sprintf("pve%02d", i+1)), Online: true, Machine: machine,
			ReservedCPUs: topology.CPUs(0, 16), ReadAt: recorded,
			Agent: &topology.Agent{Version: "1.2.3", Isolation: "enforce", Clusters: []string{"prod"}, At: recorded.Add(-time.Duration(i+3) * time.Second)},
		}
		for j, pins := range []topology.CPUSet{topology.CPUs(1, 2, 17, 18), {}} {
			if i == 1 {
				pins = topology.CPUSet{}
			}
			vmid := 2001 + 2*i + j
			vm := fleet.VM{Key: fleet.Key(fmt.Sprintf("%032d", vmid)), VMID: fleet.VMID(vmid), Name: fmt.Sprintf("workers-%d", vmid)}
			vm.Pool, vm.NodeClass, vm.InstanceType, vm.VCPUs, vm.MemoryMiB, vm.Policy = "workers", "dedicated", "s1.4VCPU-8GB", 4, 8<<10, fleet.PolicyDedicated
			vm.Host, vm.CPUs = host.ID(), pins
			guest := topology.Guest{
				VMID: vmid, Name: vm.Name, Kind: topology.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 8 << 10,
				Pins: pins, ClusterID: "prod", Key: string(vm.Key),
			}
			if pins.IsEmpty() {
				vm.Pool, vm.NodeClass, vm.Policy = "batch", "shared", fleet.PolicyShared
			} else {
				vm.Cells = []topology.NUMACell{{GuestCPUs: topology.CPUs(0, 1, 2, 3), HostNodes: topology.CPUs(0), MemoryMiB: 8 << 10, Policy: topology.NUMABind}}
				guest.NUMA = vm.Cells
				host.Agent.Pinned = map[int]topology.Pins{vmid: {1, 17, 2, 18}}
			}
			v.Fleet.VMs = append(v.Fleet.VMs, vm)
			host.Guests = append(host.Guests, guest)
		}
		host.Guests = append(host.Guests, topology.Guest{VMID: 100 + i, Name: "gateway", Kind: topology.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512})
		v.Snapshot.Hosts = append(v.Snapshot.Hosts, host)
	}
	v.Pending = []cli.Pending{{Name: "workers-up-3f2a", Summary: "2 to create on homelab/pve01, homelab/pve02", Expires: recorded}}
	last := audit.Entry{
		Change:   audit.Change{ID: "21260102T030000Z-2504811f2e", Kind: audit.KindScaleUp, Why: "3 pods need new nodes"},
		Outcome:  &audit.Outcome{Duration: 42 * time.Second, Hosts: []audit.Ended{{Host: v.Snapshot.Hosts[0].ID()}}},
		Verified: true, OutcomeVerified: true,
	}
	if hosts > 8 {
		v.LockedBy = "process 4711 on admin.example"
		for i := range 3 {
			v.Snapshot.Hosts[i+10].Online = false
			v.Snapshot.Hosts[i+20].Agent.At = recorded.Add(-time.Duration(i+2) * time.Hour)
			v.Snapshot.Hosts[i+25].Guests[0].VCPUs = 6
			v.Snapshot.Hosts[i+30].Guests = slices.Delete(v.Snapshot.Hosts[i+30].Guests, 0, 1)
			host := v.Snapshot.Hosts[i+5].ID()
			last.Change.Open = append(last.Change.Open, audit.Open{Host: host})
			last.Outcome.Hosts = append(last.Outcome.Hosts, audit.Ended{Host: host, Error: "applying: 500 storage \"local-lvm\" is full: free space there"})
		}
		v.Snapshot.Hosts[15].Maintenance = true
	}
	v.History = []audit.Entry{last}
	return v
}

// findings returns findings of doctor about a number of hosts.
func findings(hosts int) doctor.Report {
	report := doctor.Report{
		{Check: "config", Status: doctor.OK, Where: "numaform.yaml", What: "can be read"},
		{Check: "engine", Status: doctor.OK, Where: "/usr/bin/tofu", What: "OpenTofu 1.12.0"},
		{Check: "reach", Status: doctor.OK, Where: "homelab", What: "Proxmox VE 9.2.3 accepts API token numaform@pve!scaler"},
		{Check: "certificate", Status: doctor.Warn, Where: "homelab", What: "expires on 2126-02-01", Fix: "renew it on the host: pvecm updatecerts --force"},
		{
			Check: "privilege", Status: doctor.Fail, Where: "homelab /vms", What: "missing for creating and removing VMs: VM.Clone, VM.Config.CPU",
			Fix: `pveum role add NumaformVM --privs "VM.Allocate VM.Clone VM.Config.CPU" && pveum acl modify /vms --users numaform@pve --roles NumaformVM`,
		},
	}
	for i := range hosts {
		where := fmt.Sprintf("homelab/pve%02d", i+1)
		facts, sizes := topology.Sentence("partial: %s, %s, by report; unknown: siblings, caches", topology.Counted(32+32*(i%2), "CPU"), topology.Counted(2, "NUMA node"))
		template, ofTemplate := topology.Sentence("debian-13-k8s (%s, %s on local-lvm)", topology.VMIDValue(9001+i), topology.Amount(8, "GiB"))
		agent, ages := topology.Sentence("numaform-agent 1.2.3 is running: isolation enforce, last report %s ago", topology.Elapsed(time.Duration(3+i)*time.Second))
		report = append(report,
			doctor.Finding{
				Check: "topology", Status: doctor.Warn, Where: where, What: facts, Values: sizes,
				Fix: "run `numaform topology collect --script | ssh root@HOST sh >HOST.json` for each host, and add HOST: HOST.json to machines in numaform.yaml",
			},
			doctor.Finding{Check: "template", Status: doctor.OK, Where: "class workers on " + where, What: template, Values: ofTemplate})
		if i%3 == 0 {
			report = append(report, doctor.Finding{
				Check: "agent", Status: doctor.Fail, Where: where, What: "has no numaform-agent that publishes its state",
				Fix: "install or upgrade numaform-agent on the host, then run `systemctl start numaform-agent-publish`",
			})
		} else {
			report = append(report, doctor.Finding{Check: "agent", Status: doctor.OK, Where: where, What: agent, Values: ages})
		}
	}
	return append(report,
		doctor.Finding{Check: "fleet", Status: doctor.Skip, What: "skipped because privilege failed"},
		doctor.Finding{Check: "lock", Status: doctor.OK, Where: "fleet", What: "is free"})
}

// TestViewsFit checks the views of 3 and 40 hosts at several widths against golden files,
// except for the maps of 40 hosts. No line may be wider than the terminal, except in the
// tables of -o wide, and no sentence may occur twice.
func TestViewsFit(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{3, 40} {
		v := views(t, hosts)
		outputs := map[string]func(term.Terminal) string{
			"doctor": func(terminal term.Terminal) string { return cli.DoctorText(findings(hosts), terminal) },
		}
		for _, command := range []string{"status", "status -o wide", "get vms", "get vms -o wide", "get hosts", "topology -o table", "topology -o wide", "topology -o map"} {
			outputs[command] = func(terminal term.Terminal) string { return v.Output(command, terminal) }
		}
		for command, output := range outputs {
			t.Run(fmt.Sprintf("%s of %d hosts", command, hosts), func(t *testing.T) {
				t.Parallel()
				text := atWidths(t, output, strings.HasSuffix(command, " -o wide"))
				if command == "topology -o map" && hosts > 3 {
					return
				}
				golden(t, fmt.Sprintf("views/%s-%d.txt", strings.ReplaceAll(command, " ", ""), hosts), text)
			})
		}
	}
}

// atWidths returns an output at several widths. It checks that lines fit, except the rows of
// a wide table, that colors do not change the text, and that no sentence occurs twice.
func atWidths(t *testing.T, output func(term.Terminal) string, wide bool) string {
	t.Helper()
	var all strings.Builder
	for _, width := range []int{60, 80, 120, 200} {
		text := output(term.Terminal{Width: width, Wrap: true})
		fmt.Fprintf(&all, "# %d columns\n\n%s\n", width, text)
		for line := range strings.Lines(text) {
			row := wide && strings.Contains(line, "  ")
			if n := ansi.StringWidth(strings.TrimSuffix(line, "\n")); n > width && !row {
				t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
			}
		}
		if colored := output(term.Terminal{Width: width, Wrap: true, Color: true}); ansi.Strip(colored) != text {
			t.Errorf("colors change the text: %q", colored)
		}
	}
	for sentence, times := range sentences(output(term.Terminal{})) {
		if times > 1 {
			t.Errorf("%d times: %s", times, sentence)
		}
	}
	return all.String()
}

// sentences counts how often each sentence occurs in an unwrapped output. A sentence is a
// line, without a place at its start, that has at least four words without digits. Rows of
// tables do not count, nor do the lines of maps, which are the same for equal hosts.
func sentences(text string) map[string]int {
	counts := map[string]int{}
	if at := strings.LastIndex(text, "\n  not pinned: "); at >= 0 {
		text = text[at:]
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, ": "); ok {
			line = after
		}
		words := 0
		for _, word := range strings.Fields(line) {
			if !strings.ContainsAny(word, "0123456789") {
				words++
			}
		}
		if words >= 4 && !strings.Contains(line, "  ") {
			counts[line]++
		}
	}
	return counts
}

// TestWideKeepsColumns checks that the tables of -o wide are the same in a narrow terminal.
func TestWideKeepsColumns(t *testing.T) {
	t.Parallel()
	v := views(t, 3)
	for _, command := range []string{"get vms -o wide", "topology -o wide"} {
		want, got := v.Output(command, term.Terminal{}), v.Output(command, term.Terminal{Width: 60, Wrap: true})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-pipe +60 columns):\n%s", command, diff)
		}
	}
}

// TestStatusIsOneScreen checks that the output of status fits on one screen.
func TestStatusIsOneScreen(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ hosts, lines int }{{3, 24}, {40, 40}} {
		text := views(t, test.hosts).Output("status", term.Terminal{Width: 80, Wrap: true})
		if n := strings.Count(text, "\n"); n > test.lines {
			t.Errorf("%d hosts: %d lines, want at most %d:\n%s", test.hosts, n, test.lines, text)
		}
	}
}

// TestDoctorEndsWithFailures checks the order of doctor's output: the totals first, and the
// failures with their fixes and the next command last.
func TestDoctorEndsWithFailures(t *testing.T) {
	t.Parallel()
	text := cli.DoctorText(findings(3), term.Terminal{})
	if !strings.HasPrefix(text, "2 failed, 4 warnings, 9 ok, 1 skipped\n\n") {
		t.Errorf("the totals are not first:\n%s", text)
	}
	end := "\nok    lock        fleet: is free\n" +
		"\nfail  privilege   homelab /vms: missing for creating and removing VMs: VM.Clone, VM.Config.CPU: pveum role add NumaformVM --privs " +
		"\"VM.Allocate VM.Clone VM.Config.CPU\" && pveum acl modify /vms --users numaform@pve --roles NumaformVM\n" +
		"fail  agent       homelab/pve01: has no numaform-agent that publishes its state: install or upgrade numaform-agent on the host, " +
		"then run `systemctl start numaform-agent-publish`\n" +
		"\nFix the failures, then check again.\nNext: numaform doctor -f manifests\n"
	if !strings.HasSuffix(text, end) {
		t.Errorf("want at the end:\n%s\ngot:\n%s", end, text)
	}
	healthy := cli.DoctorText(doctor.Report{{Check: "lock", Status: doctor.OK, What: "is free"}}, term.Terminal{})
	if want := "0 failed, 0 warnings, 1 ok, 0 skipped\n\nok    lock        is free\n\nNext: numaform plan -f manifests\n"; healthy != want {
		t.Errorf("got:\n%s\nwant:\n%s", healthy, want)
	}
}

// TestSharedVMsCount checks that the table counts the VMs of a host with only Shared VMs,
// and their memory.
func TestSharedVMsCount(t *testing.T) {
	t.Parallel()
	text := views(t, 3).Output("topology -o table", term.Terminal{})
	for _, want := range []string{
		"HOST           STATE   CPUS  FREE CPUS  GIB  FREE GIB  VMS  SHARED  OTHERS  TOPOLOGY  AGENT\n",
		"homelab/pve01  online  32    26         92   76        2    1       1       exact     living\n",
		"homelab/pve02  online  32    30         92   76        2    2       1       exact     living\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

// TestStatusCounts checks that status counts VMs and hosts, not their differences, that it
// does not merge the drift of different VMs, and that an offline host has no free capacity.
func TestStatusCounts(t *testing.T) {
	t.Parallel()
	v := views(t, 4)
	v.Snapshot.Hosts[0].Guests[0].VCPUs = 6
	v.Snapshot.Hosts[0].Guests[0].MemoryMiB = 4 << 10
	v.Snapshot.Hosts[2].Guests[0].Pins = topology.CPUs(3, 4)
	v.Snapshot.Hosts[3].Guests[0].Pins = topology.CPUs(5, 6)
	v.Snapshot.Hosts[1].Online = false
	out := v.Output("status", term.Terminal{})
	for _, want := range []string{"; 3 drifted", "pinned to CPUs 3-4 instead of", "pinned to CPUs 5-6 instead of"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	for line := range strings.Lines(v.Output("get hosts", term.Terminal{})) {
		fields := strings.Fields(line)
		if fields[0] == "homelab/pve02" && (fields[3] != "-" || fields[5] != "-") {
			t.Errorf("an offline host has free capacity: %s", line)
		}
	}
}
