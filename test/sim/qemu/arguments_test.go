package qemu_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/test/sim/qemu"
)

// worker returns a VM as configured by numaform's files.
func worker() qemu.VM {
	return qemu.VM{
		VMID: 2001,
		Options: map[string]string{
			"name": "workers-2001", "sockets": "2", "cores": "2", "memory": "4096", "cpu": "host", "agent": "1", "boot": "order=scsi0;net0",
			"numa": "1", "numa0": "cpus=0-1,hostnodes=0,memory=2048,policy=bind", "numa1": "cpus=2;3,hostnodes=1,memory=2048,policy=bind",
			"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,queues=4", "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr1", "smbios1": "uuid=0d4f6c0a-0000-4000-8000-000000000001,serial=YSxi,base64=1",
		},
		Drives: map[string]qemu.Drive{
			"scsi0": {Volume: "local-lvm:vm-2001-disk-0", Size: 8 << 30, Image: true, Linked: true},
			"ide2":  {Volume: "local:iso/numaform-e2e-2001.iso", CD: true, Content: []byte("seed")},
		},
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	args, err := qemu.Arguments(worker(), "/d/2001", "tcg", 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"-pidfile": {"/d/run/qemu-server/2001.pid"},
		"-smp":     {"4,sockets=2,cores=2,maxcpus=4"},
		"-cpu":     {"max,la57=off"},
		"-m":       {"4096"},
		"-smbios":  {"type=1,uuid=0d4f6c0a-0000-4000-8000-000000000001,serial=a,,b"},
		"-numa":    {"node,nodeid=0,cpus=0-1,memdev=ram-node0", "node,nodeid=1,cpus=2,cpus=3,memdev=ram-node1"},
		"-object": {
			"memory-backend-ram,id=ram-node0,size=2048M,host-nodes=0,policy=bind",
			"memory-backend-ram,id=ram-node1,size=2048M", // this machine has no node 1
			"rng-random,id=rng0,filename=/dev/urandom",
		},
		"-drive": {
			"file=/d/2001/ide2.iso,if=none,id=drive-ide2,cache=unsafe,format=raw,readonly=on,media=cdrom",
			"file=/d/2001/local-lvm-vm-2001-disk-0.qcow2,if=none,id=drive-scsi0,cache=unsafe,format=qcow2",
		},
		"-netdev": {
			"user,id=net0,ipv6=off,net=10.0.2.0/24,host=10.0.2.2,dhcpstart=10.0.2.15,hostname=workers-2001",
			"dgram,id=net1,local.type=unix,local.path=/d/2001/net1,remote.type=unix,remote.path=/d/vmbr1",
		},
	}
	got := map[string][]string{}
	for i := 0; i+1 < len(args); i++ {
		if want[args[i]] != nil {
			got[args[i]] = append(got[args[i]], args[i+1])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	for _, device := range []string{
		"ide-cd,bus=ide.1,unit=0,drive=drive-ide2,id=ide2",
		"scsi-hd,bus=scsihw0.0,scsi-id=0,drive=drive-scsi0,id=scsi0,bootindex=100",
		"virtserialport,chardev=qga0,name=org.qemu.guest_agent.0",
		"virtio-net-pci,mac=BC:24:11:00:00:01,netdev=net0,bus=pci.0,addr=0x12,id=net0",
		"virtio-net-pci,mac=BC:24:11:00:00:02,netdev=net1,bus=pci.0,addr=0x13,id=net1",
	} {
		if !slices.Contains(args, device) {
			t.Errorf("no device %s in %s", device, strings.Join(args, " "))
		}
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ cpu, accelerator, want string }{
		{"host", "kvm", "host"},
		{"host", "tcg", "max,la57=off"},
		{"cputype=host,flags=+aes", "tcg", "max,la57=off"},
		{"x86-64-v2-AES", "kvm", "host"}, // Proxmox's QEMU has this model
		{"custom-numa", "tcg", "max,la57=off"},
		{"kvm64", "tcg", "kvm64"},
	} {
		if got := qemu.Model(tt.cpu, tt.accelerator); got != tt.want {
			t.Errorf("%s with %s is %s, want %s", tt.cpu, tt.accelerator, got, tt.want)
		}
	}
}

func TestArgumentsRefuse(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(qemu.VM){
		"reading cores":               func(vm qemu.VM) { vm.Options["cores"] = "two" },
		"only virtio is supported":    func(vm qemu.VM) { vm.Options["net0"] = "e1000=BC:24:11:00:00:01,bridge=vmbr0" },
		"has no memory or no cpus":    func(vm qemu.VM) { vm.Options["numa0"] = "cpus=0-1" },
		"only scsi, virtio and ide a": func(vm qemu.VM) { vm.Drives["sata0"] = qemu.Drive{Volume: "local-lvm:x"} },
	} {
		vm := worker()
		change(vm)
		if _, err := qemu.Arguments(vm, "/d", "tcg"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
