package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLab(t *testing.T) {
	t.Parallel()
	cert := filepath.Join(t.TempDir(), "cert.pem")
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := newCommand()
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--hosts", "../quickstart/hosts", "--cert-out", cert, "--agents", "quickstart"})
	cmd.SetErr(writer)
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		done <- err
		_ = writer.CloseWithError(err)
	}()
	said := map[string]string{}
	for lines := bufio.NewScanner(reader); said["certificate"] == "" && lines.Scan(); {
		label, text, _ := strings.Cut(lines.Text(), ":")
		said[label] = strings.TrimSpace(text)
	}
	pem, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, said["url"]+"api2/json/nodes/pve-1/config", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+said["token"])
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || !strings.Contains(string(body), `\"clusters\":[\"quickstart\"]`) {
		t.Errorf("no agent publishes in the notes: %d %s, %v", response.StatusCode, body, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	cmd := newCommand()
	cmd.SetArgs([]string{"--hosts", "../quickstart/hosts", "--listen", "127.0.0.1:0", "--agents", "No Cluster"})
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `clusterID "No Cluster"`) {
		t.Errorf("error %v", err)
	}
}
