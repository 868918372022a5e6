package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// Inventory caches snapshots of live Proxmox clusters, for all controllers. It reads
// everything at a long interval, and only the changes whenever a caller needs a newer
// snapshot. If a region does not respond, its hosts remain, marked as unusable.
type Inventory struct {
	config  *Config
	clients map[topology.RegionName]*proxmox.Client
	clock   clock.PassiveClock
	// deciding is called when a snapshot for a decision is requested; may be nil.
	deciding func()

	// mu guards the fields below; it is held while Proxmox is read, so that concurrent
	// callers share one result.
	mu      sync.Mutex
	regions map[topology.RegionName]*view
	whole   *topology.Snapshot
	// failed is the error if no region responded; callers that waited meanwhile share it.
	failed   error
	failedAt time.Time

	// staleMu guards stale, the regions that the next Snapshot or Recent reads; it may grow
	// while Proxmox is read.
	staleMu sync.Mutex
	stale   map[topology.RegionName]bool
	// unread are the regions that did not respond, or rejected a request, in the last read;
	// nil before the first read.
	unread atomic.Pointer[[]topology.RegionName]
}

// view is the last snapshot of a region, with the times of its reads.
type view struct {
	// snapshot is nil if the region has never responded.
	snapshot *topology.Snapshot
	// err is the error of the last read.
	err error
	// wholeAt is the time of the last complete read, readAt that of the last read, and
	// checkedAt the time when the hosts themselves were last queried.
	wholeAt, readAt, checkedAt time.Time
}

const (
	// decisionAge is the maximum age of a snapshot for a decision.
	decisionAge = 10 * time.Second
	// failureAge is the delay before the next attempt if no region has ever responded.
	failureAge = 2 * time.Second
)

// NewInventory returns an empty inventory.
func NewInventory(config *Config, clients map[topology.RegionName]*proxmox.Client, clk clock.PassiveClock) *Inventory {
	return &Inventory{config: config, clients: clients, clock: clk, regions: map[topology.RegionName]*view{}, stale: map[topology.RegionName]bool{}}
}

// Snapshot returns a snapshot of all regions for a decision: the hosts were queried within
// the last ten seconds. Do not modify it. It returns an error if no region has ever
// responded.
func (i *Inventory) Snapshot(ctx context.Context) (*topology.Snapshot, error) {
	if i.deciding != nil {
		i.deciding()
	}
	return i.refreshed(ctx, true)
}

// Recent returns a snapshot of all regions for callers that only watch Proxmox. It may be
// as old as the configuration allows, but is newer than the last apply on a host that has ended.
func (i *Inventory) Recent(ctx context.Context) (*topology.Snapshot, error) {
	return i.refreshed(ctx, false)
}

// refreshed reads the regions that are stale or too old, and returns a snapshot of all
// regions. If check is set, it queries the hosts.
func (i *Inventory) refreshed(ctx context.Context, check bool) (*topology.Snapshot, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	outdated := i.outdated(check)
	if i.whole != nil && len(outdated) == 0 {
		return i.whole, nil
	}
	if i.failed != nil && i.clock.Since(i.failedAt) < failureAge {
		i.Stale(outdated...)
		return nil, i.failed
	}
	merged, err := i.read(ctx, outdated, check)
	if err != nil {
		i.Stale(outdated...) // their snapshots have not become newer
		if ctx.Err() == nil {
			i.failed, i.failedAt = err, i.clock.Now()
		}
		return nil, err
	}
	i.failed = nil
	i.whole = nil
	if err := i.config.applySettings(merged); err != nil {
		return nil, err
	}
	i.whole = merged
	return merged, nil
}

// outdated returns the regions to read, which are no longer stale.
func (i *Inventory) outdated(check bool) []topology.RegionName {
	i.staleMu.Lock()
	defer i.staleMu.Unlock()
	// fraction returns which part of its maximum age a region has.
	fraction := func(known *view) float64 {
		if check {
			return float64(i.clock.Since(known.checkedAt)) / float64(decisionAge)
		}
		return float64(i.clock.Since(known.readAt)) / float64(i.config.Intervals.Update)
	}
	least := 1.0
	for _, known := range i.regions {
		if fraction(known) >= 1 {
			least = 0.5 // read them together: each new snapshot invalidates what was computed
		}
	}
	var regions []topology.RegionName
	for n := range i.config.Clusters {
		region := i.config.Clusters[n].Region
		if known := i.regions[region]; known == nil || i.stale[region] || fraction(known) >= least {
			delete(i.stale, region)
			regions = append(regions, region)
		}
	}
	return regions
}

// Stale makes the next Snapshot or Recent read regions again.
func (i *Inventory) Stale(regions ...topology.RegionName) {
	i.staleMu.Lock()
	defer i.staleMu.Unlock()
	for _, region := range regions {
		i.stale[region] = true
	}
}

// Unread returns the regions that did not respond, or rejected a request, when Proxmox was
// last read. It does not wait for a read in progress.
func (i *Inventory) Unread() []topology.RegionName {
	if unread := i.unread.Load(); unread != nil {
		return *unread
	}
	return nil
}

// read reads regions concurrently, and returns the snapshots of all regions. If check is set,
// it queries the hosts.
func (i *Inventory) read(ctx context.Context, regions []topology.RegionName, check bool) (*topology.Snapshot, error) {
	views := make([]view, len(regions))
	var wg sync.WaitGroup
	for n, region := range regions {
		old := view{}
		if known := i.regions[region]; known != nil {
			old = *known
		}
		wg.Go(func() { views[n] = i.readRegion(ctx, i.clients[region], old, check) })
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && slices.ContainsFunc(views, func(v view) bool { return v.err != nil }) {
		// The caller's context ended, which is not a failure of Proxmox.
		return nil, fmt.Errorf("reading proxmox: %w", cause)
	}
	for n, region := range regions {
		i.regions[region] = &views[n]
		if views[n].err != nil {
			log.FromContext(ctx).Error(views[n].err, "reading proxmox failed", logkey.Region, region)
		}
	}

	merged := &topology.Snapshot{}
	var unread []topology.RegionName
	var errs []error
	for n := range i.config.Clusters {
		region := i.config.Clusters[n].Region
		known := i.regions[region]
		snapshot := known.snapshot
		if known.err != nil {
			unread, errs = append(unread, region), append(errs, known.err)
			if snapshot == nil {
				snapshot = unreadRegion(region)
			} else {
				snapshot = unreadable(snapshot, known.err)
			}
		}
		merged.Regions = append(merged.Regions, snapshot.Regions...)
		merged.Hosts = append(merged.Hosts, snapshot.Hosts...)
	}
	i.unread.Store(&unread)
	if len(merged.Hosts) == 0 {
		return nil, fmt.Errorf("reading proxmox: %w", errors.Join(errs...))
	}
	slices.SortFunc(merged.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	return merged, nil
}

// readRegion reads a region: everything if it was not read or the last complete read is old,
// otherwise only changes. If check is set, it queries the hosts.
func (i *Inventory) readRegion(ctx context.Context, client *proxmox.Client, old view, check bool) view {
	read := old
	switch {
	case old.snapshot == nil || i.clock.Since(old.wholeAt) >= fullInterval(i.config.Intervals.Full, old.snapshot):
		if read.snapshot, read.err = client.Snapshot(ctx); read.err == nil {
			read.wholeAt = i.clock.Now()
		}
	case check:
		read.snapshot, read.err = client.Refresh(ctx, old.snapshot, nil)
	default:
		read.snapshot, read.err = client.Update(ctx, old.snapshot)
	}
	if read.err != nil {
		read.snapshot = old.snapshot
	}
	read.readAt = i.clock.Now()
	read.checkedAt = time.Time{} // the cluster's list may be older than a host's response
	if check {
		read.checkedAt = read.readAt
	}
	return read
}

// fullGuests is the number of guests up to which a region is read completely every
// intervals.full. With the default of ten minutes, this takes ten requests a minute.
const fullGuests = 100

// fullInterval returns the interval of complete readings of a region: longer in proportion to
// its guests, because each takes a request.
func fullInterval(configured time.Duration, region *topology.Snapshot) time.Duration {
	guests := 0
	for h := range region.Hosts {
		guests += len(region.Hosts[h].Guests)
	}
	return configured * time.Duration(max(fullGuests, guests)) / fullGuests
}

// unreadRegion returns the snapshot of a region that was never read: it has no hosts, and
// nothing can be placed in it.
func unreadRegion(name topology.RegionName) *topology.Snapshot {
	return &topology.Snapshot{Regions: []topology.Region{{Name: name, HidesGuests: true}}}
}

// unreadable returns a region's last snapshot with all hosts marked as unusable.
func unreadable(last *topology.Snapshot, err error) *topology.Snapshot {
	snapshot := *last
	snapshot.Regions = slices.Clone(snapshot.Regions)
	snapshot.Hosts = slices.Clone(snapshot.Hosts)
	for n := range snapshot.Regions {
		// There may be new guests that the snapshot does not list.
		snapshot.Regions[n].HidesGuests = true
	}
	for n := range snapshot.Hosts {
		if snapshot.Hosts[n].Problem == "" {
			snapshot.Hosts[n].Problem = "cannot be read now: " + err.Error()
		}
	}
	return &snapshot
}

// Unread is a region that did not respond, with the error.
type Unread struct {
	Region topology.RegionName
	Err    error
}

// Reachable reads the clusters that have a client and applies the settings file. It
// continues without clusters that do not respond, as long as one does. Their regions are in
// the snapshot without hosts, and nothing can be placed in them. Errors that a user must
// fix, such as a wrong password, are returned.
func (c *Config) Reachable(ctx context.Context, clients map[topology.RegionName]*proxmox.Client) (*topology.Snapshot, []Unread, error) {
	parts := make([]*topology.Snapshot, len(c.Clusters))
	errs := make([]error, len(c.Clusters))
	var wg sync.WaitGroup
	asked := 0
	for i := range c.Clusters {
		if client := clients[c.Clusters[i].Region]; client != nil {
			asked++
			wg.Go(func() { parts[i], errs[i] = client.Snapshot(ctx) })
		}
	}
	wg.Wait()

	merged := &topology.Snapshot{}
	var unread []Unread
	var failed error
	for i, part := range parts {
		region := c.Clusters[i].Region
		var refused *proxmox.Error
		switch {
		case errors.As(errs[i], &refused) && refused.Unreachable():
			unread = append(unread, Unread{Region: region, Err: errs[i]})
			merged.Regions = append(merged.Regions, unreadRegion(region).Regions...)
		case errs[i] != nil:
			failed = errs[i]
		case part != nil:
			merged.Regions = append(merged.Regions, part.Regions...)
			merged.Hosts = append(merged.Hosts, part.Hosts...)
		}
	}
	if failed != nil || asked > 0 && len(unread) == asked {
		return nil, nil, errors.Join(errs...)
	}
	slices.SortFunc(merged.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	return merged, unread, c.applySettings(merged)
}

// RecordedSnapshot reads a snapshot printed by `numaform topology -o json`. The settings
// file was applied when it was recorded.
func RecordedSnapshot(path string) (*topology.Snapshot, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the snapshot: %w: %s", err, readFix(err, "record one with `numaform topology -o json`"))
	}
	snapshot, err := topology.ParseSnapshot(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w: record one with `numaform topology -o json`", path, err)
	}
	return snapshot, nil
}

// defaultReservedMiB is the memory reserved for a host itself if the settings file does
// not set it, the same as in karpenter-provider-proxmox.
const defaultReservedMiB = 1024

// applySettings applies the address pools, the VMIDs and the settings file to a snapshot. A host with
// wrong settings has that as its Problem, and so has a host that its cluster does not have,
// which is added to the snapshot. If the file has an unknown region, the hosts of a region without settings
// have a Problem, because the settings may be theirs, and so have hosts without settings of
// their own whose name is probably misspelled in the file.
func (c *Config) applySettings(snapshot *topology.Snapshot) error {
	for i := range snapshot.Hosts {
		snapshot.Hosts[i].ReservedMemoryMiB = defaultReservedMiB
	}
	for i := range snapshot.Regions {
		for j := range c.Clusters {
			if c.Clusters[j].Region == snapshot.Regions[i].Name {
				snapshot.Regions[i].AddressPools, _ = c.Clusters[j].addressPools() // Load has checked them
				snapshot.Regions[i].VMIDs = topology.VMIDRange{Lower: int(c.Clusters[j].VMIDRange.Lower), Upper: int(c.Clusters[j].VMIDRange.Upper)}
			}
		}
	}
	if c.TopologyFile == "" {
		return nil
	}

	text, err := os.ReadFile(c.TopologyFile)
	if err != nil {
		return fmt.Errorf("reading topology_file: %w: %s", err, readFix(err, "correct its path, or remove the key"))
	}
	settings, err := topology.ParseSettings(text)
	if err != nil {
		return fmt.Errorf("reading topology_file %s: %w", c.TopologyFile, err)
	}
	var regions []topology.RegionName
	for i := range c.Clusters {
		regions = append(regions, c.Clusters[i].Region)
	}
	unknown := slices.DeleteFunc(settings.Regions(), func(region topology.RegionName) bool { return slices.Contains(regions, region) })
	misnamed := fmt.Sprintf("%s has settings for regions %s, but the clusters are %v: correct the region there, or add the cluster to numaform.yaml",
		c.TopologyFile, fmt.Sprintf("%q", unknown), regions)

	members := map[topology.RegionName][]topology.HostName{}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		members[host.Region] = append(members[host.Region], host.Name)
		if !host.Online {
			continue
		}
		err := settings.Apply(host)
		switch {
		case host.Problem != "":
		case err != nil:
			host.Problem = fmt.Sprintf("has wrong settings in %s: %s", c.TopologyFile, strings.ReplaceAll(err.Error(), "\n", "; "))
		case len(unknown) > 0 && !slices.Contains(settings.Regions(), host.Region):
			host.Problem = "has no settings, but " + misnamed
		}
	}
	c.addStrangers(snapshot, settings.Named(), members)
	slices.SortFunc(snapshot.Hosts, func(a, b topology.Host) int { return a.ID().Compare(b.ID()) })
	if len(unknown) > 0 && len(snapshot.Hosts) > 0 {
		snapshot.Hosts[0].Warnings = append(slices.Clone(snapshot.Hosts[0].Warnings), misnamed)
	}
	return nil
}

// addStrangers adds the hosts that have settings, but are not members of their cluster, to
// the snapshot. A member without settings of its own whose name is probably misspelled in
// the file has a Problem.
func (c *Config) addStrangers(snapshot *topology.Snapshot, named []topology.HostID, members map[topology.RegionName][]topology.HostName) {
	for _, id := range named {
		// A region that was not read may have the host.
		if len(members[id.Region]) == 0 || slices.Contains(members[id.Region], id.Host) {
			continue
		}
		stranger := topology.Host{
			Region:  id.Region,
			Name:    id.Host,
			Absent:  true,
			Problem: fmt.Sprintf("is not in the cluster, whose hosts are %v: correct its name in %s", members[id.Region], c.TopologyFile),
		}
		for i := range snapshot.Hosts {
			host := &snapshot.Hosts[i]
			if host.Region != id.Region || slices.Contains(named, host.ID()) || !misspells(id.Host, host.Name) {
				continue
			}
			stranger.Problem += fmt.Sprintf("; did you mean %s?", host.Name)
			if host.Problem == "" {
				host.Problem = fmt.Sprintf("has no settings of its own in %s, which has settings for %s, and the cluster has no such host: "+
					"correct the name there, or add settings for %s", c.TopologyFile, id.Host, host.Name)
			}
		}
		snapshot.Hosts = append(snapshot.Hosts, stranger)
	}
}

// misspells reports whether a name was probably meant to be the name of a host. A name with
// another number is rather that of a host that the cluster no longer has.
func misspells(name, host topology.HostName) bool {
	short, _, _ := strings.Cut(string(name), ".") // Proxmox uses names without a domain
	number := func(text string) string {
		return strings.Map(func(r rune) rune {
			if r < '0' || r > '9' {
				return -1
			}
			return r
		}, text)
	}
	return number(short) == number(string(host)) && Nearest(short, []string{string(host)}) != ""
}
