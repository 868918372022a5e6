package scaler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

func TestProposeAvoidsTakenVMIDs(t *testing.T) {
	t.Parallel()
	// VMID 2005 belongs to the fleet, 2006 to an unmanaged guest, and 2007 to a claim.
	s := newScaler(t, nil, vm(pve1, 2005))
	change, err := s.Propose(t.Context(), snapshot(stranger(2006)), []scaler.Request{request(pve2), request(pve1), request(pve2)},
		map[topology.RegionName][]fleet.VMID{"lab": {2007}, "other": {2008}})
	if err != nil {
		t.Fatal(err)
	}
	want := []fleet.VMID{2008, 2009, 2000}
	if diff := cmp.Diff(want, ids(change.Added)); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	if first := change.Added[0]; first.Host != pve1 || first.Name != "workers-2008" || first.Source.VMID != 9001 || len(first.Key) != 32 {
		t.Errorf("first vm: %+v", first)
	}
	if change.Added[1].Source.VMID != 9002 {
		t.Errorf("the template is of another host: %+v", change.Added[1].Source)
	}
	after, err := generator.Parse(change.AfterFiles)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.VMID{2005, 2008, 2000, 2009}, ids(after.VMs)); diff != "" {
		t.Errorf("VMs in the files (-want +got):\n%s", diff)
	}
	if rotations := s.Record(change, nil).Rotations; rotations["lab"] != (fleet.Rotation{Last: 2000, Round: 1}) {
		t.Errorf("rotations %+v", rotations)
	}
	if diff := cmp.Diff([]topology.HostID{pve1, pve2}, change.Hosts()); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if files, err := s.Store().Files(); err != nil || cmp.Diff(change.BeforeFiles, files) != "" {
		t.Errorf("proposing changed the files (%v)", err)
	}
}

// TestProposeDataDisks checks that data disks get slots that the template leaves free, and
// that a template with too few free slots is refused.
func TestProposeDataDisks(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil)
	world := snapshot()
	world.Hosts[0].Templates[0].Drives = []string{"ide2", "scsi1", "scsi2"}
	asked := request(pve1)
	asked.Spec.DataDisks = []fleet.DataDisk{{SizeGiB: 100, Storage: "fast"}, {SizeGiB: 10}}
	change := propose(t, s, world, asked, asked)
	want := []fleet.DataDisk{{Interface: "scsi3", SizeGiB: 100, Storage: "fast"}, {Interface: "scsi4", SizeGiB: 10, Storage: "local-lvm"}}
	after, err := generator.Parse(change.AfterFiles)
	if err != nil {
		t.Fatal(err)
	}
	for _, vm := range append(after.VMs, change.Added...) {
		if diff := cmp.Diff(want, vm.DataDisks); diff != "" {
			t.Errorf("disks of VM %d (-want +got):\n%s", vm.VMID, diff)
		}
	}
	if asked.Spec.DataDisks[0].Interface != "" {
		t.Error("the request was written into")
	}
	for i := range 30 {
		world.Hosts[0].Templates[0].Drives = append(world.Hosts[0].Templates[0].Drives, fmt.Sprintf("scsi%d", i))
	}
	var full *scaler.NoSlotError
	if _, err := s.Propose(t.Context(), world, []scaler.Request{asked}, nil); !errors.As(err, &full) || full.Free != 1 || full.Wanted != 2 {
		t.Errorf("a template that leaves one slot: %v", err)
	}
}

// TestProposeMACs checks that each VM gets its own addresses, and that its file contains
// them.
func TestProposeMACs(t *testing.T) {
	t.Parallel()
	asked := request(pve1)
	asked.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", MAC: "BC:24:11"}, {Bridge: "vmbr1"}}
	change := propose(t, newScaler(t, nil), snapshot(), asked, asked)
	after, err := generator.Parse(change.AfterFiles)
	if err != nil {
		t.Fatal(err)
	}
	one, two := after.VMs[0].Networks, after.VMs[1].Networks
	if len(one[0].MAC) != 17 || !strings.HasPrefix(one[0].MAC, "BC:24:11:") || one[0].MAC == two[0].MAC || one[1].MAC != "" {
		t.Errorf("networks %+v and %+v", one, two)
	}
}

// TestReservedVMsHaveMACs checks that Ensure completes prefixes of MAC addresses, as
// Propose does: the generator refuses a prefix alone.
func TestReservedVMsHaveMACs(t *testing.T) {
	t.Parallel()
	writer := scaler.NewWriter(newScaler(t, nil), scaler.WriterConfig{
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return snapshot(), nil },
	})
	writer.NextBatch(t)
	asked := request(pve1)
	asked.Spec.Networks = []fleet.Network{{Bridge: "vmbr0", MAC: "BC:24:11"}}
	vms, err := writer.Ensure(t.Context(), []scaler.Request{asked, asked})
	if err != nil {
		t.Fatal(err)
	}
	one, two := vms[0].Networks[0].MAC, vms[1].Networks[0].MAC
	if len(one) != 17 || !strings.HasPrefix(one, "BC:24:11:") || one == two {
		t.Errorf("MAC addresses %q and %q", one, two)
	}
}

// TestProposeWithTimeouts checks that only new VMs get the configured timeouts.
func TestProposeWithTimeouts(t *testing.T) {
	t.Parallel()
	want := fleet.Timeouts{Create: 5400, Start: 600}
	s := newScaler(t, func(c *scaler.Config) { c.Regions[0].Timeouts = want }, vm(pve1, 2005))
	change := propose(t, s, snapshot(), request(pve1))
	after, err := generator.Parse(change.AfterFiles)
	if err != nil {
		t.Fatal(err)
	}
	for _, vm := range after.VMs {
		if (vm.VMID == 2005) != (vm.Timeouts == fleet.Timeouts{}) || (vm.VMID != 2005) != (vm.Timeouts == want) {
			t.Errorf("vm %d has timeouts %+v", vm.VMID, vm.Timeouts)
		}
	}
}

func TestProposeIsTheSameTwice(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil)
	one := propose(t, s, snapshot(), request(pve2), request(pve1))
	two := propose(t, s, snapshot(), request(pve1), request(pve2))
	if diff := cmp.Diff(one.AfterFiles, two.AfterFiles); diff != "" {
		t.Errorf("files differ:\n%s", diff)
	}
}

func TestProposeOnARangeThatIsFull(t *testing.T) {
	t.Parallel()
	s := newScaler(t, func(c *scaler.Config) { c.Regions[0].VMIDs.Upper = 2001 })
	_, err := s.Propose(t.Context(), snapshot(), []scaler.Request{request(pve1), request(pve1), request(pve1)}, nil)
	if !as[*fleet.RangeExhaustedError](err) {
		t.Errorf("got %v", err)
	}
}

// TestVMIDsOfClass checks that VMs of a class with a range get its VMIDs, whatever the region's
// rotation, that ranges may overlap, that a freed VMID is used again last, and the error when
// the range is full or not in the region's range.
func TestVMIDsOfClass(t *testing.T) {
	t.Parallel()
	of := func(lower, upper fleet.VMID) scaler.Request {
		r := request(pve1)
		r.Spec.NodeClass, r.Spec.VMIDs = "team", fleet.VMIDRange{Lower: lower, Upper: upper}
		return r
	}
	s := newScaler(t, func(c *scaler.Config) {
		c.Regions[0].VMIDs.Upper = 2999
		c.ClassVMIDs = func(context.Context) ([]fleet.VMIDRange, error) {
			return []fleet.VMIDRange{{Lower: 2001, Upper: 2003}}, nil
		}
	}, vm(pve1, 2000))
	// The request without a range gets no VMID of another class.
	change := propose(t, s, snapshot(stranger(2101)), of(2100, 2103), request(pve1), of(2100, 2103), of(2102, 2110))
	if diff := cmp.Diff([]fleet.VMID{2100, 2004, 2102, 2103}, ids(change.Added)); diff != "" {
		t.Errorf("VMIDs (-want +got):\n%s", diff)
	}
	begin(t, s, change, nil)
	removal, err := s.ProposeRemoval(t.Context(), snapshot(stranger(2101)), []string{"workers-2100"})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, removal, nil)
	next := propose(t, s, snapshot(), of(2100, 2103))
	if diff := cmp.Diff([]fleet.VMID{2100}, ids(next.Added)); diff != "" {
		t.Errorf("VMIDs of the next round (-want +got):\n%s", diff)
	}
	if next.Added[0].Key == change.Added[0].Key {
		t.Error("the key came back")
	}
	if next = propose(t, s, snapshot(), of(2102, 2110)); next.Added[0].VMID != 2104 {
		t.Errorf("got %d, want the VMID after the last one", next.Added[0].VMID)
	}

	_, err = s.Propose(t.Context(), snapshot(stranger(2101)), []scaler.Request{of(2101, 2103)}, nil)
	if want := `region lab: all VMIDs from 2101 to 2103 are in use: widen spec.vmidRange of ProxmoxNodeClass "team", or remove VMs`; err == nil || err.Error() != want {
		t.Errorf("full: got %v, want %s", err, want)
	}
	_, err = s.Propose(t.Context(), snapshot(), []scaler.Request{of(2990, 3000)}, nil)
	if want := `ProxmoxNodeClass "team": spec.vmidRange 2990 to 3000 is not within vmid_range 2000 to 2999 of region lab: correct it, or widen vmid_range in numaform.yaml`; err == nil || err.Error() != want {
		t.Errorf("outside: got %v, want %s", err, want)
	}
}

func TestProposeRenumbersLostVMs(t *testing.T) {
	t.Parallel()
	made, unmade, lost := vm(pve1, 2000), vm(pve1, 2001), vm(pve1, 2002)
	other := stranger(2002)
	other.ClusterID, other.Key = "prod", strings.Repeat("f", 32)
	moved := vm(pve1, 2003)
	away := guestOf(moved)
	away.VMID = 150
	for _, tt := range []struct {
		name   string
		vms    []fleet.VM
		guests []topology.Guest
		down   bool
		lost   []fleet.VMID
		kept   []fleet.VMID
	}{
		{"nothing is lost", []fleet.VM{made, unmade}, []topology.Guest{guestOf(made)}, false, nil, []fleet.VMID{2000, 2001}},
		{"stranger", []fleet.VM{made, lost}, []topology.Guest{guestOf(made), stranger(2002)}, false, []fleet.VMID{2002}, []fleet.VMID{2000}},
		{"another numaform", []fleet.VM{lost}, []topology.Guest{other}, false, []fleet.VMID{2002}, nil},
		{"alive under another number", []fleet.VM{moved}, []topology.Guest{stranger(2003), away}, false, nil, []fleet.VMID{2003}},
		{"host is down", []fleet.VM{made, unmade}, []topology.Guest{guestOf(made)}, true, nil, []fleet.VMID{2000, 2001}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			seen := snapshot(tt.guests...)
			if tt.down {
				seen = down(seen)
			}
			change := propose(t, newScaler(t, nil, tt.vms...), seen)
			if diff := cmp.Diff(tt.lost, ids(change.Renumbered)); diff != "" {
				t.Errorf("renumbered (-want +got):\n%s", diff)
			}
			if len(change.Added) != len(tt.lost) {
				t.Fatalf("added %v", ids(change.Added))
			}
			want := append(tt.kept, ids(change.Added)...)
			if diff := cmp.Diff(want, ids(change.After.VMs)); diff != "" {
				t.Errorf("fleet (-want +got):\n%s", diff)
			}
			for i, vm := range change.Added {
				if old := change.Renumbered[i]; vm.VMID == old.VMID || vm.Key == old.Key || vm.Host != old.Host {
					t.Errorf("successor %+v of %+v", vm, old)
				}
			}
		})
	}
}

func TestProposeRefuses(t *testing.T) {
	t.Parallel()
	unknown := topology.HostID{Region: "attic", Host: "pve-9"}
	stale := request(pve1)
	stale.Spec.Template = "debian-11"
	for _, tt := range []struct {
		name    string
		edit    func(*scaler.Config)
		request scaler.Request
		want    []string
	}{
		{"unknown region", nil, request(unknown), []string{"region attic is not", "clusters in numaform.yaml"}},
		{"unknown host", nil, request(topology.HostID{Region: "lab", Host: "pve-9"}), []string{"lab/pve-9", "plan again"}},
		{"stale template", nil, stale, []string{"lab/pve-1", `no template "debian-11"`, "create the template there"}},
		{"other cluster", func(c *scaler.Config) { c.ClusterID = "prod" }, request(pve1), []string{`"test"`, `"prod"`, "numaform.yaml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := newScaler(t, nil, vm(pve1, 2000)).Store()
			s := newScaler(t, func(c *scaler.Config) {
				c.Store = dir
				if tt.edit != nil {
					tt.edit(c)
				}
			})
			_, err := s.Propose(t.Context(), snapshot(), []scaler.Request{tt.request}, nil)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestProposeRemoval(t *testing.T) {
	t.Parallel()
	s := newScaler(t, nil, vm(pve1, 2000), vm(pve2, 2001))
	change, err := s.ProposeRemoval(t.Context(), snapshot(), []string{"workers-2001", "workers-2001"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fleet.VMID{2001}, ids(change.Removed)); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	got := map[string]bool{}
	for _, difference := range change.Differences() {
		got[difference.Path] = difference.Removed
	}
	if diff := cmp.Diff(map[string]bool{"lab/pve-2/node-workers-2001.tf": true}, got); diff != "" {
		t.Errorf("the diff is not one deleted file (-want +got):\n%s", diff)
	}
	if change.Empty() || cmp.Diff([]topology.HostID{pve2}, change.Hosts()) != "" {
		t.Errorf("hosts %v", change.Hosts())
	}
	_, err = s.ProposeRemoval(t.Context(), snapshot(), []string{"workers-2000", "b", "a"})
	if !as[*scaler.UnknownVMError](err) || !strings.HasPrefix(err.Error(), "b, a: not in the fleet") {
		t.Errorf("got %v", err)
	}
	if _, err := s.ProposeRemoval(t.Context(), snapshot(), nil); err == nil {
		t.Error("removing nothing is no error")
	}
}

// TestProposeKeepsGitignore proposes VMs for a directory with its own .gitignore: its lines
// remain, missing ones are added once.
func TestProposeKeepsGitignore(t *testing.T) {
	t.Parallel()
	fresh := string(propose(t, newScaler(t, nil), snapshot()).AfterFiles[".gitignore"])
	for _, line := range []string{".numaform/", ".terraform/", "*.tfstate"} {
		if !strings.Contains("\n"+fresh, "\n"+line+"\n") {
			t.Errorf("git would see %s:\n%s", line, fresh)
		}
	}
	s := newScaler(t, nil, vm(pve1, 2000))
	theirs := "*.swp\n.terraform/\n# ours"
	files, err := s.Store().Files()
	if err != nil {
		t.Fatal(err)
	}
	files[".gitignore"] = []byte(theirs)
	if err := s.Store().Write(files); err != nil {
		t.Fatal(err)
	}
	change := propose(t, s, snapshot(), request(pve1))
	got := string(change.AfterFiles[".gitignore"])
	if !strings.HasPrefix(got, theirs+"\n.numaform/\n") || strings.Count(got, ".terraform/\n") != 1 {
		t.Errorf("got\n%s", got)
	}
	if err := s.Store().Write(change.AfterFiles); err != nil {
		t.Fatal(err)
	}
	for _, difference := range propose(t, s, snapshot(), request(pve1)).Differences() {
		if difference.Path == ".gitignore" {
			t.Errorf("it changes again:\n%s", difference.Unified)
		}
	}
}

func TestWarnsOfGuestsThatNoFileWants(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	s := newScaler(t, nil)
	if warnings := propose(t, s, snapshot(guestOf(a))).Warnings(); len(warnings) != 1 {
		t.Errorf("warnings %q, want one", warnings)
	}
	s.Begin(t, pve1, a)
	if warnings := propose(t, s, snapshot(guestOf(a))).Warnings(); len(warnings) != 0 {
		t.Errorf("warnings %q of a VM whose removal is under way", warnings)
	}
}

// TestWarnsOfClones checks that a clone of a VM, whose description has the VM's marker, is
// reported, and not the VM itself.
func TestWarnsOfClones(t *testing.T) {
	t.Parallel()
	a := vm(pve1, 2000)
	clone := guestOf(a)
	clone.VMID, clone.Name, clone.Running = 150, "Copy-of-VM", false
	warnings := propose(t, newScaler(t, nil, a), snapshot(guestOf(a), clone)).Warnings()
	if len(warnings) != 1 || !strings.Contains(warnings[0], "guest 150 (Copy-of-VM) on lab/pve-1 carries the marker of "+a.Name) {
		t.Errorf("warnings %q, want one of the clone", warnings)
	}
}

// TestEmpty checks that a change with requests of one or two kinds is not empty, and that
// one without requests is.
func TestEmpty(t *testing.T) {
	t.Parallel()
	one := []fleet.VM{vm(pve1, 2000)}
	for _, change := range []*scaler.Change{
		{Added: one}, {Removed: one}, {Repaired: one}, {Added: one, Repaired: one}, {Removed: one, Repaired: one}, {Added: one, Removed: one},
	} {
		if change.Empty() {
			t.Errorf("%+v is empty", change)
		}
	}
	if change := (&scaler.Change{}); !change.Empty() {
		t.Error("a change of nothing is not empty")
	}
}
