package pvesim

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

var (
	driveName     = regexp.MustCompile(`^(ide|scsi|virtio|sata)\d+$|^efidisk0$|^tpmstate0$`)
	unusedName    = regexp.MustCompile(`^unused\d+$`)
	netName       = regexp.MustCompile(`^net\d+$`)
	numaName      = regexp.MustCompile(`^numa\d+$`)
	cloudinitFile = regexp.MustCompile(`[:/](vm-\d+-)?cloudinit(\.(raw|qcow2))?$`)
)

// cloudinitSize is the size in bytes that Proxmox allocates for a cloud-init drive.
const cloudinitSize = 4 << 20

// drive is a parsed drive option; "file" is its volume, "none" or "cdrom".
type drive map[string]string

func (d drive) cdrom() bool     { return d["media"] == "cdrom" }
func (d drive) cloudinit() bool { return d.cdrom() && cloudinitFile.MatchString(d["file"]) }

// volume returns the volume's ID, or "".
func (d drive) volume() string {
	if volumeText.MatchString(d["file"]) && !newDiskText.MatchString(d["file"]) {
		return d["file"]
	}
	return ""
}

func (d drive) String() string { return printPropertyString(d, "file") }

// parseDrive reads a drive option by its schema.
func (s *Server) parseDrive(key, text string) (drive, *apiError) {
	option := s.options()[key]
	if option == nil || option.Properties == nil {
		return nil, oneParamError(key, "unable to parse drive options")
	}
	props, err := parsePropertyString(option.Properties, text)
	if err != nil {
		return nil, oneParamError(key, "unable to parse drive options")
	}
	return props, nil
}

// options returns the configuration options of a VM with their schemas.
func (s *Server) options() map[string]*schema {
	node, _ := s.routes.find("/nodes/x/qemu/100/config")
	return node.methods["PUT"].params
}

// isOption reports whether key is an option of a VM, as opposed to a parameter that only
// controls the request.
func (s *Server) isOption(key string) bool {
	if holds([]string{"node", "vmid", "digest", "delete", "revert", "force", "skiplock", "cdrom"}, key) {
		return false
	}
	return s.options()[key] != nil || holds([]string{"parent", "vmstate", "meta", "runningmachine", "runningcpu", "snaptime"}, key)
}

// attach creates the image or cloud-init drive that a drive option requests, or checks that
// its existing volume exists. It returns the option in its stored form. The caller must
// hold the lock.
func (s *Server) attach(h *host, vmid int, key string, d drive) (string, *apiError) {
	file := d["file"]
	switch {
	case d["import-from"] != "":
		return s.attachImport(h, vmid, d)
	case file == "none" || file == "cdrom":
		delete(d, "size")
	case strings.HasSuffix(file, ":cloudinit"):
		return s.attachCloudinit(h, vmid, d, strings.TrimSuffix(file, ":cloudinit"))
	case newDiskText.MatchString(file) && !d.cdrom():
		return s.attachNew(h, vmid, key, d)
	default:
		return s.attachExisting(h, d)
	}
	return d.String(), nil
}

func (s *Server) attachCloudinit(h *host, vmid int, d drive, name string) (string, *apiError) {
	st, e := s.state.needStorage(h, name)
	if e != nil {
		return "", e
	}
	if !holds(st.Content, "images") {
		return "", dief("storage '%s' does not support content-type 'images'", name)
	}
	format := "raw"
	if st.hasPath() {
		format = "qcow2"
	}
	id := st.volumeID(vmid, fmt.Sprintf("vm-%d-cloudinit", vmid), format)
	if st.volumes[id] == nil {
		s.state.addVolume(st, &volume{id: id, content: "images", format: format, size: cloudinitSize, vmid: vmid})
	}
	d["file"], d["media"], d["size"] = id, "cdrom", formatSize(cloudinitSize)
	return d.String(), nil
}

func (s *Server) attachNew(h *host, vmid int, key string, d drive) (string, *apiError) {
	m := newDiskText.FindStringSubmatch(d["file"])
	st, e := s.imageStorage(h, m[1])
	if e != nil {
		return "", e
	}
	format := "raw"
	if d["format"] != "" {
		format = d["format"]
	}
	if !st.takes(format) {
		return "", dief("unsupported format '%s'", format)
	}
	gib, _ := strconv.ParseFloat(m[2], 64)
	size := int64(math.Floor(gib * (1 << 30)))
	if fixed := st.fixedSize(key, d); fixed != 0 {
		size = fixed // regardless of the requested size
	}
	return s.attachImage(st, vmid, d, &volume{format: format, size: size, blank: true})
}

// imageStorage returns the storage with that name, which must accept disks of VMs.
func (s *Server) imageStorage(h *host, name string) (*storage, *apiError) {
	if name == "" {
		return nil, dief("no storage ID specified (and no default storage)")
	}
	st, e := s.state.needStorage(h, name)
	if e != nil {
		return nil, e
	}
	if !holds(st.Content, "images") {
		return nil, oneParamError("storage", "storage '%s' does not support vm images", st.Name)
	}
	return st, nil
}

// attachImage creates the image and returns the option that names it.
func (s *Server) attachImage(st *storage, vmid int, d drive, v *volume) (string, *apiError) {
	name := st.freeName(vmid)
	if !st.room(v.size, v.blank) {
		return "", dief("%s", st.noRoom(name, v.size))
	}
	v.id, v.content, v.vmid = st.volumeID(vmid, name, v.format), "images", vmid
	s.state.addVolume(st, v)
	delete(d, "format")
	d["file"], d["size"] = v.id, formatSize(v.size)
	return d.String(), nil
}

// attachExisting returns the option with the size of its volume, which must exist
// (qemu-server 9.2.6, PVE/API2/Qemu.pm:711-715; pve-storage 9.1.7,
// PVE/Storage/Plugin.pm:2049-2060, LvmThinPlugin.pm:242-247).
func (s *Server) attachExisting(h *host, d drive) (string, *apiError) {
	name, _, ok := strings.Cut(d["file"], ":")
	if !ok {
		return d.String(), nil
	}
	st, e := s.state.needStorage(h, name)
	if e != nil {
		return "", e
	}
	v := st.volumes[d["file"]]
	switch {
	case v == nil && st.Type == "lvmthin":
		return "", dief("no such logical volume pve/%s", strings.TrimPrefix(d["file"], name+":"))
	case v == nil:
		return "", dief("volume '%s' does not exist", d["file"])
	}
	delete(d, "format")
	d["size"] = formatSize(v.size)
	return d.String(), nil
}

// detach removes a drive's volume from a guest. A cloud-init drive is freed. An image is
// freed if forced, and otherwise becomes unusedN.
func (s *Server) detach(g *guest, key, text string, force bool) {
	if unusedName.MatchString(key) {
		key = "scsi0"
	}
	d, e := s.parseDrive(key, text)
	if e != nil || (d.cdrom() && !d.cloudinit()) {
		return
	}
	st, v := s.state.findVolume(g.host, d.volume())
	switch {
	case v == nil || v.vmid != g.id:
	case force || d.cloudinit():
		s.state.freeVolume(st, v.id)
	default:
		g.keepUnused(v.id)
	}
}

// keepUnused adds an option unusedN for an image that no other option references.
func (g *guest) keepUnused(volid string) {
	for n := range 256 {
		key := "unused" + strconv.Itoa(n)
		if g.conf[key] == "" {
			g.conf[key] = volid
			return
		}
	}
}
