package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
)

// shutdownSlack is the time allowed in addition to the guest's own.
const shutdownSlack = time.Minute

// shutdowns is the number of guests shut down concurrently, because they mostly wait.
const shutdowns = 64

// ShutDown asks guests to shut down and waits for their region's configured time. Guests
// that do not shut down, or cannot be asked, are destroyed while running. It returns an
// error only for a VMID that another guest now has: then nothing may be destroyed. It
// returns a line for each guest that was asked.
func (s *Seeder) ShutDown(ctx context.Context, vms []fleet.VM) ([]string, error) {
	return each(vms, shutdowns, func(vm *fleet.VM) (string, error) { return s.shutDown(ctx, vm) })
}

func (s *Seeder) shutDown(ctx context.Context, vm *fleet.VM) (string, error) {
	region, err := s.region(vm.Host)
	if err != nil {
		return "", err
	}
	asked, cancel := context.WithTimeout(ctx, region.Stop+shutdownSlack)
	defer cancel()
	shutdown, err := region.Proxmox.ShutDown(asked, s.owned(ctx, vm), region.Stop)
	var foreign *proxmox.NotOursError
	switch {
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("shutting down vm %s: %w", vm.Name, context.Cause(ctx))
	case errors.As(err, &foreign):
		return "", fmt.Errorf("shutting down vm %s: %w", vm.Name, err)
	}
	logger := log.FromContext(ctx).WithValues(logkey.VM, vm.Name, logkey.VMID, int(vm.VMID), logkey.Host, vm.Host.String())
	if err != nil {
		logger.Info("left guest running until it is destroyed", logkey.Reason, err.Error())
		return "", nil
	}
	switch shutdown.Outcome {
	case proxmox.ShutdownDone:
		logger.Info("shut down guest")
		return fmt.Sprintf("shut down the guest of vm %s (%d) on host %s", vm.Name, vm.VMID, vm.Host), nil
	case proxmox.ShutdownIgnored:
		logger.Info("left guest running until it is destroyed", logkey.Reason, shutdown.String())
		return fmt.Sprintf("asked the guest of vm %s (%d) on host %s to shut down; it did not within %s",
			vm.Name, vm.VMID, vm.Host, region.Stop), nil
	}
	return "", nil // it was not running
}
