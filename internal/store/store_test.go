package store_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// render returns the files of a fleet of cluster prod with plain VMs on hosts.
func render(hosts map[fleet.VMID]string, edits ...func(*fleet.Fleet)) generator.Files {
	f := fleet.Fleet{
		ClusterID: "prod", Backend: fleet.Backend{Type: "local"},
		Regions: []fleet.Region{{Name: "r", Endpoint: "https://pve-1.example:8006/"}},
	}
	for id, host := range hosts {
		f.VMs = append(f.VMs, fleet.VM{
			Key: fleet.Key(fmt.Sprintf("%032x", id)), VMID: id, Name: fleet.NodeName("a", id),
			Spec: fleet.Spec{
				Pool: "a", NodeClass: "default", InstanceType: "m4x8", CapacityType: "on-demand",
				VCPUs: 4, MemoryMiB: 8192, Policy: fleet.PolicyShared, Template: "debian", Clone: fleet.CloneLinked, CPUType: "host",
			},
			Placement: fleet.Placement{Host: topology.HostID{Region: "r", Host: topology.HostName(host)}, Reason: "the only host"},
			Source:    fleet.Source{VMID: 9000, DiskInterface: "scsi0", DiskGiB: 20, Storage: "local"},
		})
	}
	for _, edit := range edits {
		edit(&f)
	}
	f.Sort()
	files, err := generator.Render(f)
	if err != nil {
		panic(err)
	}
	return files
}

// desired returns a small fleet.
func desired() generator.Files {
	return render(map[fleet.VMID]string{2000: "pve-1", 2001: "pve-1"})
}

// strangers are unmanaged files that a fleet's directory may contain: files of the engine,
// of older versions, of forges and of git.
var strangers = []string{
	"README.md", "LICENSE", "CODEOWNERS", ".github/workflows/x.yml", ".gitlab-ci.yml", ".gitattributes",
	".numaform/journal/r/pve-1.json", ".git/hooks/x.tf", "lost+found/x", "r/pve-1/.main.tf123456789", "r/pve-1/.numaform-abc.tmp",
	"r/pve-1/.terraform.lock.hcl", "r/pve-1/.terraform/modules/m/main.tf", "r/pve-1/terraform.tfstate", "r/pve-1/.terraform.tfstate.lock.info",
	"r/pve-1/terraform.tfstate.backup", "r/pve-1/errored.tfstate", "r/pve-1/" + generator.ImportFile,
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, d *store.Directory, files generator.Files) {
	t.Helper()
	if err := d.Write(files); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, d *store.Directory) generator.Files {
	t.Helper()
	files, err := d.Files()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestReadMissingFleet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fleet")
	if files := read(t, store.NewDirectory(path)); files == nil || len(files) != 0 {
		t.Errorf("got %v", files)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
}

func TestReadRefusesRegularFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, "fleet", "")
	path := filepath.Join(dir, "fleet")
	if _, err := store.NewDirectory(path).Files(); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.HasSuffix(err.Error(), "not a directory: set fleet.dir in numaform.yaml, or --out, to a directory") {
		t.Errorf("got %v", err)
	}
}

func TestWriteThenRead(t *testing.T) {
	t.Parallel()
	d := store.NewDirectory(filepath.Join(t.TempDir(), "deep", "fleet"))
	write(t, d, desired())
	if diff := cmp.Diff(desired(), read(t, d)); diff != "" {
		t.Errorf("files (-written +read):\n%s", diff)
	}
}

func TestWriteKeepsUnmanagedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range strangers {
		put(t, dir, name, name)
	}
	d := store.NewDirectory(dir)
	if files := read(t, d); len(files) != 0 {
		t.Errorf("it reads %v", files)
	}
	write(t, d, desired())
	write(t, d, render(map[fleet.VMID]string{2005: "pve-2"}))
	write(t, d, generator.Files{})
	for _, name := range strangers {
		content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil || string(content) != name {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
}

func TestWriteIsTheDifference(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := store.NewDirectory(dir)
	write(t, d, desired())
	mainFile := filepath.Join(dir, "r", "pve-1", "main.tf")
	before, err := os.Stat(mainFile)
	if err != nil {
		t.Fatal(err)
	}
	next := render(map[fleet.VMID]string{2000: "pve-1"}, func(f *fleet.Fleet) { f.VMs[0].Reason = "another" })
	maps.DeleteFunc(next, func(name string, _ []byte) bool { return store.IsModule(name) })
	write(t, d, next)

	want := desired() // with the modules, which older VMs may call
	delete(want, "r/pve-1/node-a-2001.tf")
	maps.Copy(want, next)
	if diff := cmp.Diff(want, read(t, d)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	after, err := os.Stat(mainFile)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("a file that stays as it is was written again")
	}
}

func TestWriteRefusesToLeaveTheFleet(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../evil.tf", "r/../../evil.tf", "/evil.tf", "r//x.tf", "", "r/./x.tf"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := desired()
			files[name] = []byte("evil")
			err := store.NewDirectory(filepath.Join(dir, "fleet")).Write(files)
			if err == nil || !strings.Contains(err.Error(), "outside") {
				t.Errorf("got %v", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("it wrote %v (%v)", entries, err)
			}
		})
	}
}

func TestReadRefusesLinksThatLeaveTheFleet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, dir, "secret", "s3cret")
	put(t, dir, "fleet/r/pve-1/main.tf", string(desired()["r/pve-1/main.tf"]))
	if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "fleet", "r", "pve-1", "node-a-1.tf")); err != nil {
		t.Fatal(err)
	}
	files, err := store.NewDirectory(filepath.Join(dir, "fleet")).Files()
	if err == nil || !strings.Contains(err.Error(), "node-a-1.tf") || !strings.Contains(err.Error(), "is a symbolic link: a fleet must contain regular files only: nothing was done: replace it") {
		t.Errorf("got %v, %v", files, err)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "fleet")
	unlock, err := store.NewDirectory(dir).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = store.NewDirectory(dir).Lock(t.Context())
	if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second lock: %v, want ErrLocked with the directory", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := store.NewDirectory(dir).Lock(t.Context())
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	if err := again(); err != nil {
		t.Fatal(err)
	}
	if files := read(t, store.NewDirectory(dir)); len(files) != 0 {
		t.Errorf("the lock is among the fleet's files: %v", files)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	before, after := desired(), desired()
	before["r/pve-1/node-a-2000.tf"], before["r/pve-1/node-a-2001.tf"] = []byte("one\ntwo\n"), []byte("one\n")
	delete(after, "r/pve-1/node-a-2001.tf")
	delete(after, "modules/proxmox-node/"+modules.Hash()+"/main.tf")
	after["r/pve-1/node-a-2000.tf"] = []byte("one\n2\n")
	after["r/pve-2/node-a-2002.tf"] = []byte("new\n")
	for _, name := range []string{"README.md", "main.tf", "templates/x.tf"} {
		after["modules/proxmox-node/4567/"+name] = []byte(name)
	}
	got := store.Compare(before, after)
	want := []store.Difference{
		{Path: "modules/proxmox-node/4567/", Added: true},
		{Path: "r/pve-1/node-a-2000.tf"},
		{Path: "r/pve-1/node-a-2001.tf", Removed: true},
		{Path: "r/pve-2/node-a-2002.tf", Added: true},
	}
	lines := map[string][]string{
		"r/pve-1/node-a-2000.tf": {"--- a/r/pve-1/node-a-2000.tf", "+++ b/r/pve-1/node-a-2000.tf", " one\n", "-two\n", "+2\n"},
		"r/pve-1/node-a-2001.tf": {"-one\n"},
		"r/pve-2/node-a-2002.tf": {"+new\n"},
	}
	for i := range got {
		for _, line := range lines[got[i].Path] {
			if !strings.Contains(string(got[i].Unified), line) {
				t.Errorf("%s lacks %q:\n%s", got[i].Path, line, got[i].Unified)
			}
		}
		got[i].Unified = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if same := store.Compare(before, maps.Clone(before)); len(same) != 0 {
		t.Errorf("equal fleets differ: %v", same)
	}
}
