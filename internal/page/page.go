// Package page is the web page of the controller: the fleet, the CPU maps of hosts, changes
// with their diffs, the history, and what waits. It only shows: it answers no request but GET
// and HEAD, has no JavaScript, and loads nothing from elsewhere. Only users that the API server
// authenticates and authorizes can read it. Start at New.
package page

import (
	"context"
	"html/template"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/topology"
)

const (
	// fresh is the minimum age of the data before it is read again. All readers share it.
	fresh = 15 * time.Second
	// duty limits the share of the time in which data is read: a read that takes long is
	// repeated less often.
	duty = 10
	// usable is the age up to which older data is shown while new data is read.
	usable = 2 * time.Minute
	// patience is how long a request waits for new data.
	patience = 10 * time.Second
	// readTimeout limits the time of one read.
	readTimeout = 2 * time.Minute
)

// Config is what the page shows, and to whom.
type Config struct {
	// Read reads the data. It is called at most once at a time, and however many requests
	// there are, at most every 15 seconds.
	Read func(ctx context.Context) *Data
	// Plan reads a ScalePlan with its diff, by its name. If it does not exist, it returns an
	// error for which apierrors.IsNotFound is true.
	Plan func(ctx context.Context, name string) (*v1alpha1.ScalePlan, error)
	// Access decides who may read the page.
	Access *Access
	// Redact removes secrets from a text.
	Redact func(text string) string
	// Version is numaform's version.
	Version string
	Clock   clock.PassiveClock
}

// Data is a fleet at one moment. It is not changed after it was read.
type Data struct {
	// Status is the status of the fleet, as numaform status prints it.
	Status *status.Report
	// Fleet and Snapshot are what Status was derived from, for the CPU maps.
	Fleet    *fleet.Fleet
	Snapshot *topology.Snapshot
	// History are the changes of the last HistoryDays days, oldest first.
	History []audit.Entry
	// Plans are the ScalePlans without their diffs, oldest first.
	Plans []v1alpha1.ScalePlan
	// Waits are the NodePools whose new nodes wait.
	Waits []Wait
	// Paused is set while numaform starts no changes, and PausedBy is who requested that, if
	// it is known.
	Paused   bool
	PausedBy string
	// Evacuated are the hosts from which nodes are moved away.
	Evacuated []topology.HostID
	// Unread describes what could not be read, one sentence each.
	Unread []string

	// at is when the data was read, and took how long that took.
	at   time.Time
	took time.Duration
	// vms are the VMs of Status by host, and hosts the hosts by ID.
	vms   map[topology.HostID][]*status.VM
	hosts map[topology.HostID]*status.Host
}

// HistoryDays is the period of Data.History.
const HistoryDays = 30

// Wait is a NodePool whose new nodes wait.
type Wait struct {
	NodePool, Reason, Message string
	Since                     time.Time
}

// Page serves the page.
type Page struct {
	config Config
	// templates are the templates of the views by name.
	templates map[string]*template.Template
	// wanted requests a read.
	wanted chan struct{}

	// mu guards the fields below.
	mu   sync.Mutex
	data *Data
	// next is closed when the next read ends.
	next chan struct{}
}

// New returns the page of a configuration. It reads nothing until Run runs and someone opens
// the page.
func New(config Config) *Page {
	p := &Page{config: config, wanted: make(chan struct{}, 1), next: make(chan struct{})}
	p.templates = templates(p.clean)
	return p
}

// Run reads the data that requests need, until ctx ends.
func (p *Page) Run(ctx context.Context) {
	for {
		select {
		case <-p.wanted:
		case <-ctx.Done():
			return
		}
		if !p.stale() {
			continue // it was requested during the last read
		}
		began := p.config.Clock.Now()
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		data := p.config.Read(reading)
		cancel()
		data.at = p.config.Clock.Now()
		data.took = data.at.Sub(began)
		data.index()

		p.mu.Lock()
		p.data = data
		close(p.next)
		p.next = make(chan struct{})
		p.mu.Unlock()
	}
}

func (d *Data) index() {
	d.vms = map[topology.HostID][]*status.VM{}
	for i := range d.Status.VMs {
		vm := &d.Status.VMs[i]
		d.vms[vm.Host] = append(d.vms[vm.Host], vm)
	}
	d.hosts = map[topology.HostID]*status.Host{}
	for i := range d.Status.Hosts {
		d.hosts[d.Status.Hosts[i].Host] = &d.Status.Hosts[i]
	}
}

// stale reports whether the data is to be read again.
func (p *Page) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data == nil || p.config.Clock.Since(p.data.at) >= max(fresh, duty*p.data.took)
}

// current returns the data, or nil if none could be read in time. It never reads itself, so
// the number of requests does not change how often numaform reads.
func (p *Page) current(ctx context.Context) *Data {
	p.mu.Lock()
	data, next := p.data, p.next
	p.mu.Unlock()
	if !p.stale() {
		return data
	}
	select {
	case p.wanted <- struct{}{}:
	default:
	}
	if data != nil && p.config.Clock.Since(data.at) < usable {
		return data
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-next:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data
}
