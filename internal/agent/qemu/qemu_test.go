package qemu_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/qemu"
	"github.com/numaform/numaform/topology"
)

// root writes files below a directory, each with a trailing newline.
func root(t *testing.T, files map[string]string) qemu.Reader {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return qemu.Reader{Root: dir}
}

// process returns the files in /proc of a VM's process.
func process(pid int, name, state string, start int, args ...string) map[string]string {
	dir := fmt.Sprintf("proc/%d/", pid)
	return map[string]string{
		dir + "stat":    fmt.Sprintf("%d (%s) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21", pid, name, state, start),
		dir + "cmdline": strings.Join(args, "\x00") + "\x00",
	}
}

func join(parts ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, part := range parts {
		for name, text := range part {
			all[name] = text
		}
	}
	return all
}

func TestRunning(t *testing.T) {
	t.Parallel()
	r := root(t, join(
		process(11, "kvm", "S", 900, "/usr/bin/kvm", "-id", "101", "-pidfile", "/var/run/qemu-server/101.pid", "-daemonize"),
		process(12, "a) R (b", "S", 1200, "kvm", "-pidfile", "/var/run/qemu-server/102.pid"),
		process(13, "kvm", "Z", 900, "kvm", "-pidfile", "/var/run/qemu-server/103.pid"),
		process(14, "bash", "S", 900, "bash", "-c", "-pidfile /var/run/qemu-server/104.pid"),
		process(15, "kvm", "S", 900, "kvm", "-pidfile", "/var/run/qemu-server/1105.pid", "-pidfile", "/var/run/qemu-server/105.pid"),
		process(16, "kvm", "S", 900, "kvm", "-pidfile"),
		map[string]string{
			"run/qemu-server/101.pid": "11", "run/qemu-server/102.pid": "12", "run/qemu-server/103.pid": "13",
			"run/qemu-server/104.pid": "14", "run/qemu-server/105.pid": "15", "run/qemu-server/106.pid": "16",
			"run/qemu-server/107.pid": "17", "run/qemu-server/108.pid": "-11", "run/qemu-server/109.pid": "1",
			"run/qemu-server/0101.pid": "11", "run/qemu-server/99.pid": "11", "run/qemu-server/101.qmp": "",
			"proc/uptime":                  "20.50 7.0",
			"etc/pve/qemu-server/101.conf": "#one\n#two\naffinity: 0-3\n[snap]\naffinity: 9",
		},
	))
	guests, err := r.Running()
	if err != nil {
		t.Fatal(err)
	}
	if len(guests) != 2 {
		t.Fatalf("running: %+v, want 101 and 102", guests)
	}
	one, two := guests[0], guests[1]
	if want := (qemu.Run{VMID: 101, PID: 11, Start: 900}); one.Run != want || one.Err != nil {
		t.Errorf("first %+v, %v, want %+v", one.Run, one.Err, want)
	}
	if one.Config.Description != "one\ntwo\n" || !one.Config.Affinity.Equal(topology.CPUs(0, 1, 2, 3)) {
		t.Errorf("first: %+v", one.Config)
	}
	if two.VMID != 102 || two.Start != 1200 || !errors.Is(two.Err, fs.ErrNotExist) {
		t.Errorf("second %+v, %v, want 102 without a configuration", two.Run, two.Err)
	}
	if age := r.Age(one.Run); age != 11.5 {
		t.Errorf("age %v, want 11.5 s", age)
	}
	if !r.Alive(one.Run) || r.Alive(qemu.Run{VMID: 101, PID: 11, Start: 901}) || r.Alive(qemu.Run{PID: 99}) {
		t.Error("Alive does not compare both the process id and the start time")
	}
	if none, err := root(t, nil).Running(); none != nil || err != nil {
		t.Errorf("no directory: %v, %v", none, err)
	}
}

func TestContainers(t *testing.T) {
	t.Parallel()
	r := root(t, map[string]string{
		"groups/lxc/200/cpuset.cpus": "", "groups/lxc/201/x": "", "groups/lxc/cpuset.cpus": "", "groups/lxc/abc/x": "",
		"etc/pve/lxc/200.conf": "arch: amd64\nlxc.cgroup2.cpuset.cpus: 2,3\n",
	})
	guests, err := r.Containers(filepath.Join(r.Root, "groups"))
	if err != nil || len(guests) != 2 || !guests[0].Config.Affinity.Equal(topology.CPUs(2, 3)) || guests[1].VMID != 201 {
		t.Errorf("containers: %+v, %v", guests, err)
	}
}

func TestThreads(t *testing.T) {
	t.Parallel()
	task := func(tid int, comm string) map[string]string {
		return map[string]string{fmt.Sprintf("proc/11/task/%d/comm", tid): comm}
	}
	usual := join(task(11, "kvm"), task(15, "CPU 1/KVM"), task(14, "CPU 0/KVM"), task(13, "IO iothread0"), task(16, "iou-wrk-11"))
	tests := []struct {
		name  string
		files map[string]string
		vcpus int
		fails bool
	}{
		{"usual", usual, 2, false},
		{"emulated", join(task(11, "q"), task(12, "CPU 0/TCG")), 1, false},
		{"ten", join(task(11, "CPU 0/KVM"), task(12, "CPU 1/KVM"), task(13, "CPU 10/KVM")), 0, false},
		{"first is missing", join(task(11, "kvm"), task(12, "CPU 1/KVM")), 0, false},
		{"none named", join(task(11, "kvm"), task(12, "kvm")), 0, false},
		{"one thread for all", join(task(11, "ALL CPUs/TCG")), 0, false},
		{"one twice", join(usual, task(17, "CPU 1/KVM")), 0, true},
		{"another spelling", join(usual, task(17, "CPU 02/KVM")), 2, false},
		{"no threads", nil, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			threads, err := root(t, tt.files).Threads(qemu.Run{PID: 11})
			if got := qemu.VCPUs(threads); got != tt.vcpus || (err != nil) != tt.fails {
				t.Errorf("%d vCPUs, error %v, want %d, error %t", got, err, tt.vcpus, tt.fails)
			}
		})
	}
	threads, err := root(t, usual).Threads(qemu.Run{PID: 11})
	want := []qemu.Thread{{TID: 14, VCPU: 0}, {TID: 15, VCPU: 1}, {TID: 11, VCPU: qemu.Other}, {TID: 13, VCPU: qemu.Other}}
	if diff := cmp.Diff(want, threads); err != nil || diff != "" {
		t.Errorf("error %v, threads (-want +got):\n%s", err, diff)
	}
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, description, affinity string }{
		{"nothing", "", "", ""},
		{"encoded", "#first%3A 1\r\n#\n#  third\nname: x\n", "first: 1\n\n  third\n", ""},
		{"behind the keys", "cores: 2\n#late\naffinity: 4,2\n", "late\n", "2,4"},
		{"as a key", "description: a%3Ab\n", "a:b\n", ""},
		{"badly encoded", "#50% %zz\n", "50% %zz\n", ""},
		{"pending and snapshots", "#now\n[PENDING]\n#later\naffinity: 1\n[old]\n#before\n", "now\n", ""},
		{"container", "lxc.cgroup2.cpuset.cpus: 0-1\n", "", "0-1"},
	}
	for _, tt := range tests {
		config, err := qemu.ParseConfig(tt.text)
		if err != nil || config.Description != tt.description || config.Affinity.String() != tt.affinity {
			t.Errorf("%s: %+v, %v, want %q and %q", tt.name, config, err, tt.description, tt.affinity)
		}
	}
	if _, err := qemu.ParseConfig("affinity: 0-\n"); err == nil {
		t.Error("a malformed affinity was accepted")
	}
	big := root(t, map[string]string{"run/qemu-server/x": "", "groups/lxc/200/x": "", "etc/pve/lxc/200.conf": strings.Repeat("#\n", 1<<20)})
	if guests, _ := big.Containers(filepath.Join(big.Root, "groups")); len(guests) != 1 || guests[0].Err == nil {
		t.Errorf("a file of 2 MiB: %v, want an error", guests[0].Err)
	}
}

// FuzzParseConfig checks that pins are never read from a file without a description, nor an
// affinity from a file without a line for it.
func FuzzParseConfig(f *testing.F) {
	f.Add("#numaform/1 cluster=prod key=0123456789abcdef0123456789abcdef pins=1,2\ncores: 2\naffinity: 0-3\n")
	f.Add("#x%0Aaffinity: 1\n[PENDING]\n#y\n")
	f.Add("#%6eumaform/1 cluster=prod key=0123456789abcdef0123456789abcdef pins=1,2\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := qemu.ParseConfig(text)
		if err != nil {
			return
		}
		if marker, ok := fleet.ParseMarker(config.Description); ok && len(marker.Pins) > 0 && !strings.Contains(text, "#") && !strings.Contains(text, "description") {
			t.Errorf("marker %v of %q", marker, text)
		}
		if !config.Affinity.IsEmpty() && !strings.Contains("\n"+text, "\naffinity") && !strings.Contains("\n"+text, "\nlxc.cgroup") {
			t.Errorf("affinity %s of %q", config.Affinity, text)
		}
	})
}

func TestParseDevices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"vfio-pci,host=0000:41:00.0,id=hostpci0,bus=ich9-pcie-port-1,addr=0x0": {"0000:41:00.0"},
		"vfio-pci,id=hostpci0.1,host=41:00.1,multifunction=on":                 {"0000:41:00.1"},
		"vfio-pci,host=10000:e1:00.0":                                          {"10000:e1:00.0"},
		"virtio-net-pci,host=0000:41:00.0":                                     nil,
		"vfio-pci,sysfsdev=/sys/bus/mdev/devices/x,host=0000:41:00.0":          nil,
		"vfio-pci,host=0000:41:00.0,host=0000:42:00.0":                         nil,
		"vfio-pci,id=a,,host=0000:41:00.0":                                     nil,
		"vfio-pci,host=../../0000:41:00.0":                                     nil,
		"vfio-pci,host=0000:41:00.8":                                           nil,
		"vfio-pci,host=":                                                       nil,
		"vfio-pci":                                                             nil,
		"vfio-pci-nohotplug,host=0000:41:00.0":                                 nil,
		`{"driver":"vfio-pci","host":"0000:41:00.0"}`:                          nil,
		"": nil,
	} {
		if diff := cmp.Diff(want, qemu.ParseDevices([]string{"kvm", "-device", text, "-device"})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	args := []string{"-device", "vfio-pci,host=42:00.0", "-device", "vfio-pci,host=41:00.0", "-device", "vfio-pci,host=0000:42:00.0", "-name", "vfio-pci,host=43:00.0"}
	if diff := cmp.Diff([]string{"0000:41:00.0", "0000:42:00.0"}, qemu.ParseDevices(args)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// TestChanged checks that a start is detected both with a new file and with one left by a
// crash.
func TestChanged(t *testing.T) {
	t.Parallel()
	reader := root(t, map[string]string{"run/qemu-server/101.pid": "12"})
	dir := filepath.Join(reader.Root, "run/qemu-server")
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	for name, change := range map[string]func() error{
		"nothing":  func() error { return nil },
		"new":      func() error { return os.WriteFile(filepath.Join(dir, "102.pid"), nil, 0o600) },
		"again":    func() error { return os.WriteFile(filepath.Join(dir, "101.pid"), []byte("13"), 0o600) },
		"the end":  func() error { return os.Remove(filepath.Join(dir, "101.pid")) },
		"no start": func() error { return os.RemoveAll(dir) },
	} {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "101.pid"), nil, 0o600),
			os.Chtimes(filepath.Join(dir, "101.pid"), begin, begin), os.Chtimes(dir, begin, begin)); err != nil {
			t.Fatal(err)
		}
		before := reader.Changed()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if same := reader.Changed().Equal(before); same != (name == "nothing") {
			t.Errorf("%s: unchanged %t", name, same)
		}
	}
}

// FuzzParseDevices checks that every result is an address, whatever the arguments are,
// because it becomes part of a path.
func FuzzParseDevices(f *testing.F) {
	f.Add("vfio-pci,host=0000:41:00.0,id=hostpci0")
	f.Add("vfio-pci,host=../41:00.0")
	f.Fuzz(func(t *testing.T, arg string) {
		for _, device := range qemu.ParseDevices([]string{"-device", arg}) {
			if len(device) > 16 || strings.Trim(device, "0123456789abcdef:.") != "" || strings.Contains(device, "..") {
				t.Errorf("%q gives %q", arg, device)
			}
		}
	})
}
