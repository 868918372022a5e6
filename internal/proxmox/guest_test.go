package proxmox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

var marker = fleet.Marker{ClusterID: "prod", Key: "0123456789abcdef0123456789abcdef", Pins: []int{4, 0}}

// TestGuests checks that guests' configurations are read in each form that Proxmox sends,
// such as numbers as strings.
func TestGuests(t *testing.T) {
	t.Parallel()
	base := topology.Guest{VMID: 100, Name: "g", Kind: topology.GuestVM, Running: true, VCPUs: 1, MemoryMiB: 512}
	for _, test := range []struct {
		name   string
		fields map[string]any // of the resource
		config map[string]any
		want   func(*topology.Guest)
	}{
		{"defaults", nil, map[string]any{}, func(*topology.Guest) {}},
		{
			"numbers", nil,
			map[string]any{"cores": 4, "sockets": 2, "memory": 8192},
			func(g *topology.Guest) { g.VCPUs, g.MemoryMiB = 8, 8192 },
		},
		{
			"strings",
			map[string]any{"vmid": "100", "maxmem": "1", "template": "0"},
			map[string]any{"cores": "4", "sockets": "2", "memory": "8192", "numa": "0", "numa0": "cpus=0,memory=1"},
			func(g *topology.Guest) { g.VCPUs, g.MemoryMiB = 8, 8192 },
		},
		{
			"more than any host has", nil, // Proxmox stores such values, although the VM cannot start
			map[string]any{"cores": "9223372036854775807", "sockets": "99999999999999999999", "memory": "9223372036854775807", "numa": 1, "numa0": "cpus=0,memory=9223372036854775807"},
			func(g *topology.Guest) {
				g.VCPUs, g.MemoryMiB = 1<<32, 1<<28
				g.NUMA = []topology.NUMACell{{GuestCPUs: topology.CPUs(0), MemoryMiB: 1 << 28}}
			},
		},
		{
			"more memory than a number", nil,
			map[string]any{"memory": "current=99999999999999999999"},
			func(g *topology.Guest) { g.MemoryMiB = 1 << 28 },
		},
		{
			"memory as a property string", nil,
			map[string]any{"memory": "current=4096"},
			func(g *topology.Guest) { g.MemoryMiB = 4096 },
		},
		{
			"addresses for cloud-init, and of numaform", nil,
			map[string]any{
				"ipconfig0": "gw=10.0.0.1,ip=10.0.0.5/24,ip6=auto", "ipconfig1": "ip=dhcp,ip6=fd00::5/64", "ipconfig12": "ip=10.9.0.5/16", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
				"description": "hello\nAddresses: net0 10.0.0.7/24 from nodes, net1 fd00::7/64 from storage.",
			},
			func(g *topology.Guest) {
				g.Addresses = []string{"10.0.0.5", "10.0.0.7", "10.9.0.5", "fd00::5", "fd00::7"}
			},
		},
		{
			"affinity", nil,
			map[string]any{"affinity": "0-1,4"},
			func(g *topology.Guest) { g.Pins = topology.CPUs(0, 1, 4) },
		},
		{
			"marker", nil,
			map[string]any{"description": "hello\n" + marker.String() + "\n"},
			func(g *topology.Guest) {
				g.ClusterID, g.Key, g.Pins = "prod", string(marker.Key), topology.CPUs(0, 4)
			},
		},
		{
			"affinity and marker", nil,
			map[string]any{"affinity": "7", "description": marker.String()},
			func(g *topology.Guest) {
				g.ClusterID, g.Key, g.Pins = "prod", string(marker.Key), topology.CPUs(0, 4, 7)
			},
		},
		{
			"numa", nil,
			map[string]any{
				"cores": 4, "memory": "2048", "numa": 1,
				"numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind", "numa1": "cpus=2-3,hostnodes=1,memory=1024,policy=bind",
			},
			func(g *topology.Guest) {
				g.VCPUs, g.MemoryMiB = 4, 2048
				g.NUMA = []topology.NUMACell{
					{GuestCPUs: topology.CPUs(0, 1), HostNodes: topology.CPUs(0), MemoryMiB: 1024, Policy: topology.NUMABind},
					{GuestCPUs: topology.CPUs(2, 3), HostNodes: topology.CPUs(1), MemoryMiB: 1024, Policy: topology.NUMABind},
				}
			},
		},
		{
			"huge pages", nil,
			map[string]any{"memory": "2048", "numa": 1, "hugepages": "1024", "numa0": "cpus=0,hostnodes=1,memory=2048,policy=bind"},
			func(g *topology.Guest) {
				g.VCPUs, g.MemoryMiB, g.HugePagesKiB = 1, 2048, 1<<20
				g.NUMA = []topology.NUMACell{
					{GuestCPUs: topology.CPUs(0), HostNodes: topology.CPUs(1), MemoryMiB: 2048, Policy: topology.NUMABind},
				}
			},
		},
		{
			"any huge pages", nil,
			map[string]any{"memory": "2048", "hugepages": "any"},
			func(g *topology.Guest) { g.VCPUs, g.MemoryMiB, g.HugePagesKiB = 1, 2048, topology.Unknown },
		},
		{
			"tags, lock and name",
			map[string]any{"name": "old", "status": "stopped"},
			map[string]any{"name": "new", "tags": "b;a", "lock": "clone"},
			func(g *topology.Guest) {
				g.Name, g.Running, g.Tags, g.Lock = "new", false, []string{"a", "b"}, "clone"
			},
		},
		{
			"container",
			map[string]any{"type": "lxc"},
			map[string]any{"hostname": "ct", "cores": 3, "memory": 1024, "lxc": []any{[]any{"lxc.cgroup2.cpuset.cpus", "2-3"}}},
			func(g *topology.Guest) {
				g.Name, g.Kind, g.VCPUs, g.MemoryMiB, g.Pins = "ct", topology.GuestContainer, 3, 1024, topology.CPUs(2, 3)
			},
		},
		{
			"container without limit",
			map[string]any{"type": "lxc", "maxcpu": 8},
			map[string]any{},
			func(g *topology.Guest) { g.Kind, g.VCPUs = topology.GuestContainer, 0 },
		},
		{
			"template", nil,
			map[string]any{"template": 1, "cores": 4, "memory": 4096, "affinity": "0-3"},
			func(g *topology.Guest) { g.Template, g.VCPUs, g.MemoryMiB = true, 0, 0 },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			resource := guestResource("pve-1", 100, map[string]any{"name": "g"})
			for key, value := range test.fields {
				resource[key] = value
			}
			server.resources(resource)
			server.say(fmt.Sprintf("/nodes/pve-1/%s/100/config?current=1", resource["type"]), test.config)
			host := server.read(t).Hosts[0]
			want := base
			test.want(&want)
			if diff := cmp.Diff([]topology.Guest{want}, host.Guests); diff != "" || host.Problem != "" {
				t.Errorf("problem %q, guests (-want +got):\n%s", host.Problem, diff)
			}
		})
	}
}

// TestUnreadableGuest checks that the pins of a guest that cannot be read are unknown.
func TestUnreadableGuest(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]answer{
		"affinity":   {data: map[string]any{"affinity": "0-x"}},
		"numa":       {data: map[string]any{"numa": 1, "numa0": "cpus"}},
		"cores":      {data: map[string]any{"cores": "many"}},
		"memory":     {data: map[string]any{"memory": "lots"}},
		"huge pages": {data: map[string]any{"hugepages": "big"}},
		"no answer":  {status: 596, reason: "Connection timed out"},
		"forbidden":  {status: 403, reason: "Permission check failed (/vms/100, VM.Audit)"},
		"other text": {body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCanned(t)
			server.resources(guestResource("pve-1", 100, nil), guestResource("pve-1", 101, nil))
			server.answer("/nodes/pve-1/qemu/100/config?current=1", given)
			server.say("/nodes/pve-1/qemu/101/config?current=1", map[string]any{"affinity": "3"})
			host := server.read(t).Hosts[0]
			if !strings.Contains(host.Problem, "guest 100 cannot be read") {
				t.Errorf("problem is %q", host.Problem)
			}
			if len(host.Guests) != 2 || !host.Guests[1].Pins.Equal(topology.CPUs(3)) || !host.Online {
				t.Errorf("the rest of the host is lost: %+v", host)
			}
		})
	}
}

func TestForeignDescriptionsAndReportAreDropped(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.resources(guestResource("pve-1", 100, nil))
	server.say("/nodes/pve-1/qemu/100/config?current=1", map[string]any{"description": "canary-description", "cipassword": "canary-password"})
	text, err := server.read(t).Print()
	if err != nil || strings.Contains(string(text), "canary") {
		t.Errorf("snapshot contains foreign data (%v):\n%s", err, text)
	}
}

// TestVanishedGuest checks that a guest that no longer exists is skipped, and one that
// moved is found.
func TestVanishedGuest(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.say("/cluster/status", []any{node("pve-1", 1), node("pve-2", 1)})
	server.say("/nodes/pve-2/report", report(eightCPUs))
	server.answer("/cluster/resources",
		answer{data: []any{nodeResource("pve-1"), nodeResource("pve-2"), guestResource("pve-1", 100, nil), guestResource("pve-1", 101, nil)}},
		answer{data: []any{guestResource("pve-2", 101, nil)}})
	for _, vmid := range []string{"100", "101"} {
		server.refuse("/nodes/pve-1/qemu/"+vmid+"/config?current=1", 500, "Configuration file 'nodes/pve-1/qemu-server/"+vmid+".conf' does not exist")
	}
	server.say("/nodes/pve-2/qemu/101/config?current=1", map[string]any{"affinity": "6-7"})
	hosts := server.read(t).Hosts
	if len(hosts[0].Guests) != 0 || hosts[0].Problem != "" {
		t.Errorf("pve-1: %+v", hosts[0])
	}
	if len(hosts[1].Guests) != 1 || !hosts[1].Guests[0].Pins.Equal(topology.CPUs(6, 7)) {
		t.Errorf("pve-2: %+v", hosts[1])
	}
}

// TestNodeCapacity checks that the topology written by another autoscaler's daemon is used,
// and its affinity is not treated as pins.
func TestNodeCapacity(t *testing.T) {
	t.Parallel()
	server := newCanned(t)
	server.say("/nodes/pve-1/report", report(strings.NewReplacer("0-1,4-5", "0-3", "2-3,6-7", "4-7").Replace(eightCPUs)))
	server.resources(guestResource("pve-1", 100, map[string]any{"status": "stopped"}))
	server.say("/nodes/pve-1/qemu/100/config?current=1", map[string]any{
		"name": "node-capacity", "tags": "karpenter", "affinity": "0-7", "numa": 1, "memory": 16384, "cores": 8,
		"numa0": "cpus=0-3,hostnodes=0,memory=8192,policy=bind", "numa1": "cpus=4-7,hostnodes=1,memory=8192,policy=bind",
	})
	host := server.read(t).Hosts[0]
	if host.Sources[topology.FactNUMA] != topology.SourceCapacity || host.CPU(4).NUMANode != 1 || host.NUMANode(1).MemoryMiB != 8192 {
		t.Errorf("machine: %+v", host.Machine)
	}
	if guest := host.Guests[0]; !guest.Pins.IsEmpty() || guest.VCPUs != 0 || guest.MemoryMiB != 0 {
		t.Errorf("counted as a guest: %+v", guest)
	}
}
