package seed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
)

// uploads is the maximum number of seeds created concurrently; internal/proxmox has its own
// limit for each cluster.
const uploads = 8

// shutdowns is the maximum number of concurrent shutdowns. It is high because they mostly
// wait.
const shutdowns = 64

// shutdownSlack is the time allowed in addition to the guest's shutdown time.
const shutdownSlack = time.Minute

// Seed creates a token for each VM with a seed, and uploads the seed with the token,
// overwriting an existing one. A standby VM gets only a placeholder, and its seed when it is
// woken. Seed uploads no seed unless each of the other VMs has a NodeClaim and a class whose
// templates render. It returns a line for each upload, also with an error.
func (s *Seeder) Seed(ctx context.Context, vms []fleet.VM) ([]string, error) {
	seeded := slices.DeleteFunc(slices.Clone(vms), func(vm fleet.VM) bool { return vm.Seed == "" })
	standby := slices.DeleteFunc(slices.Clone(seeded), func(vm fleet.VM) bool { return !vm.Standby })
	vms = slices.DeleteFunc(seeded, func(vm fleet.VM) bool { return vm.Standby })
	reserved, err := s.reserve(ctx, standby)
	if err != nil || len(vms) == 0 {
		return reserved, err
	}
	claims, err := s.claims(ctx, vms)
	if err != nil {
		return reserved, err
	}
	classes, err := s.classes(ctx, vms)
	if err != nil {
		return reserved, err
	}
	guests := make([]guest, len(vms))
	for i := range vms {
		guests[i] = guest{vm: &vms[i], claim: claims[vms[i].Key], class: classes[vms[i].NodeClass]}
	}
	if _, err := each(guests, uploads, func(g *guest) (string, error) { return "", s.issue(ctx, g) }); err != nil {
		return reserved, err
	}
	uploaded, err := each(guests, uploads, func(g *guest) (string, error) { return s.upload(ctx, g) })
	return append(reserved, uploaded...), err
}

// classes reads the inputs for the seeds of the VMs' classes, and checks that their
// templates render.
func (s *Seeder) classes(ctx context.Context, vms []fleet.VM) (map[string]*materials, error) {
	classes := map[string]*materials{}
	for i := range vms {
		name := vms[i].NodeClass
		if classes[name] != nil {
			continue
		}
		found, err := s.class(ctx, name)
		if err != nil {
			return nil, err
		}
		if _, err := s.render(found, &vms[i], &karpv1.NodeClaim{}, jointoken.Example(found.class.TokenForm())); err != nil {
			return nil, err
		}
		classes[name] = found
	}
	return classes, nil
}

// class reads the inputs for the seeds of a class.
func (s *Seeder) class(ctx context.Context, name string) (*materials, error) {
	class := &v1alpha1.ProxmoxNodeClass{}
	err := s.config.Cluster.Client.Get(ctx, client.ObjectKey{Name: name}, class)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("ProxmoxNodeClass %s does not exist (%w): re-create it, or delete the NodePools that refer to it", name, err)
	}
	if err != nil {
		return nil, err
	}
	return s.gather(ctx, class)
}

// upload uploads the seed of one VM, which has a token, and attaches the seed if the VM
// exists.
func (s *Seeder) upload(ctx context.Context, g *guest) (string, error) {
	vm := g.vm
	region, err := s.region(vm.Host)
	if err != nil {
		return "", err
	}
	documents, err := s.render(g.class, vm, g.claim, g.token)
	if err != nil {
		return "", err
	}
	sending, cancel := context.WithTimeout(ctx, region.Upload)
	defer cancel()
	if err := region.Proxmox.UploadSeed(sending, vm.Host.Host, vm.Seed, documents); err != nil {
		return "", fmt.Errorf("vm %s on host %s: %w", vm.Name, vm.Host, err)
	}
	line := fmt.Sprintf("uploaded seed %s for VM %s to host %s", vm.Seed, vm.Name, vm.Host)
	if err := s.attach(sending, region, vm); err != nil {
		return line, err
	}
	log.FromContext(ctx).Info("uploaded seed", logkey.NodeClaim, klog.KObj(g.claim), logkey.VM, vm.Name,
		logkey.Host, vm.Host.String(), logkey.Volume, vm.Seed, logkey.Token, g.token.ID)
	return line, s.annotate(ctx, g.claim, map[string]string{AnnotationSeed: Attached})
}

// attach attaches the uploaded seed of a VM that exists, because its creation was
// interrupted.
func (s *Seeder) attach(ctx context.Context, region Region, vm *fleet.VM) error {
	err := region.Proxmox.AttachSeed(ctx, s.owned(ctx, vm), vm.Seed)
	if errors.As(err, new(*proxmox.NotOursError)) {
		return nil // a VM that is being cloned carries no marker yet: the engine attaches its seed
	}
	if err != nil {
		return fmt.Errorf("vm %s on host %s: %w", vm.Name, vm.Host, err)
	}
	return nil
}

// ShutDown requests shutdown of guests and waits for their region's configured time. A guest
// that does not shut down, or cannot be reached, is destroyed while it runs. ShutDown
// returns an error, and then nothing may be destroyed, if another guest now has one of the
// VMIDs, a VM's region is not configured or ctx ends. It returns a line for each requested
// shutdown.
func (s *Seeder) ShutDown(ctx context.Context, vms []fleet.VM) ([]string, error) {
	return each(vms, shutdowns, func(vm *fleet.VM) (string, error) {
		region, err := s.region(vm.Host)
		if err != nil {
			return "", err
		}
		asked, cancel := context.WithTimeout(ctx, region.Stop+shutdownSlack)
		defer cancel()
		shutdown, err := region.Proxmox.ShutDown(asked, s.owned(ctx, vm), region.Stop)
		if err != nil && ctx.Err() != nil {
			return "", fmt.Errorf("shutting down vm %s: %w", vm.Name, context.Cause(ctx))
		}
		if errors.As(err, new(*proxmox.NotOursError)) {
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
			return fmt.Sprintf("shut down the guest of VM %s (%d) on host %s", vm.Name, vm.VMID, vm.Host), nil
		case proxmox.ShutdownIgnored:
			logger.Info("left guest running until it is destroyed", logkey.Reason, shutdown.String())
			return fmt.Sprintf("requested shutdown of the guest of VM %s (%d) on host %s; it was still running after %s",
				vm.Name, vm.VMID, vm.Host, region.Stop), nil
		}
		return "", nil // it was not running
	})
}

// each calls do for every element of list, with at most limit concurrent calls, and
// returns the lines in the order of the list and all errors.
func each[T any](list []T, limit int, do func(*T) (string, error)) ([]string, error) {
	lines, errs := make([]string, len(list)), make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range list {
		group.Go(func() error {
			lines[i], errs[i] = do(&list[i])
			return nil
		})
	}
	_ = group.Wait() // errs contains the errors
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" }), errors.Join(errs...)
}
