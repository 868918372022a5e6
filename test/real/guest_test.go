package real_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// rootToken is a token of root@pam, with which the tests run commands in guests. numaform
// does not have it.
const (
	rootToken       = "root@pam!test"
	rootTokenSecret = "0c8e7a9c-3b1c-4a53-9c5a-0f6d0d9f2a11"
)

// inGuest runs a shell command in a guest by the guest's agent, and returns its output. It
// fails the test if the command fails.
func (w *world) inGuest(vmid int, command string) string {
	w.t.Helper()
	return w.inGuestWithin(vmid, 2*time.Minute, command)
}

// inGuestWithin does the same for a command that may take that long.
func (w *world) inGuestWithin(vmid int, limit time.Duration, command string) string {
	w.t.Helper()
	guest, _ := w.proxmox.Guest(vmid)
	path := fmt.Sprintf("/nodes/%s/qemu/%d/agent/", guest.Host, vmid)
	var started struct{ PID int }
	w.eventually(time.Minute, func(ctx context.Context) string { // a busy guest does not respond in time
		err := w.request(ctx, http.MethodPost, path+"exec", url.Values{"command": {"sh", "-c", command}}, &started)
		if err != nil {
			return err.Error()
		}
		return ""
	})
	var status struct {
		Exited, ExitCode int
		Out              string `json:"out-data"`
		Err              string `json:"err-data"`
	}
	w.eventually(limit, func(ctx context.Context) string {
		err := w.request(ctx, http.MethodGet, path+fmt.Sprintf("exec-status?pid=%d", started.PID), nil, &status)
		if err != nil {
			return err.Error()
		}
		if status.Exited == 0 {
			return "the command still runs in the guest: " + command
		}
		return ""
	})
	if status.ExitCode != 0 {
		w.t.Fatalf("in VM %d, %s exited with %d: %s%s", vmid, command, status.ExitCode, status.Out, status.Err)
	}
	return status.Out
}

// request sends a request to the API of Proxmox as root@pam.
func (w *world) request(ctx context.Context, method, path string, form url.Values, into any) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.proxmox.CertPEM())
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, method, w.proxmox.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "PVEAPIToken="+rootToken+"="+rootTokenSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	data := struct{ Data any }{into}
	return json.Unmarshal(body, &data)
}
