package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// TestBadInput checks, with the scripts testdata/badinput/*.txtar, that every mistake is
// reported once, with a fix, and leaves no partial change.
func TestBadInput(t *testing.T) {
	runScripts(t, "badinput", map[string]func(*testscript.TestScript, bool, []string){
		"exits": exits, "same": same, "replace": replace, "simulate": simulate(t), "garbage": garbage, "seven": seven(t),
		"hold": hold, "held": held, "release": release, "shell": shell, "fault": fault,
	})
}

// spoil returns the defects of a simulated Proxmox by name.
func spoil() map[string]func(*pvesim.Config) {
	return map[string]func(*pvesim.Config){
		"sound": func(*pvesim.Config) {},
		"pools": func(c *pvesim.Config) { c.Pools = []string{"theirs"} },
		"no-template": func(c *pvesim.Config) {
			c.Hosts[0].Templates = nil
		},
		"no-agent": func(c *pvesim.Config) {
			for i := range c.Hosts {
				delete(c.Hosts[i].Templates[0].Options, "agent")
			}
		},
		"hookscript": func(c *pvesim.Config) {
			for i := range c.Hosts {
				c.Hosts[i].Templates[0].Options["hookscript"] = "local:snippets/pin.pl"
			}
		},
		"full-storage": func(c *pvesim.Config) {
			for i := range c.Hosts {
				c.Hosts[i].Storages = []topology.Storage{
					{Name: "local", Type: "dir", Active: true, Content: []string{"iso"}, TotalMiB: 1 << 20, FreeMiB: 1 << 19},
					{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images", "rootdir"}, TotalMiB: 1 << 20, FreeMiB: 16},
				}
			}
		},
		"no-privileges": func(c *pvesim.Config) {
			c.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret}}
		},
		"expired": func(c *pvesim.Config) {
			c.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true, Expire: time.Unix(1, 0)}}
		},
		"taken": func(c *pvesim.Config) {
			for vmid := 2000; vmid <= 2002; vmid++ {
				c.Hosts[0].Guests = append(c.Hosts[0].Guests, topology.Guest{VMID: vmid, Name: "theirs", Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: 512})
			}
		},
	}
}

// simulate starts a simulated Proxmox with a defect of spoil, for the rest of the script:
// simulate DEFECT.
func simulate(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		config := withAgents(pvesim.Config{Hosts: testenv.Hosts(t)})
		spoil()[args[0]](&config)
		server, err := pvesim.New(config)
		ts.Check(err)
		ts.Check(server.Start("127.0.0.1:0"))
		ts.Defer(func() { ts.Check(server.Close()) })
		*simulatorOf(ts) = simulator{Server: server}
		reach(ts, server.URL(), server.CertPEM())
	}
}

// hold blocks the next matching request until release, or until the client disconnects:
// hold METHOD PATH.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	hit, released := make(chan struct{}), make(chan struct{})
	simulatorOf(ts).hit, simulatorOf(ts).released = hit, released
	proxmoxOf(ts).AddFault(pvesim.Fault{Method: args[0], Path: args[1], Times: 1, Hit: func(ctx context.Context, _ pvesim.Call) {
		close(hit)
		select {
		case <-released:
		case <-ctx.Done():
		}
	}})
}

// release unblocks the request that hold blocks.
func release(ts *testscript.TestScript, _ bool, _ []string) { close(simulatorOf(ts).released) }

// held waits until a request is blocked by hold.
func held(ts *testscript.TestScript, _ bool, _ []string) {
	select {
	case <-simulatorOf(ts).hit:
	case <-time.After(time.Minute):
		ts.Fatalf("the request was not sent")
	}
}

// fault makes all further matching requests fail: fault METHOD PATH STATUS REASON.
func fault(ts *testscript.TestScript, _ bool, args []string) {
	status, err := strconv.Atoi(args[2])
	ts.Check(err)
	proxmoxOf(ts).AddFault(pvesim.Fault{Method: args[0], Path: args[1], Status: status, Reason: args[3]})
}

// garbage starts a host that answers every request with a text: garbage TEXT.
func garbage(ts *testscript.TestScript, _ bool, args []string) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(args[0]))
	}))
	ts.Defer(server.Close)
	reach(ts, server.URL, nil)
	ts.Setenv("NUMAFORM_CLUSTERS_0_CA_FILE", "")
	ts.Setenv("NUMAFORM_CLUSTERS_0_INSECURE", "true")
}

// seven starts a server that looks like Proxmox VE 7.
func seven(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, _ []string) {
		behind, err := pvesim.New(pvesim.Config{Hosts: testenv.Hosts(t)})
		ts.Check(err)
		ts.Check(behind.Start("127.0.0.1:0"))
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(behind.CertPEM())
		at, err := url.Parse(behind.URL())
		ts.Check(err)
		server := httptest.NewTLSServer(&httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(at) },
			Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, DisableKeepAlives: true},
			ModifyResponse: func(r *http.Response) error {
				body, err := io.ReadAll(r.Body)
				body = running.ReplaceAll(body, []byte("running version: 7.4-3/"))
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				r.Header.Del("Content-Length")
				return err
			},
		})
		ts.Defer(func() {
			server.Close()
			ts.Check(behind.Close())
		})
		reach(ts, server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	}
}

var running = regexp.MustCompile(`running version: [0-9.]+/`)

func reach(ts *testscript.TestScript, url string, ca []byte) {
	for name, content := range map[string][]byte{"ca.pem": ca, "token": []byte(pvesim.DefaultTokenSecret)} {
		ts.Check(os.WriteFile(ts.MkAbs(name), content, 0o600))
	}
	ts.Setenv("NUMAFORM_CLUSTERS_0_URL", url)
	ts.Setenv("NUMAFORM_CLUSTERS_0_CA_FILE", ts.MkAbs("ca.pem"))
	ts.Setenv("NUMAFORM_CLUSTERS_0_INSECURE", "false")
}
