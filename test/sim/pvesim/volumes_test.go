package pvesim_test

import (
	"fmt"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestNoRoom checks the errors of a new disk of 64 GiB, and of a grown disk, on storages
// with less space. Thin storages, which allocate only written data, accept any size while
// they have free space.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	const done = "OK"
	for _, test := range []struct {
		kind        string
		freeMiB     int64
		made, grown string
	}{
		{
			"lvm", 8 << 10,
			`lvcreate 'tank/vm-101-disk-1' error:   Volume group "tank" has insufficient free space (2046 extents): 16384 required.`,
			"error resizing volume '/dev/tank/vm-101-disk-0':   Insufficient free space: 16384 extents needed, but only 2046 available",
		},
		{
			"lvm", 12,
			"not enough free space (4194304 < 67108864)",
			"error resizing volume '/dev/tank/vm-101-disk-0':   Insufficient free space: 16384 extents needed, but only 1 available",
		},
		{"zfspool", 8 << 10, "zfs error: cannot create 'tank/vm-101-disk-1': out of space", "zfs error: cannot set property for 'tank/vm-101-disk-0': out of space"},
		{"lvmthin", 8, done, done},
		{"lvmthin", 0, "lvcreate 'pve/vm-101-disk-0' error:   Cannot create new thin volume, free space in thin pool pve/tank reached threshold.", ""},
		{"dir", 8, done, done},
		{"dir", 0, "No space left on device", ""},
	} {
		t.Run(fmt.Sprint(test.kind, " ", test.freeMiB), func(t *testing.T) {
			t.Parallel()
			cfg := cluster()
			cfg.Hosts[0].Storages = []pvesim.Storage{
				{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20},
				{Name: "tank", Type: test.kind, Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: test.freeMiB},
			}
			c := start(t, cfg)
			c.clone(101)
			const vm = "/nodes/pve-1/qemu/101"
			if test.grown != "" {
				if got := c.call("PUT", vm+"/config", "scsi1", "tank:0.0078125"); got.status != 200 { // two extents
					t.Fatal(got.reason)
				}
				if exit := c.run("PUT", vm+"/resize", "disk", "scsi1", "size", "65544M"); exit != test.grown {
					t.Errorf("error when growing: %q, want %q", exit, test.grown)
				}
			}
			if got := c.call("PUT", vm+"/config", "scsi2", "tank:64"); got.reason != test.made {
				t.Errorf("error when creating: %q, want %q", got.reason, test.made)
			}
		})
	}
}
