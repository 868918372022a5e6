package seed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
)

func TestShutDown(t *testing.T) {
	w := newWorld(t)
	obeys, deaf, off, absent := w.vm(2101, "pve-1"), w.vm(2102, "pve-1"), w.vm(2103, "pve-2"), w.vm(2104, "pve-2")
	w.boot(obeys, true)
	w.boot(deaf, true)
	w.boot(off, false)
	w.proxmox.SetDeaf(int(deaf.VMID), true)
	written, err := w.seeder().ShutDown(t.Context(), []fleet.VM{obeys, deaf, off, absent})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"shut down the guest of VM workers-2101 (2101) on host homelab/pve-1",
		"requested shutdown of the guest of VM workers-2102 (2102) on host homelab/pve-1; it was still running after 1s",
	}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	for vm, running := range map[*fleet.VM]bool{&obeys: false, &deaf: true} {
		if guest, _ := w.proxmox.Guest(int(vm.VMID)); guest.Running != running {
			t.Errorf("vm %d runs: %v, want %v", vm.VMID, guest.Running, running)
		}
	}
}

// TestShutDownOfAnotherVM checks that a guest with a reused VMID is not shut down, and that
// ShutDown returns an error, so that nothing is destroyed.
func TestShutDownOfAnotherVM(t *testing.T) {
	w := newWorld(t)
	mine, other := w.vm(2105, "pve-1"), w.vm(2106, "pve-1")
	w.boot(mine, true)
	w.boot(other, true)
	mistaken := other
	mistaken.Key = "ffffffffffffffffffffffffffffffff"
	written, err := w.seeder().ShutDown(t.Context(), []fleet.VM{mistaken, mine})
	var foreign *proxmox.NotOursError
	if !errors.As(err, &foreign) || len(written) != 1 {
		t.Errorf("ShutDown: %v, %v, want a *NotOursError and the line of the other", written, err)
	}
	if guest, _ := w.proxmox.Guest(2106); !guest.Running {
		t.Error("the other VM was shut down")
	}
}

// TestShutDownElsewhere checks that a VM that was migrated to another host is shut down,
// and that a VM on a host that is down is skipped. If the context is canceled, ShutDown
// returns the context's error instead of skipping the VM.
func TestShutDownElsewhere(t *testing.T) {
	w := newWorld(t)
	moved, dark := w.vm(2107, "pve-1"), w.vm(2108, "pve-2")
	there := moved
	there.Host.Host = "pve-2"
	w.boot(there, true)
	if written, err := w.seeder().ShutDown(t.Context(), []fleet.VM{moved}); err != nil || len(written) != 1 {
		t.Errorf("moved VM: %v, %v", written, err)
	}
	w.boot(dark, true)
	w.proxmox.SetHostOnline("pve-2", false)
	if written, err := w.seeder().ShutDown(t.Context(), []fleet.VM{dark}); err != nil || len(written) != 0 {
		t.Errorf("VM on a host that is down: %v, %v, want nothing: the destroy will say it", written, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.seeder().ShutDown(ctx, []fleet.VM{dark}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v, want context.Canceled", err)
	}
}
