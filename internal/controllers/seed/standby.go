package seed

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
)

// placeholder is the content of a standby VM's seed until the VM is woken, because Proxmox
// does not attach a missing volume (qemu-server 9.2.6, PVE/API2/Qemu.pm, create_disks). It
// contains no secrets.
var placeholder = map[string][]byte{"standby": []byte("The VM gets its join data when it is woken.\n")}

// reserve uploads a placeholder for the seed of each standby VM, and attaches it if the VM
// exists. It returns a line for each upload.
func (s *Seeder) reserve(ctx context.Context, vms []fleet.VM) ([]string, error) {
	return each(vms, uploads, func(vm *fleet.VM) (string, error) {
		region, err := s.region(vm.Host)
		if err != nil {
			return "", err
		}
		sending, cancel := context.WithTimeout(ctx, region.Upload)
		defer cancel()
		if err := region.Proxmox.UploadSeed(sending, vm.Host.Host, vm.Seed, placeholder); err != nil {
			return "", fmt.Errorf("standby vm %s on host %s: %w", vm.Name, vm.Host, err)
		}
		log.FromContext(ctx).V(1).Info("uploaded placeholder seed", logkey.VM, vm.Name, logkey.Host, vm.Host.String(), logkey.Volume, vm.Seed)
		line := fmt.Sprintf("uploaded placeholder seed %s for standby VM %s to host %s", vm.Seed, vm.Name, vm.Host)
		return line, s.attach(sending, region, vm)
	})
}
