package seed

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/topology"
)

const (
	// sweepEvery is the interval between regular sweeps.
	sweepEvery = 10 * time.Minute
	// sweepDelay is the delay after a NodeClaim's deletion, so that one sweep covers
	// many.
	sweepDelay = 2 * time.Second
)

// Garbage deletes tokens whose NodeClaim no longer exists, and seeds that neither a VM of
// the fleet nor a NodeClaim needs: after each deletion of a NodeClaim, and periodically.
type Garbage struct {
	seeder *Seeder
	paused func() bool
}

// NewGarbage returns a controller for Register. paused reports whether numaform must not write.
func NewGarbage(seeder *Seeder, paused func() bool) *Garbage {
	return &Garbage{seeder: seeder, paused: paused}
}

// Name returns the controller's name.
func (*Garbage) Name() string { return "seed.garbage" }

// Register adds the controller to a manager.
func (g *Garbage) Register(_ context.Context, m manager.Manager) error {
	sweep := reconcile.Request{NamespacedName: types.NamespacedName{Name: g.Name()}}
	start := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(sweep)
		return nil
	})
	vanished := handler.Funcs{
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			queue.AddAfter(sweep, sweepDelay)
		},
	}
	return controllerruntime.NewControllerManagedBy(m).
		Named(g.Name()).
		WatchesRawSource(start).
		Watches(&karpv1.NodeClaim{}, vanished).
		Complete(g)
}

// Reconcile makes one sweep.
func (g *Garbage) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if g.paused() {
		return reconcile.Result{RequeueAfter: pausedDelay}, nil
	}
	known, err := g.seeder.Sweep(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !known {
		return reconcile.Result{RequeueAfter: unknownDelay}, nil
	}
	return reconcile.Result{RequeueAfter: sweepEvery}, nil
}

// Sweep deletes unused tokens and seeds. It reports false if it could not decide about
// seeds because the fleet has not been read yet.
func (s *Seeder) Sweep(ctx context.Context) (known bool, err error) {
	// List records and seeds before claims and VMs: objects created meanwhile are then only
	// in the later lists, and are not deleted.
	records, err := s.records(ctx)
	if err != nil {
		return false, err
	}
	// Before the fleet has been read, no seed can be deleted, so do not query every host.
	var seeds []stored
	var listErr error
	_, listed := s.config.VMs()
	if listed {
		seeds, listErr = s.seeds(ctx)
	}
	if len(records) == 0 && !listed {
		return false, nil // a large cluster has many NodeClaims
	}
	claims := &metav1.PartialObjectMetadataList{}
	claims.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodeClaimList"})
	if err := s.config.Cluster.Live.List(ctx, claims); err != nil {
		return false, errors.Join(listErr, fmt.Errorf("listing NodeClaims: %w", err))
	}
	vms, known := s.config.VMs()

	errs := []error{listErr}
	existing := map[types.UID]bool{}
	for i := range claims.Items {
		existing[claims.Items[i].UID] = true
	}
	for i := range records {
		record := &records[i]
		if existing[record.UID] {
			continue
		}
		if err := s.drop(ctx, record); err != nil {
			errs = append(errs, err)
			continue
		}
		log.FromContext(ctx).Info("deleted join tokens of a nodeclaim that no longer exists", logkey.NodeClaim, record.NodeClaim, logkey.VM, record.VM)
	}
	if !known || !listed {
		return false, errors.Join(errs...)
	}

	deleted := map[string]bool{} // a shared storage lists a seed on each host
	for _, seed := range seeds {
		volume := string(seed.host.Region) + "/" + seed.Volume
		if deleted[volume] || seed.needed(claims.Items, vms) {
			continue
		}
		if err := s.config.Regions[seed.host.Region].Proxmox.DeleteSeed(ctx, seed.host.Host, seed.Volume); err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", seed.host, err))
			continue
		}
		deleted[volume] = true
		log.FromContext(ctx).Info("deleted unused seed", logkey.Volume, seed.Volume, logkey.Host, seed.host.String())
		s.config.Record(ctx, []string{fmt.Sprintf("deleted seed %s from host %s: no VM uses it", seed.Volume, seed.host)})
	}
	return true, errors.Join(errs...)
}

// stored is a seed on a host.
type stored struct {
	fleet.Seed
	host topology.HostID
}

// seeds returns this cluster's seeds on all responding hosts.
func (s *Seeder) seeds(ctx context.Context) ([]stored, error) {
	snapshot, err := s.config.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing seeds: %w", err)
	}
	var found []stored
	var errs []error
	for i := range snapshot.Hosts {
		host := topology.HostID{Region: snapshot.Hosts[i].Region, Host: snapshot.Hosts[i].Name}
		region, configured := s.config.Regions[host.Region]
		if !configured || !snapshot.Hosts[i].Online || snapshot.Hosts[i].Problem != "" {
			continue
		}
		seeds, err := region.Proxmox.Seeds(ctx, host.Host)
		if err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", host, err))
			continue
		}
		for _, seed := range seeds {
			if seed.ClusterID == s.config.ClusterID {
				found = append(found, stored{Seed: seed, host: host})
			}
		}
	}
	return found, errors.Join(errs...)
}

// needed reports whether a guest may still read the seed. A shared storage lists the seed
// on every host, not only on the VM's.
func (s *stored) needed(claims []metav1.PartialObjectMetadata, vms []fleet.VM) bool {
	joined := map[string]bool{}
	for i := range claims {
		key := claims[i].Annotations[v1alpha1.AnnotationKey]
		if claims[i].Annotations[AnnotationSeed] == Removed {
			joined[key] = true
			continue
		}
		if key != "" && s.Of(s.VMID, fleet.Key(key)) {
			return true
		}
	}
	for i := range vms {
		if vms[i].Host.Region == s.host.Region && vms[i].Seed == s.Volume && !joined[string(vms[i].Key)] {
			return true
		}
	}
	return false
}
