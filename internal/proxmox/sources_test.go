package proxmox_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// eightMachine returns the exact machine that eightCPUs describes.
func eightMachine() topology.Machine {
	m := topology.Machine{Model: "Test CPU", NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: 6000}, {ID: 1, MemoryMiB: 8000}}}
	for id := range 8 {
		m.CPUs = append(m.CPUs, topology.CPU{ID: id, Online: true, NUMANode: id % 4 / 2, Core: id % 4, L3: id % 4 / 2})
	}
	return m
}

// block returns the machine in its published form.
func block(t testing.TB, m topology.Machine) string {
	t.Helper()
	text, err := topology.CollectedFile{Format: topology.CollectedFormat, Model: m.Model, NUMANodes: m.NUMANodes, CPUs: m.CPUs}.Published()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// small returns another machine, with four CPUs.
func small() topology.Machine {
	m := eightMachine()
	m.CPUs = m.CPUs[:4]
	return m
}

// sourced is a host with guests, notes and files that describe it.
type sourced struct {
	guests    map[int]map[string]any // their configs
	running   map[int]bool
	notes     answer
	collected *topology.Machine
}

func (s sourced) read(t *testing.T) (topology.Host, *canned) {
	t.Helper()
	server := newCanned(t)
	var resources []any
	for vmid, config := range s.guests {
		fields := map[string]any{"status": "stopped"}
		if s.running[vmid] {
			fields["status"] = "running"
		}
		resources = append(resources, guestResource("pve-1", vmid, fields))
		server.say("/nodes/pve-1/qemu/"+strconv.Itoa(vmid)+"/config?current=1", config)
	}
	server.resources(resources...)
	if s.notes.data == nil && s.notes.status == 0 {
		s.notes.data = map[string]any{"digest": "0"}
	}
	server.answer("/nodes/pve-1/config", s.notes)
	cfg := server.config()
	cfg.Now = func() time.Time { return readAt }
	if s.collected != nil {
		cfg.Machines = map[topology.HostName]topology.Machine{"pve-1": s.collected.WithSource(topology.SourceCollected)}
	}
	snapshot, err := newClient(t, cfg).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Validate(); err != nil {
		t.Fatal(err)
	}
	return snapshot.Hosts[0], server
}

// TestSources checks that each fact is from the best source that matches the live host, and
// that the reason is reported if a better one was not used.
func TestSources(t *testing.T) {
	t.Parallel()
	exact, other, apart := eightMachine(), small(), eightMachine()
	for i := range apart.CPUs {
		apart.CPUs[i].Core = i
	}
	publisher := func(description string) map[string]any {
		return map[string]any{"name": "numaform-topology", "description": description}
	}
	capacity := func(affinity string) map[string]any {
		return map[string]any{
			"name": "node-capacity", "tags": "karpenter", "cores": 8, "numa": 1, "affinity": affinity,
			"numa0": "cpus=0-3,hostnodes=0,memory=6000", "numa1": "cpus=4-7,hostnodes=1,memory=7000",
		}
	}
	notes := func(text string) answer { return answer{data: map[string]any{"description": text}} }
	with := func(config map[string]any, key string, value any) map[string]any { config[key] = value; return config }
	for _, test := range []struct {
		name     string
		given    sourced
		siblings topology.Source
		memory   topology.Source
		warning  string
	}{
		{name: "nothing but the report"},
		{
			name: "notes", given: sourced{notes: notes("Rack 4\n" + block(t, exact))},
			siblings: topology.SourceAgent, memory: topology.SourceAgent,
		},
		{
			name: "the credential may not read notes", given: sourced{notes: answer{status: 403, reason: "Permission check failed (/, Sys.Audit)"}},
			warning: "its notes cannot be read, so a topology published there is unknown: ",
		},
		{
			name: "notes that are cut off", given: sourced{notes: notes(block(t, exact)[:200])},
			warning: `the topology in its notes is not used: the line "<!-- numaform-topology" has no line`,
		},
		{
			name: "notes of another machine", given: sourced{notes: notes(block(t, other))},
			warning: "its topology: the topology in its notes is not used: it lists CPUs 0-3, but the host has 0-7",
		},
		{
			name: "notes win over a collected file", given: sourced{collected: &exact, notes: notes(block(t, exact))},
			siblings: topology.SourceAgent, memory: topology.SourceAgent,
		},
		{
			name:     "a collected file needs no notes",
			given:    sourced{collected: &exact, notes: answer{status: 403, reason: "Permission check failed (/, Sys.Audit)"}},
			siblings: topology.SourceCollected, memory: topology.SourceCollected,
		},
		{
			name: "a collected file of another machine", given: sourced{collected: &other},
			warning: "its topology: the collected file under machines is not used: it lists CPUs 0-3, but the host has 0-7: it describes another machine, or this one before a change; run `numaform topology collect`",
		},
		{
			name: "a collected file of another machine, and notes", given: sourced{collected: &other, notes: notes(block(t, exact))},
			siblings: topology.SourceAgent, memory: topology.SourceAgent,
			warning: "the collected file under machines is not used",
		},
		{
			name: "a publisher wins over a collected file", given: sourced{collected: &exact, guests: map[int]map[string]any{900: publisher(block(t, exact))}},
			siblings: topology.SourceAgent, memory: topology.SourceAgent,
		},
		{
			name: "notes win over a publisher", given: sourced{notes: notes(block(t, exact)), guests: map[int]map[string]any{900: publisher(block(t, apart))}},
			siblings: topology.SourceAgent, memory: topology.SourceAgent,
			warning: "the topology in the description of guest 900 is not used, because the host's notes contain one: remove one of them",
		},
		{
			name: "a publisher that calls each CPU a core", given: sourced{guests: map[int]map[string]any{900: publisher(block(t, apart))}},
			warning: "its topology: the topology in the description of guest 900 is not used: it lists CPUs 0 as a whole core, but the host's number of threads per core is 2",
		},
		{
			name: "a publisher without topology", given: sourced{guests: map[int]map[string]any{900: publisher("hello")}},
			warning: "guest 900 has no topology in its description: add what `numaform topology collect -o notes` prints",
		},
		{
			name: "a publisher that is cut off", given: sourced{guests: map[int]map[string]any{900: publisher(block(t, exact)[:99])}},
			warning: "the topology in the description of guest 900 is not used: ",
		},
		{
			name:    "two publishers",
			given:   sourced{guests: map[int]map[string]any{900: publisher(block(t, exact)), 901: publisher(block(t, exact))}},
			warning: "guests [900 901] all describe the host, so none is used: keep one of them",
		},
		{
			name:  "a guest with a disk is no publisher",
			given: sourced{guests: map[int]map[string]any{900: with(publisher(block(t, exact)), "scsi0", "local:vm-900-disk-0")}},
		},
		{
			name:  "a guest that runs is no publisher",
			given: sourced{guests: map[int]map[string]any{900: publisher(block(t, exact))}, running: map[int]bool{900: true}},
		},
		{
			name: "node-capacity", given: sourced{guests: map[int]map[string]any{800: capacity("0-1,4-5,2-3,6-7")}},
			memory: topology.SourceCapacity,
		},
		{
			name: "a collected file wins over node-capacity", given: sourced{collected: &exact, guests: map[int]map[string]any{800: capacity("0-1,4-5,2-3,6-7")}},
			siblings: topology.SourceCollected, memory: topology.SourceCollected,
		},
		{
			name: "node-capacity of another machine", given: sourced{guests: map[int]map[string]any{800: capacity("0-7,32-39")}},
			warning: "its topology: VM node-capacity is not used: it lists CPUs 0-7,32-39, but the host has 0-7",
		},
		{
			name: "node-capacity with its CPUs in another order", given: sourced{guests: map[int]map[string]any{800: capacity("0-7")}},
			memory: topology.SourceCapacity, warning: "CPUs 2-5 are on different NUMA nodes than in VM node-capacity",
		},
		{
			name: "node-capacity without CPUs", given: sourced{guests: map[int]map[string]any{800: capacity("")}},
			warning: "guest 800 does not describe the host: it has no affinity: set its affinity to the host's CPUs, or remove the VM",
		},
		{
			name: "two node-capacity", given: sourced{guests: map[int]map[string]any{800: capacity("0-1,4-5,2-3,6-7"), 801: capacity("0-1,4-5,2-3,6-7")}},
			memory: topology.SourceCapacity, warning: "guest 801 is a second node-capacity VM and is ignored",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			host, server := test.given.read(t)
			if host.Sources[topology.FactSiblings] != test.siblings || host.Sources[topology.FactMemory] != test.memory || host.Problem != "" {
				t.Errorf("sources %v, problem %q; want siblings from %q, memory from %q", host.Sources, host.Problem, test.siblings, test.memory)
			}
			if host.OnlineCPUs().String() != "0-7" {
				t.Errorf("the host has CPUs %s", host.OnlineCPUs())
			}
			warnings := strings.Join(host.Warnings, "\n")
			if !strings.Contains(warnings, test.warning) || (warnings == "") != (test.warning == "") {
				t.Errorf("warnings are %q", warnings)
			}
			if asked := server.asked("/nodes/pve-1/config"); asked != 1 {
				t.Errorf("asked for the notes %d times", asked)
			}
		})
	}
}

// TestMachinesOfNoHost checks that a machine file for a host that the cluster does not have
// is reported.
func TestMachinesOfNoHost(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	cfg := server.config()
	cfg.Machines = map[topology.HostName]topology.Machine{"pve1": eightMachine()}
	snapshot, err := newClient(t, cfg).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(snapshot.Hosts) != 2 || snapshot.Hosts[1].Name != "pve1" ||
		snapshot.Hosts[1].Problem != "is not in the cluster, whose hosts are [pve-1]: correct machines in numaform.yaml" {
		t.Errorf("hosts: %+v", snapshot.Hosts)
	}
}

// TestRefreshKeepsWarnings checks that a refresh keeps warnings and does not duplicate
// them.
func TestRefreshKeepsWarnings(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.resources(guestResource("pve-1", 900, map[string]any{"status": "stopped"}))
	server.say("/nodes/pve-1/qemu/900/config?current=1", map[string]any{"name": "numaform-topology"})
	client := newClient(t, server.config())
	snapshot, err := client.Snapshot(context.Background())
	for range 3 {
		if err == nil {
			snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"})
		}
	}
	if err != nil || len(snapshot.Hosts[0].Warnings) != 1 {
		t.Errorf("error %v, hosts %+v", err, snapshot.Hosts)
	}
	// A refresh also keeps warnings about the hardware's sources, which it does not read
	// again.
	notes := newCanned(t)
	notes.refuse("/nodes/pve-1/config", http.StatusForbidden, "no")
	other := newClient(t, notes.config())
	if read, err := other.Snapshot(context.Background()); err != nil {
		t.Error(err)
	} else if read, err = other.Refresh(context.Background(), read, []topology.HostName{"pve-1"}); err != nil || len(read.Hosts[0].Warnings) != 1 {
		t.Errorf("error %v, hosts %+v", err, read.Hosts)
	}
	// A fixed problem no longer causes a warning, and a new one does.
	server.say("/nodes/pve-1/qemu/900/config?current=1", map[string]any{"name": "node-capacity", "tags": "karpenter"})
	snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"})
	if err != nil || len(snapshot.Hosts[0].Warnings) != 1 || !strings.Contains(snapshot.Hosts[0].Warnings[0], "has no affinity") {
		t.Errorf("error %v, hosts %+v", err, snapshot.Hosts)
	}
	server.resources()
	snapshot, err = client.Refresh(context.Background(), snapshot, []topology.HostName{"pve-1"})
	if err != nil || len(snapshot.Hosts[0].Warnings) != 0 {
		t.Errorf("error %v, hosts %+v", err, snapshot.Hosts)
	}
}

// TestNotesOfTheSimulator checks that the notes and descriptions of hosts whose siblings
// are in no other source can be read, for all recorded machines.
func TestNotesOfTheSimulator(t *testing.T) {
	t.Parallel()
	hosts := zoo(t, 0)
	server, cfg := simulate(t, pvesim.Config{Hosts: hosts})
	for i := range hosts {
		text := block(t, hosts[i].Machine)
		if i%2 == 0 && len(text) <= 8<<10 { // the limit of a description
			err := server.PutGuest(pvesim.Guest{
				VMID: 900 + i, Host: string(hosts[i].Name), Config: map[string]string{"name": "numaform-topology", "description": text},
			})
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		asRoot(t, server, http.MethodPut, "/nodes/"+string(hosts[i].Name)+"/config", url.Values{"description": {"Rack 4\n\n" + text}})
	}
	for i, host := range snapshotOf(t, cfg).Hosts {
		want := hosts[i].WithSource(topology.SourceAgent)
		if diff := cmp.Diff(want.CPUs, host.CPUs); diff != "" || len(host.Warnings) > 0 || host.Sources[topology.FactSiblings] != topology.SourceAgent {
			t.Errorf("%s: warnings %q, sources %v, CPUs (-want +got):\n%s", want.Model, host.Warnings, host.Sources, diff)
		}
	}
}

// asRoot calls the simulator as an administrator, because only administrators may write
// notes.
func asRoot(t *testing.T, server *pvesim.Server, method, path string, form url.Values) {
	t.Helper()
	var login struct {
		Data struct{ Ticket, CSRFPreventionToken string }
	}
	send := func(method, path string, form url.Values) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("CSRFPreventionToken", login.Data.CSRFPreventionToken)
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: login.Data.Ticket})
		res, err := trusting(t, server).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s", method, path, res.Status)
		}
		return res
	}
	res := send(http.MethodPost, "/access/ticket", url.Values{"username": {"root@pam"}, "password": {pvesim.DefaultRootPassword}})
	if err := json.NewDecoder(res.Body).Decode(&login); err != nil {
		t.Fatal(err)
	}
	send(method, path, form)
}
