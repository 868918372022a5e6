package bench_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/internal/pvesim"
)

const (
	// directPoll is the interval at which the direct caller polls the status of a task.
	directPoll = 100 * time.Millisecond
	// directVMID is the VMID of the direct caller's first VM.
	directVMID = 5000
	// directSeed is the approximate size of a seed.
	directSeed = 400 << 10
)

// direct is a minimal autoscaler that calls Proxmox directly, for all VMs concurrently. Its
// times are the reference for all other times.
type direct struct {
	c      *cluster
	client *http.Client
}

func (c *cluster) direct() *direct {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.sim.CertPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, MaxIdleConnsPerHost: 64}
	c.b.Cleanup(transport.CloseIdleConnections)
	return &direct{c: c, client: &http.Client{Transport: transport}}
}

// create creates VMs, and returns the time until the last start was requested.
func (d *direct) create(vms int, class class) time.Duration {
	d.c.b.Helper()
	began := time.Now()
	d.each(vms, func(host string, template, vmid int) error { return d.make(host, template, vmid, class) })
	starts := d.c.calls(began, http.MethodPost, "/status/start")
	return slices.MaxFunc(starts, time.Time.Compare).Sub(began)
}

// delete shuts VMs down and deletes them, and returns the time until the last deletion was
// requested.
func (d *direct) delete(vms int) time.Duration {
	d.c.b.Helper()
	began := time.Now()
	d.each(vms, func(host string, _, vmid int) error {
		vm := fmt.Sprintf("/nodes/%s/qemu/%d", host, vmid)
		if err := d.task(http.MethodPost, vm+"/status/shutdown", url.Values{}); err != nil {
			return err
		}
		_, err := d.call(http.MethodDelete, vm, nil, "")
		return err
	})
	return slices.MaxFunc(d.c.deletions(began), time.Time.Compare).Sub(began)
}

// each calls do concurrently for VMs on alternating hosts.
func (d *direct) each(vms int, do func(host string, template, vmid int) error) {
	d.c.b.Helper()
	var group errgroup.Group
	for i := range vms {
		host := &d.c.hosts[i%len(d.c.hosts)]
		group.Go(func() error { return do(string(host.Name), host.Templates[0].VMID, directVMID+i) })
	}
	if err := group.Wait(); err != nil {
		d.c.b.Fatal(err)
	}
}

func (d *direct) make(host string, template, vmid int, class class) error {
	node := "/nodes/" + host
	vm := fmt.Sprintf("%s/qemu/%d", node, vmid)
	config := url.Values{"cores": {"2"}, "memory": {"8192"}}

	// The seed is created while the VM is cloned.
	var seeded errgroup.Group
	if class.seeds {
		name := fmt.Sprintf("direct-%d.iso", vmid)
		config.Set("ide2", "local:iso/"+name+",media=cdrom")
		seeded.Go(func() error { return d.seed(host, name) })
	}
	err := d.task(http.MethodPost, fmt.Sprintf("%s/qemu/%d/clone", node, template),
		url.Values{"newid": {fmt.Sprint(vmid)}, "name": {fmt.Sprintf("direct-%d", vmid)}, "full": {"1"}})
	if err == nil && class.resize {
		err = d.task(http.MethodPut, vm+"/resize", url.Values{"disk": {"scsi0"}, "size": {fmt.Sprintf("%dG", resizedGiB)}})
	}
	if err := errors.Join(err, seeded.Wait()); err != nil {
		return fmt.Errorf("creating vm %d: %w", vmid, err)
	}
	if _, err := d.form(http.MethodPost, vm+"/config", config); err != nil {
		return err
	}
	return d.task(http.MethodPost, vm+"/status/start", url.Values{})
}

// seed creates a Secret like a join token's, and uploads a disc of a seed's size.
func (d *direct) seed(host, name string) error {
	id := fmt.Sprintf("%06d", time.Now().UnixNano()%1e6)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, GenerateName: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeOpaque,
		StringData: map[string]string{"token-id": id, "token-secret": "0123456789abcdef"},
	}
	if err := d.c.api.Create(context.Background(), secret); err != nil {
		return err
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	_ = form.WriteField("content", "iso") // writes to a buffer do not fail
	part, err := form.CreateFormFile("filename", name)
	if err != nil {
		return err
	}
	_, _ = part.Write(make([]byte, directSeed))
	if err := form.Close(); err != nil {
		return err
	}
	data, err := d.call(http.MethodPost, "/nodes/"+host+"/storage/local/upload", &body, form.FormDataContentType())
	if err != nil {
		return err
	}
	return d.await(data)
}

// task sends a request and waits for its task.
func (d *direct) task(method, path string, form url.Values) error {
	data, err := d.form(method, path, form)
	if err != nil {
		return err
	}
	return d.await(data)
}

// await waits for a task.
func (d *direct) await(data json.RawMessage) error {
	var task string
	if err := json.Unmarshal(data, &task); err != nil {
		return fmt.Errorf("reading task %s: %w", data, err)
	}
	// The task ID is UPID:HOST:…, with the host that runs the task. For uploads, it is the
	// host that received the request.
	host := strings.Split(task, ":")[1]
	ticker := time.NewTicker(directPoll)
	defer ticker.Stop()
	for range ticker.C {
		status, err := d.call(http.MethodGet, "/nodes/"+host+"/tasks/"+url.PathEscape(task)+"/status", nil, "")
		if err != nil {
			return err
		}
		if bytes.Contains(status, []byte(`"stopped"`)) {
			if !bytes.Contains(status, []byte(`"OK"`)) {
				return fmt.Errorf("task %s: %s", task, status)
			}
			return nil
		}
	}
	return nil
}

func (d *direct) form(method, path string, form url.Values) (json.RawMessage, error) {
	return d.call(method, path, strings.NewReader(form.Encode()), "application/x-www-form-urlencoded")
}

func (d *direct) call(method, path string, body io.Reader, contentType string) (json.RawMessage, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, d.c.sim.URL()+"/api2/json"+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	var answer struct{ Data json.RawMessage }
	err = json.Unmarshal(text, &answer)
	return answer.Data, err
}
