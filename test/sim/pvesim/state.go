package pvesim

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// cluster is the state of pmxcfs, the hosts and their storages.
type cluster struct {
	cfg     Config
	started time.Time
	order   []string // hosts in the order of the Config

	// mu guards the fields below, and everything that they refer to.
	mu         sync.RWMutex
	hosts      map[string]*host
	guests     map[int]*guest
	sorted     atomic.Pointer[[]int] // keys of guests, or nil
	storages   map[string]*storage   // by storageKey
	quorate    bool
	agents     bool // guest agents respond
	commands   commands
	deaf       map[int]bool // VMIDs of guests that ignore shutdown requests
	generation int          // counter that makes generated MAC addresses and UUIDs differ
	processes  int          // number of used process IDs
	locks      map[int]*guestLock

	pools *poolSet // has its own lock, because it is used with and without mu
}

// host is a Proxmox node.
type host struct {
	name     string
	id       int
	machine  Machine
	storages []string // names, in the order of the Config
	offline  string   // reason of the 595 while the host is unreachable
	// maintenance is set in HA maintenance mode, in which guests are moved away and new
	// guests are not admitted.
	maintenance bool
	load        *Load // nil: the load of the host's guests
	// devices are the devices in resource mappings.
	devices []PCIDevice
	notes   string
	guests  map[int]*guest
	files   *hostFiles // nil while the host is not exported
}

// storage is a storage of one host, or of all hosts that share it.
type storage struct {
	Storage
	volumes map[string]*volume // by volume ID
	used    int64              // bytes allocated since the start
}

// volume is an image or file on a storage.
type volume struct {
	id, content, format string
	size                int64
	virtual             int64 // of an importable file: the size of its disk, 0 means size
	vmid                int
	blank               bool  // no data was written to it
	taken               int64 // bytes that the volume uses on the storage
	parent              string
	data                []byte
	created             time.Time
}

func newCluster(cfg Config) (*cluster, error) {
	c := &cluster{
		cfg: cfg, started: cfg.Clock.Now(), quorate: true, agents: cfg.GuestAgents, deaf: map[int]bool{},
		hosts: map[string]*host{}, guests: map[int]*guest{},
		storages: map[string]*storage{}, locks: map[int]*guestLock{}, pools: newPoolSet(cfg.Pools),
	}
	for i := range cfg.Hosts {
		if err := c.addHost(i+1, &cfg.Hosts[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) addHost(id int, from *Host) error {
	h := &host{name: from.Name, id: id, machine: from.Machine, devices: from.PCIDevices, maintenance: from.Maintenance, load: from.Load, guests: map[int]*guest{}}
	if from.Problem != "" {
		h.offline = defaultOffline
	}
	c.hosts[h.name] = h
	c.order = append(c.order, h.name)
	for _, st := range from.Storages {
		key := storageKey(h.name, st.Name, st.Shared)
		h.storages = append(h.storages, st.Name)
		if c.storages[key] == nil {
			c.storages[key] = &storage{Storage: st, volumes: map[string]*volume{}}
		}
	}
	templates := map[int]bool{}
	for i := range from.Templates {
		t := &from.Templates[i]
		templates[t.VMID] = true
		if err := c.addTemplate(h, t); err != nil {
			return err
		}
	}
	for i := range from.Guests {
		if g := &from.Guests[i]; !templates[g.VMID] {
			if err := c.addForeign(h, g); err != nil {
				return err
			}
		}
	}
	return nil
}

func storageKey(host, name string, shared bool) string {
	if shared {
		return name
	}
	return host + "/" + name
}

// storage returns the storage with that name as seen by the host, or nil.
func (c *cluster) storage(h *host, name string) *storage {
	if !holds(h.storages, name) {
		return nil
	}
	if st := c.storages[storageKey(h.name, name, false)]; st != nil {
		return st
	}
	return c.storages[name]
}

// needStorage returns the storage or Proxmox's error.
func (c *cluster) needStorage(h *host, name string) (*storage, *apiError) {
	if st := c.storage(h, name); st != nil {
		if !st.Active { // pve-storage 9.1.7, PVE/Storage/Plugin.pm:1958-1963
			return nil, dief("unable to activate storage '%s' - directory '/mnt/pve/%s' does not exist or is unreachable", name, name)
		}
		return st, nil
	}
	if c.anyStorage(name) != nil {
		return nil, dief("storage '%s' is not available on node '%s'", name, h.name)
	}
	return nil, dief("storage '%s' does not exist", name)
}

// anyStorage returns the storage with that name from the first host that has it, or nil.
func (c *cluster) anyStorage(name string) *storage {
	for _, host := range c.order {
		if st := c.storage(c.hosts[host], name); st != nil {
			return st
		}
	}
	return nil
}

// storageNames returns the names of the storages of all hosts, without duplicates.
func (c *cluster) storageNames() []string {
	var names []string
	for _, host := range c.order {
		for _, name := range c.hosts[host].storages {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

const defaultOffline = "No route to host"

// down reports whether the host is unreachable, and returns the reason of the 595.
func (c *cluster) down(h *host) (string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return h.offline, h.offline != ""
}

// entry returns the host to which clients are connected: the first online host.
func (c *cluster) entry() *host {
	for _, name := range c.order {
		if _, down := c.down(c.hosts[name]); !down {
			return c.hosts[name]
		}
	}
	return c.hosts[c.order[0]]
}

// SetHostOnline takes a host off the network, so that requests to its paths return 595, or
// brings it back. It panics if the host does not exist.
func (s *Server) SetHostOnline(name string, online bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	h := s.state.hosts[name]
	if h == nil {
		panic(fmt.Sprintf("pvesim: no host %q", name))
	}
	h.offline = ""
	if !online {
		h.offline = defaultOffline
	}
	for _, g := range h.guests {
		g.changed()
	}
}

// SetQuorate removes the cluster's quorum, so that writes to its file system fail, or
// restores it.
func (s *Server) SetQuorate(quorate bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.quorate = quorate
}

// writable returns an error without quorum. It is called before each write to the cluster's
// file system. The caller must hold the lock.
func (c *cluster) writable() *apiError {
	if c.quorate {
		return nil
	}
	return dief("cluster not ready - no quorum?")
}

// writableNow is like writable, but takes the lock.
func (c *cluster) writableNow() *apiError {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.writable()
}
