package pvesim

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// volumeName takes a volume id apart: storage, then for images an optional base,
// directory, and name with its owner.
var volumeOwner = regexp.MustCompile(`(?:^|/)(vm|base|subvol)-(\d+)-[^/]+$`)

// hasPath reports whether the storage keeps images as files.
func (st *storage) hasPath() bool {
	return holds([]string{"dir", "nfs", "cifs", "glusterfs", "cephfs", "btrfs"}, st.Type)
}

// volumeID returns the id of an image that has no base.
func (st *storage) volumeID(vmid int, name, format string) string {
	if st.hasPath() {
		return fmt.Sprintf("%s:%d/%s.%s", st.Name, vmid, name, format)
	}
	return st.Name + ":" + name
}

// linkedID returns the id of an image that is a linked clone of base.
func (st *storage) linkedID(base *volume, vmid int, name string) string {
	_, baseName, _ := strings.Cut(base.id, ":")
	switch {
	case st.hasPath():
		return fmt.Sprintf("%s:%s/%d/%s.qcow2", st.Name, baseName, vmid, name)
	case st.Type == "lvmthin":
		return st.Name + ":" + name
	}
	return fmt.Sprintf("%s:%s/%s", st.Name, baseName, name)
}

// canLink reports whether the storage can make linked clones of base images.
func (st *storage) canLink() bool { return st.Type != "lvm" && st.Type != "iscsi" }

// freeName returns the first free vm-ID-disk-N.
func (st *storage) freeName(vmid int) string {
	for n := 0; ; n++ {
		name := fmt.Sprintf("vm-%d-disk-%d", vmid, n)
		taken := false
		for id := range st.volumes {
			taken = taken || strings.TrimSuffix(strings.TrimSuffix(path.Base(strings.Replace(id, ":", "/", 1)), ".qcow2"), ".raw") == name
		}
		if !taken {
			return name
		}
	}
}

// addVolume puts a volume on the storage. The caller holds the lock.
func (c *cluster) addVolume(st *storage, v *volume) *volume {
	v.created = c.cfg.Clock.Now()
	st.volumes[v.id] = v
	if v.parent == "" && (st.thick() || !v.blank) {
		v.taken = v.size
	}
	st.used += v.taken
	return v
}

// freeVolume removes a volume.
func (c *cluster) freeVolume(st *storage, id string) {
	if v := st.volumes[id]; v != nil {
		st.used -= v.taken
		v.taken = 0
		delete(st.volumes, id)
	}
}

// findVolume returns the volume and its storage as the host sees them.
func (c *cluster) findVolume(h *host, id string) (*storage, *volume) {
	name, _, ok := strings.Cut(id, ":")
	if !ok {
		return nil, nil
	}
	st := c.storage(h, name)
	if st == nil {
		return nil, nil
	}
	return st, st.volumes[id]
}

// inUse reports whether an image is the base of a linked clone that names it.
func (st *storage) inUse(id string) bool {
	for _, v := range st.volumes {
		if v.parent == id && strings.Contains(v.id, "base-") {
			return true
		}
	}
	return false
}

// extent is what volume groups are made of.
const extent = 4 << 20

// thick reports whether an image takes its size of the storage when it is made. Thin pools,
// Ceph and files take what is written, and refuse no size (pve-storage 9.1.7,
// src/PVE/Storage/LvmThinPlugin.pm:102-117; ZFS: zfs_create_zvol of ZFSPoolPlugin.pm:367-384,
// without the option sparse).
func (st *storage) thick() bool { return st.Type == "lvm" || st.Type == "zfspool" }

// room reports whether size more bytes fit, none of which are written if blank; an unknown
// total has no end.
func (st *storage) room(size int64, blank bool) bool {
	thin := blank && !st.thick() && st.available() > 0
	return st.TotalMiB == 0 || thin || st.available() >= size
}

// noRoom is what a storage says that has no room for a new image, by its type: programs that
// Proxmox runs say so, as their output is in the error. Of a volume group Proxmox compares
// free bytes with KiB first (pve-storage 9.1.7, src/PVE/Storage/LVMPlugin.pm:615-640,710-713,
// LvmThinPlugin.pm:116, ZFSPoolPlugin.pm:242).
func (st *storage) noRoom(name string, size int64) string {
	switch free := st.available(); st.Type {
	case "lvm":
		if free < size>>10 {
			return fmt.Sprintf("not enough free space (%d < %d)", free, size>>10)
		}
		return fmt.Sprintf("lvcreate '%s/%s' error:   Volume group %q has insufficient free space (%d extents): %d required.", st.Name, name, st.Name, free/extent, (size+extent-1)/extent)
	case "lvmthin":
		return fmt.Sprintf("lvcreate 'pve/%s' error:   Cannot create new thin volume, free space in thin pool pve/%s reached threshold.", name, st.Name)
	case "zfspool":
		return fmt.Sprintf("zfs error: cannot create '%s/%s': out of space", st.Name, name)
	}
	return "No space left on device"
}

// noGrowth is what a storage says that has no room for so much more of an image
// (pve-storage 9.1.7, src/PVE/Storage/LVMPlugin.pm:1078, ZFSPoolPlugin.pm:242,796).
func (st *storage) noGrowth(id string, more int64) string {
	_, name, _ := strings.Cut(id, ":")
	switch st.Type {
	case "lvm":
		return fmt.Sprintf("error resizing volume '/dev/%s/%s':   Insufficient free space: %d extents needed, but only %d available", st.Name, name, (more+extent-1)/extent, st.available()/extent)
	case "zfspool":
		return fmt.Sprintf("zfs error: cannot set property for '%s/%s': out of space", st.Name, name)
	}
	return "No space left on device"
}

func (st *storage) available() int64 { return max(st.FreeMiB<<20-st.used, 0) }

// ownerOf returns the VMID in an image's name, or 0.
func ownerOf(id string) int {
	_, name, _ := strings.Cut(id, ":")
	if m := volumeOwner.FindStringSubmatch(name); m != nil {
		return number(m[2])
	}
	return 0
}

// contentOf returns what a volume id says that it is.
func contentOf(id string) string {
	_, name, _ := strings.Cut(id, ":")
	switch dir, _, ok := strings.Cut(name, "/"); {
	case ok && holds([]string{"iso", "vztmpl", "import", "backup", "snippets"}, dir):
		return dir
	case ownerOf(id) != 0:
		return "images"
	}
	return ""
}

// parseSize reads Proxmox' sizes: a number with K, M, G or T, or bytes.
func parseSize(text string) (int64, bool) {
	m := sizeText.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	shift := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[3]]
	return int64(math.Floor(n * shift)), true
}

// formatSize prints a size with the largest unit that fits exactly.
func formatSize(size int64) string {
	if size == 0 {
		return "0T"
	}
	units := []string{"", "K", "M", "G", "T"}
	unit := 0
	for unit < len(units)-1 && size%1024 == 0 {
		size /= 1024
		unit++
	}
	return strconv.FormatInt(size, 10) + units[unit]
}
