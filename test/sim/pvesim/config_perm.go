package pvesim

import (
	"regexp"
	"strings"
)

var (
	ipconfigName   = regexp.MustCompile(`^ipconfig\d+$`)
	separateOption = regexp.MustCompile(`^(?:unused|serial|usb|hostpci|virtiofs)\d+$`)
)

// optionPrivilege returns the privilege required to change an option, or "" for drives,
// devices and cloud-init options, which are checked elsewhere, and for options that only
// root@pam may change.
func optionPrivilege(key string) string {
	if numaName.MatchString(key) {
		return "VM.Config.CPU"
	}
	if netName.MatchString(key) {
		return "VM.Config.Network"
	}
	for privilege, keys := range map[string]string{
		"VM.Config.CPU":     "cores cpu cpulimit cpuunits numa smp sockets vcpus",
		"VM.Config.Memory":  "memory balloon shares",
		"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
		"VM.Config.Options": "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name onboot ostype protection reboot startdate startup tdf template tags",
		"VM.PowerMgmt":      "freeze",
		"VM.Config.Disk":    "boot bootdisk vmstatestorage",
	} {
		if holds(strings.Fields(keys), key) {
			return privilege
		}
	}
	return ""
}

func isCloudinitOption(key string) bool {
	return ipconfigName.MatchString(key) ||
		holds(strings.Fields("cicustom cipassword citype ciuser ciupgrade nameserver searchdomain sshkeys"), key)
}

// checkOptions returns an error unless the caller may set and delete the options, as
// Proxmox's check_vm_modify_config_perm does. Except for drives, devices and cloud-init
// options, an option for which optionPrivilege returns "" can be set or deleted only by
// root@pam with a ticket.
func (r *request) checkOptions(vmid int, keys []string) *apiError {
	if r.who.isRoot() {
		return nil
	}
	for _, key := range keys {
		if driveName.MatchString(key) || key == "cdrom" || separateOption.MatchString(key) {
			continue
		}
		if e := r.checkOption(vmid, key); e != nil {
			return e
		}
	}
	return nil
}

func (r *request) checkOption(vmid int, key string) *apiError {
	if isCloudinitOption(key) {
		return r.s.access.checkAny(r.who, vmPath(vmid), "VM.Config.Cloudinit", "VM.Config.Network")
	}
	privilege := optionPrivilege(key)
	if privilege == "" {
		return dief("only root can set '%s' config", key)
	}
	if e := r.checkVM(vmid, privilege); e != nil {
		return e
	}
	if key == "startup" {
		return r.s.access.check(r.who, "/", "Sys.Modify")
	}
	return nil
}

// checkVM requires a privilege on a VM, or on the pool that the request adds it to.
func (r *request) checkVM(vmid int, privilege string) *apiError {
	if pool := r.p["pool"]; pool != "" && r.s.access.check(r.who, "/pool/"+pool, privilege) == nil {
		return nil
	}
	return r.s.access.check(r.who, vmPath(vmid), privilege)
}

// checkDrive requires the privileges to change a drive with this value.
func (r *request) checkDrive(vmid int, d drive) *apiError {
	switch {
	case d.cloudinit() || strings.HasSuffix(d["file"], ":cloudinit"):
		if e := r.checkVM(vmid, "VM.Config.Cloudinit"); e != nil {
			return e
		}
		return r.checkVM(vmid, "VM.Config.CDROM")
	case d.cdrom():
		return r.checkVM(vmid, "VM.Config.CDROM")
	}
	return r.checkVM(vmid, "VM.Config.Disk")
}

// checkVolume requires access to the storage or volume of a drive.
func (r *request) checkVolume(vmid int, d drive) *apiError {
	file := d["file"]
	if file == "" || file == "none" || strings.HasSuffix(file, "cloudinit") || r.who.isRoot() {
		return nil
	}
	if file == "cdrom" {
		return r.s.access.check(r.who, "/", "Sys.Console")
	}
	if m := newDiskText.FindStringSubmatch(file); m != nil && !d.cdrom() {
		return r.s.access.check(r.who, "/storage/"+m[1], "Datastore.AllocateSpace")
	}
	name, _, ok := strings.Cut(file, ":")
	if !ok {
		return dief("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.")
	}
	return r.readable(vmid, name, file)
}

// readable returns an error unless the caller may read a volume for a guest, as
// PVE::Storage's check_volume_access does.
func (r *request) readable(vmid int, storage, volid string) *apiError {
	path := "/storage/" + storage
	if r.s.access.check(r.who, path, "Datastore.Allocate") == nil {
		return nil
	}
	owner := ownerOf(volid)
	switch content := contentOf(volid); {
	case content == "iso" || content == "vztmpl" || content == "import":
		return r.s.access.checkAny(r.who, path, "Datastore.AllocateSpace", "Datastore.Audit")
	case owner != 0 && owner == vmid:
		return nil
	case owner != 0:
		if e := r.s.access.check(r.who, path, "Datastore.Audit"); e != nil {
			return e
		}
		return r.s.access.check(r.who, vmPath(owner), "VM.Config.Disk")
	}
	return dief("missing privileges to access %s", volid)
}
