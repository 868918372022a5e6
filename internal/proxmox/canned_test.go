package proxmox_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

const (
	tokenID = "numaform@pve!scaler"
	secret  = "5ec3e7aa-canary-4d1c-9b7e-000000000000"
)

// answer is a response from Proxmox: data, or an error in its status line.
type answer struct {
	data   any
	status int
	reason string
	// body replaces the body of the whole response.
	body string
}

// canned is a Proxmox with prepared responses that the simulator does not return:
// unusual types and errors, leftovers of other clusters.
type canned struct {
	*httptest.Server
	mu sync.Mutex // guards the fields below
	// answers contains the responses by path. They are used in order; the last one is
	// repeated.
	answers map[string][]answer
	calls   []string
	headers []http.Header
}

func newCanned(t *testing.T) *canned {
	t.Helper()
	c := &canned{answers: map[string][]answer{}}
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	c.say("/access/permissions", map[string]any{"/vms": map[string]any{"VM.Audit": 1}})
	c.resources()
	c.say("/nodes/pve-1/status", map[string]any{
		"cpuinfo": map[string]any{"model": "Test CPU", "sockets": 1, "cores": 4, "cpus": 8},
		"memory":  map[string]any{"total": 16 << 30},
	})
	c.say("/nodes/pve-1/report", report(eightCPUs))
	c.say("/nodes/pve-1/config", map[string]any{"digest": "0"})
	return c
}

const eightCPUs = `Architecture:                       x86_64
CPU(s):                             8
On-line CPU(s) list:                0-7
Model name:                         Test CPU
Thread(s) per core:                 2
Core(s) per socket:                 4
Socket(s):                          1
L3 cache:                           16 MiB (2 instances)
NUMA node(s):                       2
NUMA node0 CPU(s):                  0-1,4-5
NUMA node1 CPU(s):                  2-3,6-7
`

// report returns a report in pvereport's format, with a secret in a guest's config.
func report(lscpu string) string {
	return "\n==== general system info ====\n\n# hostname\npve-1\n" +
		"\n# pveversion --verbose\nproxmox-ve: 9.0.0 (running kernel: 6.14.8-2-pve)\npve-manager: 9.0.3 (running version: 9.0.3/025864202ebb6109)\n" +
		"\n# lscpu\n" + lscpu +
		"\n==== info about virtual guests ====\n\n# cat /etc/pve/qemu-server/100.conf\n#canary-description\ncores: 64\n"
}

func (c *canned) say(path string, data any) { c.answer(path, answer{data: data}) }

// resources sets the resources in addition to pve-1.
func (c *canned) resources(others ...any) {
	all := append([]any{nodeResource("pve-1")}, others...)
	c.say("/cluster/resources", all)
	c.lists(all)
}

// lists sets each host's own list of guests.
func (c *canned) lists(resources []any) {
	lists := map[string][]any{}
	for _, r := range resources {
		entry := maps.Clone(r.(map[string]any))
		path := fmt.Sprintf("/nodes/%s/%s", entry["node"], entry["type"])
		switch entry["type"] {
		case "node":
			for _, kind := range []string{"qemu", "lxc"} {
				path = fmt.Sprintf("/nodes/%s/%s", entry["node"], kind)
				lists[path] = append([]any{}, lists[path]...)
			}
		case "qemu", "lxc":
			entry["cpus"] = entry["maxcpu"]
			delete(entry, "maxcpu")
			delete(entry, "type")
			delete(entry, "node")
			lists[path] = append(lists[path], entry)
		}
	}
	for path, list := range lists {
		c.say(path, list)
	}
}

// cluster sets the hosts, and further resources.
func (c *canned) cluster(members []any, others ...any) {
	c.say("/cluster/status", members)
	for _, m := range members {
		if m := m.(map[string]any); m["type"] == "node" {
			others = append(others, nodeResource(m["name"].(string)))
		}
	}
	c.say("/cluster/resources", others)
	c.lists(others)
}

func nodeResource(name string) map[string]any {
	return map[string]any{"type": "node", "node": name, "status": "online", "maxcpu": 8, "maxmem": 16 << 30}
}

func (c *canned) refuse(path string, status int, reason string) {
	c.answer(path, answer{status: status, reason: reason})
}

func (c *canned) answer(path string, answers ...answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[path] = answers
}

func (c *canned) asked(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for _, call := range c.calls {
		if call == path {
			count++
		}
	}
	return count
}

func (c *canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.RequestURI(), "/api2/json")
	c.mu.Lock()
	c.calls = append(c.calls, path)
	c.headers = append(c.headers, r.Header)
	queue := c.answers[path]
	given := answer{status: http.StatusNotImplemented, reason: "Method 'GET " + path + "' not implemented"}
	if len(queue) > 0 {
		given = queue[0]
	}
	if len(queue) > 1 {
		c.answers[path] = queue[1:]
	}
	c.mu.Unlock()
	given.write(w)
}

// write writes a response by hand, because net/http cannot set the reason phrase of the
// status line.
func (a answer) write(w http.ResponseWriter) {
	body := []byte(a.body)
	if a.body == "" {
		body, _ = json.Marshal(map[string]any{"data": a.data, "message": a.reason})
	}
	if a.status == 0 {
		a.status, a.reason = http.StatusOK, "OK"
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(buffered, "HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", a.status, a.reason, len(body), body)
	_ = buffered.Flush()
}

func (c *canned) config() proxmox.Config {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	return proxmox.Config{Region: "r1", URL: c.URL, CA: certificate, TokenID: tokenID, TokenSecret: secret}
}

func newClient(t *testing.T, cfg proxmox.Config) *proxmox.Client {
	t.Helper()
	client, err := proxmox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// read reads a snapshot and checks that it is valid.
func (c *canned) read(t *testing.T) *topology.Snapshot {
	t.Helper()
	snapshot, err := newClient(t, c.config()).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Validate(); err != nil {
		t.Fatal(err)
	}
	return snapshot
}

func guestResource(host string, vmid any, fields map[string]any) map[string]any {
	resource := map[string]any{"type": "qemu", "node": host, "vmid": vmid, "status": "running", "maxcpu": 2, "maxmem": 2 << 30}
	for key, value := range fields {
		resource[key] = value
	}
	return resource
}
