package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/conformance"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestBounds checks that an unusable configuration is refused, such as a VMID in use, too
// few VMIDs, or a missing pool, host, template or storage, and that nothing is changed
// then.
func TestBounds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*conformance.Config)
		want   string
	}{
		"taken":       {func(c *conformance.Config) { c.Lower, c.Upper = 95, 110 }, "VMID 100 is used by a guest that no run created"},
		"small":       {func(c *conformance.Config) { c.Upper = c.Lower + 3 }, "must contain at least 7"},
		"pool":        {func(c *conformance.Config) { c.Pool = "none" }, "pool 'none' does not exist"},
		"host":        {func(c *conformance.Config) { c.Host = "pve-9" }, "host pve-9 is not online"},
		"no template": {func(c *conformance.Config) { c.Template = 4711 }, "template 4711 does not exist"},
		"storage":     {func(c *conformance.Config) { c.Storage = "tank" }, "no storage tank"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := simulate(t, "9.2")
			cfg := config(t, server)
			cfg.Lower, cfg.Upper = 9000, 9019
			tt.change(&cfg)
			if name == "taken" {
				cfg.Lower = 100
			}
			_, err := conformance.Run(t.Context(), cfg, cases(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if writes := writesOf(server); len(writes) > 0 {
				t.Errorf("changed something: %v", writes)
			}
		})
	}
}

func writesOf(server *pvesim.Server) []string {
	var writes []string
	for _, call := range server.Calls() {
		if call.Method != "GET" && call.Path != "/access/ticket" {
			writes = append(writes, call.Method+" "+call.Path)
		}
	}
	return writes
}

// TestOutside checks that no request that could change other objects is sent, regardless
// of the case.
func TestOutside(t *testing.T) {
	t.Parallel()
	server := simulate(t, "9.2")
	for _, request := range []string{
		"DELETE /nodes/pve-2/qemu/100", "PUT /nodes/pve-2/qemu/100/config", "POST /nodes/pve-2/qemu/8000/status/start", "POST /nodes/pve-2/status",
		"DELETE /pools/conformance", "PUT /cluster/options", "DELETE /nodes/pve-1/storage/local/content/local:iso/debian.iso",
		"DELETE /access/users/root@pam", "PUT /nodes/pve-1/config", "DELETE /nodes/pve-2/storage/local-lvm/content/local-lvm:vm-8000-disk-0",
	} {
		outside, err := conformance.Parse("outside", []byte("- {name: x, source: report x, as: root, request: "+request+", params: {description: x}}"))
		if err != nil {
			t.Fatal(err)
		}
		report, err := conformance.Run(t.Context(), config(t, server), outside)
		if err != nil || report.Results[0].Outcome != conformance.Failed || !strings.Contains(report.Results[0].Detail[0], "not sent") {
			t.Errorf("%s: %v %v", request, report.Results, err)
		}
	}
	if writes := writesOf(server); len(writes) > 0 {
		t.Errorf("changed something: %v", writes)
	}
}

// TestInterrupt checks that no object is left if a run is interrupted, after different
// numbers of cases.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, after := range []int{1, 20, 60, 120} {
		server := simulate(t, "9.2")
		users, roles := len(accessOf(t, server, "/access/users")), len(accessOf(t, server, "/access/roles"))
		volumes := server.Volumes("pve-2")
		ctx, cancel := context.WithCancel(t.Context())
		seen := 0
		cfg := config(t, server)
		cfg.Only = regexp.MustCompile("^(qemu-clone|qemu-delete|pools|storage|tasks)/")
		cfg.Progress = func(conformance.Result) {
			if seen++; seen == after {
				cancel()
			}
		}
		_, err := conformance.Run(ctx, cfg, cases(t))
		cancel()
		if seen > after || seen == after && after < 60 && !errors.Is(err, context.Canceled) {
			t.Errorf("after %d of %d: %v", seen, after, err)
		}
		for vmid := cfg.Lower; vmid <= cfg.Upper; vmid++ {
			if _, left := server.Guest(vmid); left {
				t.Errorf("after %d: VM %d is left", after, vmid)
			}
		}
		if got := server.Volumes("pve-2"); !slices.Equal(got, volumes) {
			t.Errorf("after %d: volumes are left: %v, had %v", after, got, volumes)
		}
		if u, r := len(accessOf(t, server, "/access/users")), len(accessOf(t, server, "/access/roles")); u != users || r != roles {
			t.Errorf("after %d: %d users and %d roles, had %d and %d", after, u, r, users, roles)
		}
	}
}

var listed = regexp.MustCompile(`"(?:userid|roleid)":"[^"]*"`)

func accessOf(t *testing.T, server *pvesim.Server, path string) [][]byte {
	t.Helper()
	up := client(t, server.CertPEM())
	req, err := newRequest(t, server.URL()+"/api2/json"+path)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, rootHeader(t, server.URL(), up))
	response, err := up.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return listed.FindAll(text.Bytes(), -1)
}

// TestLeftovers checks that a run refuses the VMs that a killed run left, and removes them
// if RemoveLeftovers is set.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	server := simulate(t, "9.2")
	cfg := config(t, server)
	cfg.Only = regexp.MustCompile("^qemu-delete/a VM is deleted")
	up := client(t, server.CertPEM())
	response, err := postAsRoot(t, server, up, "/nodes/pve-2/qemu", map[string][]string{"vmid": {"9003"}, "name": {"numaform-kit-9003"}, "pool": {pool}})
	if err != nil || response != 200 {
		t.Fatal(response, err)
	}
	waitFor(t, func() bool { guest, ok := server.Guest(9003); return ok && guest.Config["name"] != "" })
	var bounds *conformance.BoundsError
	if _, err := conformance.Run(t.Context(), cfg, cases(t)); !errors.As(err, &bounds) || !strings.Contains(err.Error(), "--remove-leftovers") {
		t.Errorf("got %v", err)
	}
	// The run changes nothing if the range contains a guest that no run created.
	cfg.RemoveLeftovers = true
	other := cfg
	other.Upper = 9010
	response, err = postAsRoot(t, server, up, "/nodes/pve-2/qemu", map[string][]string{"vmid": {"9010"}, "name": {"database"}})
	if err != nil || response != 200 {
		t.Fatal(response, err)
	}
	waitFor(t, func() bool { guest, ok := server.Guest(9010); return ok && guest.Config["name"] != "" })
	if _, err := conformance.Run(t.Context(), other, cases(t)); !errors.As(err, &bounds) || !strings.Contains(err.Error(), "VMID 9010 is used by a guest") {
		t.Errorf("got %v", err)
	}
	if _, left := server.Guest(9003); !left {
		t.Error("the refused run removed VM 9003")
	}
	server.RemoveGuest(9010)
	if report, err := conformance.Run(t.Context(), cfg, cases(t)); err != nil || report.Count(conformance.Equal) != 1 {
		t.Errorf("got %v %v", report, err)
	}
}

// TestReport checks that a report has no secret, address or name of the cluster, and counts
// the differences.
func TestReport(t *testing.T) {
	t.Parallel()
	server := simulate(t, "9.2")
	cfg := config(t, server)
	wrong, err := conformance.Parse("wrong", []byte(`
- {name: status, source: report x, request: "GET /nodes/{host}/status", want: {status: 500, text: x}}
- {name: members, source: report x, request: "GET /cluster/status", want: {data: x}}
- {name: config, source: report x, given: [vm], request: "GET /nodes/{host}/qemu/{vm}/config", want: {data: x}}
- {name: permissions, source: report x, request: "GET /access/permissions", want: {data: x}}
- {name: task, source: report x, given: [own-vm], request: "POST /nodes/{host}/qemu/{vm}/status/stop", want: {task: {host: x, exit: x}}}
- {name: users, source: report x, request: "GET /access/users", want: {data: x}}
`))
	if err != nil {
		t.Fatal(err)
	}
	report, err := conformance.Run(t.Context(), cfg, wrong)
	if err != nil || report.Count(conformance.Different) != len(wrong) {
		t.Fatalf("%+v %v", report, err)
	}
	var text strings.Builder
	if err := report.Markdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{
		pvesim.DefaultToken, pvesim.DefaultTokenSecret, "numaform@pve", "pve-1", "pve-2", "192.0.2.", "127.0.0.1", "local-lvm", "conformance,", `"` + pool + `"`, ":" + server.URL()[len("https://127.0.0.1:"):],
	} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("the report contains %q:\n%s", secret, text.String())
		}
	}
	if !strings.Contains(text.String(), "0 equal, 6 different, 0 failed, 0 skipped; 3 hosts online") {
		t.Error(text.String())
	}
}

// TestReportOfPlainNames checks that the report replaces the name of a pool that is itself
// named "pool", like its placeholder.
func TestReportOfPlainNames(t *testing.T) {
	t.Parallel()
	server := simulate(t, "9.2", func(c *pvesim.Config) { c.Pools = []string{"pool"} })
	cfg := config(t, server)
	cfg.Pool = "pool"
	wrong, err := conformance.Parse("wrong", []byte(`[{name: pools, source: report x, as: keeper, request: "GET /pools", want: {data: x}}]`))
	if err != nil {
		t.Fatal(err)
	}
	report, err := conformance.Run(t.Context(), cfg, wrong)
	if err != nil || report.Count(conformance.Different) != 1 || !strings.Contains(report.Results[0].Detail[0], "{pool}") {
		t.Errorf("%+v %v", report, err)
	}
}

// TestWithoutRoot checks that cases that require root@pam are reported as skipped.
func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	cfg := config(t, simulate(t, "9.2"))
	cfg.Root, cfg.Slow, cfg.Destructive = nil, false, false
	report, err := conformance.Run(t.Context(), cfg, cases(t))
	if err != nil {
		t.Fatal(err)
	}
	why := map[string]int{}
	for _, result := range report.Results {
		switch result.Outcome {
		case conformance.Skipped:
			why[result.Detail[0]]++
		case conformance.Equal:
		default:
			t.Errorf("%s/%s %s: %s", result.Family, result.Name, result.Outcome, result.Detail)
		}
	}
	if why["requires the password of root@pam (--root-password-file)"] < 50 || why["requires --slow"] == 0 || why["requires --destructive"] == 0 {
		t.Errorf("skipped: %v", why)
	}
	t.Logf("%d equal, skipped %v", report.Count(conformance.Equal), why)
}

// TestOneHost checks that no case differs or fails on a single host.
func TestOneHost(t *testing.T) {
	t.Parallel()
	server := simulate(t, "9.2", func(cfg *pvesim.Config) { cfg.Hosts = cfg.Hosts[1:2] })
	report, err := conformance.Run(t.Context(), config(t, server), cases(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range report.Results {
		if result.Outcome == conformance.Different || result.Outcome == conformance.Failed {
			t.Errorf("%s/%s %s: %s", result.Family, result.Name, result.Outcome, result.Detail)
		}
	}
}
