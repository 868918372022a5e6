package pvesim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// upload uploads an ISO file to the storage "local" of pve-1.
func (c *client) upload(name, content string) {
	c.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("content", "iso"); err != nil {
		c.t.Fatal(err)
	}
	part, err := form.CreateFormFile("filename", name)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := part.Write([]byte(content)); err != nil {
		c.t.Fatal(err)
	}
	if err := form.Close(); err != nil {
		c.t.Fatal(err)
	}
	got := c.send("POST", c.server.URL()+"/api2/json/nodes/pve-1/storage/local/upload", form.FormDataContentType(), &body)
	var reply struct{ Data string }
	if err := json.Unmarshal([]byte(got.body), &reply); err != nil {
		c.t.Fatal(err)
	}
	if exit := c.await(reply.Data); exit != "OK" {
		c.t.Fatalf("uploading %s: %s", name, exit)
	}
}

// TestPowerEvents checks that each start, stop and removal of a VM is reported once, in
// order, and that the event of a start contains the content of the CD-ROM drive.
func TestPowerEvents(t *testing.T) {
	t.Parallel()
	var (
		mu   sync.Mutex
		told []string
	)
	cfg := cluster()
	cfg.OnPower = func(event pvesim.PowerEvent) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf("%d %s running=%t cores=%s discs=%s", event.Guest.VMID, event.Kind, event.Guest.Running, event.Guest.Config["cores"], event.Discs["ide2"]))
	}
	c := start(t, cfg)
	c.clone(101)
	c.upload("seed.iso", "a seed")
	c.set(vm101, "ide2", "local:iso/seed.iso,media=cdrom", "cores", "3")
	for _, step := range []struct{ method, path, exit string }{
		{"POST", vm101 + "/status/start", "OK"},
		{"POST", vm101 + "/status/start", "VM 101 already running"},
		{"POST", vm101 + "/status/reboot", "OK"},
		{"POST", vm101 + "/status/shutdown", "OK"},
		{"POST", vm101 + "/status/stop", "OK"}, // already stopped
		{"DELETE", vm101, "OK"},
	} {
		if exit := c.run(step.method, step.path); exit != step.exit {
			t.Errorf("%s %s: %s, want %s", step.method, step.path, exit, step.exit)
		}
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu", "vmid", "102", "cores", "1", "start", "1"); exit != "OK" {
		t.Error(exit)
	}
	c.server.RemoveGuest(102)
	if err := c.server.PutGuest(pvesim.Foreign{VMID: 103, Host: "pve-1", Running: true, Config: map[string]string{"ide2": "none,media=cdrom"}}); err != nil {
		t.Fatal(err)
	}
	want := `101 on running=true cores=3 discs=a seed
101 off running=false cores=3 discs=
101 on running=true cores=3 discs=a seed
101 off running=false cores=3 discs=
101 destroyed running=false cores=3 discs=
102 on running=true cores=1 discs=
102 destroyed running=true cores=1 discs=
103 on running=true cores= discs=`
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(want, strings.Join(told, "\n")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
