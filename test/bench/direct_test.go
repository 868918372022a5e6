package bench_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// slow sets the task durations of a Proxmox with real disks.
func slow(c *pvesim.Config) {
	c.Delays.Clone, c.Delays.Start = 5*time.Second, time.Second
}

// BenchmarkAgainstDirectCalls compares the time from a request to the last call that starts
// a VM: with clone, config and start in direct calls, all concurrently, and with plan,
// guard and apply.
func BenchmarkAgainstDirectCalls(b *testing.B) {
	for _, size := range []struct{ vms, hosts int }{{1, 1}, {20, 5}} {
		b.Run(fmt.Sprintf("vms=%d/hosts=%d", size.vms, size.hosts), func(b *testing.B) {
			for b.Loop() {
				f := start(b, size.hosts, slow)
				var places []topology.HostID
				for i := range size.vms {
					places = append(places, f.hosts[i%size.hosts])
				}
				began := time.Now()
				f.direct(b, places)
				direct := f.lastStart(b, size.vms).Sub(began)
				f.sim.ResetCalls()
				began = time.Now()
				change := f.propose(b, f.read(b), 1, places...)
				if _, err := f.scaler.Apply(context.Background(), change, func([]scaler.RootPlan) (string, error) { return "", nil }); err != nil {
					b.Fatal(err)
				}
				planned := f.lastStart(b, size.vms).Sub(began)
				b.ReportMetric(direct.Seconds(), "direct-s")
				b.ReportMetric(planned.Seconds(), "planned-s")
				b.ReportMetric(planned.Seconds()/direct.Seconds(), "planned/direct")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// lastStart returns when the start of the last of that many VMs was requested.
func (f *fixture) lastStart(b *testing.B, vms int) time.Time {
	b.Helper()
	var last time.Time
	for _, call := range f.sim.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/status/start") {
			vms--
			last = call.Time
		}
	}
	if vms != 0 {
		b.Fatalf("%d starts are missing", vms)
	}
	return last
}

// direct creates VMs like an autoscaler that calls Proxmox itself.
func (f *fixture) direct(b *testing.B, places []topology.HostID) {
	b.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.sim.CertPEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer client.CloseIdleConnections()
	var group errgroup.Group
	for i, host := range places {
		group.Go(func() error { return f.makeDirectly(client, host, 5000+i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

func (f *fixture) makeDirectly(client *http.Client, host topology.HostID, vmid int) error {
	node := "/nodes/" + string(host.Host)
	vm := fmt.Sprintf("%s/qemu/%d", node, vmid)
	task, err := f.post(client, fmt.Sprintf("%s/qemu/%d/clone", node, 9000+indexOf(f.hosts, host)),
		url.Values{"newid": {fmt.Sprint(vmid)}, "name": {fmt.Sprintf("direct-%d", vmid)}})
	if err != nil {
		return err
	}
	if err := f.await(client, node, task); err != nil {
		return err
	}
	if _, err := f.post(client, vm+"/config", url.Values{"cores": {"2"}, "memory": {"4096"}}); err != nil {
		return err
	}
	_, err = f.post(client, vm+"/status/start", url.Values{})
	return err
}

func indexOf(hosts []topology.HostID, host topology.HostID) int {
	for i := range hosts {
		if hosts[i] == host {
			return i
		}
	}
	return -1
}

// await polls for the end of a task each second, as the provider does.
func (f *fixture) await(client *http.Client, node, task string) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range tick.C {
		status, err := f.call(client, http.MethodGet, node+"/tasks/"+url.PathEscape(task)+"/status", nil)
		if err != nil {
			return err
		}
		if bytes.Contains(status, []byte(`"stopped"`)) {
			return nil
		}
	}
	return nil
}

func (f *fixture) post(client *http.Client, path string, form url.Values) (string, error) {
	data, err := f.call(client, http.MethodPost, path, form)
	if err != nil {
		return "", err
	}
	var task string
	if err := json.Unmarshal(data, &task); err != nil {
		return "", nil //nolint:nilerr // the call starts no task
	}
	return task, nil
}

func (f *fixture) call(client *http.Client, method, path string, form url.Values) (json.RawMessage, error) {
	request, err := http.NewRequest(method, f.sim.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	var answer struct{ Data json.RawMessage }
	err = json.NewDecoder(response.Body).Decode(&answer)
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	return answer.Data, err
}
