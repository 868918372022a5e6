package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// defaultMemoryMiB is the memory of a guest without a memory option.
const defaultMemoryMiB = 512

// The maximum numbers of numaN and hostpciN options in Proxmox.
const (
	maxCells   = 8
	maxHostPCI = 16
)

// capacityName is the name of the VM in which the host daemon of karpenter-provider-proxmox
// describes a host.
const capacityName = "node-capacity"

// publisherName is the name of the VM whose description can contain a host's topology, for
// users who can change VMs but not the host's notes.
const publisherName = "numaform-topology"

// diskKey matches the options of a VM's configuration for disks and images.
var diskKey = regexp.MustCompile(`^(ide|sata|scsi|virtio|efidisk|tpmstate|unused)\d+$`)

// guestsRead is the result of reading a host's guests, except for the guests
// themselves.
type guestsRead struct {
	// gone are guests that are no longer on the host.
	gone []resource
	// capacity is the host's machine as described by a node-capacity VM.
	capacity topology.Machine
	// published contains the topologies of the host in the descriptions of VMs, by VMID.
	published map[int]topology.Machine
}

// readGuests sets the host's guests, as they currently run, without pending changes. It
// sets a Problem if some cannot be read, because their pins are then unknown. known returns
// guests that need not be read; nil means that all are read.
func (c *Client) readGuests(ctx context.Context, host *topology.Host, guests []resource, known recallFunc) guestsRead {
	guests = slices.SortedFunc(slices.Values(guests), func(a, b resource) int { return cmp.Compare(a.VMID, b.VMID) })
	read := make([]rememberedGuest, len(guests))
	errs := make([]error, len(guests))
	var group errgroup.Group
	group.SetLimit(c.cfg.MaxInFlight)
	for i, r := range guests {
		if known != nil {
			var found bool
			if read[i], found = known(r); found {
				continue
			}
		}
		group.Go(func() error {
			readAt := c.cfg.Now()
			path := fmt.Sprintf("/nodes/%s/%s/%d/config?current=1", host.Name, r.Type, int(r.VMID))
			var config values
			if errs[i] = c.get(ctx, path, &config); errs[i] == nil {
				read[i] = newRemembered(r, config, readAt)
				c.guests.remember(r, read[i])
			}
			return nil
		})
	}
	_ = group.Wait() // errs contains the errors

	found := guestsRead{published: map[int]topology.Machine{}}
	for i, r := range guests {
		if isGone(errs[i]) {
			found.gone = append(found.gone, r)
			continue
		}
		if plain := read[i].plain; plain != nil {
			host.Guests = append(host.Guests, *plain)
			continue
		}
		guest, config := listedGuest(r), read[i].config
		err := errs[i]
		if err == nil {
			err = readConfig(&guest, config)
		}
		if err != nil {
			addProblem(host, fmt.Sprintf("guest %d cannot be read, so its CPUs and memory are unknown: %s", guest.VMID, short(err)))
		}
		flaws := flawsOf(host)
		if found.describe(host, guest, config, err == nil) { // it never runs
			guest.VCPUs = 0
			guest.MemoryMiB = 0
			guest.HugePagesKiB = 0
			guest.Pins = topology.CPUSet{}
			guest.NUMA = nil
			guest.PCIDevices = nil
			guest.Disks = nil
			guest.Addresses = nil
		}
		if err != nil || flawsOf(host) > flaws {
			c.guests.forget(r.VMID) // so that a correction is noticed soon
		}
		host.Guests = append(host.Guests, guest)
	}
	return found
}

// plainGuest returns a guest with this list entry and configuration, or nil if the guest
// cannot be read or may describe something (see describe).
func plainGuest(r resource, config values) *topology.Guest {
	guest := listedGuest(r)
	if readConfig(&guest, config) != nil || guest.Template || guest.Name == capacityName || guest.Name == publisherName {
		return nil
	}
	return &guest
}

// recallFunc returns a listed guest if it is known.
type recallFunc func(listed resource) (guest rememberedGuest, found bool)

// flawsOf returns the total number of a host's warnings and unusable templates.
func flawsOf(host *topology.Host) int {
	flaws := len(host.Warnings)
	for i := range host.Templates {
		if host.Templates[i].Problem != "" {
			flaws++
		}
	}
	return flaws
}

// describe reports whether a guest only describes something: it is a template, or its
// configuration contains a host's topology. It adds the description if the guest could be
// read.
func (f *guestsRead) describe(host *topology.Host, guest topology.Guest, config values, read bool) bool {
	vm := guest.Kind == topology.GuestVM
	hasDisk := func() bool {
		for key := range config {
			if diskKey.MatchString(key) {
				return true
			}
		}
		return false
	}
	switch {
	case guest.Template:
		if vm && read {
			host.Templates = append(host.Templates, readTemplate(guest, config))
		}
	case vm && !guest.Running && guest.Name == capacityName && slices.Contains(guest.Tags, "karpenter"):
		if read {
			f.addCapacity(host, guest, config)
		}
	case vm && !guest.Running && guest.Name == publisherName && !hasDisk():
		if read {
			f.addPublished(host, guest, config)
		}
	default:
		return false
	}
	return true
}

// addCapacity reads the host's topology from a node-capacity VM.
func (f *guestsRead) addCapacity(host *topology.Host, guest topology.Guest, config values) {
	cells, err := readCells(config)
	if err == nil && strings.TrimSpace(config["affinity"]) == "" {
		err = errors.New("it has no affinity: set its affinity to the host's CPUs, or remove the VM")
	}
	var machine topology.Machine
	if err == nil {
		machine, err = topology.FromCapacity(config["affinity"], cells)
	}
	switch {
	case err != nil:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d does not describe the host: %s", guest.VMID, err))
	case len(f.capacity.CPUs) > 0:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d is a second node-capacity VM and is ignored: keep only one such VM", guest.VMID))
	default:
		f.capacity = machine
	}
}

// addPublished reads the host's topology from the description of a VM.
func (f *guestsRead) addPublished(host *topology.Host, guest topology.Guest, config values) {
	machine, found, err := topology.ParsePublished(config["description"])
	switch {
	case err != nil:
		host.Warnings = append(host.Warnings, fmt.Sprintf("the topology in the description of guest %d is not used: %s", guest.VMID, err))
	case !found:
		host.Warnings = append(host.Warnings, fmt.Sprintf("guest %d has no topology in its description: "+
			"add what `numaform topology collect -o notes` prints on the host", guest.VMID))
	default:
		f.published[guest.VMID] = machine
	}
}

// listedGuest returns a guest with the data in /cluster/resources.
func listedGuest(r resource) topology.Guest {
	return topology.Guest{
		VMID:      int(r.VMID),
		Name:      r.Name,
		Kind:      topology.GuestKind(r.Type),
		Running:   r.Status == statusRunning,
		Template:  r.Template != 0,
		VCPUs:     int(r.MaxCPU),
		MemoryMiB: r.MaxMem.mib(),
		Tags:      list(r.Tags),
		Lock:      r.Lock,
	}
}

// listed returns the guests of a host that is not queried.
func listed(resources []resource) []topology.Guest {
	var guests []topology.Guest
	for _, r := range resources {
		guests = append(guests, listedGuest(r))
	}
	return guests
}

// readConfig sets a guest's fields from its running configuration. It stores only
// numaform's marker from the description.
func readConfig(guest *topology.Guest, config values) error {
	guest.Name = cmp.Or(config["name"], config["hostname"], guest.Name)
	guest.Lock = config["lock"]
	guest.Template = config.is("template")
	guest.Tags = list(config["tags"])
	memory, err := memoryMiB(config["memory"])
	if err != nil {
		return err
	}
	guest.MemoryMiB = memory
	guest.Addresses = addresses(guest.Kind, config)
	if guest.Kind == topology.GuestContainer {
		return readContainer(guest, config)
	}

	cores, err := config.count("cores", 1)
	if err != nil {
		return err
	}
	sockets, err := config.count("sockets", 1)
	if err != nil {
		return err
	}
	guest.VCPUs = cores * sockets
	if guest.Pins, err = topology.ParseCPUSet(config["affinity"]); err != nil {
		return fmt.Errorf("reading affinity: %w", err)
	}
	if made, ok := fleet.ParseTemplateMarker(config["description"]); ok {
		guest.MadeFor = made
	}
	if marker, ok := fleet.ParseMarker(config["description"]); ok {
		guest.ClusterID = marker.ClusterID
		guest.Key = string(marker.Key)
		guest.Pins = guest.Pins.Union(topology.CPUs(marker.Pins...))
		guest.Disks = disks(config)
	}
	for i := range maxHostPCI {
		// No mapping can contain a device that cannot be parsed.
		if device, err := topology.ParseHostPCI(config["hostpci"+strconv.Itoa(i)]); err == nil {
			guest.PCIDevices = append(guest.PCIDevices, device)
		}
	}

	switch text := config["hugepages"]; text {
	case "":
	case "any":
		guest.HugePagesKiB = topology.Unknown
	default:
		mib, err := strconv.Atoi(text)
		if err != nil || mib < 1 || mib > 1<<20 {
			return fmt.Errorf("hugepages %q: must be \"any\" or a number of MiB", text)
		}
		guest.HugePagesKiB = mib << 10
	}
	if config.is("numa") {
		guest.NUMA, err = readCells(config)
	}
	return err
}

func readCells(config values) ([]topology.NUMACell, error) {
	var cells []topology.NUMACell
	for i := range maxCells {
		key := "numa" + strconv.Itoa(i)
		text, ok := config[key]
		if !ok {
			continue
		}
		cell, err := topology.ParseNUMA(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
		cell.MemoryMiB = min(cell.MemoryMiB, topology.MaxMemoryMiB)
		cells = append(cells, cell)
	}
	return cells, nil
}

// readContainer reads a container's core limit, and a CPU set that an administrator may
// have added to its config file.
func readContainer(guest *topology.Guest, config values) error {
	var err error
	if guest.VCPUs, err = config.count("cores", 0); err != nil {
		return err
	}
	var raw [][]string
	if text := config["lxc"]; text != "" && json.Unmarshal([]byte(text), &raw) != nil {
		return fmt.Errorf("lxc %.64q: must be a list of pairs", text)
	}
	for _, pair := range raw {
		if len(pair) != 2 || !strings.HasSuffix(pair[0], ".cpuset.cpus") {
			continue
		}
		if guest.Pins, err = topology.ParseCPUSet(pair[1]); err != nil {
			return fmt.Errorf("reading %s: %w", pair[0], err)
		}
	}
	return nil
}

// maxNetworks is the maximum number of network devices of a guest in Proxmox.
const maxNetworks = 32

// addresses returns the static addresses in a guest's configuration, sorted: those that
// Proxmox gives the guest, and those that numaform wrote to the description of a VM.
func addresses(kind topology.GuestKind, config values) []string {
	key := "ipconfig" // for cloud-init
	if kind == topology.GuestContainer {
		key = "net"
	}
	all := fleet.ParseAddresses(config["description"])
	for i := range maxNetworks {
		for field := range strings.SplitSeq(config[key+strconv.Itoa(i)], ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
			// The value can also be dhcp, auto or manual.
			if prefix, err := netip.ParsePrefix(value); err == nil && (name == "ip" || name == "ip6") {
				all = append(all, prefix.Addr())
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var texts []string
	for _, ip := range slices.Compact(all) {
		texts = append(texts, ip.String())
	}
	return texts
}

// memoryMiB parses "2048", and "current=2048" as in Proxmox 8 and newer. Proxmox stores any
// amount, even if the guest cannot start with it: more than any host has is read as the maximum.
func memoryMiB(text string) (int64, error) {
	if text == "" {
		return defaultMemoryMiB, nil
	}
	for field := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(field, "=")
		if ok && key != "current" {
			continue
		}
		mib, err := strconv.ParseInt(cmp.Or(value, key), 10, 64)
		if (err == nil || errors.Is(err, strconv.ErrRange)) && mib >= 0 {
			return min(mib, topology.MaxMemoryMiB), nil
		}
	}
	return 0, fmt.Errorf("memory %q: must be a number of MiB", text)
}

// inherited are the options that a clone inherits from its template and that the provider
// resets unless HCL repeats them.
var inherited = append([]string{"agent", "bios", "boot", "cpu", "machine", "ostype", "scsihw", "vga"}, serialPorts...)

// serialPorts are the serial ports that a guest can have.
var serialPorts = []string{"serial0", "serial1", "serial2", "serial3"}

// rootOnly are the options that only root@pam may set or remove, including on a clone.
var rootOnly = []string{"affinity", "arch", "args", "hookscript", "hugepages", "ivshmem", "keephugepages"}

// cpuOption matches the options of CPUs and NUMA nodes that the module does not overwrite in a
// clone. The provider reads them back, and plans to remove them (bpg/proxmox 0.111.1,
// proxmoxtf/resource/vm/vm.go, vmCreateClone and vmReadCustom); a numaN without a counterpart
// in the module also prevents the start.
var cpuOption = regexp.MustCompile(`^(cpulimit|vcpus|numa\d+)$`)

var diskPattern = regexp.MustCompile(`^(scsi|virtio|sata|ide)\d+$`)

// driveKey matches the options of drives whose storages matter to a clone on another host
// (qemu-server 9.2.6, PVE/API2/Qemu.pm:282-323).
var driveKey = regexp.MustCompile(`^((scsi|virtio|sata|ide)\d+|efidisk0|tpmstate0)$`)

// cloudInitDrive matches a drive that Proxmox generates (qemu-server,
// PVE/QemuServer/Drive.pm: drive_is_cloudinit).
var cloudInitDrive = regexp.MustCompile(`^[^,]*[:/](?:vm-\d+-)?cloudinit(?:\.(?:raw|qcow2|vmdk))?(?:,|$)`)

// readTemplate reads a template. Its Problem explains why it cannot be cloned, or is empty.
func readTemplate(guest topology.Guest, config values) topology.Template {
	t := topology.Template{VMID: guest.VMID, Name: guest.Name, Tags: guest.Tags, Options: map[string]string{}, MadeFor: guest.MadeFor}
	for _, key := range inherited {
		if value, ok := config[key]; ok {
			t.Options[key] = value
		}
	}

	var problems []string
	add := func(problem, fix string) {
		command := fmt.Sprintf("qm set %d %s", t.VMID, fix)
		t.Commands = append(t.Commands, command)
		problems = append(problems, problem+": "+command)
	}
	for _, key := range rootOnly {
		if _, ok := config[key]; ok {
			add(fmt.Sprintf("it has %s, which its clones inherit and an API token cannot remove", key), "--delete "+key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if cpuOption.MatchString(key) && config[key] != "0" {
			add(fmt.Sprintf("it has %s, which its clones inherit, but numaform sets the CPUs and NUMA nodes of its VMs itself", key), "--delete "+key)
		}
	}
	if strings.Contains(config["hotplug"], "memory") {
		add("its hotplug contains memory, with which its clones could not start", "--delete hotplug")
	}
	if config.is("protection") {
		add("it has protection, which its clones inherit, so that Proxmox would refuse to delete them", "--protection 0")
	}
	// The provider numbers the ports of a VM without gaps.
	higher := ""
	for _, port := range slices.Backward(serialPorts) {
		switch {
		case config[port] != "":
			higher = port
		case higher != "":
			add(fmt.Sprintf("it has %s, but not %s", higher, port), "--"+port+" socket")
		}
	}
	// An enabled agent is "1", "1,fstrim_cloned_disks=1" or "enabled=1".
	enabled := func(field string) bool { return field == "1" || field == "enabled=1" }
	if !slices.ContainsFunc(strings.Split(config["agent"], ","), enabled) {
		add("its guest agent is disabled", "--agent 1")
	}
	if err := readBootDisk(&t, config); err != nil {
		problems = append(problems, err.Error())
	}
	t.Problem = strings.Join(problems, "; ")
	return t
}

// readBootDisk sets the boot disk of a template and lists its other drives.
func readBootDisk(t *topology.Template, config values) error {
	t.DiskInterface = bootDisk(config)
	if t.DiskInterface == "" {
		return fmt.Errorf("it has no boot disk: set one, for example with qm set %d --boot order=scsi0", t.VMID)
	}
	t.Drives = slices.DeleteFunc(drives(config), func(slot string) bool { return slot == t.DiskInterface })
	t.CloudInit = slices.ContainsFunc(t.Drives, func(slot string) bool { return cloudInitDrive.MatchString(config[slot]) })
	volume, options, _ := strings.Cut(config[t.DiskInterface], ",")
	storage, _, ok := strings.Cut(volume, ":")
	if !ok {
		return fmt.Errorf("its boot disk %s is not on a storage: import it into one", t.DiskInterface)
	}
	t.Storage = storage
	for key, value := range config {
		volume, _, _ := strings.Cut(value, ",")
		name, _, ok := strings.Cut(volume, ":")
		if ok && driveKey.MatchString(key) && name != storage && !slices.Contains(t.OtherStorages, name) {
			t.OtherStorages = append(t.OtherStorages, name)
		}
	}
	slices.Sort(t.OtherStorages)

	err := fmt.Errorf("the size of its boot disk %s is unknown: qm disk rescan --vmid %d", t.DiskInterface, t.VMID)
	var repeated []string
	for option := range strings.SplitSeq(options, ",") {
		switch name, value, _ := strings.Cut(option, "="); name {
		case "", "format":
		case "size":
			t.DiskGiB, err = sizeGiB(value)
		default:
			repeated = append(repeated, option)
		}
	}
	if len(repeated) > 0 {
		t.Options[t.DiskInterface] = strings.Join(repeated, ",")
	}
	return err
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

// bootDisk returns the first disk in the boot order. Without a boot order, it returns the
// disk in the older bootdisk option, or else the only disk. It returns "" if none exists.
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

// sizeGiB parses Proxmox sizes such as 3584M, rounded up to GiB.
func sizeGiB(text string) (int64, error) {
	units := map[string]float64{"": 1 << 30, "K": 1 << 20, "M": 1 << 10, "G": 1, "T": 1.0 / (1 << 10)}
	number := strings.TrimRight(text, "KMGT")
	divisor, ok := units[text[len(number):]]
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || value <= 0 {
		return 0, fmt.Errorf("its boot disk has the invalid size %q: must be a number with an optional K, M, G or T: run `qm disk rescan`", text)
	}
	return int64(math.Ceil(value / divisor)), nil
}
