package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is a writer for concurrent use.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const bareMachine = `{"format":1,"memory_mib":4096,"numa_nodes":[{"id":0,"memory_mib":4096}],
"cpus":[{"id":0,"online":true,"numa_node":0,"socket":0,"core":0,"l3":0}]}`

func TestServesUntilCanceled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pve-a.json"), bareMachine)
	write(t, filepath.Join(dir, "pve-b.json"), `{"region":"lab","name":"other","cpus":[{"id":0,"online":true}]}`)
	cert := filepath.Join(t.TempDir(), "cert.pem")
	ctx, cancel := context.WithCancel(t.Context())
	talk := &output{}
	cmd := newCommand()
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--hosts", dir, "--cert-out", cert, "--token", "me@pve!x=abc"})
	cmd.SetErr(talk)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()

	url := waitFor(t, talk, done)
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	for path, want := range map[string]int{"nodes/pve-a/status": 200, "nodes/other/status": 200, "nodes/other/config": 200, "nodes/pve-b/status": 500} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"api2/json/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "PVEAPIToken=me@pve!x=abc")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
	}
	if !strings.Contains(talk.String(), "token:       me@pve!x=abc\n") {
		t.Errorf("token not printed:\n%s", talk)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// waitFor waits until the command has printed its URL and its certificate's path, and
// returns the URL.
func waitFor(t *testing.T, talk *output, done <-chan error) string {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, rest, ok := strings.Cut(talk.String(), "url:"); ok && strings.Contains(rest, "certificate:") {
			return strings.Fields(rest)[0]
		}
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		case <-t.Context().Done():
			t.Fatal("no url")
		case <-tick.C:
		}
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	hosts := t.TempDir()
	write(t, filepath.Join(hosts, "pve-a.json"), bareMachine)
	broken := t.TempDir()
	write(t, filepath.Join(broken, "pve-a.json"), `{"format":1,"cpu`)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no hosts flag", nil, "at least one of the flags in the group [hosts stdin] is required"},
		{"empty directory", []string{"--hosts", t.TempDir()}, "no *.json file found: add one file per host"},
		{"broken file", []string{"--hosts", broken}, "pve-a.json"},
		{"token without secret", []string{"--hosts", hosts, "--token", "me@pve!x"}, "must be user@realm!id=secret"},
		{"unknown version", []string{"--hosts", hosts, "--version", "7.4"}, "must be 8.x or 9.x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			talk := &output{}
			cmd := newCommand()
			cmd.SetArgs(append(tt.args, "--listen", "127.0.0.1:0"))
			cmd.SetErr(talk)
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
