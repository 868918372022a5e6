package testenv

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
)

// ForeignVM creates a running VM as another tool than numaform does: a full clone of a
// host's template, with the options of config. Its scsi0 is the clone's disk, with the
// options that config has for it.
func ForeignVM(t testing.TB, sim *pvesim.Server, host string, template, vmid int, config map[string]string) {
	t.Helper()
	form := url.Values{"newid": {strconv.Itoa(vmid)}, "full": {"1"}, "name": {config["name"]}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost,
		fmt.Sprintf("%s/api2/json/nodes/%s/qemu/%d/clone", strings.TrimSuffix(sim.URL(), "/"), host, template), strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the simulator of this test
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("cloning template %d: %s %s %v", template, response.Status, body, err)
	}

	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		guest, exists := sim.Guest(vmid)
		if exists && guest.Config["lock"] == "" && guest.Config["scsi0"] != "" {
			config = maps.Clone(config)
			volume, _, _ := strings.Cut(guest.Config["scsi0"], ",")
			_, options, _ := strings.Cut(config["scsi0"], ",")
			config["scsi0"] = volume + "," + options
			if err := sim.PutGuest(pvesim.Guest{VMID: vmid, Host: host, Running: true, Config: config}); err != nil {
				t.Fatal(err)
			}
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("clone %d did not end: %+v", vmid, guest)
		}
	}
}
