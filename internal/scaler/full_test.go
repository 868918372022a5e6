package scaler_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// TestStorageFullOfProxmox uses full storages with the real engine and provider: for a
// full clone, and for the larger disk of a linked one. A VM that merely fails to start
// does not count.
func TestStorageFullOfProxmox(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ask   func(*fleet.Spec)
		fault pvesim.Fault
		want  bool
	}{
		"full clone": {ask: func(s *fleet.Spec) { s.Clone, s.Storage = fleet.CloneFull, "tank" }, want: true},
		"resize":     {ask: func(s *fleet.Spec) { s.DiskGiB = 20 }, want: true},
		"start": {
			ask:   func(*fleet.Spec) {},
			fault: pvesim.Fault{Method: "POST", Path: `/status/start$`, Times: 1, TaskExit: "start failed: QEMU exited with code 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, func(config *pvesim.Config) {
				local := topology.Storage{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "import"}, TotalMiB: 1 << 20, FreeMiB: 1 << 20}
				lvm := topology.Storage{Name: "local-lvm", Type: "zfspool", Active: true, Content: []string{"images"}, TotalMiB: 9 << 10, FreeMiB: 9 << 10}
				tank := topology.Storage{Name: "tank", Type: "zfspool", Active: true, Content: []string{"images"}, TotalMiB: 1 << 10, FreeMiB: 1 << 10}
				config.Hosts[0].Storages = []topology.Storage{local, lvm, tank}
			})
			if tt.fault.Path != "" {
				w.sim.AddFault(tt.fault)
			}
			wanted := on(first)
			tt.ask(&wanted.Spec)
			_, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), wanted), approveAll)
			if err == nil || scaler.StorageFull(err) != tt.want {
				t.Errorf("full: %t, want %t: %v", !tt.want, tt.want, err)
			}
		})
	}
}

// TestStorageFull checks messages of each storage, and messages that only look similar.
func TestStorageFull(t *testing.T) {
	t.Parallel()
	applying := func(text string) error {
		return fmt.Errorf("applying lab/pve-1: %w", &state.CommandError{Operation: "applying", Text: "module.workers-2000.node: VM clone: " + text})
	}
	task := func(exit string) error {
		return applying(`task "UPID:pve-1:000003E9:0000C35A:6B035B49:qmclone:9001:root@pam:" failed to complete with exit code: ` + exit)
	}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"directory":        {task("clone failed: unable to create image: qemu-img: Could not resize file: No space left on device"), true},
		"only in its log":  {task("clone failed: command '/usr/bin/qemu-img' failed: exit code 1\ntask log:\n  qemu-img: error while writing at byte 0: No space left on device\n  TASK ERROR: x"), true},
		"quota":            {task("clone failed: unable to create image: Disk quota exceeded"), true},
		"lvm":              {task(`clone failed: lvcreate 'pve/vm-1' error:   Volume group "pve" has insufficient free space (100 extents): 7680 required.`), true},
		"lvm extend":       {task(`lvextend error:   Insufficient free space: 7680 extents needed, but only 100 available`), true},
		"lvm thin":         {task(`clone failed: lvcreate 'pve/vm-1' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.`), true},
		"zfs":              {task("clone failed: zfs error: cannot create 'tank/vm-1-disk-0': out of space"), true},
		"ceph":             {task("clone failed: rbd create 'vm-1' error: rbd: create error: (28) No space left on device"), true},
		"refused request":  {applying("received an HTTP 500 response - Reason: not enough free space (1048576 < 4194304)"), true},
		"seed":             {fmt.Errorf("seeding x: %w", &proxmox.TaskError{Exit: "No space left on device"}), true},
		"seed of another":  {&proxmox.TaskError{Exit: "command 'cp' failed: exit code 1"}, false},
		"engine's disk":    {applying("Error: Failed to save state: write terraform.tfstate: no space left on device"), false},
		"numaform's disk":  {fmt.Errorf("writing the fleet: %w", syscall.ENOSPC), false},
		"planning":         {&state.CommandError{Operation: "planning", Text: `task "UPID:x" failed to complete with exit code: No space left on device`}, false},
		"a name":           {task("clone failed: no such storage 'No space left on device here'"), false},
		"outside the task": {task("got timeout\non No space left on device"), false},
		"another failure":  {task("clone failed: storage 'tank' is full of surprises"), false},
		"not an apply":     {errors.New(`task "UPID:x" failed to complete with exit code: No space left on device`), false},
		"none":             {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := scaler.StorageFull(tt.err); got != tt.want {
				t.Errorf("full: %t, want %t: %v", got, tt.want, tt.err)
			}
		})
	}
}
