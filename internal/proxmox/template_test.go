package proxmox_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	good := map[string]any{
		"template": 1, "name": "ubuntu", "tags": "k8s", "agent": "1", "boot": "order=ide2;net0;scsi0",
		"scsi0": "local-lvm:base-100-disk-0,discard=on,size=3584M", "ide2": "local-lvm:vm-100-cloudinit,media=cdrom,size=4M",
		"scsihw": "virtio-scsi-single", "ostype": "l26", "serial0": "socket", "cores": 2,
	}
	want := topology.Template{
		VMID: 100, Name: "ubuntu", Tags: []string{"k8s"}, DiskInterface: "scsi0", DiskGiB: 4, Storage: "local-lvm",
		Drives: []string{"ide2"}, CloudInit: true,
		Options: map[string]string{
			"scsi0": "discard=on", "agent": "1", "boot": "order=ide2;net0;scsi0", "scsihw": "virtio-scsi-single", "ostype": "l26", "serial0": "socket",
		},
	}
	bare := func(w *topology.Template) { delete(w.Options, "scsi0") }
	noDisk := func(w *topology.Template) {
		bare(w)
		w.DiskInterface, w.Storage, w.DiskGiB, w.Drives, w.CloudInit = "", "", 0, nil, false
	}
	for _, test := range []struct {
		name    string
		config  map[string]any // overrides options of good; nil removes one
		want    func(*topology.Template)
		problem string // a part of the Problem
	}{
		{"good", nil, func(*topology.Template) {}, ""},
		{
			"older bootdisk",
			map[string]any{"boot": nil, "bootdisk": "virtio0", "scsi0": nil, "virtio0": "ceph:base-100-disk-0,size=2T"},
			func(w *topology.Template) {
				delete(w.Options, "boot")
				delete(w.Options, "scsi0")
				w.DiskInterface, w.Storage, w.DiskGiB, w.OtherStorages = "virtio0", "ceph", 2048, []string{"local-lvm"}
			}, "",
		},
		{
			"more disks",
			map[string]any{"scsi10": "x:y,size=1G", "scsi2": "x:y,size=1G", "efidisk0": "b:c,size=4M", "tpmstate0": "d:e,size=4M", "ide0": "none,media=cdrom", "scsihw": "pvscsi", "scsi0": "a:b,format=qcow2,ssd=1,size=4G,cache=none"},
			func(w *topology.Template) {
				w.Storage, w.Drives, w.Options["scsi0"], w.Options["scsihw"] = "a", []string{"ide0", "ide2", "scsi10", "scsi2"}, "ssd=1,cache=none", "pvscsi"
				w.OtherStorages = []string{"b", "d", "local-lvm", "x"}
			}, "",
		},
		{"an ISO", map[string]any{"ide2": "local:iso/cloudinit-tools.iso,media=cdrom"}, func(w *topology.Template) { w.CloudInit, w.OtherStorages = false, []string{"local"} }, ""},
		{"only disk", map[string]any{"boot": nil}, func(w *topology.Template) { delete(w.Options, "boot") }, ""},
		{
			"agent with options",
			map[string]any{"agent": "enabled=1,fstrim_cloned_disks=1"},
			func(w *topology.Template) { w.Options["agent"] = "enabled=1,fstrim_cloned_disks=1" }, "",
		},
		{"no agent", map[string]any{"agent": nil}, func(w *topology.Template) { delete(w.Options, "agent") }, "qm set 100 --agent 1"},
		{"agent off", map[string]any{"agent": "0"}, func(w *topology.Template) { w.Options["agent"] = "0" }, "guest agent is disabled"},
		{"hookscript", map[string]any{"hookscript": "local:snippets/x.pl"}, func(*topology.Template) {}, "qm set 100 --delete hookscript"},
		{"affinity", map[string]any{"affinity": "0-3"}, func(*topology.Template) {}, "it has affinity"},
		{"args", map[string]any{"args": "-s"}, func(*topology.Template) {}, "it has args"},
		{"hugepages", map[string]any{"hugepages": "1024"}, func(*topology.Template) {}, "it has hugepages"},
		{"shared memory", map[string]any{"ivshmem": "size=32"}, func(*topology.Template) {}, "qm set 100 --delete ivshmem"},
		{"architecture", map[string]any{"arch": "x86_64"}, func(*topology.Template) {}, "qm set 100 --delete arch"},
		{"CPU limit", map[string]any{"cpulimit": 2}, func(*topology.Template) {}, "qm set 100 --delete cpulimit"},
		{"no CPU limit", map[string]any{"cpulimit": 0}, func(*topology.Template) {}, ""},
		{"hot-plugged CPUs", map[string]any{"vcpus": 2}, func(*topology.Template) {}, "qm set 100 --delete vcpus"},
		{"NUMA node", map[string]any{"numa": 1, "numa1": "cpus=0-1,memory=1024"}, func(*topology.Template) {}, "qm set 100 --delete numa1"},
		{"memory hotplug", map[string]any{"hotplug": "network,disk,memory,usb"}, func(*topology.Template) {}, "qm set 100 --delete hotplug"},
		{"hotplug", map[string]any{"hotplug": "network,disk,cpu"}, func(*topology.Template) {}, ""},
		{"protected", map[string]any{"protection": 1}, func(*topology.Template) {}, "qm set 100 --protection 0"},
		{"not protected", map[string]any{"protection": 0}, func(*topology.Template) {}, ""},
		{"two serial ports", map[string]any{"serial1": "socket"}, func(w *topology.Template) { w.Options["serial1"] = "socket" }, ""},
		{"a gap in the serial ports", map[string]any{"serial2": "socket"}, func(w *topology.Template) { w.Options["serial2"] = "socket" }, "qm set 100 --serial1 socket"},
		{
			"only the last serial port",
			map[string]any{"serial0": nil, "serial3": "socket"},
			func(w *topology.Template) {
				delete(w.Options, "serial0")
				w.Options["serial3"] = "socket"
			},
			"it has serial3, but not serial2: qm set 100 --serial2 socket; it has serial3, but not serial1: qm set 100 --serial1 socket; it has serial3, but not serial0",
		},
		{"boots from the network", map[string]any{"boot": "order=net0"}, func(w *topology.Template) {
			noDisk(w)
			w.Options["boot"] = "order=net0"
		}, "no boot disk"},
		{"two disks and no order", map[string]any{"boot": nil, "scsi1": "x:y,size=1G"}, func(w *topology.Template) {
			noDisk(w)
			delete(w.Options, "boot")
		}, "no boot disk"},
		{"unknown size", map[string]any{"scsi0": "local-lvm:base-100-disk-0"}, func(w *topology.Template) { bare(w); w.DiskGiB = 0 }, "qm disk rescan"},
		{"odd size", map[string]any{"scsi0": "local-lvm:base-100-disk-0,size=-1G"}, func(w *topology.Template) { bare(w); w.DiskGiB = 0 }, "has the invalid size"},
		{"passed-through disk", map[string]any{"scsi0": "/dev/sdb,size=1G"}, func(w *topology.Template) { bare(w); w.DiskGiB, w.Storage = 0, "" }, "is not on a storage"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := maps.Clone(good)
			for key, value := range test.config {
				if config[key] = value; value == nil {
					delete(config, key)
				}
			}
			server := newCanned(t)
			server.resources(guestResource("pve-1", 100, nil))
			server.say("/nodes/pve-1/qemu/100/config?current=1", config)
			got := server.read(t).Hosts[0].Templates
			want := want
			want.Options = maps.Clone(want.Options)
			test.want(&want)
			if len(got) != 1 || !strings.Contains(got[0].Problem, test.problem) || (got[0].Problem != "") != (test.problem != "") {
				t.Fatalf("templates %+v: want problem %q", got, test.problem)
			}
			want.Problem = got[0].Problem
			if strings.HasPrefix(test.problem, "qm set ") {
				want.Commands = []string{test.problem}
			} else {
				want.Commands = got[0].Commands
			}
			if diff := cmp.Diff(want, got[0]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
