package state

import (
	"context"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// Forget removes resources from the state and leaves them alone in Proxmox. It is for
// entries that do not refer to our VMs: an interrupted create, or a VMID that now belongs
// to an unmanaged guest.
func (w *Workspace) Forget(ctx context.Context, addresses ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	for _, address := range addresses {
		err := w.locking(ctx, "forgetting "+address+" in", func(ctx context.Context) error {
			_, err := w.command(ctx, "forgetting "+address+" in", true, func(tf *tfexec.Terraform) error {
				return tf.StateRm(ctx, address)
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	k, err := w.recall()
	if err != nil || k == nil {
		return err
	}
	k.Addresses = without(k.Addresses, addresses)
	return w.remember(*k)
}
