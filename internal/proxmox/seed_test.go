package proxmox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kdomanski/iso9660"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

const seedKey fleet.Key = "0123456789abcdef0123456789abcdef"

// seedVolume is our VM's seed volume.
const seedVolume = "local:iso/numaform-prod-2001-01234567.iso"

// documents returns the files of a seed.
func documents() map[string][]byte {
	return map[string][]byte{
		"user-data":      []byte("#cloud-config\n" + strings.Repeat("#", 5000) + "\n"),
		"meta-data":      []byte("instance-id: a\n"),
		"network-config": []byte("version: 2\n"),
	}
}

// ours returns the identity of VM 2001 on the simulated hosts.
func ours() proxmox.Owned {
	return proxmox.Owned{Host: "pve-1", VMID: 2001, ClusterID: "prod", Key: seedKey}
}

// simulateOurs starts a Proxmox with a VM of ours, one of another numaform installation
// and an unmanaged one.
func simulateOurs(t *testing.T, edit func(*pvesim.Config)) (*pvesim.Server, *proxmox.Client) {
	t.Helper()
	guest := func(id int, cluster string) topology.Guest {
		g := topology.Guest{VMID: id, Name: fmt.Sprintf("g%d", id), Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 1024}
		if cluster != "" {
			g.ClusterID, g.Key = cluster, string(seedKey)
		}
		return g
	}
	cfg := pvesim.Config{Hosts: []topology.Host{
		{Region: "r1", Name: "pve-1", Online: true, Guests: []topology.Guest{guest(2001, "prod"), guest(2002, "test"), guest(2003, "")}},
		{Region: "r1", Name: "pve-2", Online: true},
	}}
	if edit != nil {
		edit(&cfg)
	}
	server, client := simulate(t, cfg)
	return server, newClient(t, client)
}

// readISO reads an image with a reader that is independent of its writer, but recognizes
// Rock Ridge only by the name of its first version. Linux does not check the name.
func readISO(t *testing.T, image []byte) (label string, files map[string][]byte) {
	t.Helper()
	image = bytes.ReplaceAll(image, []byte("IEEE_P1282"), []byte("RRIP_1991A"))
	disc, err := iso9660.OpenImage(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	if label, err = disc.Label(); err != nil {
		t.Fatal(err)
	}
	root, err := disc.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for _, child := range children {
		content, err := io.ReadAll(child.Reader())
		if err != nil {
			t.Fatal(err)
		}
		files[child.Name()] = content
	}
	return label, files
}

func TestUploadSeed(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	for name, edit := range map[string]func(*proxmox.Config){
		"token": nil,
		"ticket": func(c *proxmox.Config) {
			c.TokenID, c.TokenSecret, c.Username, c.Password = "", "", "root@pam", "secret"
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, cfg := simulate(t, pvesim.Config{
				Hosts:        []topology.Host{{Region: "r1", Name: "pve-1", Online: true}, {Region: "r1", Name: "pve-2", Online: true}},
				RootPassword: "secret",
			})
			if edit != nil {
				edit(&cfg)
			}
			client := newClient(t, cfg)
			// The second upload replaces the first.
			for _, files := range []map[string][]byte{{"old": []byte("old")}, documents()} {
				if err := client.UploadSeed(t.Context(), "pve-2", seedVolume, files); err != nil {
					t.Fatal(err)
				}
			}
			image, ok := server.VolumeData("pve-2", seedVolume)
			if !ok {
				t.Fatalf("volumes %v", server.Volumes("pve-2"))
			}
			label, files := readISO(t, image)
			if diff := cmp.Diff(documents(), files); diff != "" || strings.TrimRight(label, "\x00 ") != "cidata" || len(image)%2048 != 0 {
				t.Errorf("label %q, %d bytes, files (-want +got):\n%s", label, len(image), diff)
			}
			// Windows, and other Joliet readers, find the names in UTF-16.
			if !bytes.Contains(image, []byte("\x00u\x00s\x00e\x00r\x00-\x00d\x00a\x00t\x00a")) {
				t.Error("the image has no Joliet names")
			}
		})
	}
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind in %s: %v, %v", temporary, left, err)
	}
}

// TestUploadSeedFails checks the messages of failed uploads.
func TestUploadSeedFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		volume string
		files  map[string][]byte
		prep   func(*pvesim.Server)
		edit   func(*pvesim.Config)
		want   string
	}{
		"another's file": {volume: "local:iso/debian.iso", want: "so it was not changed"},
		"no such storage": {
			volume: "nfs:iso/numaform-prod-2001-01234567.iso", want: "writing /nodes/pve-1/storage/nfs/upload of region r1",
		},
		"storage without iso": {
			volume: "local-lvm:iso/numaform-prod-2001-01234567.iso", want: "uploading seed local-lvm:iso/numaform-prod-2001-01234567.iso: writing",
		},
		"no privilege": {
			edit: func(cfg *pvesim.Config) {
				cfg.Roles = []pvesim.Role{{Name: "Audit", Privileges: []string{"Sys.Audit", "VM.Audit", "Datastore.Audit"}}}
				cfg.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
				cfg.ACL = []pvesim.ACL{{Path: "/", Subject: "numaform@pve", Role: "Audit"}}
			},
			want: "grant Datastore.AllocateTemplate on /storage/local: pveum acl modify /storage/local --roles NumaformSeed --users",
		},
		"task fails": {
			prep: func(s *pvesim.Server) {
				s.AddFault(pvesim.Fault{Method: "POST", Path: "/upload$", TaskExit: "No space left on device"})
			},
			want: `task imgcopy on host pve-1 of region r1 ended with "No space left on device"`,
		},
		"too large": {files: map[string][]byte{"user-data": make([]byte, 5<<20)}, want: "shorten them to at most 4194304"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := simulateOurs(t, c.edit)
			if c.prep != nil {
				c.prep(server)
			}
			if c.volume == "" {
				c.volume = seedVolume
			}
			if c.files == nil {
				c.files = documents()
			}
			before := server.Volumes("pve-1")
			err := client.UploadSeed(t.Context(), "pve-1", c.volume, c.files)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if diff := cmp.Diff(before, server.Volumes("pve-1")); diff != "" {
				t.Errorf("volumes (-before +after):\n%s", diff)
			}
		})
	}
}

// TestUploadSeedIsCancelled checks that a canceled context ends both the request and the
// wait for the task.
func TestUploadSeedIsCancelled(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"while it is sent":      {Method: "POST", Path: "/upload$", Hang: true},
		"while it is looked at": {Method: "GET", Path: "/tasks/.*/status$", Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, client := simulateOurs(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			fault.Hit = func(context.Context, pvesim.Call) { cancel() }
			server.AddFault(fault)
			began := time.Now()
			err := client.UploadSeed(ctx, "pve-1", seedVolume, documents())
			// Requests themselves time out after 40 s.
			if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 20*time.Second {
				t.Errorf("after %s: %v", took, err)
			}
		})
	}
}

// attached uploads the seed and attaches it to our VM.
func attached(t *testing.T, server *pvesim.Server, client *proxmox.Client) {
	t.Helper()
	if err := client.UploadSeed(t.Context(), "pve-1", seedVolume, documents()); err != nil {
		t.Fatal(err)
	}
	guest, _ := server.Guest(2001)
	config := maps.Clone(guest.Config)
	config["ide2"] = seedVolume + ",media=cdrom"
	if err := server.PutGuest(pvesim.Guest{VMID: 2001, Host: "pve-1", Config: config, Running: true}); err != nil {
		t.Fatal(err)
	}
}

func drive(t *testing.T, server *pvesim.Server, vmid int) string {
	t.Helper()
	guest, ok := server.Guest(vmid)
	if !ok {
		t.Fatalf("no VM %d", vmid)
	}
	return guest.Config["ide2"]
}

func TestDetachAndDeleteSeed(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	attached(t, server, client)
	if got := drive(t, server, 2001); !strings.HasPrefix(got, seedVolume+",") {
		t.Fatalf("ide2 is %q", got)
	}
	for range 2 { // the second time does nothing
		if err := client.DetachSeed(t.Context(), ours(), seedVolume); err != nil {
			t.Fatal(err)
		}
		if got := drive(t, server, 2001); got != "none,media=cdrom" {
			t.Errorf("ide2 is %q", got)
		}
		if err := client.DeleteSeed(t.Context(), "pve-1", seedVolume); err != nil {
			t.Fatal(err)
		}
		if volumes := server.Volumes("pve-1"); slices.Contains(volumes, seedVolume) {
			t.Errorf("volumes %v", volumes)
		}
	}
}

// TestAttachSeed checks that the seed is attached to the drive of a VM that lacks it, and
// no other VM is changed.
func TestAttachSeed(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	attached(t, server, client)
	if err := client.DetachSeed(t.Context(), ours(), seedVolume); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time does nothing
		if err := client.AttachSeed(t.Context(), ours(), seedVolume); err != nil {
			t.Fatal(err)
		}
		if got := drive(t, server, 2001); !strings.HasPrefix(got, seedVolume+",") {
			t.Errorf("ide2 is %q", got)
		}
	}
	before := server.Guests()
	gone, foreign := ours(), ours()
	gone.VMID, foreign.VMID = 2009, 2002
	var notOurs *proxmox.NotOursError
	if err := client.AttachSeed(t.Context(), gone, seedVolume); err != nil {
		t.Errorf("to a missing VM: %v", err)
	}
	if err := client.AttachSeed(t.Context(), foreign, seedVolume); !errors.As(err, &notOurs) {
		t.Errorf("to a VM of another owner: %v", err)
	}
	if diff := cmp.Diff(before, server.Guests()); diff != "" {
		t.Errorf("guests (-before +after):\n%s", diff)
	}
}

// TestDetachSeedLeavesOthersAlone checks that DetachSeed, ShutDown and Exec refuse VMs that
// are not ours, and that DetachSeed does nothing if the VM is missing or has another disc
// in the drive.
func TestDetachSeedLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	attached(t, server, client)
	before := server.Guests()
	edit := func(change func(*proxmox.Owned)) proxmox.Owned {
		vm := ours()
		change(&vm)
		return vm
	}
	for name, vm := range map[string]proxmox.Owned{
		"another numaform's": edit(func(o *proxmox.Owned) { o.VMID = 2002 }),
		"nobody's":           edit(func(o *proxmox.Owned) { o.VMID = 2003 }),
		"another key":        edit(func(o *proxmox.Owned) { o.Key = "f" + seedKey[1:] }),
		"another cluster":    edit(func(o *proxmox.Owned) { o.ClusterID = "test" }),
	} {
		var notOurs *proxmox.NotOursError
		if err := client.DetachSeed(t.Context(), vm, seedVolume); !errors.As(err, &notOurs) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := client.ShutDown(t.Context(), vm, time.Second); !errors.As(err, &notOurs) {
			t.Errorf("shutting down %s: %v", name, err)
		}
		if err := client.Exec(t.Context(), vm, proxmox.Command{Args: []string{"true"}}); !errors.As(err, &notOurs) {
			t.Errorf("running in %s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"gone":         client.DetachSeed(t.Context(), edit(func(o *proxmox.Owned) { o.VMID = 2009 }), seedVolume),
		"another disc": client.DetachSeed(t.Context(), ours(), "local:iso/numaform-prod-2001-89abcdef.iso"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(before, server.Guests()); diff != "" {
		t.Errorf("guests (-before +after):\n%s", diff)
	}
}

func TestDeleteSeedLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	if err := server.PutISO("pve-1", "local", "debian.iso", nil); err != nil {
		t.Fatal(err)
	}
	before := server.Volumes("pve-1")
	for _, volume := range []string{"local:iso/debian.iso", "local-lvm:vm-2003-disk-0", "local:iso/../../etc/passwd", ""} {
		var name *proxmox.SeedNameError
		if err := client.DeleteSeed(t.Context(), "pve-1", volume); !errors.As(err, &name) {
			t.Errorf("%q: %v", volume, err)
		}
	}
	if diff := cmp.Diff(before, server.Volumes("pve-1")); diff != "" {
		t.Errorf("volumes (-before +after):\n%s", diff)
	}
}

func TestSeeds(t *testing.T) {
	t.Parallel()
	server, client := simulateOurs(t, nil)
	attached(t, server, client)
	for _, name := range []string{"debian.iso", "numaform-test-2002-89abcdef.iso", "numaform-notes.iso"} {
		if err := server.PutISO("pve-1", "local", name, nil); err != nil {
			t.Fatal(err)
		}
	}
	seeds, err := client.Seeds(t.Context(), "pve-1")
	if err != nil {
		t.Fatal(err)
	}
	want := []fleet.Seed{
		{Volume: seedVolume, Storage: "local", ClusterID: "prod", VMID: 2001, Generation: "01234567"},
		{Volume: "local:iso/numaform-test-2002-89abcdef.iso", Storage: "local", ClusterID: "test", VMID: 2002, Generation: "89abcdef"},
	}
	if diff := cmp.Diff(want, seeds); diff != "" {
		t.Errorf("seeds (-want +got):\n%s", diff)
	}
	if seeds, err = client.Seeds(t.Context(), "pve-2"); err != nil || len(seeds) > 0 {
		t.Errorf("on another host: %v, %v", seeds, err)
	}
	server.SetHostOnline("pve-2", false)
	if _, err = client.Seeds(t.Context(), "pve-2"); err == nil {
		t.Error("a host that is down returned no error")
	}
}
