package pvesim_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/pvesim"
)

const (
	imagesURL = "https://images.example/a.qcow2"
	storeURL  = "/nodes/pve-1/storage/local"
	mayNot    = "Permission check failed"
)

// images starts a server with a downloadable file of seven bytes that contains a disk of 3
// GiB, and a user with these grants.
func images(t *testing.T, grants ...pvesim.ACL) *client {
	t.Helper()
	cfg := cluster().WithToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret)
	cfg.Images = map[string]pvesim.Image{imagesURL: {Data: []byte("a disk!"), DiskMiB: 3072}}
	cfg.Hosts[0].Storages = []pvesim.Storage{
		{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "import"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20},
		{Name: "files", Type: "dir", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20},
		{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20},
		{Name: "tank", Type: "zfspool", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20},
	}
	cfg.Roles = append(cfg.Roles, pvesim.Role{Name: "Fetch", Privileges: []string{"Sys.AccessNetwork"}})
	cfg.ACL = append(cfg.ACL, grants...)
	return start(t, cfg)
}

func fetcher() pvesim.ACL { return pvesim.ACL{Path: "/nodes", Subject: "numaform@pve", Role: "Fetch"} }

// download returns the parameters of a download of the image, with some replaced.
func download(other ...string) []string {
	sum := sha256.Sum256([]byte("a disk!"))
	params := map[string]string{
		"url": imagesURL, "content": "import", "filename": "a.qcow2", "checksum": hex.EncodeToString(sum[:]), "checksum-algorithm": "sha256",
	}
	for i := 0; i < len(other); i += 2 {
		params[other[i]] = other[i+1]
	}
	var list []string
	for name, text := range params {
		if text != "" {
			list = append(list, name, text)
		}
	}
	return list
}

func TestDownload(t *testing.T) {
	t.Parallel()
	c := images(t, fetcher())
	none := images(t)
	check(t, none, []step{
		{"no access to the network", "POST", storeURL + "/download-url", download(), 403, mayNot},
		{"nor for its metadata", "GET", "/nodes/pve-1/query-url-metadata", []string{"url", imagesURL}, 403, mayNot},
	})
	check(t, c, []step{
		{"no files", "POST", "/nodes/pve-1/storage/local-lvm/download-url", download(), 403, mayNot + " (/storage/local-lvm, Datastore.AllocateTemplate)"},
		{"extension", "POST", storeURL + "/download-url", download("filename", "a.img"), 400, "Parameter verification failed."},
		{"checksum alone", "POST", storeURL + "/download-url", download("checksum-algorithm", ""), 400, "Parameter verification failed."},
		{"content that it has not", "POST", storeURL + "/download-url", download("content", "vztmpl", "filename", "a.tar.gz"), 500, "storage 'local' is not configured for content-type 'vztmpl'"},
		{"url of no web server", "POST", storeURL + "/download-url", download("url", "file:///a.qcow2"), 400, "Parameter verification failed."},
		{"metadata of nothing", "GET", "/nodes/pve-1/query-url-metadata", []string{"url", imagesURL + "x"}, 500, "invalid server response: '404 Not Found'"},
	})
	check(t, c.root(), []step{
		{"a storage of no files", "POST", "/nodes/pve-1/storage/local-lvm/download-url", download(), 500, "can't upload to storage type 'lvmthin', not a file based storage!"},
	})
	holdsAll(t, c.call("GET", "/nodes/pve-1/query-url-metadata", "url", imagesURL), `"filename":"a.qcow2"`, `"size":7`)

	wrong := strings.Repeat("0", 64)
	for _, tt := range []struct {
		name, want string
		params     []string
		there      bool
	}{
		{"wrong checksum", "checksum mismatch: got '", download("checksum", wrong), false},
		{"nothing there", "download failed", download("url", imagesURL+"x"), false},
		{"unpacking", "decompression not supported for import", download("compression", "zst"), false},
		{"the image", "OK", download(), true},
		{"again", "OK", download(), true},
		{"another in its place", "expect '" + wrong + "', aborting", download("checksum", wrong), true},
		{"in its place without a checksum", "refusing to override existing file '/var/lib/vz/import/a.qcow2'", download("checksum", "", "checksum-algorithm", ""), true},
	} {
		if exit := c.run("POST", storeURL+"/download-url", tt.params...); !strings.Contains(exit, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, exit, tt.want)
		}
		if there := slices.Contains(c.server.Volumes("pve-1"), "local:import/a.qcow2"); there != tt.there {
			t.Errorf("%s: file there: %v", tt.name, there)
		}
	}
	holdsAll(t, c.call("GET", storeURL+"/content", "content", "import"), `"volid":"local:import/a.qcow2"`, `"format":"qcow2"`, `"size":7`)
}

func TestImportFrom(t *testing.T) {
	t.Parallel()
	c := images(t, fetcher())
	if exit := c.run("POST", storeURL+"/download-url", download()...); exit != "OK" {
		t.Fatal(exit)
	}
	create := func(drive string, more ...string) []string {
		return append([]string{"vmid", "300", "scsi0", drive}, more...)
	}
	const qemu, from = "/nodes/pve-1/qemu", ",import-from=local:import/a.qcow2"
	check(t, c, []step{
		{"with a size", "POST", qemu, create("files:3" + from), 400, "Parameter verification failed."},
		{"of an iso", "POST", qemu, create("files:0,import-from=local:iso/x.iso"), 400, "Parameter verification failed."},
		{"of a path", "POST", qemu, create("files:0,import-from=/root/x.qcow2"), 500, "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651."},
		{"of no storage", "POST", qemu, create("files:0,import-from=nas:import/x.qcow2"), 500, "storage 'nas' does not exist"},
		{"to a storage of no disks", "POST", qemu, create("local:0" + from), 400, "Parameter verification failed."},
		{"a serial port of the host", "POST", qemu, create("files:0"+from, "serial0", "/dev/ttyS0"), 500, "only root can set 'serial0' config for real devices"},
	})
	missing := create("files:0,import-from=local:import/b.qcow2", "ide0", "local-lvm:1")
	if exit := c.run("POST", qemu, missing...); !strings.Contains(exit, "cannot import from 'local:import/b.qcow2' - could not get size") {
		t.Errorf("an import of nothing: %s", exit)
	}
	if left := c.server.Volumes("pve-1"); slices.ContainsFunc(left, func(id string) bool { return strings.Contains(id, "-300-") }) {
		t.Errorf("a failed creation left disks: %v", left)
	}

	ask := create("files:0"+from, "scsi1", "tank:0"+from, "efidisk0", "local-lvm:1,efitype=4m,pre-enrolled-keys=1", "tpmstate0", "tank:1,version=v2.0", "template", "1")
	if exit := c.run("POST", qemu, ask...); exit != "OK" {
		t.Fatal(exit)
	}
	got := map[string]string{}
	for _, key := range []string{"scsi0", "scsi1", "efidisk0", "tpmstate0"} {
		got[key] = c.guest(300).Config[key]
	}
	want := map[string]string{
		"scsi0": "files:300/base-300-disk-0.qcow2,size=3G", "scsi1": "tank:base-300-disk-0,size=3G",
		"efidisk0": "local-lvm:base-300-disk-0,efitype=4m,pre-enrolled-keys=1,size=4M", "tpmstate0": "tank:base-300-disk-1,size=4M,version=v2.0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("drives (-want +got):\n%s", diff)
	}
	if exit := c.run("POST", qemu+"/300/clone", "newid", "301"); exit != "OK" {
		t.Fatal(exit)
	}
	if exit := c.run("DELETE", qemu+"/300"); !strings.Contains(exit, "is still in use by linked cloned") {
		t.Errorf("removing a template of linked clones: %s", exit)
	}
	for _, vmid := range []int{301, 300} {
		if exit := c.run("DELETE", fmt.Sprintf("%s/%d", qemu, vmid)); exit != "OK" {
			t.Errorf("removing %d: %s", vmid, exit)
		}
	}
	check(t, c, []step{{"a disk of that format", "PUT", vm100 + "/config", []string{"scsi3", "local-lvm:1,format=qcow2"}, 500, "unsupported format 'qcow2'"}})
}
