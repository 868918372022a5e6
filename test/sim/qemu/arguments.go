package qemu

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// VM is a VM to start: its configuration in Proxmox VE, and its drives.
type VM struct {
	VMID int
	// Options is the configuration, such as "cores": "2".
	Options map[string]string
	// Drives are the disks and CD-ROMs by option, such as "scsi0".
	Drives map[string]Drive
}

// Drive is a disk or CD-ROM of a VM.
type Drive struct {
	// Volume is the volume's ID.
	Volume string
	// Size is the size of a disk in bytes.
	Size int64
	// Image is set if the disk is a clone of the template's disk, and Linked if it is a
	// linked clone. Other disks are empty.
	Image, Linked bool
	// CD is set if the drive is a CD-ROM with this Content.
	CD      bool
	Content []byte
}

// here contains the values, besides the VM, that an argument list depends on.
type here struct {
	dir         string // directory of the VM's files
	accelerator string // kvm or tcg
	hostNodes   []int  // NUMA nodes of this machine
	// address is the last byte of the VM's address in its network.
	address int
}

// arguments returns QEMU's arguments for a VM, as config_to_command of qemu-server 9.2.6
// builds them (src/PVE/QemuServer.pm:3105-3720), except:
//
//   - a bridge needs root: a card on vmbr0 has a separate network of QEMU, from which the
//     guest reaches this machine, and each other bridge is a segment;
//   - the process remains in the foreground, and ends when the guest does;
//   - host nodes that this machine lacks, and the affinity, are omitted;
//   - without KVM, the CPU model is max in place of host and of models that only Proxmox's
//     QEMU has;
//   - -id is omitted, because only Proxmox's QEMU has this option;
//   - display, tablet, balloon and VNC are omitted.
func arguments(vm VM, here here) ([]string, error) {
	get := func(key, otherwise string) string { return cmp.Or(vm.Options[key], otherwise) }
	sockets, cores := get("sockets", "1"), get("cores", "1")
	cpus, err := product(sockets, cores)
	if err != nil {
		return nil, fmt.Errorf("reading cores and sockets of VM %d: %w", vm.VMID, err)
	}
	file := func(name string) string { return filepath.Join(here.dir, name) }
	args := []string{
		"-name", get("name", "VM "+strconv.Itoa(vm.VMID)) + ",debug-threads=on",
		"-pidfile", pidFile(here.dir, vm.VMID),
		"-chardev", "socket,id=qmp,path=" + file("qmp") + ",server=on,wait=off", "-mon", "chardev=qmp,mode=control",
		"-machine", "pc,accel=" + here.accelerator,
		"-smp", fmt.Sprintf("%d,sockets=%s,cores=%s,maxcpus=%d", cpus, sockets, cores, cpus),
		"-nodefaults", "-nographic", "-no-user-config",
		"-cpu", model(get("cpu", "kvm64"), here.accelerator),
		"-m", strings.TrimPrefix(get("memory", "512"), "current="),
	}
	if text := vm.Options["smbios1"]; text != "" {
		system, err := smbios(text)
		if err != nil {
			return nil, fmt.Errorf("reading smbios1 of VM %d: %w", vm.VMID, err)
		}
		args = append(args, "-smbios", system)
	}
	memory, err := numa(vm, here.hostNodes)
	if err != nil {
		return nil, err
	}
	args = append(args, memory...)
	args = append(
		args,
		"-chardev", "file,id=serial0,path="+file("serial.log"), "-device", "isa-serial,chardev=serial0",
		"-object", "rng-random,id=rng0,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng0",
	)
	if agent := vm.Options["agent"]; strings.HasPrefix(agent, "1") || strings.Contains(agent, "enabled=1") {
		args = append(
			args,
			"-chardev", "socket,path="+file("qga")+",server=on,wait=off,id=qga0", "-device", "virtio-serial,id=qga0",
			"-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0",
		)
	}
	drives, err := drives(vm, file)
	if err != nil {
		return nil, err
	}
	args = append(args, drives...)
	cards, err := cards(vm, here, file)
	if err != nil {
		return nil, err
	}
	return append(args, cards...), nil
}

// pidFile returns the path of a VM's PID file, given the directory of its files. On a host of
// Proxmox, it is below /var/run: qemu-server 9.2.6, src/PVE/QemuServer/Helpers.pm:133.
func pidFile(dir string, vmid int) string {
	return filepath.Join(filepath.Dir(dir), "run", "qemu-server", strconv.Itoa(vmid)+".pid")
}

// uplink is the bridge from which guests reach this machine.
const uplink = "vmbr0"

// Loopback is the address by which guests reach this machine's loopback interface.
const Loopback = "10.0.2.2"

// bridge returns the bridge of a network card.
func bridge(card string) string {
	for part := range strings.SplitSeq(card, ",") {
		if name, found := strings.CutPrefix(part, "bridge="); found {
			return name
		}
	}
	return uplink
}

// maxCards is the number of cards whose PCI slots are consecutive in Proxmox VE.
const maxCards = 6

// cards returns QEMU's arguments for the network cards net0 to net5. As in Proxmox VE, net0
// is in PCI slot 18, so that systemd names it ens18, net1 ens19, and so on (qemu-server
// 9.2.6, src/PVE/QemuServer/PCI.pm).
func cards(vm VM, here here, file func(string) string) ([]string, error) {
	var args []string
	for i := range maxCards {
		id := "net" + strconv.Itoa(i)
		card := vm.Options[id]
		if card == "" {
			continue
		}
		first, _, _ := strings.Cut(card, ",")
		kind, mac, _ := strings.Cut(first, "=")
		if kind != "virtio" {
			return nil, fmt.Errorf("starting VM %d: %s is %s: only virtio is supported", vm.VMID, id, kind)
		}
		network := fmt.Sprintf("user,id=%s,ipv6=off,net=10.0.2.0/24,host=%s,dhcpstart=10.0.2.%d,hostname=%s", id, Loopback, here.address, cmp.Or(vm.Options["name"], "guest"))
		if name := bridge(card); name != uplink {
			network = fmt.Sprintf(
				"dgram,id=%s,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s",
				id, file(id), filepath.Join(filepath.Dir(here.dir), name),
			)
		}
		args = append(
			args, "-netdev", network,
			"-device", fmt.Sprintf("virtio-net-pci,mac=%s,netdev=%s,bus=pci.0,addr=0x%x,id=%[2]s", mac, id, 18+i),
		)
	}
	return args, nil
}

// smbios returns QEMU's argument for the option smbios1. If the option contains base64=1,
// its values other than uuid are base64-encoded (qemu-server 9.2.6,
// src/PVE/QemuServer.pm:3241-3256).
func smbios(text string) (string, error) {
	parts := strings.Split(text, ",")
	encoded := slices.Contains(parts, "base64=1")
	system := "type=1"
	for _, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		if key == "base64" {
			continue
		}
		if encoded && key != "uuid" {
			plain, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				return "", fmt.Errorf("%s: %w", key, err)
			}
			value = string(plain)
		}
		system += "," + key + "=" + strings.ReplaceAll(value, ",", ",,")
	}
	return system, nil
}

func product(sockets, cores string) (int, error) {
	s, err := strconv.Atoi(sockets)
	if err != nil {
		return 0, err
	}
	c, err := strconv.Atoi(cores)
	return s * c, err
}

// model returns QEMU's name of a CPU model.
func model(cpu, accelerator string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(cpu, "cputype="), ",")
	patched := strings.HasPrefix(name, "x86-64-v") || strings.HasPrefix(name, "custom-")
	switch {
	case accelerator == "kvm" && (name == "host" || patched):
		return "host"
	case name == "host" || name == "max" || patched:
		return "max,la57=off" // otherwise TCG walks five levels of page tables
	}
	return name
}

// numa returns QEMU's arguments for the numaN options (qemu-server 9.2.6,
// src/PVE/QemuServer/Memory.pm:393-480).
func numa(vm VM, hostNodes []int) ([]string, error) {
	if vm.Options["numa"] != "1" {
		return nil, nil
	}
	var args []string
	for i := range 8 {
		text := vm.Options["numa"+strconv.Itoa(i)]
		if text == "" {
			continue
		}
		cell := map[string]string{}
		for part := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(part, "=")
			cell[key] = value
		}
		if cell["memory"] == "" || cell["cpus"] == "" {
			return nil, fmt.Errorf("reading numa%d of VM %d: %q has no memory or no cpus", i, vm.VMID, text)
		}
		object := fmt.Sprintf("memory-backend-ram,id=ram-node%d,size=%sM", i, cell["memory"])
		if nodes := cell["hostnodes"]; nodes != "" && exist(nodes, hostNodes) {
			object += ",host-nodes=" + strings.ReplaceAll(nodes, ";", ",host-nodes=") + ",policy=" + cell["policy"]
		}
		args = append(
			args, "-object", object,
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%s,memdev=ram-node%d", i, strings.ReplaceAll(cell["cpus"], ";", ",cpus="), i),
		)
	}
	return args, nil
}

// exist reports whether this machine has all host nodes of a list such as "0;2-3".
func exist(list string, nodes []int) bool {
	for part := range strings.SplitSeq(list, ";") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			return false
		}
		for node := from; node <= to; node++ {
			if !slices.Contains(nodes, node) {
				return false
			}
		}
	}
	return true
}

// drives returns QEMU's arguments for the disks and CD-ROMs. Their boot indexes follow the
// order in the option boot.
func drives(vm VM, file func(string) string) ([]string, error) {
	order := strings.Split(strings.TrimPrefix(vm.Options["boot"], "order="), ";")
	var names []string
	for name := range vm.Drives {
		names = append(names, name)
	}
	slices.Sort(names)
	var args []string
	controller := false
	for _, name := range names {
		d := vm.Drives[name]
		path, format := file(diskFile(d.Volume)), "qcow2"
		if d.CD {
			path, format = file(name+".iso"), "raw,readonly=on,media=cdrom"
		}
		args = append(args, "-drive", fmt.Sprintf("file=%s,if=none,id=drive-%s,cache=unsafe,format=%s", path, name, format))
		index := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz")
		device := ""
		switch bus := strings.TrimSuffix(name, index); bus {
		case "scsi":
			if !controller {
				args = append(args, "-device", "virtio-scsi-pci,id=scsihw0")
				controller = true
			}
			device = "scsi-hd,bus=scsihw0.0,scsi-id=" + index
		case "virtio":
			device = "virtio-blk-pci"
		case "ide":
			n, err := strconv.Atoi(index)
			if err != nil {
				return nil, fmt.Errorf("reading drive %s of VM %d: %w", name, vm.VMID, err)
			}
			device = fmt.Sprintf("ide-hd,bus=ide.%d,unit=%d", n/2, n%2)
			if d.CD {
				device = fmt.Sprintf("ide-cd,bus=ide.%d,unit=%d", n/2, n%2)
			}
		default:
			return nil, fmt.Errorf("starting VM %d: drive %s: only scsi, virtio and ide are supported", vm.VMID, name)
		}
		device += ",drive=drive-" + name + ",id=" + name
		if at := slices.Index(order, name); at >= 0 {
			device += fmt.Sprintf(",bootindex=%d", 100+at)
		}
		args = append(args, "-device", device)
	}
	return args, nil
}

// diskFile returns the file name of a volume.
func diskFile(volume string) string {
	return strings.NewReplacer("/", "-", ":", "-").Replace(volume) + ".qcow2"
}
