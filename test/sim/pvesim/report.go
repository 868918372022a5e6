package pvesim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// nodeReport handles GET /nodes/{node}/report: one text with the host's system, storage and
// guests; lscpu is one block of it.
func nodeReport(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	var b strings.Builder
	section := func(title string) { fmt.Fprintf(&b, "\n==== %s ====\n", title) }
	command := func(name, output string) {
		fmt.Fprintf(&b, "\n# %s\n%s\n", name, strings.TrimRight(output, "\n"))
	}
	section("general system info")
	command("hostname", r.host.name)
	command("date -R", r.s.cfg.Clock.Now().UTC().Format(time.RFC1123Z))
	command("pveversion --verbose", fmt.Sprintf("proxmox-ve: %s.0 (running kernel: %s)\npve-manager: %s.3 (running version: %s.3/5bd5b0ff1e5c2a4b)", r.s.cfg.Version, kernelRelease, r.s.cfg.Version, r.s.cfg.Version))
	command("cat /etc/hosts", fmt.Sprintf("127.0.0.1 localhost.localdomain localhost\n192.0.2.%d %s.example.com %s", r.host.id, r.host.name, r.host.name))
	command("pvesubscription get", "status: notfound")
	command("cat /etc/apt/sources.list.d/pve.sources", "Types: deb\nURIs: http://download.proxmox.com/debian/pve")
	command("lscpu", lscpu(&r.host.machine))
	command("pvesh get /cluster/resources --type node --output-format=yaml", c.nodesYAML())
	section("overall system load info")
	command("top -b -c -w512 -n 1 -o TIME | head -n 30", "top - 00:00:00 up 1 day,  0 users,  load average: 0.10, 0.12, 0.09")
	section("info about storage")
	command("cat /etc/pve/storage.cfg", c.storageConfig(r.host))
	command("pvesm status", c.storageTable(r.host))
	section("info about virtual guests")
	command("qm list", c.guestTable(r.host))
	for _, id := range r.host.vmids(GuestVM) {
		command("cat /etc/pve/"+confPath(r.host.name, GuestVM, id), r.host.guests[id].raw())
	}
	for _, id := range r.host.vmids(GuestContainer) {
		command("cat /etc/pve/"+confPath(r.host.name, GuestContainer, id), r.host.guests[id].raw())
	}
	section("info about network and firewall")
	command("ip -details -statistics address", "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536")
	command("cat /etc/network/interfaces", "auto vmbr0\niface vmbr0 inet static\n\tbridge-ports eno1")
	return b.String(), nil
}

func (c *cluster) nodesYAML() string {
	var b strings.Builder
	b.WriteString("---\n")
	for _, name := range c.order {
		fmt.Fprintf(&b, "- id: node/%s\n  maxcpu: %d\n  node: %s\n  type: node\n", name, c.hosts[name].machine.OnlineCPUs().Size(), name)
	}
	return b.String()
}

func (c *cluster) storageConfig(h *host) string {
	var b strings.Builder
	for _, name := range h.storages {
		st := c.storage(h, name)
		fmt.Fprintf(&b, "%s: %s\n\tcontent %s\n\n", st.Type, name, joinContent(st.Content))
	}
	return b.String()
}

func (c *cluster) storageTable(h *host) string {
	var b strings.Builder
	b.WriteString("Name             Type     Status           Total            Used       Available        %\n")
	for _, name := range h.storages {
		st := c.storage(h, name)
		total := st.TotalMiB << 10
		free := st.available() >> 10
		fmt.Fprintf(&b, "%-12s %8s     active %15d %15d %15d\n", name, st.Type, total, total-free, free)
	}
	return b.String()
}

func (c *cluster) guestTable(h *host) string {
	var b strings.Builder
	b.WriteString("      VMID NAME                 STATUS     MEM(MB)    BOOTDISK(GB) PID\n")
	for _, id := range h.vmids(GuestVM) {
		g := h.guests[id]
		state := "stopped"
		if g.running {
			state = "running"
		}
		fmt.Fprintf(&b, "%10d %-20s %-10s %-10d %12.2f %d\n", id, g.name(), state, memoryMiB(g.conf), float64(c.bootSize(g))/(1<<30), g.pid)
	}
	return b.String()
}

// nodeJournal handles GET /nodes/{node}/journal: the boot messages with the memory of each
// NUMA node.
func nodeJournal(r *request) (any, error) {
	lines := []string{"kernel: Linux version " + kernelRelease + " (build@proxmox)"}
	start := int64(0x1000)
	var ranges []string
	for _, n := range r.host.machine.NUMANodes {
		if n.MemoryMiB <= 0 {
			continue
		}
		end := start + n.MemoryMiB<<20 - 1
		lines = append(lines, fmt.Sprintf("kernel: ACPI: SRAT: Node %d PXM %d [mem 0x%08x-0x%08x]", n.ID, n.ID, start, end))
		ranges = append(ranges, fmt.Sprintf("kernel:   node %3d: [mem 0x%016x-0x%016x]", n.ID, start, end))
		start = end + 1
	}
	lines = append(lines, "kernel: Early memory node ranges")
	lines = append(lines, ranges...)
	if r.p.has("lastentries") && r.p.number("lastentries") < len(lines) {
		lines = lines[len(lines)-r.p.number("lastentries"):]
	}
	text, err := json.Marshal(lines)
	return preRendered(text), err
}

func joinContent(content []string) string { return strings.Join(content, ",") }
