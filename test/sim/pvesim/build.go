package pvesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// addTemplate creates a template as the web interface does: a base image, boot order,
// network card and identity.
func (c *cluster) addTemplate(h *host, t *Template) error {
	st := c.storage(h, t.Storage)
	if st == nil {
		return fmt.Errorf("adding template %d to %s: no storage %q", t.VMID, h.name, t.Storage)
	}
	if c.guests[t.VMID] != nil {
		return fmt.Errorf("adding template %d to %s: its vmid is used on %s", t.VMID, h.name, c.guests[t.VMID].host.name)
	}
	disk := t.DiskInterface
	if disk == "" {
		disk = "scsi0"
	}
	v := c.addVolume(st, &volume{
		id: st.volumeID(t.VMID, fmt.Sprintf("base-%d-disk-0", t.VMID), "raw"), content: "images", format: "raw",
		size: max(t.DiskGiB, 1) << 30, vmid: t.VMID,
	})
	conf := map[string]string{
		disk:       v.id + ",size=" + formatSize(v.size),
		"boot":     "order=" + disk,
		"cores":    "1",
		"memory":   "2048",
		"meta":     c.meta(),
		"name":     t.Name,
		"net0":     "virtio=" + c.mac(t.VMID, "net0") + ",bridge=vmbr0",
		"ostype":   "l26",
		"scsihw":   "virtio-scsi-pci",
		"smbios1":  "uuid=" + c.uuid(t.VMID, "smbios"),
		"template": "1",
		"vmgenid":  c.uuid(t.VMID, "vmgenid"),
	}
	if len(t.Tags) > 0 {
		conf["tags"] = uniqueTags(strings.Join(t.Tags, ";"))
	}
	onDisk := conf[disk]
	maps.Copy(conf, t.Options)
	if options := t.Options[disk]; options != "" && !strings.Contains(options, ":") {
		conf[disk] = onDisk + "," + options
	}
	c.moreDrives(st, t, conf)
	c.put(h, t.VMID, GuestVM, conf)
	return nil
}

// moreDrives adds a template's drives besides the boot disk: disks of 1 GiB on its storage,
// and CD drives on IDE, which are empty except for a cloud-init drive.
func (c *cluster) moreDrives(st *storage, t *Template, conf map[string]string) {
	for i, slot := range t.Drives {
		if strings.HasPrefix(slot, "ide") {
			conf[slot] = "none,media=cdrom"
			if t.CloudInit && slot == "ide2" {
				id := st.volumeID(t.VMID, fmt.Sprintf("vm-%d-cloudinit", t.VMID), "qcow2")
				c.addVolume(st, &volume{id: id, content: "images", format: "raw", size: cloudinitSize, vmid: t.VMID})
				conf[slot] = id + ",media=cdrom,size=4M"
			}
			continue
		}
		v := c.addVolume(st, &volume{
			id: st.volumeID(t.VMID, fmt.Sprintf("base-%d-disk-%d", t.VMID, i+1), "raw"), content: "images", format: "raw", size: 1 << 30, vmid: t.VMID,
		})
		conf[slot] = v.id + ",size=" + formatSize(v.size)
	}
}

// addForeign adds a guest of Config.Hosts, without disks, and runs it if it is running
// there.
func (c *cluster) addForeign(h *host, from *Guest) error {
	if old := c.guests[from.VMID]; old != nil {
		return fmt.Errorf("adding guest %d to %s: its vmid is used on %s", from.VMID, h.name, old.host.name)
	}
	conf := map[string]string{"cores": strconv.Itoa(max(from.VCPUs, 1)), "memory": strconv.FormatInt(max(from.MemoryMiB, 16), 10)}
	kind := GuestVM
	if from.Kind == GuestContainer {
		kind = GuestContainer
		conf["hostname"], conf["ostype"], conf["arch"] = from.Name, "debian", "amd64"
	} else {
		conf["name"], conf["ostype"], conf["scsihw"] = from.Name, "l26", "virtio-scsi-pci"
		conf["smbios1"] = "uuid=" + c.uuid(from.VMID, "smbios")
		foreignPins(conf, from)
		foreignDevices(conf, from)
	}
	if from.Lock != "" {
		conf["lock"] = from.Lock
	}
	if len(from.Tags) > 0 {
		conf["tags"] = uniqueTags(strings.Join(from.Tags, ";"))
	}
	if from.Template {
		conf["template"] = "1"
	}
	g := c.put(h, from.VMID, kind, conf)
	if from.Running {
		if err := c.takeDevices(g); err != nil {
			return fmt.Errorf("starting guest %d on %s: %w", from.VMID, h.name, err)
		}
		c.run(g)
	}
	return nil
}

// foreignPins writes the affinity, NUMA cells and description of a guest of Config.Hosts.
func foreignPins(conf map[string]string, from *Guest) {
	if !from.Pins.IsEmpty() {
		conf["affinity"] = from.Pins.String()
	}
	if from.Description != "" {
		conf["description"] = from.Description
	}
	for i, cell := range from.NUMA {
		conf["numa"] = "1"
		conf["numa"+strconv.Itoa(i)] = fmt.Sprintf("cpus=%s,hostnodes=%s,memory=%d,policy=%s",
			semicolons(cell.GuestCPUs), semicolons(cell.HostNodes), cell.MemoryMiB, cell.Policy)
	}
	if cells := len(from.NUMA); cells > 0 && from.VCPUs%cells == 0 {
		conf["sockets"], conf["cores"] = strconv.Itoa(cells), strconv.Itoa(from.VCPUs/cells)
	}
}

func semicolons(set CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }

// meta returns Proxmox's record of a guest's creation.
func (c *cluster) meta() string {
	qemu := "10.0.2"
	if c.cfg.major() == 8 {
		qemu = "9.2.0"
	}
	return fmt.Sprintf("creation-qemu=%s,ctime=%d", qemu, c.cfg.Clock.Now().Unix())
}

// seeded returns bytes that differ for each guest, purpose and generation, but are the same
// in each run.
func (c *cluster) seeded(id int, purpose string) []byte {
	c.generation++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s/%d", c.cfg.Name, id, purpose, c.generation))
	return sum[:]
}

// mac returns a new MAC address with Proxmox's prefix.
func (c *cluster) mac(id int, purpose string) string {
	b := c.seeded(id, purpose)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

// uuid returns a new UUID.
func (c *cluster) uuid(id int, purpose string) string {
	b := c.seeded(id, purpose)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// uniqueTags lowercases, sorts and joins tags as Proxmox stores them.
func uniqueTags(text string) string {
	seen := map[string]bool{}
	for _, tag := range splitList(text) {
		seen[strings.ToLower(tag)] = true
	}
	return strings.Join(sortedKeys(seen), ";")
}
