package pvesim

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// volumeOwner matches the end of an image's volume ID, with the VMID of its owner.
var volumeOwner = regexp.MustCompile(`(?:^|/)(vm|base|subvol)-(\d+)-[^/]+$`)

// hasPath reports whether the storage stores images as files.
func (st *storage) hasPath() bool {
	return holds([]string{"dir", "nfs", "cifs", "glusterfs", "cephfs", "btrfs"}, st.Type)
}

// volumeID returns the ID of an image that has no base.
func (st *storage) volumeID(vmid int, name, format string) string {
	if st.hasPath() {
		return fmt.Sprintf("%s:%d/%s.%s", st.Name, vmid, name, format)
	}
	return st.Name + ":" + name
}

// linkedID returns the ID of an image that is a linked clone of base.
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

// canLink reports whether the storage supports linked clones of base images.
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

// addVolume adds a volume to the storage. The caller must hold the lock.
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

// findVolume returns a volume and its storage as seen by the host. The volume is nil if it
// does not exist.
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

// inUse reports whether an image is the base of a linked clone.
func (st *storage) inUse(id string) bool {
	for _, v := range st.volumes {
		if v.parent == id && strings.Contains(v.id, "base-") {
			return true
		}
	}
	return false
}

// extent is the size in bytes of an extent of a volume group.
const extent = 4 << 20

// thick reports whether an image uses its full size on the storage when it is created. Thin
// pools, Ceph and files use space only for written data, and accept any size while space is
// left (pve-storage 9.1.7, src/PVE/Storage/LvmThinPlugin.pm:102-117; ZFS: zfs_create_zvol
// of ZFSPoolPlugin.pm:367-384, without the option sparse).
func (st *storage) thick() bool { return st.Type == "lvm" || st.Type == "zfspool" }

// room reports whether size more bytes fit. If blank is set, no data is written. A storage
// whose total is unknown has no limit.
func (st *storage) room(size int64, blank bool) bool {
	thin := blank && !st.thick() && st.available() > 0
	return st.TotalMiB == 0 || thin || st.available() >= size
}

// noRoom returns the error of a storage without space for a new image, by its type. It
// contains the output of the programs that Proxmox runs. For a volume group, Proxmox first
// compares free bytes with KiB (pve-storage 9.1.7,
// src/PVE/Storage/LVMPlugin.pm:615-640,710-713, LvmThinPlugin.pm:116,
// ZFSPoolPlugin.pm:242).
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

// noGrowth returns the error of a storage that lacks the space to grow an image by the
// given number of bytes (pve-storage 9.1.7, src/PVE/Storage/LVMPlugin.pm:1078,
// ZFSPoolPlugin.pm:242,796).
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

// contentOf returns the content type in a volume ID.
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

// parseSize parses Proxmox's sizes: a number with K, M, G or T, or bytes.
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

// formatSize formats a size with the largest unit that fits exactly.
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
