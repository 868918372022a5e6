package pvesim

import (
	"crypto/sha1" //nolint:gosec // Proxmox's config digest is SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// pciAddress matches a device's address in hostpciN.
const pciAddress = `(?:[a-f0-9]{4,}:)?[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?`

// maxHostPCI is the number of hostpciN options.
const maxHostPCI = 16

// listPCIMappings handles GET /cluster/mapping/pci. It returns the mappings that the caller
// may see. The simulated hardware always matches them.
func listPCIMappings(r *request) (any, error) {
	c := r.s.state
	c.mu.RLock()
	defer c.mu.RUnlock()
	maps := map[string][]string{}
	for _, name := range c.order {
		for i, d := range c.hosts[name].devices {
			maps[d.Mapping] = append(maps[d.Mapping], fmt.Sprintf("id=10de:2204,iommugroup=%d,node=%s,path=%s", 10+i, name, d.Path))
		}
	}
	node := r.p["check-node"]
	if node != "" && c.hosts[node] == nil {
		return nil, dief("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", node, node)
	}
	result := []any{}
	for _, id := range sortedKeys(maps) {
		if r.s.access.checkAny(r.who, "/mapping/pci/"+id, "Mapping.Modify", "Mapping.Use", "Mapping.Audit") != nil {
			continue
		}
		entry := map[string]any{"id": id, "type": "pci", "map": maps[id], "digest": digestOf(maps)}
		if node != "" {
			entry["checks"] = checksOf(c.hosts[node], id)
		}
		result = append(result, entry)
	}
	return result, nil
}

// digestOf returns the digest of the file of all mappings.
func digestOf(maps map[string][]string) string {
	sum := sha1.New() //nolint:gosec // Proxmox uses SHA-1
	for _, id := range sortedKeys(maps) {
		fmt.Fprintln(sum, id, maps[id])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// checksOf returns the problems of a mapping on a host.
func checksOf(h *host, mapping string) []any {
	if slices.ContainsFunc(h.devices, func(d PCIDevice) bool { return d.Mapping == mapping }) {
		return []any{}
	}
	return []any{map[string]any{"severity": "warning", "message": fmt.Sprintf("No mapping for node %s.", h.name)}}
}

// checkHostPCI returns an error unless the caller may set or delete this hostpciN.
func (r *request) checkHostPCI(vmid int, key, text string) *apiError {
	props, err := parsePropertyString(propertyFormats()["pve-qm-hostpci"], text)
	switch {
	case err != nil:
		return dief("%s", err)
	case props["host"] != "":
		return dief("only root can set '%s' config for non-mapped devices", key)
	case props["mapping"] == "":
		return dief("either 'host' or 'mapping' must be set.")
	}
	if e := r.s.access.check(r.who, "/mapping/pci/"+props["mapping"], "Mapping.Use"); e != nil {
		return e
	}
	return r.checkVM(vmid, "VM.Config.HWType")
}

// hostPCI is a parsed hostpciN: the devices from which one is assigned.
type hostPCI struct {
	key          string
	mdev         bool
	alternatives [][]string
}

// takeDevices chooses the PCI devices of a starting guest, and reserves them. Mediated
// devices are not reserved.
func (c *cluster) takeDevices(g *guest) error {
	all, err := g.hostPCIs()
	if err != nil {
		return err
	}
	g.devices = nil
	var sole []string // devices without an alternative, checked last
	for _, d := range all {
		switch {
		case d.mdev:
			continue
		case len(d.alternatives) == 1:
			sole = append(sole, d.alternatives[0]...)
			if err := g.assign(d.alternatives[0]); err != nil {
				return err
			}
			continue
		}
		free := slices.IndexFunc(d.alternatives, func(ids []string) bool { return c.reservedFor(g, ids) == nil && !g.hasDevice(ids) })
		if free < 0 {
			return fmt.Errorf("could not find a free device for '%s'", d.key)
		}
		if err := g.assign(d.alternatives[free]); err != nil {
			return err
		}
	}
	return c.reservedFor(g, sole)
}

// hostPCIs parses all hostpciN options of a guest.
func (g *guest) hostPCIs() ([]hostPCI, error) {
	var all []hostPCI
	for i := range maxHostPCI {
		key := "hostpci" + strconv.Itoa(i)
		text, ok := g.conf[key]
		if !ok {
			continue
		}
		props, err := parsePropertyString(propertyFormats()["pve-qm-hostpci"], text)
		if err != nil {
			return nil, err
		}
		d := hostPCI{key: key, mdev: props["mdev"] != ""}
		if d.alternatives, err = g.host.alternatives(props); err != nil {
			return nil, err
		}
		if props["pcie"] == "1" && !strings.Contains(g.conf["machine"], "q35") {
			return nil, errors.New("q35 machine model is not enabled")
		}
		all = append(all, d)
	}
	return all, nil
}

// alternatives returns the host's devices that can be assigned to a hostpciN.
func (h *host) alternatives(props map[string]string) ([][]string, error) {
	mapping, address := props["mapping"], props["host"]
	switch {
	case mapping != "" && address != "":
		return nil, errors.New("Cannot set both 'host' and 'mapping'.") //nolint:revive,staticcheck // Proxmox's text
	case address != "":
		return [][]string{h.functions(address)}, nil
	case mapping == "":
		return nil, errors.New("Either 'host' or 'mapping' must be set.") //nolint:revive,staticcheck // Proxmox's text
	}
	var found [][]string
	for _, d := range h.devices {
		if d.Mapping == mapping {
			found = append(found, d.Functions())
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("PCI device mapping not found for '%s'", mapping)
	}
	return found, nil
}

// functions returns the functions of the host's devices that an address covers. If it
// covers none, functions returns the address itself.
func (h *host) functions(address string) []string {
	var ids []string
	for _, d := range h.devices {
		for _, id := range d.Functions() {
			one := PCIDevice{Path: id}
			if one.Overlaps(address) && !holds(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 {
		return strings.Split(address, ";")
	}
	return ids
}

func (g *guest) hasDevice(ids []string) bool {
	return slices.ContainsFunc(ids, func(id string) bool { return holds(g.devices, id) })
}

// assign assigns devices to the guest, and refuses a device that is already assigned to it.
func (g *guest) assign(ids []string) error {
	for _, id := range ids {
		if holds(g.devices, id) {
			return fmt.Errorf("device '%s' assigned more than once", id)
		}
		g.devices = append(g.devices, id)
	}
	return nil
}

// reservedFor returns an error if one of the devices is reserved for another guest.
func (c *cluster) reservedFor(g *guest, ids []string) error {
	for _, other := range sortedGuests(g.host) {
		for _, id := range ids {
			if other != g && holds(other.devices, id) {
				return fmt.Errorf("PCI device '%s' already in use by VMID '%d'", id, other.id)
			}
		}
	}
	return nil
}

// sortedGuests returns the host's guests sorted by VMID.
func sortedGuests(h *host) []*guest {
	var all []*guest
	for _, g := range h.guests {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *guest) int { return a.id - b.id })
	return all
}

// releaseDevices releases the devices that a failed start reserved.
func (r *request) releaseDevices() {
	r.s.state.mu.Lock()
	defer r.s.state.mu.Unlock()
	if g := r.s.state.guests[r.p.number("vmid")]; g != nil && !g.running {
		g.devices = nil
	}
}

// foreignDevices writes the hostpciN options of a guest of Config.Hosts.
func foreignDevices(conf map[string]string, from *Guest) {
	for i, d := range from.PCIDevices {
		text := d.Address
		if d.Mapping != "" {
			text = "mapping=" + d.Mapping
		}
		if d.MDev != "" {
			text += ",mdev=" + d.MDev
		}
		conf["hostpci"+strconv.Itoa(i)] = text
	}
}
