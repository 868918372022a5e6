package pvesim

import (
	"fmt"
	"time"

	"github.com/numaform/numaform/topology"
)

// maxNotes is how long Proxmox lets a host's notes be.
const maxNotes = 64 << 10

// publishAgain writes the host's notes anew where its timer would have done so since
// the last time. The caller holds the lock for writing.
func (c *cluster) publishAgain(h *host) {
	now := c.cfg.Clock.Now()
	if h.agent == nil || h.agent.stopped || now.Sub(h.agent.published) < publishEvery {
		return
	}
	// What cannot be published stays old, as on a host.
	_ = c.publish(h, now)
}

// PublishHostAgent runs `numaform-agent publish` on a host. Whoever changes what its
// agent does and cannot wait five minutes calls this. It panics on a host without an
// agent.
func (s *Server) PublishHostAgent(name string) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.publish(s.state.withAgent(name), s.cfg.Clock.Now())
}

// publish writes topology and agent into the notes, as of that time.
func (c *cluster) publish(h *host, at time.Time) error {
	fail := func(err error) error { return fmt.Errorf("publishing by the agent of host %s: %w", h.name, err) }
	if h.offline != "" {
		return fail(fmt.Errorf("the host is offline: %s", h.offline))
	}
	if e := c.writable(); e != nil {
		return fail(e)
	}
	m := h.machine
	file := topology.CollectedFile{
		Format: topology.CollectedFormat, Model: m.Model, Arch: m.Arch, MemoryMiB: m.MemoryMiB, NUMANodes: m.NUMANodes, CPUs: m.CPUs,
	}
	notes, err := file.PublishIn(h.notes)
	if err == nil {
		notes, err = h.says(at).PublishIn(notes)
	}
	if err == nil && len(notes) > maxNotes {
		err = fmt.Errorf("the notes would have %d bytes of %d", len(notes), maxNotes)
	}
	if err != nil {
		return fail(err)
	}
	h.notes, h.agent.published = notes, at
	return nil
}

// says is what the host's agent tells of itself and of mapped devices.
func (h *host) says(at time.Time) topology.Agent {
	a := h.agent
	told := topology.Agent{
		Version: a.Version, At: at.UTC().Truncate(time.Second), Isolation: a.Isolation, Clusters: a.Clusters,
		MaxPinnedPercent: a.MaxPercent, ReservedCPUs: a.Reserved,
		Pinned: map[int]topology.Pins{}, Refused: map[int]string{}, PCINodes: map[string]int{},
	}
	for process, verdict := range a.verdicts {
		if verdict.Pins != nil {
			told.Pinned[process.vmid] = verdict.Pins.CPUs
		}
		if verdict.Refused != nil {
			told.Refused[process.vmid] = string(verdict.Refused.Reason)
		}
	}
	for _, d := range h.devices {
		for _, address := range d.Functions() {
			if d.NUMANode != topology.Unknown {
				told.PCINodes[address] = d.NUMANode
			}
		}
	}
	return told
}
