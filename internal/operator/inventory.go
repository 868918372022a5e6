package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// Inventory caches snapshots of live Proxmox clusters. Guests are read again when a
// caller needs them and the snapshot is old; hardware rarely changes and is read again at
// longer intervals. If a region does not respond, its hosts remain, marked as unusable.
type Inventory struct {
	config  *Config
	clients map[topology.RegionName]*proxmox.Client
	clock   clock.PassiveClock

	// mu guards the fields below; it is held while Proxmox is read, so that concurrent
	// callers share one result.
	mu      sync.Mutex
	regions map[topology.RegionName]*view
	whole   *topology.Snapshot
	readAt  time.Time
	// failed is why no region responded; callers that waited meanwhile share it.
	failed   error
	failedAt time.Time

	// staleMu guards stale, which may be set while Proxmox is read.
	staleMu sync.Mutex
	stale   bool
}

// view is the snapshot of one region.
type view struct {
	snapshot *topology.Snapshot
	// hardwareAt is when the hardware was read.
	hardwareAt time.Time
}

// The maximum ages of guests and hardware in a snapshot.
const (
	guestsAge   = 10 * time.Second
	hardwareAge = 10 * time.Minute
	// failureAge is the delay before the next attempt if no region has ever responded.
	failureAge = 2 * time.Second
)

// NewInventory returns an empty inventory.
func NewInventory(config *Config, clients map[topology.RegionName]*proxmox.Client, clk clock.PassiveClock) *Inventory {
	return &Inventory{config: config, clients: clients, clock: clk, regions: map[topology.RegionName]*view{}}
}

// Snapshot returns a snapshot of all regions that is at most ten seconds old. Do not
// modify it. It returns an error if no region has ever responded.
func (i *Inventory) Snapshot(ctx context.Context) (*topology.Snapshot, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.whole != nil && !i.takeStale() && i.clock.Since(i.readAt) < guestsAge {
		return i.whole, nil
	}
	if i.failed != nil && i.clock.Since(i.failedAt) < failureAge {
		return nil, i.failed
	}
	merged, err := i.read(ctx)
	if err != nil {
		i.Stale() // the snapshot has not become newer
		if ctx.Err() == nil {
			i.failed, i.failedAt = err, i.clock.Now()
		}
		return nil, err
	}
	i.failed = nil
	if err := i.config.applySettings(merged); err != nil {
		return nil, err
	}
	i.whole, i.readAt = merged, i.clock.Now()
	return merged, nil
}

// Stale makes the next Snapshot read Proxmox again.
func (i *Inventory) Stale() {
	i.staleMu.Lock()
	defer i.staleMu.Unlock()
	i.stale = true
}

func (i *Inventory) takeStale() bool {
	i.staleMu.Lock()
	defer i.staleMu.Unlock()
	stale := i.stale
	i.stale = false
	return stale
}

// read reads all regions concurrently.
func (i *Inventory) read(ctx context.Context) (*topology.Snapshot, error) {
	views, errs := make([]*view, len(i.config.Clusters)), make([]error, len(i.config.Clusters))
	var wg sync.WaitGroup
	for n := range i.config.Clusters {
		region := i.config.Clusters[n].Region
		old := i.regions[region]
		wg.Go(func() { views[n], errs[n] = i.readRegion(ctx, region, old) })
	}
	wg.Wait()
	if gaveUp := context.Cause(ctx); gaveUp != nil && errors.Join(errs...) != nil {
		// The caller's context ended, which says nothing about Proxmox.
		return nil, fmt.Errorf("reading proxmox: %w", gaveUp)
	}
	merged := &topology.Snapshot{}
	for n, seen := range views {
		region := i.config.Clusters[n].Region
		if errs[n] != nil {
			log.FromContext(ctx).Error(errs[n], "reading proxmox failed", logkey.Region, region)
			if seen = unreadable(i.regions[region], errs[n]); seen == nil {
				continue
			}
		} else {
			i.regions[region] = seen
		}
		merged.Regions = append(merged.Regions, seen.snapshot.Regions...)
		merged.Hosts = append(merged.Hosts, seen.snapshot.Hosts...)
	}
	if len(merged.Hosts) == 0 {
		return nil, fmt.Errorf("reading proxmox: %w", errors.Join(errs...))
	}
	slices.SortFunc(merged.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	return merged, nil
}

// readRegion reads a region's guests, and its hardware if the snapshot is old.
func (i *Inventory) readRegion(ctx context.Context, region topology.RegionName, old *view) (*view, error) {
	client := i.clients[region]
	if old == nil || i.clock.Since(old.hardwareAt) >= hardwareAge {
		snapshot, err := client.Snapshot(ctx)
		return &view{snapshot: snapshot, hardwareAt: i.clock.Now()}, err
	}
	var hosts []topology.HostName
	for n := range old.snapshot.Hosts {
		hosts = append(hosts, old.snapshot.Hosts[n].Name)
	}
	snapshot, err := client.Refresh(ctx, old.snapshot, hosts)
	return &view{snapshot: snapshot, hardwareAt: old.hardwareAt}, err
}

// unreadable returns a region's last snapshot with all hosts marked as unusable.
func unreadable(old *view, err error) *view {
	if old == nil {
		return nil
	}
	snapshot := *old.snapshot
	snapshot.Regions, snapshot.Hosts = slices.Clone(snapshot.Regions), slices.Clone(snapshot.Hosts)
	for n := range snapshot.Regions {
		// There may be new guests that the snapshot does not list.
		snapshot.Regions[n].HidesGuests = true
	}
	for n := range snapshot.Hosts {
		if snapshot.Hosts[n].Problem == "" {
			snapshot.Hosts[n].Problem = "cannot be read now: " + err.Error()
		}
	}
	return &view{snapshot: &snapshot, hardwareAt: old.hardwareAt}
}
