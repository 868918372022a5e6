package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

const (
	templatesToken  = "templates@pve!tofu"
	templatesSecret = "0d9a3e4c-6a0f-4b62-8f0e-3f6f0f1f9b11"
	imageURL        = "https://images.example.com/debian-13-k8s-20261101.qcow2"
	newTemplate     = "debian-13-k8s-20261101"
)

var image = []byte("a disk of 3 GiB")

// templatesRoot is a copy of examples/templates and its module, for the quickstart's
// Proxmox.
type templatesRoot struct {
	t      *testing.T
	stage  *demo.Stage
	engine *enginetest.Engine
	dir    string
}

// withTemplates adds the image, and the user, roles and grants in docs/templates.md, to the
// Proxmox.
func withTemplates(t *testing.T) func(*pvesim.Config) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "templates.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^ +pveum`).ReplaceAllString(string(page), "pveum")
	return func(config *pvesim.Config) {
		*config = config.WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
		config.Tokens = append(config.Tokens, pvesim.Token{ID: templatesToken, Secret: templatesSecret, FullPrivileges: true})
		config.Images = map[string]pvesim.Image{imageURL: {Data: image, DiskMiB: 3 << 10}}
		roles, grants := roleLine.FindAllStringSubmatch(text, -1), aclLine.FindAllStringSubmatch(text, -1)
		if len(roles) != 5 || len(grants) != 5 {
			t.Fatalf("docs/templates.md has %d roles and %d acls, want 5 of each", len(roles), len(grants))
		}
		for _, role := range roles {
			config.Roles = append(config.Roles, pvesim.Role{Name: role[1], Privileges: strings.Fields(role[2])})
		}
		for _, acl := range grants {
			config.ACL = append(config.ACL, pvesim.ACL{Path: acl[1], Subject: acl[2], Role: acl[3], NoPropagate: acl[4] != ""})
		}
	}
}

func newTemplatesRoot(t *testing.T) *templatesRoot {
	t.Helper()
	stage := quickstart(t, withTemplates(t))
	r := &templatesRoot{t: t, stage: stage, engine: enginetest.New(t).With(
		"PROXMOX_VE_ENDPOINT="+stage.Sim.URL(), "PROXMOX_VE_API_TOKEN="+templatesToken+"="+templatesSecret, "PROXMOX_VE_INSECURE=true",
	)}
	work := t.TempDir()
	for _, dir := range []string{"modules/proxmox-template", "examples/templates"} {
		if err := os.CopyFS(filepath.Join(work, dir), os.DirFS(filepath.Join("..", "..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	r.dir = filepath.Join(work, "examples", "templates")
	sum := sha256.Sum256(image)
	r.edit(strings.Repeat("0", 64), hex.EncodeToString(sum[:]))
	r.engine.Run(t, r.dir, "init", "-no-color", "-input=false")
	return r
}

// edit replaces text in terraform.tfvars.
func (r *templatesRoot) edit(old, replacement string) {
	r.t.Helper()
	name := filepath.Join(r.dir, "terraform.tfvars")
	content, err := os.ReadFile(name)
	if err != nil {
		r.t.Fatal(err)
	}
	if !strings.Contains(string(content), old) {
		r.t.Fatalf("terraform.tfvars does not contain %q", old)
	}
	if err := os.WriteFile(name, []byte(strings.ReplaceAll(string(content), old, replacement)), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *templatesRoot) apply() string {
	r.t.Helper()
	return r.engine.Run(r.t, r.dir, "apply", "-auto-approve", "-input=false", "-no-color")
}

// refused runs the engine, and checks that its error contains this text.
func (r *templatesRoot) refused(want string, args ...string) {
	r.t.Helper()
	out, err := r.engine.Try(r.t, r.dir, append(args, "-input=false", "-no-color")...)
	plain := strings.Join(strings.Fields(strings.ReplaceAll(out, "│", " ")), " ")
	if err == nil || !strings.Contains(plain, want) {
		r.t.Errorf("%v: %v, want an error with %q:\n%s", args, err, want, out)
	}
}

// clean checks that a plan has no changes.
func (r *templatesRoot) clean() {
	r.t.Helper()
	if out, err := r.engine.Try(r.t, r.dir, "plan", "-detailed-exitcode", "-input=false", "-no-color"); err != nil {
		r.t.Errorf("a second plan: %v\n%s", err, out)
	}
}

// has checks the host and the main options of each template, with the given display.
func (r *templatesRoot) has(vga string) {
	r.t.Helper()
	for vmid, host := range map[int]string{9101: "pve-1", 9102: "pve-2", 9103: "pve-3"} {
		guest, ok := r.stage.Sim.Guest(vmid)
		if !ok || guest.Host != host {
			r.t.Fatalf("VM %d is on %q, want a template on %s", vmid, guest.Host, host)
		}
		want := map[string]string{
			"name": newTemplate, "template": "1", "tags": "numaform-template-" + strconv.Itoa(vmid), "boot": "order=scsi0", "machine": "q35", "vga": vga,
			"agent": "enabled=1,fstrim_cloned_disks=0,type=virtio", "scsihw": "virtio-scsi-single", "serial0": "socket", "numa": "1", "bios": "ovmf",
			"scsi0":     "local-lvm:base-" + strconv.Itoa(vmid) + "-disk-1,aio=io_uring,backup=1,cache=none,discard=on,iothread=1,replicate=1,size=10G,ssd=0",
			"efidisk0":  "local-lvm:base-" + strconv.Itoa(vmid) + "-disk-0,efitype=4m,pre-enrolled-keys=1,size=4M",
			"tpmstate0": "local-lvm:base-" + strconv.Itoa(vmid) + "-disk-2,size=4M,version=v2.0",
		}
		got := map[string]string{}
		for key := range want {
			got[key] = guest.Config[key]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.t.Errorf("template %d (-want +got):\n%s", vmid, diff)
		}
	}
}

// TestTemplates checks that the example's templates can be created with the documented
// privileges, changed in place, planned as the source of clones by numaform, and removed.
func TestTemplates(t *testing.T) {
	t.Parallel()
	r := newTemplatesRoot(t)
	r.edit("disk_gib      = 10", "disk_gib      = 10\nmachine = \"q35\"\nfirmware = { bios = \"ovmf\", secure_boot = true }\ntpm_version = \"v2.0\"")
	r.apply()
	r.has("memory=16,type=serial0")
	r.clean()

	r.edit("disk_gib      = 10", "disk_gib      = 10\nvga = { type = \"std\", memory = 32 }")
	if out := r.apply(); !strings.Contains(out, "0 added, 3 changed, 0 destroyed") {
		t.Errorf("another display does not change the VM in place:\n%s", out)
	}
	r.has("memory=32,type=std")

	edit(t, r.stage, "manifests/nodepools.yaml", "template: {name: debian-13-k8s}", "template: {name: "+newTemplate+"}")
	out := filepath.Join(r.stage.Dir, "planned")
	run(t, r.stage, cli.ExitOK, "plan", "-f", r.stage.Manifests(), "--out", out, "--no-engine")
	_, files := readFleet(t, out)
	clones := map[string]bool{}
	for _, content := range files {
		for _, id := range regexp.MustCompile(`clone = \{\s+vm_id = (\d+)`).FindAllStringSubmatch(string(content), -1) {
			clones[id[1]] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"9101": true, "9102": true, "9103": true}, clones); diff != "" {
		t.Errorf("clones of templates (-want +got):\n%s", diff)
	}

	r.engine.Run(t, r.dir, "destroy", "-auto-approve", "-input=false", "-no-color")
	for _, host := range []string{"pve-1", "pve-2", "pve-3"} {
		for _, volume := range r.stage.Sim.Volumes(host) {
			if strings.Contains(volume, "-910") {
				t.Errorf("%s still exists on %s", volume, host)
			}
		}
	}
	for _, call := range r.stage.Sim.Calls() {
		if call.Status == 501 || call.Status == 403 {
			t.Errorf("%d: %s %s", call.Status, call.Method, call.Path)
		}
	}
}

// TestTemplatesRefused checks that used and duplicate VMIDs, and wrong images, are refused,
// that an incomplete template is created again, and that a plan shows the replacement for
// another image.
func TestTemplatesRefused(t *testing.T) {
	enginetest.Nightly(t)
	t.Parallel()
	r := newTemplatesRoot(t)
	foreign := pvesim.Guest{VMID: 9102, Host: "pve-2", Config: map[string]string{"name": "database", "cores": "1", "memory": "1024"}}
	if err := r.stage.Sim.PutGuest(foreign); err != nil {
		t.Fatal(err)
	}
	before, _ := r.stage.Sim.Guest(9102)
	r.refused("VMID 9102 belongs to another VM, which does not have the tag numaform-template-9102", "apply", "-auto-approve")
	if after, _ := r.stage.Sim.Guest(9102); !cmp.Equal(before, after) {
		t.Errorf("the VM with that VMID changed:\n%s", cmp.Diff(before, after))
	}
	r.edit(`"pve-2" = 9102`, `"pve-2" = 9101`)
	r.refused("Duplicate VMID", "plan")
	r.edit(`, "pve-2" = 9101, "pve-3" = 9103`, "")

	sum := sha256.Sum256(image)
	right := hex.EncodeToString(sum[:])
	r.edit(right, strings.Repeat("0", 64))
	r.refused("checksum mismatch: got '"+right+"'", "apply", "-auto-approve")
	_, made := r.stage.Sim.Guest(9101)
	if volumes := strings.Join(r.stage.Sim.Volumes("pve-1"), " "); made || strings.Contains(volumes, "9101") {
		t.Errorf("a wrong image left VM %v and volumes %s", made, volumes)
	}

	// An incomplete template is re-created, even though its VMID is in use.
	r.edit(strings.Repeat("0", 64), right)
	r.stage.Sim.AddFault(pvesim.Fault{Method: "POST", Path: `/qemu/9101/template$`, Times: 1, TaskExit: "can't lock file"})
	r.refused("can't lock file", "apply", "-auto-approve")
	r.apply()
	if guest, _ := r.stage.Sim.Guest(9101); guest.Config["template"] != "1" {
		t.Errorf("no template after a second apply: %s", guest.Raw)
	}
	r.clean()

	// The plan shows the effect of another image for the same VMID. The next plan shows it
	// again, because Proxmox refused to delete the template.
	r.edit(right, strings.Repeat("1", 64))
	r.stage.Sim.AddFault(pvesim.Fault{Method: "DELETE", Path: `/qemu/9101/?$`, Times: 1, TaskExit: "base volume is still in use by linked cloned"})
	r.refused("base volume is still in use", "apply", "-auto-approve")
	if out := r.engine.Run(t, r.dir, "plan", "-input=false", "-no-color"); !strings.Contains(out, "vm.template will be replaced") {
		t.Errorf("another image does not replace the template:\n%s", out)
	}
}
