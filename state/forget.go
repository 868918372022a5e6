package state

import (
	"context"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// Forget takes resources out of the state and leaves what they name in Proxmox
// alone. It is for entries that name nothing of ours: a create that was cut off,
// or a VMID that is someone else's by now.
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
