package e2e_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/pvesim"
)

// found is the output of numaform drift for a VM.
type found struct {
	VMID        int    `json:"vmid"`
	Class       string `json:"class"`
	Repairable  bool   `json:"repairable"`
	Differences []struct {
		Attribute string `json:"attribute"`
		File      string `json:"file"`
		Proxmox   string `json:"proxmox"`
	} `json:"differences"`
	Notes  []string `json:"notes"`
	Advice string   `json:"advice"`
}

// attributes returns the attributes that differ.
func (f *found) attributes() []string {
	var names []string
	for _, difference := range f.Differences {
		names = append(names, difference.Attribute)
	}
	return names
}

// drift runs numaform drift and returns its output by VM.
func drift(t *testing.T, stage *demo.Stage, want int, args ...string) map[int]found {
	t.Helper()
	out := run(t, stage, want, append([]string{"drift", "-f", stage.Manifests(), "-o", "json", "--detailed-exitcode"}, args...)...)
	var report struct {
		VMs []found `json:"vms"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	vms := map[int]found{}
	for _, vm := range report.VMs {
		vms[vm.VMID] = vm
	}
	return vms
}

// byHand changes the options of a guest, like an operator who stops, edits and starts the
// guest. Options without a value are deleted.
func byHand(t *testing.T, stage *demo.Stage, vmid int, options map[string]string) {
	t.Helper()
	guest, exists := stage.Sim.Guest(vmid)
	if !exists {
		t.Fatalf("guest %d does not exist", vmid)
	}
	config := maps.Clone(guest.Config)
	maps.Copy(config, options)
	maps.DeleteFunc(config, func(_, value string) bool { return value == "" })
	if err := stage.Sim.PutGuest(pvesim.Guest{VMID: vmid, Host: guest.Host, Running: true, Config: config}); err != nil {
		t.Fatal(err)
	}
}

// migrate moves a running guest to another host, including its disks.
func migrate(t *testing.T, stage *demo.Stage, vmid int, to string) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(stage.Sim.CertPEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer client.CloseIdleConnections()
	var login struct {
		Data struct{ Ticket, CSRFPreventionToken string }
	}
	post := func(path string, form url.Values) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, stage.Sim.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Cookie", "PVEAuthCookie="+login.Data.Ticket)
		request.Header.Set("Csrfpreventiontoken", login.Data.CSRFPreventionToken)
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("POST %s: %s", path, answer.Status)
		}
		if login.Data.Ticket == "" {
			if err := json.NewDecoder(answer.Body).Decode(&login); err != nil {
				t.Fatal(err)
			}
		}
	}
	post("/access/ticket", url.Values{"username": {"root@pam"}, "password": {pvesim.DefaultRootPassword}})
	guest, _ := stage.Sim.Guest(vmid)
	post(fmt.Sprintf("/nodes/%s/qemu/%d/migrate", guest.Host, vmid), url.Values{"target": {to}, "online": {"1"}, "with-local-disks": {"1"}})
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(30 * time.Second); ; {
		if guest, _ = stage.Sim.Guest(vmid); guest.Host == to {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("guest %d does not move to %s", vmid, to)
		}
	}
}

// asTheyWere checks that no guest changed.
func asTheyWere(t *testing.T, stage *demo.Stage, before []pvesim.GuestState) {
	t.Helper()
	raw := func(guests []pvesim.GuestState) map[int]string {
		all := map[int]string{}
		for _, guest := range guests {
			all[guest.VMID] = guest.Host + "\n" + guest.Raw
		}
		return all
	}
	if diff := cmp.Diff(raw(before), raw(stage.Sim.Guests())); diff != "" {
		t.Errorf("the guests changed (-before +after):\n%s", diff)
	}
}

// TestDrift checks the class and the advice that drift reports for VMs that were changed
// outside numaform, and the effect of a repair and of an apply.
func TestDrift(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	// Proxmox cannot move a linked clone of a local disk.
	edit(t, stage, "manifests/nodepools.yaml", "clone: linked", "clone: full")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	for vmid, vm := range drift(t, stage, cli.ExitOK) {
		if vm.Class != "in sync" || len(vm.Differences) > 0 {
			t.Errorf("a new VM has drifted: %d %+v", vmid, vm)
		}
	}

	stopped, _ := stage.Sim.Guest(2006)
	byHand(t, stage, 2000, map[string]string{"cores": "3"})
	byHand(t, stage, 2001, map[string]string{"tags": "numaform-quickstart"})
	edited, _ := stage.Sim.Guest(2002)
	byHand(t, stage, 2002, map[string]string{"description": strings.Replace(edited.Config["description"], "pins=2,", "pins=1,", 1) + "\npassword=hunter2"})
	byHand(t, stage, 2003, map[string]string{"description": "the accountants' node"})
	stage.Sim.RemoveGuest(2004)
	migrate(t, stage, 2005, "pve-1")
	if err := stage.Sim.PutGuest(pvesim.Guest{VMID: 2006, Host: stopped.Host, Config: stopped.Config}); err != nil {
		t.Fatal(err)
	}
	stage.Sim.RemoveGuest(2007)
	taken := stranger("pve-3")
	taken.VMID = 2007
	if err := stage.Sim.PutGuest(taken); err != nil {
		t.Fatal(err)
	}
	before := stage.Sim.Guests()
	vms := drift(t, stage, cli.ExitChanges)
	for vmid, want := range map[int]struct {
		class      string
		repairable bool
		attributes []string
		advice     string
	}{
		2000: {"needs replacement", false, []string{"cpu.cores"}, "numaform remove workers-2000"},
		2001: {"repairable", true, []string{"tags"}, "--repair"},
		2002: {"repairable", true, []string{"description"}, "--repair"},
		2003: {"foreign edit", false, []string{"description"}, "numaform/1 cluster=quickstart key="},
		2004: {"vanished", false, nil, "the next apply creates it again"},
		2005: {"moved", false, []string{"node_name"}, "numaform remove workers-2005"},
		2006: {"foreign edit", false, []string{"started"}, "qm start 2006"},
		2007: {"foreign edit", false, []string{"vm_id"}, "does not change that guest"},
	} {
		got := vms[vmid]
		if got.Class != want.class || got.Repairable != want.repairable || !slices.Equal(got.attributes(), want.attributes) || !strings.Contains(got.Advice, want.advice) {
			t.Errorf("%d: got %+v, want %+v", vmid, got, want)
		}
	}
	if first := vms[2000].Differences[0]; first.File != "4" || first.Proxmox != "3" {
		t.Errorf("cores: %+v", first)
	}
	asTheyWere(t, stage, before)
	repair(t, stage, before)
	applyOver(t, stage)
}

// repair reverts repairable drift, and checks that nothing else changes.
func repair(t *testing.T, stage *demo.Stage, before []pvesim.GuestState) {
	t.Helper()
	stage.Sim.ResetCalls()
	out := run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests(), "--repair", "--auto-approve")
	if strings.Contains(out, "hunter2") {
		t.Errorf("drift prints the edited part of a description:\n%s", out)
	}
	for _, call := range stage.Sim.Calls() {
		if call.Method != "GET" && (call.Method != "PUT" || !strings.HasSuffix(call.Path, "/config")) {
			t.Errorf("a repair called %s %s", call.Method, call.Path)
		}
	}
	for _, guest := range before {
		after, exists := stage.Sim.Guest(guest.VMID)
		switch {
		case !exists || after.Running != guest.Running:
			t.Errorf("guest %d: exists %t, runs %t, ran %t", guest.VMID, exists, after.Running, guest.Running)
		case guest.VMID == 2001 && after.Config["tags"] != "numaform;numaform-quickstart":
			t.Errorf("tags of 2001 are %q", after.Config["tags"])
		case guest.VMID == 2002 && (!strings.Contains(after.Config["description"], "pins=2,") || strings.Contains(after.Config["description"], "hunter2")):
			t.Errorf("description of 2002 is %q", after.Config["description"])
		case guest.VMID != 2001 && guest.VMID != 2002 && after.Raw != guest.Raw:
			t.Errorf("guest %d was changed:\n%s\nbefore:\n%s", guest.VMID, after.Raw, guest.Raw)
		}
	}
	vms := drift(t, stage, cli.ExitChanges)
	if vms[2001].Class != "in sync" || vms[2002].Class != "in sync" || vms[2000].Class != "needs replacement" {
		t.Errorf("after the repair: %+v", vms)
	}
}

// applyOver plans and applies after drift, and checks that missing VMs are created and
// nothing else changes.
func applyOver(t *testing.T, stage *demo.Stage) {
	t.Helper()
	before := stage.Sim.Guests()
	out := run(t, stage, cli.ExitChanges, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
	if !strings.Contains(out, "add this line to the description: numaform/1 cluster=quickstart key=") {
		t.Errorf("plan does not report the lost marker:\n%s", out)
	}
	asTheyWere(t, stage, before)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	for _, guest := range before {
		if after, exists := stage.Sim.Guest(guest.VMID); !exists || after.Raw != guest.Raw || after.Host != guest.Host || after.Running != guest.Running {
			t.Errorf("apply changed guest %d", guest.VMID)
		}
	}
	if _, exists := stage.Sim.Guest(2004); !exists {
		t.Error("apply did not re-create the vanished VM")
	}
	left := drift(t, stage, cli.ExitChanges)
	for vmid, class := range map[int]string{
		2000: "needs replacement", 2001: "in sync", 2002: "in sync", 2003: "foreign edit", 2004: "in sync", 2005: "moved", 2006: "foreign edit", 2008: "in sync",
	} {
		if left[vmid].Class != class {
			t.Errorf("after the apply %d is %+v, want %s", vmid, left[vmid], class)
		}
	}
	if _, wanted := left[2007]; wanted {
		t.Error("the fleet still uses the unmanaged VM's VMID")
	}
}

// TestDriftText checks the report in text form, and the exit codes.
func TestDriftText(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	out := run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests(), "--detailed-exitcode")
	if !strings.Contains(out, "the fleet has no VMs") {
		t.Errorf("no fleet yet:\n%s", out)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	byHand(t, stage, 2000, map[string]string{"tags": "numaform", "cores": ""})
	byHand(t, stage, 2001, map[string]string{"onboot": "0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr9"})
	byHand(t, stage, 2006, map[string]string{"affinity": "0-1"})
	stray := fleet.Marker{ClusterID: "quickstart", Key: "0123456789abcdef0123456789abcdef"}
	if err := stage.Sim.PutGuest(pvesim.Guest{VMID: 150, Host: "pve-1", Config: map[string]string{"name": "old-node", "description": stray.String()}}); err != nil {
		t.Fatal(err)
	}
	vms := drift(t, stage, cli.ExitChanges)
	if vms[150].Class != "stray" || vms[2001].Class != "repairable" || vms[2006].Class != "needs replacement" {
		t.Errorf("got %+v", vms)
	}
	out = run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests())
	for _, part := range []string{
		"5 in sync, 1 repairable, 2 needs replacement, 1 stray", "cpu.cores: file has 4, Proxmox has 1", "on_boot: file has true, Proxmox has false",
		`cpu.affinity: file has nothing, Proxmox has "0-1"`, "→ the next apply deletes it if the state contains it",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("drift does not print %q:\n%s", part, out)
		}
	}
	run(t, stage, cli.ExitUsage, "drift", "-f", stage.Manifests(), "-o", "toml")
	run(t, stage, cli.ExitUsage, "drift", "-f", stage.Manifests(), "--snapshot", "x")
}

// TestRepairGroups checks that drift --repair restores deleted rules of security groups,
// and edited tags of a VM that was moved to another host.
func TestRepairGroups(t *testing.T) {
	t.Parallel()
	stage := quickstart(t)
	edit(t, stage, "manifests/nodepools.yaml", "clone: linked", "clone: full")
	edit(t, stage, "manifests/nodepools.yaml", "  placement: {policy: Shared, overcommit: \"2\"}\n",
		"  placement: {policy: Shared, overcommit: \"2\"}\n  networks: [{bridge: vmbr0, firewall: true}]\n  securityGroups: [k8s]\n")
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	// PutGuest creates the guest again, without firewall rules.
	byHand(t, stage, 2000, nil)
	migrate(t, stage, 2005, "pve-3")
	byHand(t, stage, 2005, map[string]string{"tags": "mine"})
	vms := drift(t, stage, cli.ExitChanges)
	for vmid, want := range map[int][]string{2000: {"rule.comment", "rule.enabled", "rule.security_group"}, 2005: {"node_name", "tags"}} {
		if got := vms[vmid]; !got.Repairable || !slices.Equal(got.attributes(), want) {
			t.Errorf("%d: got %+v, want %v", vmid, got, want)
		}
	}
	run(t, stage, cli.ExitOK, "drift", "-f", stage.Manifests(), "--repair", "--auto-approve")
	vms = drift(t, stage, cli.ExitChanges)
	if vms[2000].Class != "in sync" || vms[2005].Class != "moved" || len(vms[2005].Differences) != 1 {
		t.Errorf("after the repair: %+v", vms)
	}
	if guest, _ := stage.Sim.Guest(2005); guest.Config["tags"] != "numaform;numaform-quickstart" || guest.Host != "pve-3" {
		t.Errorf("2005 has tags %q on %s", guest.Config["tags"], guest.Host)
	}
}
