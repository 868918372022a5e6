package conformance_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/conformance"
)

// plant is a wrong assumption about Proxmox: it changes requests before the simulator gets
// them, or the simulator's responses.
type plant struct {
	name string
	// family selects the cases to run: the other cases need not detect the plant.
	family string
	method string
	path   string // regular expression
	// asRoot sends the request as root@pam, so that no privilege is checked.
	asRoot bool
	// param sets a parameter that is not given, to simulate another default.
	param [2]string
	// fresh replaces old in the response's status line and body.
	old, fresh string
	// from and to replace a status code: a response with the code from gets the code to.
	from, to int
}

// plants are 20 wrong assumptions across the families.
var plants = []plant{
	{name: "reading a configuration needs no privilege", family: "access", method: "GET", path: `/qemu/\d+/config$`, asRoot: true},
	{name: "powering off needs no privilege", family: "access", method: "POST", path: `/status/stop$`, asRoot: true},
	{name: "the cluster's status needs no privilege", family: "access", method: "GET", path: `/cluster/status$`, asRoot: true},
	{name: "a clone needs no privilege", family: "qemu-clone", method: "POST", path: `/qemu/\d+/clone$`, asRoot: true},
	{name: "only root sets an affinity", family: "qemu-config", method: "PUT", path: `/config$`, asRoot: true},
	{name: "uploads need no privilege", family: "storage", method: "POST", path: `/upload$`, asRoot: true},
	{name: "a VM that is gone has another text", family: "qemu-config", method: "GET", path: `/qemu/`, old: "does not exist", fresh: "was not found"},
	{name: "a lock has another text", family: "qemu-config", method: "PUT", path: `/config$`, old: "VM is locked", fresh: "guest is locked"},
	{name: "a taken VMID has another text", family: "qemu-clone", method: "POST", path: `/clone$`, old: "config file already exists", fresh: "already exists"},
	{name: "a lacking privilege has another text", family: "access", method: "GET", path: `/nodes/.*/status$`, old: "Permission check failed", fresh: "permission denied"},
	{name: "an unknown task has another text", family: "tasks", method: "GET", path: `/tasks/`, old: "no such task", fresh: "unknown task"},
	{name: "a task ends with another word", family: "qemu-delete", method: "GET", path: `/tasks/`, old: `"exitstatus":"OK"`, fresh: `"exitstatus":"ok"`},
	{name: "a shrinking disk has another text", family: "qemu-resize", method: "GET", path: `/tasks/`, old: "shrinking disks is not supported", fresh: "disk cannot shrink"},
	{name: "templates are cloned full", family: "qemu-clone", method: "POST", path: `/clone$`, param: [2]string{"full", "1"}},
	{name: "pools are moved between by default", family: "pools", method: "PUT", path: `/pools$`, param: [2]string{"allow-move", "1"}},
	{name: "a VM has two cores by default", family: "qemu-create", method: "POST", path: `/qemu$`, param: [2]string{"cores", "2"}},
	{name: "a clone's task is another host's", family: "qemu-clone", method: "POST", path: `/clone$`, old: "UPID:pve-2:", fresh: "UPID:pve-1:"},
	{name: "an upload's task is another host's", family: "storage", method: "POST", path: `/nodes/pve-1/.*/upload$`, old: "UPID:pve-1:", fresh: "UPID:pve-3:"},
	{name: "a VMID begins at 10", family: "qemu-config-bounds", method: "POST", path: `/qemu$`, old: "does not look like a valid VM ID", fresh: "must have a minimum value of 10"},
	{name: "an unknown storage is an error of the server", family: "storage", method: "GET", path: `/storage/numaform-kit-none`, from: 500, to: 404},
}

// TestPlants checks that each plant is detected, one at a time.
func TestPlants(t *testing.T) {
	t.Parallel()
	if len(plants) != 20 {
		t.Fatalf("%d plants", len(plants))
	}
	all := cases(t)
	sound := map[string]map[string]string{} // outcomes by family without a plant
	for _, p := range plants {
		if sound[p.family] == nil {
			sound[p.family] = outcomes(t, config(t, simulate(t, "9.2")), p.family, all)
		}
	}
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			server := simulate(t, "9.2")
			field := newField(t, server.URL(), client(t, server.CertPEM()), p)
			cfg := config(t, server)
			cfg.URL, cfg.Client = field.url+"/api2/json", field.client
			var found []string
			for name, outcome := range outcomes(t, cfg, p.family, all) {
				if sound[p.family][name] == conformance.Equal && (outcome == conformance.Different || outcome == conformance.Failed) {
					found = append(found, name+" "+outcome)
				}
			}
			if len(found) == 0 {
				t.Error("was not detected")
			}
			t.Logf("found by %d cases: %q", len(found), found)
		})
	}
}

// outcomes runs a family and returns the outcomes by case.
func outcomes(t *testing.T, cfg conformance.Config, family string, all []conformance.Case) map[string]string {
	t.Helper()
	cfg.Only = regexp.MustCompile("^" + family + "/")
	report, err := conformance.Run(t.Context(), cfg, all)
	if err != nil {
		t.Log(err) // a plant can break the removal too
	}
	outcomes := map[string]string{}
	for _, result := range report.Results {
		outcomes[result.Name] = result.Outcome
	}
	return outcomes
}

// field is an HTTPS proxy that applies one plant.
type field struct {
	url    string
	client *http.Client
}

func newField(t *testing.T, target string, up *http.Client, p plant) field {
	t.Helper()
	path := regexp.MustCompile(p.path)
	root := rootHeader(t, target, up)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		hit := r.Method == p.method && path.MatchString(r.URL.Path)
		if hit && p.param[0] != "" && !bytes.Contains(body, []byte(p.param[0]+"=")) {
			body = append(body, []byte("&"+p.param[0]+"="+p.param[1])...)
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header.Clone()
		if hit && p.asRoot {
			for key, texts := range root {
				req.Header[key] = texts
			}
			req.Header.Del("Authorization")
		}
		response, err := up.Do(req)
		if err != nil {
			return
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		line := response.Status
		if hit && p.old != "" {
			line, text = strings.ReplaceAll(line, p.old, p.fresh), bytes.ReplaceAll(text, []byte(p.old), []byte(p.fresh))
		}
		if hit && response.StatusCode == p.from {
			line = strings.Replace(line, fmt.Sprint(p.from), fmt.Sprint(p.to), 1)
		}
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = fmt.Fprintf(buffer, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", line, len(text), text)
		_ = buffer.Flush()
		_ = conn.Close()
	}))
	pair, certificate := selfSigned(t)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return field{url: server.URL, client: client(t, certificate)}
}

func rootHeader(t *testing.T, target string, up *http.Client) http.Header {
	t.Helper()
	response, err := up.PostForm(target+"/api2/json/access/ticket", map[string][]string{"username": {"root@pam"}, "password": {"pvesim"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	value := func(name string) string {
		m := regexp.MustCompile(`"` + name + `":"([^"]+)"`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in the answer", name)
		}
		return strings.ReplaceAll(string(m[1]), "+", "%2B")
	}
	return http.Header{
		"Cookie":              {"PVEAuthCookie=" + value("ticket")},
		"Csrfpreventiontoken": {strings.ReplaceAll(value("CSRFPreventionToken"), "%2B", "+")},
	}
}

func selfSigned(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
