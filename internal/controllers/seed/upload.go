package seed

import (
	"context"
	"errors"
	"fmt"
	"slices"

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

// uploads is the number of seeds created concurrently; internal/proxmox has its own limit
// for each cluster.
const uploads = 8

// Seed creates a token for each VM with a seed, and uploads the seed with the token,
// overwriting an existing one. It uploads nothing unless each of these VMs has a
// NodeClaim and a class whose templates render. It returns a line for each upload.
func (s *Seeder) Seed(ctx context.Context, vms []fleet.VM) ([]string, error) {
	vms = slices.DeleteFunc(slices.Clone(vms), func(vm fleet.VM) bool { return vm.Seed == "" })
	if len(vms) == 0 {
		return nil, nil
	}
	claims, err := s.claims(ctx, vms)
	if err != nil {
		return nil, fmt.Errorf("seeding vms: %w", err)
	}
	classes, err := s.classes(ctx, vms)
	if err != nil {
		return nil, fmt.Errorf("seeding vms: %w", err)
	}
	list := make([]wanted, len(vms))
	for i := range vms {
		list[i] = wanted{vm: &vms[i], claim: claims[vms[i].Key], class: classes[vms[i].NodeClass]}
	}
	return s.give(ctx, list)
}

// give creates tokens and uploads seeds with them.
func (s *Seeder) give(ctx context.Context, list []wanted) ([]string, error) {
	if err := s.issue(ctx, list); err != nil {
		return nil, err
	}
	return each(list, uploads, func(w *wanted) (string, error) { return s.upload(ctx, w) })
}

// classes reads the inputs for the seeds of the VMs' classes.
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
		return nil, fmt.Errorf("ProxmoxNodeClass %s is gone: nobody says what its nodes join with: %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	return s.gather(ctx, class)
}

// upload uploads the seed of one VM.
func (s *Seeder) upload(ctx context.Context, w *wanted) (string, error) {
	vm := w.vm
	region, err := s.region(vm.Host)
	if err != nil {
		return "", err
	}
	documents, err := s.render(w.class, vm, w.claim, w.token)
	if err != nil {
		return "", err
	}
	sending, cancel := context.WithTimeout(ctx, region.Upload)
	defer cancel()
	if err := region.Proxmox.UploadSeed(sending, vm.Host.Host, vm.Seed, documents.Files()); err != nil {
		return "", fmt.Errorf("seeding vm %s on host %s: %w", vm.Name, vm.Host, err)
	}
	// A VM that is being cloned carries no marker yet: the engine attaches its seed.
	err = region.Proxmox.AttachSeed(sending, s.owned(ctx, vm), vm.Seed)
	if foreign := (*proxmox.NotOursError)(nil); err != nil && !errors.As(err, &foreign) {
		return "", fmt.Errorf("seeding vm %s on host %s: %w", vm.Name, vm.Host, err)
	}
	line := fmt.Sprintf("uploaded %s for vm %s to host %s", vm.Seed, vm.Name, vm.Host)
	log.FromContext(ctx).Info("uploaded seed", logkey.NodeClaim, klog.KObj(w.claim), logkey.VM, vm.Name,
		logkey.Host, vm.Host.String(), logkey.Volume, vm.Seed, logkey.Token, w.token.ID)
	return line, s.annotate(ctx, w.claim, map[string]string{AnnotationSeed: Attached})
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
