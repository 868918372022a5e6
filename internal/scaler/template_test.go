package scaler_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// The images that hosts can download.
const (
	oldImage = "https://images.example/old.qcow2"
	newImage = "https://images.example/new.qcow2"
)

// newTemplateWorld returns a world in which the token may create templates.
func newTemplateWorld(t *testing.T, change ...func(*pvesim.Config)) *world {
	t.Helper()
	sim := testenv.Proxmox(t, func(config *pvesim.Config) {
		for _, one := range change {
			one(config)
		}
		*config = config.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
		config.Images = map[string]pvesim.Image{oldImage: {Data: []byte(oldImage), DiskMiB: 3 << 10}, newImage: {Data: []byte(newImage), DiskMiB: 3 << 10}}
		user, _, _ := strings.Cut(pvesim.DefaultToken, "!")
		for i, grant := range []struct{ path, privileges string }{
			{"/nodes", "Sys.AccessNetwork Sys.Audit"},
			{"/storage", "Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit"},
			{"/sdn/zones", "SDN.Use"},
			{"/vms", "VM.Allocate VM.Audit VM.Clone VM.PowerMgmt VM.Config.CPU VM.Config.Cloudinit VM.Config.CDROM VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options"},
		} {
			role := fmt.Sprintf("Templates%d", i)
			config.Roles = append(config.Roles, pvesim.Role{Name: role, Privileges: strings.Fields(grant.privileges)})
			for _, subject := range []string{user, pvesim.DefaultToken} {
				config.ACL = append(config.ACL, pvesim.ACL{Path: grant.path, Subject: subject, Role: role})
			}
		}
	})
	return newWorldOn(t, sim, func(config *scaler.Config) {
		config.Regions[0].TemplateVMIDs = fleet.VMIDRange{Lower: 9100, Upper: 9109}
	})
}

// templates returns a request for the template of an image on hosts.
func templates(t *testing.T, url string, hosts ...topology.HostID) scaler.TemplateRequest {
	t.Helper()
	sum := sha256.Sum256([]byte(url))
	want := fleet.Template{
		Of:       "debian",
		Image:    fleet.TemplateImage{URL: url, Checksum: hex.EncodeToString(sum[:]), Algorithm: "sha256", Format: "qcow2", Storage: "local"},
		Hardware: fleet.TemplateHardware{Storage: "local-lvm", DiskGiB: 8, Networks: []fleet.Network{{Bridge: "vmbr0"}}},
	}
	var err error
	if want.Name, err = fleet.TemplateName(want.Of, want.Image, &want.Hardware); err != nil {
		t.Fatal(err)
	}
	request := scaler.TemplateRequest{}
	for _, want.Host = range hosts {
		request.Templates = append(request.Templates, want)
	}
	return request
}

// templatesUntil waits until the templates meet a condition, and returns them.
func templatesUntil(t *testing.T, writer *scaler.Writer, what string, met func([]scaler.TemplateState) bool) []scaler.TemplateState {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	for {
		states, known := writer.Templates("debian")
		if known && met(states) {
			return states
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("not %s: %+v", what, states)
		}
	}
}

// allReady reports whether exactly n templates exist and are ready.
func allReady(n int) func([]scaler.TemplateState) bool {
	return func(states []scaler.TemplateState) bool {
		return len(states) == n && !slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return !s.Ready || !s.Desired })
	}
}

// TestWriterTemplates checks the life of templates: they are created on each host, nodes are
// cloned from them, a new image is a new template, the old one stays as long as a node uses
// it, and the deletion of the ProxmoxTemplate removes all of them.
func TestWriterTemplates(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	writer := w.run(t, nil)
	writer.SetTemplates("debian", templates(t, oldImage, first, second))
	states := templatesUntil(t, writer, "created", allReady(2))
	for i, state := range states {
		guest, ok := w.sim.Guest(int(state.Template.VMID))
		if !ok || guest.Host != string([]topology.HostID{first, second}[i].Host) || guest.Config["template"] != "1" ||
			!strings.Contains(guest.Config["description"], "numaform-template/1 cluster=test template=debian serial=1") {
			t.Errorf("template %d: %+v", state.Template.VMID, guest)
		}
	}

	// A node is cloned from the template, and its change keeps the templates' files.
	clone := request(first)
	clone.Spec.Template = states[0].Template.Name
	node := ensure(t, writer, clone)[0]
	phases(t, writer, scaler.PhaseMade)
	if node.Source.VMID != states[0].Template.VMID {
		t.Errorf("the node is cloned from %d, want %d", node.Source.VMID, states[0].Template.VMID)
	}

	// On the first host, the node needs the old template.
	writer.SetTemplates("debian", templates(t, newImage, first, second))
	states = templatesUntil(t, writer, "superseded", func(states []scaler.TemplateState) bool {
		return len(states) == 3 && !slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return !s.Ready })
	})
	used := states[slices.IndexFunc(states, func(s scaler.TemplateState) bool { return !s.Desired })]
	if used.Template.Host != first || !slices.Equal(used.Users, []string{node.Name}) {
		t.Errorf("the old template that remains: %+v", used)
	}
	newest := states[slices.IndexFunc(states, func(s scaler.TemplateState) bool { return s.Desired && s.Template.Host == first })]
	if newest.Template.Serial != 2 || newest.Template.VMID == used.Template.VMID {
		t.Errorf("the new template: %+v", newest.Template)
	}
	writer.Remove(node.Key)
	templatesUntil(t, writer, "removed with its last node", allReady(2))

	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true})
	templatesUntil(t, writer, "deleted", func(states []scaler.TemplateState) bool { return len(states) == 0 })
	w.noTemplates(t)
	history, err := w.History(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	for i := range history {
		entry := &history[i]
		if entry.Change.Kind != audit.KindTemplates {
			continue
		}
		changes++
		if len(entry.Change.Templates) != 1 || entry.Change.Templates[0].PlanSHA256 == "" || entry.Outcome == nil || len(entry.Outcome.Templates) != 1 || entry.Outcome.Templates[0].Error != "" {
			t.Errorf("record %+v with outcome %+v", entry.Change, entry.Outcome)
		}
	}
	if changes < 6 {
		t.Errorf("%d changes of templates are recorded, want at least 6", changes)
	}
	w.underWay(t)
}

// TestWriterTemplatesFrozen checks that templates are neither created nor deleted in a freeze
// window that blocks the direction, also if they are approved, and that they are afterwards.
func TestWriterTemplatesFrozen(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	g := &gate{by: "alice"}
	freeze := func(up, down bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.frozen.up, g.frozen.down = up, down
	}
	freeze(true, true)
	writer := w.run(t, func(config *scaler.WriterConfig) { config.Gate = g })
	frozen := func(states []scaler.TemplateState) bool {
		return len(states) == 1 && states[0].Err != nil && states[0].Err.Error() == `waits for the end of freeze window "release" until 2026-12-01T00:00:00Z`
	}
	writer.SetTemplates("debian", templates(t, oldImage, first))
	templatesUntil(t, writer, "frozen", frozen)
	w.noTemplates(t)
	freeze(false, true)
	templatesUntil(t, writer, "created", allReady(1))
	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true})
	if states := templatesUntil(t, writer, "frozen again", frozen); !states[0].Ready {
		t.Errorf("the template was deleted in the freeze window: %+v", states)
	}
	freeze(false, false)
	templatesUntil(t, writer, "deleted", func(states []scaler.TemplateState) bool { return len(states) == 0 })
	w.noTemplates(t)
}

// TestWriterSharedTemplate checks that one host creates a template on shared storage for all
// hosts: linked clones on another host keep it, and a new image replaces it once.
func TestWriterSharedTemplate(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t, func(config *pvesim.Config) {
		for i := range config.Hosts {
			config.Hosts[i].Storages = []topology.Storage{
				{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "import", "images"}},
				{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}},
				{Name: "nas", Type: "rbd", Shared: true, Active: true, Content: []string{"images"}},
			}
		}
	})
	writer := w.run(t, nil)
	shared := func(url string, blocked ...topology.HostID) scaler.TemplateRequest {
		request := templates(t, url, first, second)
		for i := range request.Templates {
			one := &request.Templates[i]
			one.Hardware.Storage = "nas"
			var err error
			if one.Name, err = fleet.TemplateName(one.Of, one.Image, &one.Hardware); err != nil {
				t.Fatal(err)
			}
		}
		request.Shared = map[topology.RegionName]bool{first.Region: true}
		request.Blocked = map[topology.HostID]string{}
		for _, host := range blocked {
			request.Blocked[host] = "has no import storage"
		}
		return request
	}
	// Templates on local storage stay until the one on shared storage is ready, which only the
	// second host can create.
	writer.SetTemplates("debian", templates(t, oldImage, first, second))
	templatesUntil(t, writer, "created", allReady(2))
	writer.SetTemplates("debian", shared(oldImage, first, second))
	templatesUntil(t, writer, "blocked", func(states []scaler.TemplateState) bool {
		return len(states) == 3 && !slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return s.Desired == s.Ready })
	})
	writer.SetTemplates("debian", shared(oldImage, first))
	old := templatesUntil(t, writer, "created", allReady(1))[0].Template
	if old.Host != second {
		t.Errorf("the template is on %s, want %s", old.Host, second)
	}

	clone := request(first)
	clone.Spec.Template, clone.Spec.TemplateVMID = old.Name, old.VMID
	node := ensure(t, writer, clone)[0]
	phases(t, writer, scaler.PhaseMade)
	if guest, ok := w.sim.Guest(int(node.VMID)); !ok || guest.Host != string(first.Host) || node.Source.Host != second.Host || !strings.HasPrefix(guest.Config["scsi0"], "nas:base-") {
		t.Errorf("the node is cloned from %+v: %+v", node.Source, guest)
	}

	// Now both hosts can create it, but the new template follows the old one.
	writer.SetTemplates("debian", shared(newImage))
	states := templatesUntil(t, writer, "superseded", func(states []scaler.TemplateState) bool {
		return len(states) == 2 && !slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return !s.Ready })
	})
	for _, state := range states {
		if state.Template.Host != second || state.Desired == (state.Template.VMID == old.VMID) || state.Desired == (len(state.Users) > 0) {
			t.Errorf("%+v", state)
		}
	}
	writer.Remove(node.Key)
	states = templatesUntil(t, writer, "removed with its last node", allReady(1))
	if states[0].Template.Serial != 3 {
		t.Errorf("the new template: %+v", states[0].Template)
	}

	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true})
	templatesUntil(t, writer, "deleted", func(states []scaler.TemplateState) bool { return len(states) == 0 })
	for _, guest := range w.sim.Guests() {
		if guest.VMID >= 9100 && guest.VMID <= 9109 {
			t.Errorf("template %d still exists", guest.VMID)
		}
	}
	w.underWay(t)
}

// TestWriterTemplatesFail checks that a host that cannot create its template reports the
// reason and does not block the others, and that a correction is tried at once.
func TestWriterTemplatesFail(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	stranger := pvesim.Guest{VMID: 9100, Host: "pve-1", Config: map[string]string{"name": "database", "cores": "1", "memory": "512"}}
	if err := w.sim.PutGuest(stranger); err != nil {
		t.Fatal(err)
	}
	writer := w.run(t, nil)
	wrong := templates(t, oldImage, first, second)
	for i := range wrong.Templates {
		wrong.Templates[i].Image.Checksum = strings.Repeat("0", 64)
		wrong.Templates[i].Name = "debian-00000000"
	}
	wrong.Blocked = map[topology.HostID]string{second: "has no storage"}
	writer.SetTemplates("debian", wrong)
	states := templatesUntil(t, writer, "failed", func(states []scaler.TemplateState) bool {
		return len(states) == 2 && states[0].Err != nil && states[1].Err != nil && !states[0].Applying
	})
	if text := states[0].Err.Error(); !strings.Contains(text, "checksum mismatch") || states[0].Ready || states[0].Template.VMID != 9101 {
		t.Errorf("wrong checksum: %+v", states[0])
	}
	if text := states[1].Err.Error(); text != "has no storage" {
		t.Errorf("blocked host: %q", text)
	}

	right := templates(t, oldImage, first, second)
	right.Manual = true
	writer.SetTemplates("debian", right)
	states = templatesUntil(t, writer, "pending approval", func(states []scaler.TemplateState) bool {
		return slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return s.Desired && s.Digest != "" })
	})
	if slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return s.Ready }) {
		t.Errorf("created without approval: %+v", states)
	}
	for _, state := range states {
		right.Approved = append(right.Approved, state.Digest)
	}
	writer.SetTemplates("debian", right)
	templatesUntil(t, writer, "approved", func(states []scaler.TemplateState) bool {
		return slices.ContainsFunc(states, func(s scaler.TemplateState) bool { return s.Ready })
	})
	right.Manual = false
	writer.SetTemplates("debian", right)
	templatesUntil(t, writer, "created", allReady(2))
	if guest, _ := w.sim.Guest(9100); guest.Config["name"] != "database" {
		t.Errorf("the other owner's VM changed: %+v", guest)
	}
}

// TestWriterTemplatesLost checks that templates which the state lost are imported by their
// markers: before a change, and before they are deleted.
func TestWriterTemplatesLost(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	writer := w.run(t, nil)
	want := templates(t, oldImage, first)
	writer.SetTemplates("debian", want)
	templatesUntil(t, writer, "created", allReady(1))
	before, _ := w.sim.Guest(9100)
	lose := func() {
		t.Helper()
		templatesUntil(t, writer, "applied", func([]scaler.TemplateState) bool { return !writer.Busy() })
		if err := os.Remove(filepath.Join(w.stateDir, "states", "templates", string(first.Region), string(first.Host), "terraform.tfstate")); err != nil {
			t.Fatal(err)
		}
	}

	lose()
	want.Templates[0].Tags = []string{"new"}
	writer.SetTemplates("debian", want)
	states := templatesUntil(t, writer, "imported", func(states []scaler.TemplateState) bool {
		guest, _ := w.sim.Guest(9100)
		return strings.Contains(guest.Config["tags"], "new") && allReady(1)(states)
	})
	after, _ := w.sim.Guest(9100)
	for _, option := range []string{"scsi0", "vmgenid", "smbios1", "net0", "template", "description"} {
		if before.Config[option] != after.Config[option] {
			t.Errorf("%s was %q, is %q", option, before.Config[option], after.Config[option])
		}
	}
	if len(states) != 1 || states[0].Template.VMID != 9100 {
		t.Errorf("not exactly the template that was lost: %+v", states)
	}

	lose()
	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true})
	templatesUntil(t, writer, "deleted", func(states []scaler.TemplateState) bool { return len(states) == 0 })
	w.noTemplates(t)
}

// noTemplates checks that neither templates nor their images and disks exist.
func (w *world) noTemplates(t *testing.T) {
	t.Helper()
	for _, guest := range w.sim.Guests() {
		if guest.VMID >= 9100 && guest.VMID <= 9109 {
			t.Errorf("template %d still exists", guest.VMID)
		}
	}
	for _, host := range []string{"pve-1", "pve-2"} {
		for _, volume := range w.sim.Volumes(host) {
			if strings.Contains(volume, "910") {
				t.Errorf("%s still exists on %s", volume, host)
			}
		}
	}
}

// TestWriterTemplatesHostGone checks that the templates of a host that left the Proxmox
// cluster are forgotten as soon as the request says so, also in the state, and that they
// wait while the host is only down.
func TestWriterTemplatesHostGone(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	var gone atomic.Bool
	writer := w.run(t, func(config *scaler.WriterConfig) {
		config.Snapshot = func(ctx context.Context) (*topology.Snapshot, error) {
			snapshot, err := w.client.Snapshot(ctx)
			if err == nil && gone.Load() {
				snapshot.Hosts = slices.DeleteFunc(snapshot.Hosts, func(h topology.Host) bool { return h.ID() == first })
			}
			return snapshot, err
		}
	})
	writer.SetTemplates("debian", templates(t, oldImage, first, second))
	templatesUntil(t, writer, "created", allReady(2))

	w.sim.SetHostOnline("pve-1", false)
	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true})
	templatesUntil(t, writer, "waiting for the host", func(states []scaler.TemplateState) bool {
		return len(states) == 1 && states[0].Err != nil && strings.Contains(states[0].Err.Error(), "is offline")
	})
	gone.Store(true)
	templatesUntil(t, writer, "waiting for the host", func(states []scaler.TemplateState) bool {
		return len(states) == 1 && states[0].Err != nil && strings.Contains(states[0].Err.Error(), "is not part of the Proxmox cluster")
	})
	writer.SetTemplates("debian", scaler.TemplateRequest{Deleted: true, Gone: []topology.HostID{first}})
	templatesUntil(t, writer, "forgotten", func(states []scaler.TemplateState) bool { return len(states) == 0 })
	content, err := os.ReadFile(filepath.Join(w.stateDir, "states", "templates", string(first.Region), string(first.Host), "terraform.tfstate"))
	if err != nil || strings.Contains(string(content), `"managed"`) {
		t.Errorf("the state still has the template (%v):\n%s", err, content)
	}
	files, _, err := w.store.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if strings.Contains(name, "templates/"+first.String()) {
			t.Errorf("%s still exists", name)
		}
	}
	w.underWay(t)
}
