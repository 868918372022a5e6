package real_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
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
	out, err := w.tryInGuest(vmid, limit, command)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// tryInGuest is like inGuestWithin, but returns an error if the agent does not respond or the
// command fails.
func (w *world) tryInGuest(vmid int, limit time.Duration, command string) (out string, err error) {
	guest, _ := w.proxmox.Guest(vmid)
	path := fmt.Sprintf("/nodes/%s/qemu/%d/agent/", guest.Host, vmid)
	var started struct{ PID int }
	form := url.Values{"command": {"sh", "-c", command}}
	err = retry(w.t.Context(), time.Minute, func(ctx context.Context) error { // a busy guest does not respond in time
		return w.request(ctx, http.MethodPost, path+"exec", form, &started)
	})
	if err != nil {
		return "", fmt.Errorf("in VM %d, starting %s: %w", vmid, command, err)
	}
	var status struct {
		Exited, ExitCode int
		Out              string `json:"out-data"`
		Err              string `json:"err-data"`
	}
	err = retry(w.t.Context(), limit, func(ctx context.Context) error {
		err := w.request(ctx, http.MethodGet, path+fmt.Sprintf("exec-status?pid=%d", started.PID), nil, &status)
		if err == nil && status.Exited == 0 {
			return errors.New("the command still runs")
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("in VM %d, running %s: %w", vmid, command, err)
	}
	if status.ExitCode != 0 {
		return "", fmt.Errorf("in VM %d, %s exited with %d: %s%s", vmid, command, status.ExitCode, status.Out, status.Err)
	}
	return status.Out, nil
}

// retry calls do until it succeeds, and returns its last error after limit.
func retry(ctx context.Context, limit time.Duration, do func(ctx context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		if err := do(ctx); ctx.Err() == nil {
			last = err
			return err == nil, nil
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("not within %s: %w", limit, last)
	}
	return nil
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
