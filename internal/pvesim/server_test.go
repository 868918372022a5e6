package pvesim_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// described returns a config that sets most fields of hosts, templates and guests.
func described() pvesim.Config {
	machine := topology.Machine{Model: "Intel(R) Xeon(R) Test", MemoryMiB: 65536}
	for node := range 2 {
		machine.NUMANodes = append(machine.NUMANodes, topology.NUMANode{ID: node, MemoryMiB: 32768})
	}
	for id := range 16 {
		machine.CPUs = append(machine.CPUs, topology.CPU{ID: id, Online: id != 3, NUMANode: id % 8 / 4, Socket: id % 8 / 4, Core: id % 8, L3: id % 8 / 4})
	}
	return pvesim.Config{
		Version: "8.4", Pools: []string{"nodes"}, CPUModels: []string{"mine"},
		Roles: []pvesim.Role{{Name: "MappingAudit", Privileges: []string{"Mapping.Audit"}}},
		ACL:   []pvesim.ACL{{Path: "/mapping", Subject: "numaform@pve", Role: "MappingAudit"}},
		Hosts: []topology.Host{{
			Region: "lab", Name: "pve-1", Machine: machine,
			PCIDevices: []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0", NUMANode: 1}},
			Storages: []topology.Storage{
				{Name: "fast", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 65536, FreeMiB: 32768},
				{Name: "discs", Type: "dir", Active: true, Shared: true, Content: []string{"iso", "snippets"}, TotalMiB: 2048, FreeMiB: 1024},
			},
			Templates: []topology.Template{{
				VMID: 9000, Name: "debian", Tags: []string{"t"}, DiskInterface: "virtio0", DiskGiB: 8, Storage: "fast",
				Drives: []string{"ide2"}, CloudInit: true, Options: map[string]string{"serial0": "socket"},
			}},
			Guests: []topology.Guest{
				{VMID: 200, Name: "dns", Kind: topology.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512},
				{
					VMID: 400, Name: "ours", Kind: topology.GuestVM, VCPUs: 4, MemoryMiB: 4096, Lock: "migrate", Pins: topology.CPUs(0, 1), Tags: []string{"prod"},
					ClusterID: "prod", Key: "0123456789abcdef0123456789abcdef", PCIDevices: []topology.PassedDevice{{Mapping: "gpu"}},
					NUMA: []topology.NUMACell{
						{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(0), MemoryMiB: 2048, Policy: topology.NUMABind},
						{GuestCPUs: topology.CPUs(2, 3), HostNodes: topology.CPUs(1), MemoryMiB: 2048, Policy: topology.NUMABind},
					},
				},
			},
		}},
	}
}

// client is an API client with the default token.
type client struct {
	*pvesim.Server
	t    *testing.T
	http *http.Client
}

func start(t *testing.T, cfg pvesim.Config) *client {
	t.Helper()
	server, err := pvesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CertPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{Server: server, t: t, http: &http.Client{Transport: transport}}
}

// call sends a request and returns the status and the data of the response.
func (c *client) call(ctx context.Context, method, path string) (int, string) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, c.URL()+"/api2/json"+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// TestDescription checks that the program receives all values of described.
func TestDescription(t *testing.T) {
	t.Parallel()
	c := start(t, described())
	want := map[int]map[string]string{
		200: {"hostname": "dns", "memory": "512", "cores": "1"},
		400: {
			"name": "ours", "memory": "4096", "affinity": "0-1", "lock": "migrate", "tags": "prod", "hostpci0": "mapping=gpu", "sockets": "2", "cores": "2",
			"numa0": "cpus=0-1,hostnodes=0,memory=2048,policy=bind", "numa1": "cpus=2-3,hostnodes=1,memory=2048,policy=bind",
			"description": "numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef",
		},
		9000: {"name": "debian", "tags": "t", "virtio0": "fast:base-9000-disk-0,size=8G", "ide2": "fast:vm-9000-cloudinit,media=cdrom,size=4M", "serial0": "socket", "template": "1"},
	}
	got := map[int]map[string]string{}
	running := map[int]bool{}
	kinds := map[int]topology.GuestKind{}
	for _, guest := range c.Guests() {
		running[guest.VMID], kinds[guest.VMID] = guest.Running, guest.Kind
		got[guest.VMID] = map[string]string{}
		for key := range want[guest.VMID] {
			got[guest.VMID][key] = guest.Config[key]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("guests (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]bool{200: true, 400: false, 9000: false}, running); diff != "" {
		t.Errorf("running guests (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[int]topology.GuestKind{200: topology.GuestContainer, 400: topology.GuestVM, 9000: topology.GuestVM}, kinds); diff != "" {
		t.Errorf("kinds of guests (-want +got):\n%s", diff)
	}
	texts := map[string][]string{
		"/version":                              {`"release":"8.4"`},
		"/pools":                                {`"poolid":"nodes"`},
		"/cluster/status":                       {`"name":"lab"`, `"name":"pve-1"`},
		"/cluster/mapping/pci":                  {`"id":"gpu"`, "node=pve-1", "path=0000:01:00.0"},
		"/nodes/pve-1/capabilities/qemu/cpu":    {`"custom-mine"`},
		"/nodes/pve-1/status":                   {`"model":"Intel(R) Xeon(R) Test"`, `"total":68719476736`},
		"/nodes/pve-1/storage?storage=fast":     {`"type":"lvmthin"`, `"content":"images"`, `"active":1`, `"shared":0`, `"total":68719476736`, `"avail":25765609472`},
		"/nodes/pve-1/storage?storage=discs":    {`"type":"dir"`, `"content":"iso,snippets"`, `"active":1`, `"shared":1`},
		"/nodes/pve-1/qemu/400/config":          {`"lock":"migrate"`},
		"/nodes/pve-1/lxc/200/status/current":   {`"status":"running"`},
		"/nodes/pve-1/qemu/9000/status/current": {`"template":1`},
	}
	for path, wanted := range texts {
		status, body := c.call(t.Context(), "GET", path)
		for _, text := range wanted {
			if status != 200 || !strings.Contains(body, text) {
				t.Errorf("%s: %d lacks %s: %s", path, status, text, body)
			}
		}
	}
	if got := c.Calls(); len(got) != len(texts) || got[0].Status != 200 || got[0].User != pvesim.DefaultToken || got[0].Time.IsZero() {
		t.Errorf("calls %+v", got)
	}
	if _, err := pvesim.New(pvesim.Config{}); err == nil || !strings.Contains(err.Error(), "no hosts") {
		t.Errorf("a cluster without hosts: %v", err)
	}
}

// TestReportIsRead checks that numaform can read a machine from the simulator's report.
func TestReportIsRead(t *testing.T) {
	t.Parallel()
	cfg := described()
	c := start(t, cfg)
	_, body := c.call(t.Context(), "GET", "/nodes/pve-1/report")
	var report struct{ Data string }
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(report.Data, "# lscpu\n")
	block, _, _ = strings.Cut(block, "\n# ")
	m, err := topology.ParseLscpu(block)
	if err != nil {
		t.Fatalf("%v\n%s", err, block)
	}
	if online := cfg.Hosts[0].OnlineCPUs(); !m.OnlineCPUs().Equal(online) || len(m.NUMANodes) != 2 {
		t.Errorf("online %s on %d nodes, want %s on 2", m.OnlineCPUs(), len(m.NUMANodes), online)
	}
	for _, cpu := range m.CPUs {
		if cpu.Online && cpu.NUMANode != cpu.ID%8/4 {
			t.Errorf("cpu %d is on node %d", cpu.ID, cpu.NUMANode)
		}
	}
}

// TestHooks checks that functions of the test run when the program calls them, and that
// their contexts end with the request.
func TestHooks(t *testing.T) {
	t.Parallel()
	var (
		mu     sync.Mutex
		events []string
	)
	cfg := described()
	cfg.OnPower = func(event pvesim.PowerEvent) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%d %s %s", event.Guest.VMID, event.Kind, event.Discs["ide2"]))
	}
	c := start(t, cfg)
	if err := c.PutISO("pve-1", "discs", "seed.iso", []byte("a seed")); err != nil {
		t.Fatal(err)
	}
	if err := c.PutGuest(pvesim.Guest{VMID: 500, Host: "pve-1", Running: true, Config: map[string]string{"ide2": "discs:iso/seed.iso,media=cdrom"}}); err != nil {
		t.Fatal(err)
	}
	c.RemoveGuest(500)
	mu.Lock()
	if want := []string{"500 on a seed", "500 destroyed "}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
	mu.Unlock()

	ended := make(chan error, 1)
	hit := make(chan pvesim.Call, 1)
	remove := c.AddFault(pvesim.Fault{Path: "^/version$", Times: 1, Status: 500, Hit: func(ctx context.Context, call pvesim.Call) {
		hit <- call
		<-ctx.Done()
		ended <- ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if call := <-hit; call.Path != "/version" {
			t.Errorf("hit by %+v", call)
		}
		cancel()
	}()
	if status, text := c.call(ctx, "GET", "/version"); status != 0 {
		t.Errorf("the request was answered %d: %s", status, text)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the hook's context did not end with the request")
	}
	remove()
	if status, text := c.call(t.Context(), "GET", "/version"); status != 200 {
		t.Errorf("after the fault: %d %s", status, text)
	}
}

// TestControl checks that changes to the cluster by a test take effect.
func TestControl(t *testing.T) {
	t.Parallel()
	c := start(t, described())
	data := bytes.Repeat([]byte{1, 0, 255}, 1000)
	if err := c.PutISO("pve-1", "discs", "x.iso", data); err != nil {
		t.Fatal(err)
	}
	if got, found := c.VolumeData("pve-1", "discs:iso/x.iso"); !found || !bytes.Equal(got, data) {
		t.Errorf("read %d bytes, %t", len(got), found)
	}
	if _, found := c.VolumeData("pve-1", "discs:iso/none.iso"); found {
		t.Error("a volume that does not exist has data")
	}
	if !slices.Contains(c.Volumes("pve-1"), "discs:iso/x.iso") {
		t.Errorf("volumes %v", c.Volumes("pve-1"))
	}
	if err := c.PutISO("pve-1", "none", "x.iso", data); err == nil {
		t.Error("stored an ISO on a storage that does not exist")
	}
	if _, found := c.Guest(999); found {
		t.Error("guest 999 exists")
	}
	if out, err := c.Shell("pveum user add me@pve"); err != nil || out != "" {
		t.Errorf("shell: %q, %v", out, err)
	}
	if _, err := c.Shell("rm -rf /"); err == nil || !strings.Contains(err.Error(), "no such command") {
		t.Errorf("shell: %v", err)
	}
	c.SetHostOnline("pve-1", false)
	if status, _ := c.call(t.Context(), "GET", "/nodes/pve-1/status"); status != 595 {
		t.Errorf("offline host: %d, want 595", status)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a host that does not exist was taken offline")
			}
		}()
		c.SetHostOnline("pve-9", false)
	}()
}
