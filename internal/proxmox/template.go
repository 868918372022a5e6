package proxmox

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// inherited are the options that a clone inherits from its template and that the provider
// resets unless HCL repeats them.
var inherited = []string{"agent", "bios", "boot", "cpu", "machine", "ostype", "scsihw", "serial0", "vga"}

// rootOnly are the options that only root@pam may set or remove, including on a clone.
var rootOnly = []string{"affinity", "args", "hookscript", "hugepages", "keephugepages"}

var diskPattern = regexp.MustCompile(`^(scsi|virtio|sata|ide)\d+$`)

// cloudInitDrive matches a drive that Proxmox generates (qemu-server,
// PVE/QemuServer/Drive.pm: drive_is_cloudinit).
var cloudInitDrive = regexp.MustCompile(`^[^,]*[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?(?:,|$)`)

// readTemplate reads a template. Its Problem says why it cannot be cloned.
func readTemplate(guest topology.Guest, config values) topology.Template {
	t := topology.Template{VMID: guest.VMID, Name: guest.Name, Tags: guest.Tags, Options: map[string]string{}}
	for _, key := range inherited {
		if value, ok := config[key]; ok {
			t.Options[key] = value
		}
	}
	var problems []string
	for _, key := range rootOnly {
		if _, ok := config[key]; ok {
			problems = append(problems, fmt.Sprintf(
				"it has %s, which its clones inherit and an API token cannot remove: qm set %d --delete %s", key, t.VMID, key,
			))
		}
	}
	if !agentEnabled(config["agent"]) {
		problems = append(problems, fmt.Sprintf("its guest agent is off: qm set %d --agent 1", t.VMID))
	}
	if err := readBootDisk(&t, config); err != nil {
		problems = append(problems, err.Error())
	}
	t.Problem = strings.Join(problems, "; ")
	return t
}

// agentEnabled parses "1", "1,fstrim_cloned_disks=1" and "enabled=1".
func agentEnabled(text string) bool {
	return slices.ContainsFunc(strings.Split(text, ","), func(field string) bool {
		return field == "1" || field == "enabled=1"
	})
}

func readBootDisk(t *topology.Template, config values) error {
	t.DiskInterface = bootDisk(config)
	if t.DiskInterface == "" {
		return fmt.Errorf("it has no boot disk: qm set %d --boot order=scsi0, say", t.VMID)
	}
	t.Drives = slices.DeleteFunc(drives(config), func(slot string) bool { return slot == t.DiskInterface })
	volume, options, _ := strings.Cut(config[t.DiskInterface], ",")
	t.CloudInit = slices.ContainsFunc(t.Drives, func(slot string) bool { return cloudInitDrive.MatchString(config[slot]) })
	storage, _, ok := strings.Cut(volume, ":")
	if !ok {
		return fmt.Errorf("its boot disk %s is on no storage: import it into one", t.DiskInterface)
	}
	t.Storage = storage
	if kept := diskOptions(options); kept != "" {
		t.Options[t.DiskInterface] = kept
	}
	for option := range strings.SplitSeq(options, ",") {
		if size, ok := strings.CutPrefix(option, "size="); ok {
			gib, err := sizeGiB(size)
			t.DiskGiB = gib
			return err
		}
	}
	return fmt.Errorf("the size of its boot disk %s is unknown: qm disk rescan --vmid %d", t.DiskInterface, t.VMID)
}

// diskOptions returns the options of a disk except its volume.
func diskOptions(options string) string {
	var kept []string
	for option := range strings.SplitSeq(options, ",") {
		if name, _, _ := strings.Cut(option, "="); name != "" && name != "size" && name != "format" {
			kept = append(kept, option)
		}
	}
	return strings.Join(kept, ",")
}

// drives returns the slots of all disks and CD drives, sorted.
func drives(config values) []string {
	var slots []string
	for key := range config {
		if diskPattern.MatchString(key) {
			slots = append(slots, key)
		}
	}
	slices.Sort(slots)
	return slots
}

// isDisk reports whether an option is an existing disk.
func isDisk(config values, key string) bool {
	value, ok := config[key]
	return ok && diskPattern.MatchString(key) && !strings.Contains(value, "media=cdrom")
}

// disks returns the slots of all disks, sorted.
func disks(config values) []string {
	return slices.DeleteFunc(drives(config), func(slot string) bool { return !isDisk(config, slot) })
}

// bootDisk returns the first disk in the boot order, or in the older bootdisk option. It
// falls back to the only disk.
func bootDisk(config values) string {
	if order, ok := strings.CutPrefix(config["boot"], "order="); ok {
		for key := range strings.SplitSeq(order, ";") {
			if isDisk(config, key) {
				return key
			}
		}
		return ""
	}
	if isDisk(config, config["bootdisk"]) {
		return config["bootdisk"]
	}
	if there := disks(config); len(there) == 1 {
		return there[0]
	}
	return ""
}

// sizeGiB parses Proxmox' sizes such as 3584M, rounded up to GiB.
func sizeGiB(text string) (int64, error) {
	units := map[string]float64{"": 1 << 30, "K": 1 << 20, "M": 1 << 10, "G": 1, "T": 1.0 / (1 << 10)}
	number := strings.TrimRight(text, "KMGT")
	divisor, ok := units[text[len(number):]]
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || value <= 0 {
		return 0, errors.New("the size of its boot disk cannot be read: want a number with K, M, G or T")
	}
	return int64(math.Ceil(value / divisor)), nil
}
