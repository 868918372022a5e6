package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// withGuests returns a snapshot with the guests of VMs: standby VMs are stopped.
func withGuests(snapshot *topology.Snapshot, vms ...fleet.VM) *topology.Snapshot {
	for i := range vms {
		vm := &vms[i]
		host := snapshot.Host(vm.Host)
		host.Guests = append(host.Guests, topology.Guest{
			VMID: int(vm.VMID), Name: vm.Name, Key: string(vm.Key), ClusterID: "test", VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB,
			Running: !vm.Standby,
		})
	}
	return snapshot
}

// made returns the VMs after a decision: its new VMs exist, and its woken VMs are no longer
// standby VMs.
func made(existing []fleet.VM, d *scheduling.Decision) []fleet.VM {
	var vms []fleet.VM
	for _, vm := range existing {
		for i := range d.Woken {
			vm.Standby = vm.Standby && d.Woken[i].VM.Key != vm.Key
		}
		vms = append(vms, vm)
	}
	id := fleet.VMID(1999)
	for i := range vms {
		id = max(id, vms[i].VMID)
	}
	for _, n := range d.New {
		id++
		vms = append(vms, fleet.VM{
			Key: fleet.Key(fmt.Sprintf("key-%d", id)), VMID: id, Name: fleet.NodeName(n.NodePool, id),
			Spec: n.Spec, Placement: n.Placement, Standby: n.Standby, Reserve: n.Reserve,
		})
	}
	return vms
}

// standbyFor decides with pods of a standby buffer.
func standbyFor(t testing.TB, c *scheduling.Cluster, snapshot *topology.Snapshot, pods []*corev1.Pod, vms ...fleet.VM) *scheduling.Decision {
	t.Helper()
	d, err := c.Decide(t.Context(), scheduling.Request{
		ClusterID: "test", Snapshot: withGuests(snapshot, vms...), Existing: vms, Standby: pods,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// spare returns the standby VMs that hold no pods.
func spare(d *scheduling.Decision) []scheduling.Standby {
	var list []scheduling.Standby
	for _, s := range d.Standby {
		if len(s.Pods) == 0 {
			list = append(list, s)
		}
	}
	return list
}

// TestRenamedStandby checks that pods wake another standby VM if the first one was renamed in
// Proxmox, which therefore cannot be started: it remains, with the reason, and holds its
// buffer's pods.
func TestRenamedStandby(t *testing.T) {
	t.Parallel()
	pool := nodePool("general", "shared", "")
	buffer := virtual(2, "3")
	vms := made(nil, standbyFor(t, load(t, classes, pool), lab(), buffer))
	busy := load(t, classes, pool, deployment("web", 1, "2500m", "1Gi", ""))
	renamed := func(name string) *scheduling.Decision {
		snapshot := withGuests(lab(), vms...)
		for i := range snapshot.Hosts {
			for j := range snapshot.Hosts[i].Guests {
				if guest := &snapshot.Hosts[i].Guests[j]; guest.Key == string(vms[0].Key) {
					guest.Name = name
				}
			}
		}
		d, err := busy.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: snapshot, Existing: vms, Standby: buffer})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := renamed(vms[0].Name); len(d.Woken) != 1 || d.Woken[0].VM.Key != vms[0].Key {
		t.Fatalf("with its name, %s is not the first to wake: %+v", vms[0].Name, d.Woken)
	}
	for _, name := range []string{"accounting", ""} {
		d := renamed(name)
		if len(d.Woken) != 1 || d.Woken[0].VM.Key != vms[1].Key {
			t.Errorf("renamed to %q: wakes %+v, want %s", name, d.Woken, vms[1].Name)
		}
		if len(d.Standby) != 1 || d.Standby[0].VM.Key != vms[0].Key || d.Standby[0].Outdated != "" || len(d.Standby[0].Pods) != 1 ||
			!strings.Contains(d.Standby[0].Unusable, fmt.Sprintf("%q", name)) {
			t.Errorf("renamed to %q: the standby VMs are %+v, want only %s with a reason", name, d.Standby, vms[0].Name)
		}
	}
}

// TestStandby checks that a buffer gets standby VMs, and that the standby VMs that real
// pods need are woken and replaced.
func TestStandby(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"shared", "dedicated"} {
		pool := nodePool("general", class, "")
		buffer := virtual(3, "3")
		idle := load(t, classes, pool)
		first := standbyFor(t, idle, lab(), buffer)
		if len(first.New) != 3 || first.Placed != 3 {
			t.Fatalf("%s: %d VMs are made for 3 pods, %v", class, len(first.New), first.Refused)
		}
		for _, n := range first.New {
			if !n.Standby || n.Reserve != (class == "dedicated") {
				t.Errorf("%s: a VM is standby %v and reserves %v", class, n.Standby, n.Reserve)
			}
		}
		vms := made(nil, first)
		if again := standbyFor(t, idle, lab(), buffer, vms...); len(again.New) != 0 || len(again.Woken) != 0 || len(spare(again)) != 0 || again.Placed != 3 {
			t.Errorf("%s: the second decision makes %d, wakes %d, %d are spare", class, len(again.New), len(again.Woken), len(spare(again)))
		}

		// Two pods are created.
		busy := load(t, classes, pool, deployment("web", 2, "2500m", "1Gi", ""))
		d := standbyFor(t, busy, lab(), buffer, vms...)
		if len(d.Woken) != 2 || len(d.New) != 2 || d.Placed != 5 || len(d.Refused) != 0 {
			t.Fatalf("%s: wakes %d and makes %d, want 2 and 2; refused %v", class, len(d.Woken), len(d.New), d.Refused)
		}
		for _, n := range d.New {
			if !n.Standby {
				t.Errorf("%s: %s is made as a node", class, n.Spec.InstanceType)
			}
		}
		for _, w := range d.Woken {
			if len(w.Pods) != 1 || w.ClassHash == "" || w.VM.Standby {
				t.Errorf("%s: wakes %s, standby %v, for %v", class, w.VM.Name, w.VM.Standby, w.Pods)
			}
		}
		vms = made(vms, d)
		again := standbyFor(t, busy, lab(), buffer, vms...)
		if len(again.New)+len(again.Woken)+len(spare(again)) != 0 || len(again.InFlight) != 2 {
			t.Errorf("%s: the next decision makes %d, wakes %d, %d are spare", class, len(again.New), len(again.Woken), len(spare(again)))
		}

		// The buffer shrinks, and is then deleted.
		if d := standbyFor(t, busy, lab(), virtual(1, "3"), vms...); len(spare(d)) != 2 || len(d.New) != 0 {
			t.Errorf("%s: a buffer of one leaves %d spare", class, len(spare(d)))
		}
		if d := standbyFor(t, busy, lab(), nil, vms...); len(spare(d)) != 3 {
			t.Errorf("%s: no buffer leaves %d spare", class, len(spare(d)))
		}
	}
}

// TestStandbyComesLast checks that pods are placed on nodes and in-flight VMs first, that
// virtual pods wake no VM, and that standby pods use no room of nodes.
func TestStandbyComesLast(t *testing.T) {
	t.Parallel()
	joining := keptVM(2000, "general", "shared", "xeon", fleet.PolicyShared)
	joining.Overcommit = 1
	idle := keptVM(2001, "general", "shared", "xeon", fleet.PolicyShared)
	idle.Standby = true
	idle.Overcommit, idle.CPUType = 1, "host"
	pool := nodePool("general", "shared", "")
	d := standbyFor(t, load(t, classes, pool, deployment("web", 1, "3", "1Gi", "")), lab(), virtual(1, "3"), joining, idle)
	if len(d.Woken) != 0 || len(d.InFlight) != 1 || len(d.New) != 0 || len(spare(d)) != 0 {
		t.Errorf("wakes %d, in flight %v, makes %d, spare %v", len(d.Woken), d.InFlight, len(d.New), spare(d))
	}
	c := load(t, classes, pool)
	d, err := c.Decide(t.Context(), scheduling.Request{
		ClusterID: "test", Snapshot: withGuests(lab(), idle), Existing: []fleet.VM{idle}, Virtual: virtual(1, "3"),
	})
	if err != nil || len(d.Woken) != 0 || len(d.New) != 1 || d.New[0].Standby {
		t.Errorf("wakes %d and makes %d for a virtual pod: %v", len(d.Woken), len(d.New), err)
	}
	if d := standbyFor(t, c, lab(), virtual(1, "3"), joining); len(d.New) != 1 || len(d.InFlight) != 0 {
		t.Errorf("a VM that joins holds %v for a standby buffer, %d are made", d.InFlight, len(d.New))
	}
}

// TestStandbyStaysStopped checks the cases in which no pod wakes a standby VM.
func TestStandbyStaysStopped(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		change   func(*fleet.VM, *scheduling.Request)
		outdated string
		// replaced is set if another VM holds the buffer's pod.
		replaced bool
	}{
		{name: "being made", change: func(vm *fleet.VM, r *scheduling.Request) { r.Unready = map[fleet.Key]bool{vm.Key: true} }},
		{name: "started by hand", change: func(_ *fleet.VM, r *scheduling.Request) {
			for i := range r.Snapshot.Hosts {
				for j := range r.Snapshot.Hosts[i].Guests {
					r.Snapshot.Hosts[i].Guests[j].Running = true
				}
			}
		}},
		{name: "host is down", change: func(vm *fleet.VM, r *scheduling.Request) { r.Snapshot.Host(vm.Host).Online = false }, replaced: true},
		{name: "host is evacuated", change: func(vm *fleet.VM, r *scheduling.Request) {
			r.Evacuated = []topology.HostID{vm.Host}
			r.Unavailable = []scheduling.OfferingSelector{{Host: vm.Host}}
		}, outdated: "its host is being evacuated", replaced: true},
		{name: "host failed", change: func(vm *fleet.VM, r *scheduling.Request) {
			r.Unavailable = []scheduling.OfferingSelector{{Host: vm.Host}}
		}},
		{name: "a smaller disk", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.DiskGiB = 1 }, outdated: "its boot disk changed", replaced: true},
		{name: "another CPU type", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.CPUType = "kvm64" }, outdated: "its CPU type changed", replaced: true},
		{name: "other hardware", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.Hardware = &fleet.Hardware{NoTablet: true} }, outdated: "its hardware changed", replaced: true},
		{name: "a slower network", change: func(vm *fleet.VM, _ *scheduling.Request) {
			vm.Networks = []fleet.Network{{Bridge: "vmbr0", RateMBps: 1}}
		}, outdated: "its networks changed", replaced: true},
		{name: "another template", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.Source.VMID = 8999 }, outdated: "its template is now VM 9000", replaced: true},
		{
			name: "a type that is gone", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.InstanceType = "old.4VCPU-8GB" },
			outdated: "instance type old.4VCPU-8GB is no longer offered", replaced: true,
		},
		{name: "a seed", change: func(vm *fleet.VM, _ *scheduling.Request) { vm.SeedStorage = "local" }, outdated: "its seed changed", replaced: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, classes, nodePool("general", "shared", ""))
			buffer := virtual(1, "3")
			vms := made(nil, standbyFor(t, c, lab(), buffer))
			vms[0].Source = fleet.Source{VMID: 9000}
			request := scheduling.Request{ClusterID: "test", Snapshot: withGuests(lab(), vms...), Standby: buffer}
			test.change(&vms[0], &request)
			request.Existing = vms
			busy := load(t, classes, nodePool("general", "shared", ""), deployment("web", 1, "3", "1Gi", ""))
			d, err := busy.Decide(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			nodes, standby := 0, 0
			for _, n := range d.New {
				if n.Standby {
					standby++
				} else {
					nodes++
				}
			}
			if len(d.Woken) != 0 || nodes != 1 || (standby == 1) != test.replaced {
				t.Errorf("wakes %d, makes %d nodes and %d standby VMs; refused %v", len(d.Woken), nodes, standby, d.Refused)
			}
			for _, s := range d.Standby {
				if s.Outdated != test.outdated {
					t.Errorf("it is outdated: %q, want %q", s.Outdated, test.outdated)
				}
			}
		})
	}
}

// TestStandbyOutlivesLargerTemplates checks that a standby VM whose disk has the size of the
// largest template is not outdated while the host with that template is down.
func TestStandbyOutlivesLargerTemplates(t *testing.T) {
	t.Parallel()
	pool, buffer := nodePool("general", "shared", ""), virtual(1, "3")
	vms := made(nil, standbyFor(t, load(t, classes, pool), lab(), buffer))
	vms[0].DiskGiB += 20
	vms[0].Source = fleet.Source{VMID: 9000, DiskGiB: 3}
	if d := standbyFor(t, load(t, classes, pool), lab(), buffer, vms...); len(d.New) != 0 || len(d.Standby) != 1 || d.Standby[0].Outdated != "" {
		t.Errorf("makes %d, standby VMs are %+v", len(d.New), d.Standby)
	}
	busy := load(t, classes, pool, deployment("web", 1, "3", "1Gi", ""))
	if d := standbyFor(t, busy, lab(), buffer, vms...); len(d.Woken) != 1 {
		t.Errorf("wakes %d", len(d.Woken))
	}
}

// TestStandbyIsReplacedOneByOne checks that outdated standby VMs are replaced one at a time.
func TestStandbyIsReplacedOneByOne(t *testing.T) {
	t.Parallel()
	buffer := virtual(3, "3")
	vms := made(nil, standbyFor(t, load(t, classes, nodePool("general", "shared", "")), lab(), buffer))
	larger := strings.Replace(classes, "template: {name: debian}\n", "template: {name: debian}\n  bootDevice: {size: 77G}\n", 1)
	c := load(t, larger, nodePool("general", "shared", ""))
	for range 3 {
		d := standbyFor(t, c, lab(), buffer, vms...)
		gone := spare(d)
		if len(d.New) != 1 || len(gone) != 1 || gone[0].Outdated == "" {
			t.Fatalf("makes %d, and %d are spare: %+v", len(d.New), len(gone), gone)
		}
		vms = made(vms, d)
		var left []fleet.VM
		for _, vm := range vms {
			if vm.Key != gone[0].VM.Key {
				left = append(left, vm)
			}
		}
		vms = left
	}
	if d := standbyFor(t, c, lab(), buffer, vms...); len(d.New)+len(spare(d)) != 0 {
		t.Errorf("makes %d, and %d are spare in the end", len(d.New), len(spare(d)))
	}
}

// TestStandbyWithoutRoom checks that a standby VM that reserves nothing is not woken on a
// full host, and that the reservation of a standby VM is not available to other VMs.
func TestStandbyWithoutRoom(t *testing.T) {
	t.Parallel()
	pool := nodePool("general", "shared", "")
	buffer := virtual(1, "6")
	idle := load(t, classes, pool)
	for _, reserve := range []bool{false, true} {
		buffer[0].Annotations = map[string]string{v1alpha1.AnnotationReserve: fmt.Sprint(reserve)}
		first := standbyFor(t, idle, oneHost(8, 64), buffer)
		if len(first.New) != 1 || first.New[0].Reserve != reserve {
			t.Fatalf("makes %+v, want one that reserves %v", first.New, reserve)
		}
		vms := made(nil, first)
		big := load(t, classes, pool, deployment("big", 1, "10", "1Gi", ""))
		d := standbyFor(t, big, oneHost(8, 64), buffer, vms...)
		if room := len(d.New) == 1 && !d.New[0].Standby; room == reserve {
			t.Errorf("reserve %v: makes %d for a pod that needs the room, refused %v", reserve, len(d.New), d.Refused)
		}
		if reserve {
			continue
		}
		vms = made(vms, d)
		both := load(t, classes, pool, deployment("big", 1, "10", "1Gi", ""), deployment("small", 1, "6", "1Gi", ""))
		if d := standbyFor(t, both, oneHost(8, 64), buffer, vms...); len(d.Woken) != 0 || len(d.Refused) != 1 {
			t.Errorf("wakes %d without room, refuses %v", len(d.Woken), d.Refused)
		}
	}
}

// TestStandbyIsStable checks with random pods and busy hosts that a decision is complete: once
// its VMs are created and woken, the next decision creates and wakes none.
func TestStandbyIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		policy := rapid.SampledFrom([]string{"shared", "dedicated"}).Draw(r, "class")
		pool := nodePool("general", policy, "")
		sizes := rapid.SampledFrom([]string{"500m", "1500m", "3", "6"})
		buffer := virtual(rapid.IntRange(1, 5).Draw(r, "replicas"), sizes.Draw(r, "buffer"))
		vms := made(nil, standbyFor(t, load(t, classes, pool), lab(), buffer))
		manifests := []string{classes, pool}
		for i := range rapid.IntRange(1, 3).Draw(r, "apps") {
			app := fmt.Sprintf("app-%d", i)
			more := ""
			if rapid.Bool().Draw(r, "spread") {
				more = spread(app, "topology.kubernetes.io/zone")
			}
			manifests = append(manifests, deployment(app, rapid.IntRange(1, 6).Draw(r, "pods"), sizes.Draw(r, "size"), "1Gi", more))
		}
		c := load(t, manifests...)
		var busy []topology.HostID
		for _, host := range lab().Hosts {
			if rapid.Bool().Draw(r, "busy") {
				busy = append(busy, host.ID())
			}
		}
		decide := func() *scheduling.Decision {
			d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: withGuests(lab(), vms...), Existing: vms, Standby: buffer, Busy: busy})
			if err != nil {
				r.Fatal(err)
			}
			return d
		}
		d := decide()
		if len(d.Refused) > 0 {
			return
		}
		vms = made(vms, d)
		again := decide()
		for i := range again.New {
			if !again.New[i].Standby {
				r.Fatalf("the next decision makes a node of %s", again.New[i].Spec.InstanceType)
			}
		}
		if len(again.New)+len(again.Woken) != 0 {
			r.Fatalf("the next decision makes %d and wakes %d; the first made %d and woke %d", len(again.New), len(again.Woken), len(d.New), len(d.Woken))
		}
	})
}
