package proxmox_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// simulate starts a simulated Proxmox for the duration of the test.
func simulate(t *testing.T, cfg pvesim.Config) (*pvesim.Server, proxmox.Config) {
	t.Helper()
	server, err := pvesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, proxmox.Config{
		Region: "r1", URL: server.URL(), CA: server.CertPEM(),
		TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
		Now: func() time.Time { return readAt },
	}
}

// readAt is the time at which tests read hosts.
var readAt = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func snapshotOf(t *testing.T, cfg proxmox.Config) *topology.Snapshot {
	t.Helper()
	snapshot, err := newClient(t, cfg).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Validate(); err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// zoo returns a cluster with a host for each recorded machine, and guests on each host.
func zoo(t *testing.T, guests int) []topology.Host {
	t.Helper()
	var hosts []topology.Host
	for i, name := range machines.Names() {
		machine, err := machines.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if machine.MemoryMiB == 0 { // every host reports its memory
			machine.MemoryMiB = 64 << 10
		}
		host := topology.Host{Region: "r1", Name: topology.HostName(fmt.Sprintf("pve-%02d", i)), Online: true, Machine: machine}
		for j := range guests {
			host.Guests = append(host.Guests, topology.Guest{
				VMID: 100 + i*guests + j, Name: fmt.Sprintf("g%d", j), Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 1024,
			})
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// TestMachines checks, for each recorded machine, that the facts in a report are read
// correctly, and that other facts are unknown.
func TestMachines(t *testing.T) {
	t.Parallel()
	hosts := zoo(t, 0)
	_, cfg := simulate(t, pvesim.Config{Hosts: hosts})
	snapshot := snapshotOf(t, cfg)
	for i := range hosts {
		truth, got := &hosts[i], &snapshot.Hosts[i]
		t.Run(truth.Model, func(t *testing.T) {
			if got.Problem != "" || len(got.Warnings) != 0 || got.Sources[topology.FactCPUs] != topology.SourceReport {
				t.Fatalf("host: %+v", got)
			}
			if !got.OnlineCPUs().Equal(truth.OnlineCPUs()) || got.Arch != truth.Arch || (truth.MemoryMiB != 0 && got.MemoryMiB != truth.MemoryMiB) {
				t.Errorf("got CPUs %s, arch %q, %d MiB", got.OnlineCPUs(), got.Arch, got.MemoryMiB)
			}
			for _, cpu := range truth.CPUs {
				if cpu.Online && got.CPU(cpu.ID).NUMANode != cpu.NUMANode {
					t.Errorf("cpu %d is on NUMA node %d, got %d", cpu.ID, cpu.NUMANode, got.CPU(cpu.ID).NUMANode)
				}
			}
			checkTogether(t, "core", truth, got, func(c *topology.CPU) int { return c.Core })
			checkTogether(t, "L3", truth, got, func(c *topology.CPU) int { return c.L3 })
		})
	}
}

// checkTogether checks that two CPUs have the same ID, such as that of a cache, in got if
// they do in truth, wherever both IDs are known.
func checkTogether(t *testing.T, what string, truth, got *topology.Host, id func(*topology.CPU) int) {
	t.Helper()
	for _, a := range truth.OnlineCPUs().List() {
		for _, b := range truth.OnlineCPUs().List() {
			ids := []int{id(truth.CPU(a)), id(truth.CPU(b)), id(got.CPU(a)), id(got.CPU(b))}
			if !slices.Contains(ids, topology.Unknown) && (ids[0] == ids[1]) != (ids[2] == ids[3]) {
				t.Fatalf("%s of CPUs %d and %d: truth %d and %d, got %d and %d", what, a, b, ids[0], ids[1], ids[2], ids[3])
			}
		}
	}
}

// TestCalls checks that a snapshot makes at most three requests per host, one per guest and
// one more, and at most three at once: pveproxy has three workers.
func TestCalls(t *testing.T) {
	t.Parallel()
	const guests = 4 // on each host
	for _, hosts := range []int{1, 2, 3} {
		for _, most := range []int{0, 1} {
			t.Run(fmt.Sprintf("hosts=%d/most=%d", hosts, most), func(t *testing.T) {
				t.Parallel()
				given := zoo(t, guests)[:hosts]
				given[0].Guests[0].Template = true
				server, cfg := simulate(t, pvesim.Config{Hosts: given})
				server.AddFault(pvesim.Fault{Path: "^/nodes/", Delay: 5 * time.Millisecond}) // so that requests overlap
				cfg.MaxInFlight = most
				snapshot := snapshotOf(t, cfg)
				checkCalls(t, server, 3*hosts+guests*hosts+1)
				if got, want := server.MaxInFlight(), max(1, 3-2*most); got > want {
					t.Errorf("%d calls at once, want at most %d", got, want)
				}
				names := hostNames(snapshot)
				server.ResetCalls()
				again, err := newClient(t, cfg).Refresh(context.Background(), snapshot, names)
				if err != nil {
					t.Fatal(err)
				}
				checkCalls(t, server, 3*hosts+guests*hosts)
				if diff := cmp.Diff(snapshot, again, cmpopts.IgnoreFields(topology.HostEntry{}, "Uptime")); diff != "" {
					t.Errorf("a refresh changed what did not change (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func hostNames(snapshot *topology.Snapshot) []topology.HostName {
	var names []topology.HostName
	for _, host := range snapshot.Hosts {
		names = append(names, host.Name)
	}
	return names
}

// checkCalls checks the number of requests, and that all of them are reads.
func checkCalls(t *testing.T, server *pvesim.Server, limit int) {
	t.Helper()
	calls := server.Calls()
	paths := map[string]int{}
	for _, call := range calls {
		if call.Method != http.MethodGet {
			t.Errorf("a reading called %s %s", call.Method, call.Path)
		}
		paths[call.Path]++
	}
	t.Logf("%d calls: %v", len(calls), paths)
	if len(calls) == 0 || len(calls) > limit {
		t.Errorf("%d calls, want at most %d", len(calls), limit)
	}
}

// TestCallsByPassword checks that a client with a password logs in only once, which takes
// one request. root@pam may use mappings, which takes another request for each snapshot.
func TestCallsByPassword(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:1]})
	cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password = "", "", "root@pam", pvesim.DefaultRootPassword
	client := newClient(t, cfg)
	for range 2 {
		if _, err := client.Snapshot(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := len(server.Calls()), 1+2*(5+2); got != want {
		t.Errorf("%d calls, want %d", got, want)
	}
}

// TestReadsBack checks that hosts created in the simulator are read back unchanged, with
// the minimum privileges and as root.
func TestReadsBack(t *testing.T) {
	t.Parallel()
	nuc, err := machines.Load("nuc-i7-1165g7-4c8t")
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Repeat("0a", 16)
	cell := topology.NUMACell{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(0), MemoryMiB: 2048, Policy: topology.NUMABind}
	want := topology.Host{
		Region: "r1", Name: "pve-1", Online: true, Machine: nuc, ReadAt: readAt, Backup: true,
		Guests: []topology.Guest{
			{VMID: 100, Name: "db", Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 2048, Pins: topology.CPUs(0, 4), NUMA: []topology.NUMACell{cell}, Tags: []string{"a", "b"}},
			{VMID: 101, Name: "ct", Kind: topology.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512},
			{VMID: 102, Name: "w-102", Kind: topology.GuestVM, VCPUs: 4, MemoryMiB: 4096, ClusterID: "prod", Key: key, Lock: "backup"},
			{VMID: 9000, Name: "ubuntu", Kind: topology.GuestVM, Template: true, Tags: []string{"k8s"}},
		},
		Storages: []topology.Storage{
			{Name: "local", Type: "dir", Active: true, Content: []string{"iso"}, TotalMiB: 1 << 20, FreeMiB: 1 << 19},
			{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: 1<<20 - 4<<10},
		},
		Templates: []topology.Template{{
			VMID: 9000, Name: "ubuntu", Tags: []string{"k8s"}, DiskInterface: "scsi0", DiskGiB: 4, Storage: "local-lvm",
			Options: map[string]string{"agent": "1", "boot": "order=scsi0", "ostype": "l26", "scsihw": "virtio-scsi-single", "serial0": "socket"},
		}},
	}
	given := want
	given.Storages = slices.Clone(want.Storages)
	given.Storages[1].FreeMiB = 1 << 20 // the template uses 4 GiB of it
	_, token := simulate(t, pvesim.Config{Hosts: []topology.Host{given}, Pools: []string{"numaform"}})
	root := token
	root.TokenID, root.TokenSecret, root.Username, root.Password = "", "", "root@pam", pvesim.DefaultRootPassword
	for name, cfg := range map[string]proxmox.Config{"token": token, "root": root} {
		snapshot := snapshotOf(t, cfg)
		got := snapshot.Hosts[0]
		ignored := cmpopts.IgnoreFields(topology.Host{}, "Machine", "NotesAt", "Entry")
		if diff := cmp.Diff(want, got, ignored, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: host (-want +got):\n%s", name, diff)
		}
		if region := snapshot.Regions[0]; !region.Quorate || !strings.HasPrefix(region.Version, "9.") || !slices.Equal(region.Pools, []string{"numaform"}) {
			t.Errorf("%s: region: %+v", name, region)
		}
	}
}

// TestHostDown checks that a snapshot keeps the other hosts, and the guests of the host
// that is down.
func TestHostDown(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:3]})
	server.SetHostOnline("pve-01", false)
	server.SetQuorate(false)
	snapshot := snapshotOf(t, cfg)
	for i, host := range snapshot.Hosts {
		down := i == 1
		if host.Online == down || (host.Problem == "") == down || len(host.Guests) != 2 || (len(host.CPUs) == 0) != down {
			t.Errorf("%s: online %v, problem %q, %d guests", host.Name, host.Online, host.Problem, len(host.Guests))
		}
	}
	if snapshot.Regions[0].Quorate {
		t.Error("region is quorate")
	}
}

// TestFaults checks what is reported about a host with faults that its status does not
// show.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		fault   pvesim.Fault
		problem string
	}{
		{"connection lost once", pvesim.Fault{Path: "^/nodes/pve-01/report", Disconnect: true, Times: 1}, ""},
		{"connection always lost", pvesim.Fault{Path: "^/nodes/pve-01/(report|status)", Disconnect: true}, "cannot be reached (EOF)"},
		{"stuck", pvesim.Fault{Path: "^/nodes/pve-01/(report|status)", Hang: true}, "no response within 2s"},
		{"guest stuck", pvesim.Fault{Path: "^/nodes/pve-01/qemu/102", Hang: true}, "guest 102 cannot be read"},
		{"report stuck", pvesim.Fault{Path: "^/nodes/pve-01/report", Hang: true}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:2]})
			if test.fault.Hang {
				cfg.Timeout = 2 * time.Second // enough for the other hosts on a busy machine
			}
			server.AddFault(test.fault)
			snapshot := snapshotOf(t, cfg)
			if host := snapshot.Hosts[0]; host.Problem != "" || len(host.Guests) != 2 {
				t.Errorf("the other host suffers: %+v", host)
			}
			host := snapshot.Hosts[1]
			if !strings.Contains(host.Problem, test.problem) || (host.Problem == "") != (test.problem == "") || len(host.Guests) != 2 {
				t.Errorf("problem %q, %d guests", host.Problem, len(host.Guests))
			}
			if stuck := test.fault.Hang && strings.HasSuffix(test.fault.Path, "report"); stuck != (len(host.Warnings) != 0) {
				t.Errorf("warnings are %q", host.Warnings)
			}
		})
	}
}

// TestRefresh checks that Refresh reads the guests of one host again and leaves everything
// else alone.
func TestRefresh(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:3]})
	server.SetHostOnline("pve-02", false)
	client := newClient(t, cfg)
	old, err := client.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	old.Hosts[0].ReservedCPUs = topology.CPUs(0)
	before, err := old.Print()
	if err != nil {
		t.Fatal(err)
	}
	marker := fleet.Marker{ClusterID: "prod", Key: fleet.Key(strings.Repeat("0a", 16)), Pins: []int{2, 3}}
	describe(t, server, cfg, "/nodes/pve-00/qemu/100/config", marker.String())
	describe(t, server, cfg, "/nodes/pve-01/qemu/102/config", marker.String())
	server.SetHostOnline("pve-02", true)
	server.ResetCalls()

	fresh, err := client.Refresh(context.Background(), old, []topology.HostName{"pve-00", "pve-02"})
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.Validate(); err != nil {
		t.Error(err)
	}
	if got := fresh.Hosts[0].Guests[0]; !got.Pins.Equal(topology.CPUs(2, 3)) || got.ClusterID != "prod" {
		t.Errorf("pve-00 was not read again: %+v", got)
	}
	if diff := cmp.Diff(old.Hosts[0].Machine, fresh.Hosts[0].Machine); diff != "" || !fresh.Hosts[0].ReservedCPUs.Equal(topology.CPUs(0)) {
		t.Errorf("pve-00 lost known data (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(old.Hosts[1], fresh.Hosts[1], cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("pve-01 changed (-want +got):\n%s", diff)
	}
	if host := fresh.Hosts[2]; !host.Online || len(host.CPUs) == 0 || len(host.Guests) != 2 {
		t.Errorf("pve-02 came back and was not read: %+v", host)
	}
	if after, err := old.Print(); err != nil || string(after) != string(before) {
		t.Errorf("the old snapshot changed (%v)", err)
	}
	for _, call := range server.Calls() {
		if call.Host == "pve-01" || call.Path == "/nodes/pve-00/report" {
			t.Errorf("called %s", call.Path)
		}
	}
}

// describe sets a guest's description with the token.
func describe(t *testing.T, server *pvesim.Server, cfg proxmox.Config, path, text string) {
	t.Helper()
	form := url.Values{"description": {text}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "PVEAPIToken="+cfg.TokenID+"="+cfg.TokenSecret)
	res, err := trusting(t, server).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("PUT %s: %s (%v)", path, res.Status, err)
	}
}

// trusting returns a plain HTTP client that trusts the simulator.
func trusting(t *testing.T, server *pvesim.Server) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(server.CertPEM()) {
		t.Fatal("no certificate")
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
}

// TestAddressesOfHosts checks that the addresses of hosts are read only if requested, remain
// when the hosts are read again, and that a host that hides them has a warning.
func TestAddressesOfHosts(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 1)[:1]})
	if s := snapshotOf(t, cfg); len(s.Hosts[0].Addresses) != 0 {
		t.Errorf("addresses that were not requested: %v", s.Hosts[0].Addresses)
	}
	cfg.Addresses = true
	client := newClient(t, cfg)
	snapshot, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if snapshot, err = client.Update(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"192.0.2.1"}, snapshot.Hosts[0].Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	server.AddFault(pvesim.Fault{Path: "/network$", Status: 403, Reason: "Permission check failed"})
	if s := snapshotOf(t, cfg); !strings.Contains(strings.Join(s.Hosts[0].Warnings, "\n"), "its addresses cannot be read, so an address pool may contain them: 403 Permission check failed") {
		t.Errorf("warnings %q", s.Hosts[0].Warnings)
	}
}

// TestAddressesOnOtherHosts checks that Refresh notices the addresses of guests that
// appeared or changed on hosts that it does not read otherwise, and reads nothing else there.
func TestAddressesOnOtherHosts(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:2]})
	cfg.Addresses = true
	client := newClient(t, cfg)
	put := func(vmid int, lock, address string) {
		t.Helper()
		config := map[string]string{"name": fmt.Sprintf("vm-%d", vmid), "cores": "1", "memory": "512"}
		if lock != "" {
			config["lock"] = lock
		}
		if address != "" {
			config["description"] = "Addresses: net0 " + address + "/24 from nodes."
		}
		if err := server.PutGuest(pvesim.Guest{VMID: vmid, Host: "pve-01", Running: lock == "", Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	put(2500, "clone", "")
	snapshot, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(2500, "", "10.0.0.7")
	put(2501, "", "10.0.0.8")
	server.ResetCalls()
	if snapshot, err = client.Refresh(t.Context(), snapshot, []topology.HostName{"pve-00"}); err != nil {
		t.Fatal(err)
	}
	got := map[int][]string{}
	for _, guest := range snapshot.Hosts[1].Guests {
		if len(guest.Addresses) > 0 {
			got[guest.VMID] = guest.Addresses
		}
	}
	if diff := cmp.Diff(map[int][]string{2500: {"10.0.0.7"}, 2501: {"10.0.0.8"}}, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	for _, call := range server.Calls() {
		if call.Host == "pve-01" && !strings.HasSuffix(call.Path, "/config") {
			t.Errorf("called %s", call.Path)
		}
	}
}

// TestBackup checks that a host counts as being backed up while one of its guests has the
// lock of a backup and for a short time afterwards, at the cost of no request.
func TestBackup(t *testing.T) {
	t.Parallel()
	server, cfg := simulate(t, pvesim.Config{Hosts: zoo(t, 2)[:2]})
	now := readAt
	cfg.Now = func() time.Time { return now }
	client := newClient(t, cfg)
	put := func(lock string) {
		t.Helper()
		config := map[string]string{"name": "db", "cores": "1", "memory": "512"}
		if lock != "" {
			config["lock"] = lock
		}
		if err := server.PutGuest(pvesim.Guest{VMID: 2500, Host: "pve-01", Config: config}); err != nil {
			t.Fatal(err)
		}
	}
	put("migrate")
	snapshot, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		lock  string
		later time.Duration
		want  bool
	}{{"migrate", 0, false}, {"backup", time.Second, true}, {"", time.Minute, true}, {"backup", time.Minute, true}, {"", time.Minute, true}, {"", 61 * time.Second, false}} {
		put(step.lock)
		now = now.Add(step.later)
		if snapshot, err = client.Update(t.Context(), snapshot); err != nil {
			t.Fatal(err)
		}
		if snapshot.Hosts[0].Backup || snapshot.Hosts[1].Backup != step.want {
			t.Errorf("lock %q after %s: %t on the first host, %t on the second, want %t", step.lock, step.later, snapshot.Hosts[0].Backup, snapshot.Hosts[1].Backup, step.want)
		}
	}
	for _, call := range server.Calls() {
		if strings.Contains(call.Path, "/tasks") || strings.HasSuffix(call.Path, "/status") && call.Host != "" {
			t.Errorf("called %s", call.Path)
		}
	}
}
