package pvesim

import (
	"crypto/sha1" //nolint:gosec // Proxmox's config digest is SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// guest is a VM or container: its configuration file and its process.
type guest struct {
	id   int
	kind GuestKind
	host *host

	conf    map[string]string
	pending map[string]string
	drop    map[string]bool // pending deletions; true is forced

	running bool
	started time.Time
	pid     int
	// live is the configuration of the running process, including hot-plugged changes.
	live map[string]string
	ha   bool
	fw   *firewall
	// devices are the PCI devices that are reserved for the process.
	devices []string

	resource []byte // rendered entry of /cluster/resources without uptime
	digest   string
}

// GuestState is the state of a guest in the simulated cluster.
type GuestState struct {
	VMID int
	Host string
	Kind GuestKind
	// Config is the content of the configuration file. Pending are the values that take
	// effect at the guest's next restart, and Delete the options that the restart removes.
	Config  map[string]string
	Pending map[string]string
	Delete  []string
	Running bool
	// Runtime is the configuration of the running process; nil if the guest is stopped.
	Runtime map[string]string
	Pool    string
	HA      bool
	// Raw is the text of the configuration file.
	Raw string
}

// Guests returns all guests, sorted by VMID.
func (s *Server) Guests() []GuestState {
	s.state.mu.RLock()
	defer s.state.mu.RUnlock()
	result := make([]GuestState, 0, len(s.state.guests))
	for _, id := range s.state.vmids() {
		result = append(result, s.state.guestState(s.state.guests[id]))
	}
	return result
}

// guestState returns a copy of a guest's state. The caller must hold the lock.
func (c *cluster) guestState(g *guest) GuestState {
	return GuestState{
		VMID: g.id, Host: g.host.name, Kind: g.kind, Config: maps.Clone(g.conf), Pending: maps.Clone(g.pending),
		Delete: sortedKeys(g.drop), Running: g.running, Runtime: maps.Clone(g.live),
		Pool: c.pools.of(g.id), HA: g.ha, Raw: g.raw(),
	}
}

// Guest returns a guest, and reports false if it does not exist.
func (s *Server) Guest(vmid int) (GuestState, bool) {
	s.state.mu.RLock()
	defer s.state.mu.RUnlock()
	if g := s.state.guests[vmid]; g != nil {
		return s.state.guestState(g), true
	}
	return GuestState{}, false
}

// Foreign is a guest created by another client.
type Foreign struct {
	VMID    int
	Host    string
	Kind    GuestKind // empty means a VM
	Config  map[string]string
	Running bool
	HA      bool
	Pool    string
}

// PutGuest creates or replaces a guest without using the API, to simulate a change outside
// numaform. A replaced guest loses its firewall rules.
func (s *Server) PutGuest(f Foreign) error {
	event, err := s.putForeign(f)
	if err != nil {
		return fmt.Errorf("putting guest %d: %w", f.VMID, err)
	}
	s.powered(event)
	return nil
}

func (s *Server) putForeign(f Foreign) (event *PowerEvent, err error) {
	c := s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[f.Host]
	if h == nil {
		return nil, fmt.Errorf("no host %q", f.Host)
	}
	if old := c.guests[f.VMID]; old != nil {
		delete(old.host.guests, f.VMID)
		old.host.show(f.VMID)
	}
	if f.Kind == "" {
		f.Kind = GuestVM
	}
	g := c.put(h, f.VMID, f.Kind, maps.Clone(f.Config))
	g.ha = f.HA
	if f.Pool != "" {
		c.pools.create(f.Pool, "")
		c.pools.move(f.VMID, f.Pool)
	}
	s.access.forget()
	if f.Running {
		c.run(g)
		event = s.event(PoweredOn, g)
	}
	return event, nil
}

// RemoveGuest removes a guest and its disks without using the API.
func (s *Server) RemoveGuest(vmid int) {
	s.state.mu.Lock()
	var event *PowerEvent
	if g := s.state.guests[vmid]; g != nil {
		event = s.event(Destroyed, g)
		s.state.freeImages(g)
	}
	s.state.remove(vmid)
	s.state.mu.Unlock()
	s.powered(event)
	if h := s.cfg.Hypervisor; h != nil {
		_ = h.Remove(vmid) // on an error, the guest's files remain
	}
}

// put adds a stopped guest with that configuration. The caller must hold the lock.
func (c *cluster) put(h *host, id int, kind GuestKind, conf map[string]string) *guest {
	if conf == nil {
		conf = map[string]string{}
	}
	g := &guest{id: id, kind: kind, host: h, conf: conf, pending: map[string]string{}, drop: map[string]bool{}, fw: newFirewall()}
	c.guests[id] = g
	h.guests[id] = g
	c.sorted.Store(nil)
	c.generation++
	return g
}

func (c *cluster) remove(id int) {
	if g := c.guests[id]; g != nil {
		delete(g.host.guests, id)
		delete(c.guests, id)
		c.sorted.Store(nil)
		c.pools.move(id, "")
		g.host.show(id)
	}
}

// run starts the guest's process with its configuration.
func (c *cluster) run(g *guest) {
	g.running = true
	g.started = c.cfg.Clock.Now()
	g.live = maps.Clone(g.conf)
	g.pid = c.newPID(g)
	g.changed()
}

// newPID returns the process ID of a starting guest; its threads have the following IDs.
func (c *cluster) newPID(g *guest) int {
	pid := firstPID + c.processes
	c.processes += otherThreads + vcpus(g.live)
	return pid
}

// halt ends the guest's process.
func (c *cluster) halt(g *guest) {
	g.running = false
	g.live = nil
	g.devices = nil
	g.changed()
}

// vmids returns the IDs of all guests, ascending. The caller must hold the lock, and must
// not modify the list.
func (c *cluster) vmids() []int {
	if ids := c.sorted.Load(); ids != nil {
		return *ids
	}
	ids := make([]int, 0, len(c.guests))
	for id := range c.guests {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	c.sorted.Store(&ids)
	return ids
}

func (h *host) vmids(kind GuestKind) []int {
	var ids []int
	for id, g := range h.guests {
		if g.kind == kind {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// changed drops the cached rendering of the guest, and updates its exported files. Call
// changed after each change of the guest.
func (g *guest) changed() {
	g.resource, g.digest = nil, ""
	g.host.show(g.id)
}

// isTemplate reports whether the guest is a template.
func (g *guest) isTemplate() bool { return g.conf["template"] == "1" }

// name returns the guest's name in lists.
func (g *guest) name() string {
	key, prefix := "name", "VM "
	if g.kind == GuestContainer {
		key, prefix = "hostname", "CT"
	}
	if n := g.conf[key]; n != "" {
		return n
	}
	return prefix + strconv.Itoa(g.id)
}

// confPath returns the configuration file's path within the cluster's file system.
func confPath(host string, kind GuestKind, id int) string {
	dir := "qemu-server"
	if kind == GuestContainer {
		dir = "lxc"
	}
	return fmt.Sprintf("nodes/%s/%s/%d.conf", host, dir, id)
}

// raw renders the configuration file: the description as a comment, the sorted options,
// then the pending changes (qemu-server 9.2.6, src/PVE/QemuServer.pm:2153-2181).
func (g *guest) raw() string {
	var b strings.Builder
	writeSection(&b, g.conf)
	if len(g.pending)+len(g.drop) > 0 {
		b.WriteString("\n[PENDING]\n")
		section := maps.Clone(g.pending)
		if len(g.drop) > 0 {
			section["delete"] = strings.Join(sortedKeys(g.drop), ",")
		}
		writeSection(&b, section)
	}
	return b.String()
}

func writeSection(b *strings.Builder, conf map[string]string) {
	if text, ok := conf["description"]; ok {
		for line := range strings.SplitSeq(text, "\n") {
			fmt.Fprintf(b, "#%s\n", encodeText(line))
		}
	}
	for _, key := range sortedKeys(conf) {
		if key != "description" {
			fmt.Fprintf(b, "%s: %s\n", key, conf[key])
		}
	}
}

// encodeText URL-encodes control characters, non-ASCII characters, ":" and "%"
// (pve-common 9.2.1, src/PVE/ParseUtils.pm:60).
func encodeText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == ':' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// sum returns the digest of the configuration file.
func (g *guest) sum() string {
	if g.digest == "" {
		hash := sha1.Sum([]byte(g.raw())) //nolint:gosec // Proxmox's config digest is SHA-1
		g.digest = hex.EncodeToString(hash[:])
	}
	return g.digest
}

// checkLock returns an error if the guest is locked, as Proxmox does before it changes a
// guest.
func (g *guest) checkLock() *apiError {
	if lock := g.conf["lock"]; lock != "" {
		return dief("%s is locked (%s)", g.kindName(), lock)
	}
	return nil
}

func (g *guest) kindName() string {
	if g.kind == GuestContainer {
		return "CT"
	}
	return "VM"
}

// numberOf returns an option as a number, or the default.
func numberOf(conf map[string]string, key string, otherwise int) int {
	if n, err := strconv.Atoi(conf[key]); err == nil {
		return n
	}
	return otherwise
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// vcpus returns the maximum number of the guest's vCPUs, QEMU's maxcpus. Simulated guests
// start with all of them.
func vcpus(conf map[string]string) int {
	return numberOf(conf, "sockets", 1) * numberOf(conf, "cores", 1)
}

// memoryMiB parses the option memory, which is a property string. The default is 512.
func memoryMiB(conf map[string]string) int64 {
	text := strings.TrimPrefix(conf["memory"], "current=")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return 512
}
