package pvesim_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// machine returns a machine with two sockets of four cores with two threads, and one NUMA
// node per socket.
func machine() pvesim.Machine {
	m := pvesim.Machine{Model: "Intel(R) Xeon(R) Test", MemoryMiB: 65536}
	for node := range 2 {
		m.NUMANodes = append(m.NUMANodes, pvesim.NUMANode{ID: node, MemoryMiB: 32768})
	}
	for id := range 16 {
		core := id % 8
		m.CPUs = append(m.CPUs, pvesim.CPU{ID: id, Online: true, NUMANode: core / 4, Socket: core / 4, Core: core, L3: core / 4})
	}
	return m
}

// cluster returns a cluster of two hosts: pve-1 with template 9000, a running VM 100 and a
// container 200, and pve-2 with template 9001.
func cluster() pvesim.Config {
	template := pvesim.Template{
		VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 8, Storage: "local-lvm",
		Options: map[string]string{"scsihw": "virtio-scsi-pci", "ostype": "l26", "serial0": "socket"},
	}
	second := template
	second.VMID = 9001
	return pvesim.Config{
		Name:  "lab",
		Pools: []string{"nodes"},
		Hosts: []pvesim.Host{
			{
				Region: "lab", Name: "pve-1", Machine: machine(), Templates: []pvesim.Template{template},
				Guests: []pvesim.Guest{
					{VMID: 100, Name: "database", Kind: pvesim.GuestVM, Running: true, VCPUs: 4, MemoryMiB: 4096, Pins: pvesim.CPUs(0, 1), Tags: []string{"prod"}},
					{VMID: 200, Name: "dns", Kind: pvesim.GuestContainer, Running: true, VCPUs: 1, MemoryMiB: 512},
				},
			},
			{Region: "lab", Name: "pve-2", Machine: machine(), Templates: []pvesim.Template{second}},
		},
	}
}

// client is a client of a server with one user's credentials.
type client struct {
	t      *testing.T
	server *pvesim.Server
	http   *http.Client
	header http.Header
}

// answer is a response; data is its data member.
type answer struct {
	status int
	reason string
	body   string
	data   any
	errors map[string]string
}

func start(t *testing.T, cfg pvesim.Config) *client {
	t.Helper()
	server, err := pvesim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CertPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	t.Cleanup(transport.CloseIdleConnections)
	c := &client{t: t, server: server, http: &http.Client{Transport: transport}, header: http.Header{}}
	return c.token(pvesim.DefaultToken + "=" + pvesim.DefaultTokenSecret)
}

// token returns a client for the same server that sends this token.
func (c *client) token(token string) *client {
	other := *c
	other.header = http.Header{"Authorization": {"PVEAPIToken=" + token}}
	return &other
}

// root returns a client that sends a ticket of root@pam.
func (c *client) root() *client {
	c.t.Helper()
	bare := *c
	bare.header = http.Header{}
	got := bare.call("POST", "/access/ticket", "username", "root@pam", "password", pvesim.DefaultRootPassword)
	if got.status != 200 {
		c.t.Fatalf("logging in: %d %s", got.status, got.reason)
	}
	data := got.data.(map[string]any)
	other := bare
	other.header = http.Header{
		"Cookie": {"PVEAuthCookie=" + data["ticket"].(string)}, "Csrfpreventiontoken": {data["CSRFPreventionToken"].(string)},
	}
	return &other
}

// call sends the parameters as Proxmox's own clients do: in the query of GET and DELETE,
// otherwise urlencoded in the body.
func (c *client) call(method, path string, params ...string) answer {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(params); i += 2 {
		values.Set(params[i], params[i+1])
	}
	target := c.server.URL() + "/api2/json" + path
	var body io.Reader
	kind := ""
	if method == "GET" || method == "DELETE" {
		if len(values) > 0 {
			target += "?" + values.Encode()
		}
	} else if len(values) > 0 {
		body, kind = strings.NewReader(values.Encode()), "application/x-www-form-urlencoded"
	}
	return c.send(method, target, kind, body)
}

func (c *client) send(method, target, kind string, body io.Reader) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, target, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header = c.header.Clone()
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{reason: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	got := answer{status: resp.StatusCode, reason: strings.TrimPrefix(resp.Status, fmt.Sprintf("%d ", resp.StatusCode)), body: string(text)}
	var content struct {
		Data   any               `json:"data"`
		Errors map[string]string `json:"errors"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	_ = decoder.Decode(&content)
	got.data, got.errors = content.Data, content.Errors
	return got
}

// run sends a request that starts a task and returns the task's exit status.
func (c *client) run(method, path string, params ...string) string {
	c.t.Helper()
	got := c.call(method, path, params...)
	if got.status != 200 {
		c.t.Fatalf("%s %s: %d %s", method, path, got.status, got.reason)
	}
	return c.await(got.data.(string))
}

// await polls a task until it ends and returns its exit status.
func (c *client) await(upid string) string {
	c.t.Helper()
	node := strings.Split(upid, ":")[1]
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		got := c.call("GET", "/nodes/"+node+"/tasks/"+url.PathEscape(upid)+"/status")
		if got.status != 200 {
			c.t.Fatalf("polling %s: %d %s %s", upid, got.status, got.reason, got.body)
		}
		status := got.data.(map[string]any)
		if status["status"] == "stopped" {
			return status["exitstatus"].(string)
		}
	}
	c.t.Fatalf("task %s did not end", upid)
	return ""
}

// guest returns the server's state of a guest.
func (c *client) guest(vmid int) pvesim.GuestState {
	c.t.Helper()
	g, ok := c.server.Guest(vmid)
	if !ok {
		c.t.Fatalf("no guest %d", vmid)
	}
	return g
}

// config returns the response to GET …/config for a VM on pve-1.
func (c *client) config(vmid int, params ...string) map[string]any {
	c.t.Helper()
	got := c.call("GET", fmt.Sprintf("/nodes/pve-1/qemu/%d/config", vmid), params...)
	if got.status != 200 {
		c.t.Fatalf("reading config of %d: %d %s", vmid, got.status, got.reason)
	}
	return got.data.(map[string]any)
}

// clone creates a linked clone of template 9000.
func (c *client) clone(vmid int) {
	c.t.Helper()
	if exit := c.run("POST", "/nodes/pve-1/qemu/9000/clone", "newid", fmt.Sprint(vmid), "name", fmt.Sprintf("n-%d", vmid)); exit != "OK" {
		c.t.Fatalf("cloning %d: %s", vmid, exit)
	}
}

// withAgents allows the default token to query guest agents.
func withAgents(cfg pvesim.Config) pvesim.Config {
	cfg.Roles = append(cfg.Roles, pvesim.Role{Name: "Agents", Privileges: []string{"VM.GuestAgent.Audit"}})
	user, _, _ := strings.Cut(pvesim.DefaultToken, "!")
	cfg.ACL = append(cfg.ACL, pvesim.ACL{Path: "/vms", Subject: user, Role: "Agents"})
	return cfg
}

// snippet stores the script local:snippets/x.sh on pve-1.
func (c *client) snippet() {
	c.t.Helper()
	if err := c.server.PutSnippet("pve-1", "local", "x.sh"); err != nil {
		c.t.Fatal(err)
	}
}
