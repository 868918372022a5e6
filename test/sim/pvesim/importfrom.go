package pvesim

import (
	"strings"
)

// Sizes in bytes that Proxmox uses for volumes regardless of the request.
const (
	efi4mSize    = 528 << 10
	efi2mSize    = 128 << 10
	tpmStateSize = 4 << 20
)

// takes reports whether images of the format can be created on the storage.
func (st *storage) takes(format string) bool {
	return format == "raw" || (st.hasPath() && (format == "qcow2" || format == "vmdk"))
}

// fixedSize returns the size of an EFI disk or a TPM state, and 0 for other drives. On
// storages without files, the size of an EFI disk is rounded up: to the extents of LVM, or
// to MiB.
func (st *storage) fixedSize(key string, d drive) int64 {
	switch key {
	case "tpmstate0":
		return tpmStateSize
	case "efidisk0":
	default:
		return 0
	}
	size := int64(efi2mSize)
	if d["efitype"] == "4m" {
		size = efi4mSize
	}
	unit := int64(1 << 20)
	switch {
	case st.hasPath():
		return size
	case strings.HasPrefix(st.Type, "lvm"):
		unit = 4 << 20
	}
	return (size + unit - 1) / unit * unit
}

// checkImport checks that an import names a target storage and no size, and that an EFI
// disk or TPM state has the options that Proxmox requires.
func checkImport(key string, d drive) *apiError {
	if d["import-from"] == "" {
		return nil
	}
	m := newDiskText.FindStringSubmatch(d["file"])
	if m == nil || strings.Trim(m[2], "0.") != "" {
		return oneParamError(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
	}
	need := map[string][]string{"efidisk0": {"efitype", "pre-enrolled-keys"}, "tpmstate0": {"version"}}[key]
	for _, name := range need {
		if d[name] == "" {
			return oneParamError(key, "need to specify '%s' when using 'import-from'", name)
		}
	}
	return nil
}

// checkTarget checks that the storage accepts a new disk.
func (r *request) checkTarget(d drive) *apiError {
	m := newDiskText.FindStringSubmatch(d["file"])
	if m == nil || d.cdrom() {
		return nil
	}
	r.s.state.mu.RLock()
	defer r.s.state.mu.RUnlock()
	_, e := r.s.imageStorage(r.host, m[1])
	return e
}

// checkSource requires access to the source of an import, which must be a disk.
func (r *request) checkSource(vmid int, key string, d drive) *apiError {
	source := d["import-from"]
	if source == "" {
		return nil
	}
	name, _, managed := strings.Cut(source, ":")
	if !managed || strings.HasPrefix(source, "/") {
		if r.who.isRoot() {
			return &apiError{code: 501, message: "importing a file of the host is not implemented by pvesim, though Proxmox VE has it"}
		}
		return dief("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.")
	}
	r.s.state.mu.RLock()
	_, e := r.s.state.needStorage(r.host, name)
	r.s.state.mu.RUnlock()
	if e != nil {
		return e
	}
	switch content := contentOf(source); {
	case content == "":
		return dief("unable to parse volume ID '%s'", source)
	case content != "images" && content != "import":
		return oneParamError(key, "%s has wrong type '%s' - needs to be 'images' or 'import'", source, content)
	case strings.HasSuffix(source, ".ova"):
		return &apiError{code: 501, message: "importing an appliance is not implemented by pvesim, though Proxmox VE has it"}
	}
	if owner := ownerOf(source); owner != 0 {
		return r.s.access.check(r.who, vmPath(owner), "VM.Clone")
	}
	return r.readable(vmid, name, source)
}

// attachImport copies a disk from another volume. The caller must hold the lock.
func (s *Server) attachImport(h *host, vmid int, d drive) (string, *apiError) {
	source := d["import-from"]
	st, e := s.imageStorage(h, newDiskText.FindStringSubmatch(d["file"])[1])
	if e != nil {
		return "", e
	}
	_, from := s.state.findVolume(h, source)
	if from == nil {
		return "", dief("cannot import from '%s' - could not get size of %s", source, source)
	}
	size := from.size
	if from.virtual != 0 {
		size = from.virtual
	}
	format := d["format"]
	if format == "" {
		format = from.format
	}
	if !st.takes(format) {
		format = "raw"
	}
	delete(d, "import-from")
	return s.attachImage(st, vmid, d, &volume{format: format, size: size})
}
