package proxmox

import (
	"sync"
	"time"

	"github.com/numaform/numaform/topology"
)

// guestMemory remembers each guest. Proxmox provides no list of configurations or of
// changes, so without guestMemory, each snapshot would cost one request per guest.
type guestMemory struct {
	// mu guards byVMID.
	mu     sync.Mutex
	byVMID map[number]rememberedGuest
}

// rememberedGuest is a guest, with its list entry when its configuration was read.
type rememberedGuest struct {
	listed resource
	readAt time.Time
	// plain is the guest, which callers must not modify; or nil, and then config is set.
	plain  *topology.Guest
	config values
}

// newRemembered returns a listed guest whose configuration was requested at readAt.
func newRemembered(listed resource, config values, readAt time.Time) rememberedGuest {
	guest := rememberedGuest{listed: listed.configured(), readAt: readAt, plain: plainGuest(listed, config)}
	if guest.plain == nil {
		guest.config = config
	}
	return guest
}

// uptimeSlack is the maximum amount by which an uptime is rounded up.
const uptimeSlack = 2 * time.Second

// remember stores a listed guest, unless it is locked: its configuration is then not final.
func (m *guestMemory) remember(listed resource, guest rememberedGuest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if listed.Lock != "" || guest.config["lock"] != "" || (guest.plain != nil && guest.plain.Lock != "") {
		delete(m.byVMID, listed.VMID)
		return
	}
	if m.byVMID == nil {
		m.byVMID = map[number]rememberedGuest{}
	}
	m.byVMID[listed.VMID] = guest
}

// forget makes the next snapshot read a guest.
func (m *guestMemory) forget(vmid number) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byVMID, vmid)
}

// recall returns a guest whose list entry shows no change since its configuration was read:
// the guest has no lock and, if it is running, has not restarted since then. A running guest
// keeps its CPUs, NUMA nodes, devices and affinity until it stops. A list entry does not
// show a change of a description, or of a stopped guest's options.
func (m *guestMemory) recall(listed resource, now time.Time) (guest rememberedGuest, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, found := m.byVMID[listed.VMID]
	if !found || known.listed != listed.configured() || listed.Lock != "" {
		return rememberedGuest{}, false
	}
	// An uptime in an old list is too small, which only costs a request. Use the larger of
	// two elapsed times, which also only costs a request: the monotonic clock stops while
	// this machine is suspended, and the wall clock can be set back.
	elapsed := max(now.Sub(known.readAt), now.Round(0).Sub(known.readAt.Round(0)))
	if listed.Status != statusStopped && time.Duration(listed.Uptime)*time.Second <= elapsed+uptimeSlack {
		return rememberedGuest{}, false
	}
	return known, true
}

// missing returns the remembered guests that are no longer listed.
func (m *guestMemory) missing(listed []resource) []number {
	exists := map[number]bool{}
	for i := range listed {
		exists[listed[i].VMID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var missing []number
	for vmid := range m.byVMID {
		if !exists[vmid] {
			missing = append(missing, vmid)
		}
	}
	return missing
}

// configured returns the part of a guest's list entry that depends on its configuration.
func (r resource) configured() resource {
	return resource{
		Type:     r.Type,
		Node:     r.Node,
		Name:     r.Name,
		Status:   r.Status,
		VMID:     r.VMID,
		Template: r.Template,
		Tags:     r.Tags,
		MaxCPU:   r.MaxCPU,
		MaxMem:   r.MaxMem,
		MaxDisk:  r.MaxDisk,
	}
}
