package scheduling_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// idle returns a standby VM of the class shared on a host of the lab.
func idle(id int, host string) fleet.VM {
	vm := keptVM(id, "general", "shared", host, fleet.PolicyShared)
	vm.Standby = true
	vm.Overcommit, vm.CPUType = 1, "host"
	vm.Source = fleet.Source{VMID: 9000}
	return vm
}

// standbyOutcome is the part of a decision that these tests check.
type standbyOutcome struct {
	// Woken are the names of the woken VMs, and Outdated the reasons of the others.
	Woken    []string
	Outdated []string
	// Nodes and Standby are the numbers of new nodes and new standby VMs, and Spare the
	// number of standby VMs that hold no pods.
	Nodes, Standby, Spare int
}

func standbyOutcomeOf(t *testing.T, c *scheduling.Cluster, r scheduling.Request) standbyOutcome {
	t.Helper()
	r.ClusterID = "test"
	d, err := c.Decide(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Refused) > 0 {
		t.Errorf("refused %v", d.Refused)
	}
	o := standbyOutcome{Spare: len(spare(d))}
	for _, w := range d.Woken {
		o.Woken = append(o.Woken, w.VM.Name)
	}
	for _, s := range d.Standby {
		if s.Outdated != "" {
			o.Outdated = append(o.Outdated, s.Outdated)
		}
	}
	for _, n := range d.New {
		if n.Standby {
			o.Standby++
		} else {
			o.Nodes++
		}
	}
	return o
}

// TestMovedStandby checks that a standby VM that another client moved, which no plan can
// start, is not woken but replaced. The templates of the lab's hosts have the same VMID, like
// a template on shared storage.
func TestMovedStandby(t *testing.T) {
	t.Parallel()
	vms := []fleet.VM{idle(2000, "xeon"), idle(2001, "ryzen")}
	moved := vms[0]
	moved.Host.Host = "epyc"
	c := load(t, classes, nodePool("general", "shared", ""), deployment("web", 2, "3", "1Gi", ""))
	got := standbyOutcomeOf(t, c, scheduling.Request{
		Snapshot: withGuests(lab(), moved, vms[1]), Existing: vms, Standby: virtual(2, "3"),
	})
	want := standbyOutcome{
		Woken: []string{"general-2001"}, Outdated: []string{"it was moved from host lab/xeon to host lab/epyc"},
		Nodes: 1, Standby: 2, Spare: 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

// TestStandbyOfAnotherTemplate checks that a standby VM is not woken once its class selects
// another template, also on a host without that template. It is replaced once any host has
// it. A VM whose template was only deleted is woken.
func TestStandbyOfAnotherTemplate(t *testing.T) {
	t.Parallel()
	debian := topology.Template{VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "local", Tags: []string{"old"}}
	debian.MadeFor = topology.MadeFor{ClusterID: "test", Template: "debian", Serial: 1}
	trixie := topology.Template{VMID: 9100, Name: "trixie", DiskInterface: "scsi0", DiskGiB: 10, Storage: "local", Tags: []string{"new"}}
	trixie.MadeFor = topology.MadeFor{ClusterID: "test", Template: "trixie", Serial: 1}
	newer := debian
	newer.VMID, newer.MadeFor.Serial = 9101, 2
	const outdated = "its class no longer selects its template debian (VM 9000)"
	woken := standbyOutcome{Woken: []string{"general-2000"}, Standby: 1}
	replaced := standbyOutcome{Outdated: []string{outdated}, Nodes: 1, Standby: 1, Spare: 1}
	for _, test := range []struct {
		name, selects string
		// xeon and ryzen are the templates on the host of the VM, and on another host.
		xeon, ryzen []topology.Template
		want        standbyOutcome
	}{
		{"another name", "name: trixie", []topology.Template{debian}, []topology.Template{trixie}, replaced},
		{"another name, and the template was deleted", "name: trixie", nil, []topology.Template{trixie}, replaced},
		{"another VMID", "vmid: 9100", []topology.Template{debian}, []topology.Template{trixie}, replaced},
		{"other tags", "tags: [new]", []topology.Template{debian}, []topology.Template{trixie}, replaced},
		{"another ProxmoxTemplate", "ref: trixie", []topology.Template{debian}, []topology.Template{trixie}, replaced},
		{"the template was deleted", "name: debian", nil, []topology.Template{debian}, woken},
		{"a ProxmoxTemplate that is rolled out", "ref: debian", []topology.Template{debian}, []topology.Template{newer}, woken},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			vms := []fleet.VM{idle(2000, "xeon")}
			snapshot := withGuests(lab(), vms...)
			snapshot.Hosts[0].Templates = nil
			snapshot.Hosts[1].Templates = test.ryzen
			snapshot.Hosts[2].Templates = test.xeon
			class := strings.Replace(classes, "template: {name: debian}", "template: {"+test.selects+"}", 1)
			c := load(t, class, nodePool("general", "shared", ""), deployment("web", 1, "3", "1Gi", ""))
			got := standbyOutcomeOf(t, c, scheduling.Request{Snapshot: snapshot, Existing: vms, Standby: virtual(1, "3")})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}

	// No host has the template: there is neither a node nor another standby VM.
	vms := []fleet.VM{idle(2000, "xeon")}
	c := load(t, strings.Replace(classes, "name: debian", "name: debain", 1), nodePool("general", "shared", ""), deployment("web", 1, "3", "1Gi", ""))
	d := standbyFor(t, c, lab(), virtual(1, "3"), vms...)
	if len(d.Woken)+len(d.New) != 0 || len(d.Standby) != 1 || d.Standby[0].Outdated != outdated || len(spare(d)) != 0 {
		t.Errorf("wakes %d, makes %d, standby VMs are %+v: want the VM to stay stopped", len(d.Woken), len(d.New), d.Standby)
	}
}

// TestStandbyOnAFullHost checks that an outdated standby VM is removed although no host can
// take VMs of its class, because its disk fills the storage.
func TestStandbyOnAFullHost(t *testing.T) {
	t.Parallel()
	vms := []fleet.VM{idle(2000, "solo")}
	vms[0].CPUType = "kvm64"
	snapshot := oneHost(8, 64)
	snapshot.Hosts[0].Storages[0].TotalMiB, snapshot.Hosts[0].Storages[0].FreeMiB = 50<<10, 1
	d := standbyFor(t, load(t, classes, nodePool("general", "shared", "")), snapshot, virtual(1, "3"), vms...)
	if gone := spare(d); len(d.New) != 0 || len(gone) != 1 || gone[0].Outdated != "its CPU type changed" {
		t.Errorf("makes %d, and %+v are spare: want the VM to be replaced", len(d.New), gone)
	}
}

// TestStandbyOnAHostThatIsDown checks that a standby VM on a host that is being evacuated, but
// is down, does not prevent the replacement of an outdated VM of its NodePool.
func TestStandbyOnAHostThatIsDown(t *testing.T) {
	t.Parallel()
	vms := []fleet.VM{idle(2000, "xeon"), idle(2001, "ryzen")}
	vms[1].CPUType = "kvm64"
	snapshot := withGuests(lab(), vms...)
	snapshot.Host(vms[0].Host).Online = false
	c := load(t, classes, nodePool("general", "shared", ""))
	got := standbyOutcomeOf(t, c, scheduling.Request{
		Snapshot: snapshot, Existing: vms, Standby: virtual(2, "3"), Evacuated: []topology.HostID{vms[0].Host},
	})
	if diff := cmp.Diff(standbyOutcome{Outdated: []string{"its CPU type changed"}, Standby: 2, Spare: 1}, got); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

// TestBusyHosts checks that pods wake a standby VM on a busy host only if they would wait
// for a busy host anyway.
func TestBusyHosts(t *testing.T) {
	t.Parallel()
	var epyc, ryzen, xeon topology.HostID
	for host, name := range map[*topology.HostID]string{&epyc: "epyc", &ryzen: "ryzen", &xeon: "xeon"} {
		*host = topology.HostID{Region: "lab", Host: topology.HostName(name)}
	}
	linked := strings.Replace(classes, "template: {name: debian}\n", "template: {name: debian}\n  clone: linked\n", 1)
	for _, test := range []struct {
		name           string
		class, pool    string // the class's manifests, and more of the NodePool's spec
		pods           int
		more           string // of the pods' spec
		standby        []string
		busy, removing []topology.HostID
		woken          []string
		nodes          int
	}{
		{name: "no host", pods: 1, standby: []string{"xeon"}, woken: []string{"general-2000"}},
		{name: "another host", pods: 1, standby: []string{"xeon"}, busy: []topology.HostID{epyc, ryzen}, woken: []string{"general-2000"}},
		{name: "a new VM", pods: 1, standby: []string{"xeon"}, busy: []topology.HostID{xeon}, nodes: 1},
		{name: "the only free host", pods: 1, standby: []string{"epyc"}, busy: []topology.HostID{epyc, xeon}, nodes: 1},
		{name: "another standby VM", pods: 1, standby: []string{"epyc", "ryzen"}, busy: []topology.HostID{epyc}, woken: []string{"general-2001"}},
		{name: "another standby VM, and a new VM", pods: 2, standby: []string{"epyc", "ryzen"}, busy: []topology.HostID{epyc}, woken: []string{"general-2001"}, nodes: 1},
		{name: "all hosts", pods: 3, standby: []string{"epyc", "ryzen"}, busy: []topology.HostID{epyc, ryzen, xeon}, woken: []string{"general-2000", "general-2001"}, nodes: 1},
		{name: "pods of a host", pods: 1, more: "      nodeSelector: {topology.kubernetes.io/zone: xeon}\n", standby: []string{"xeon"}, busy: []topology.HostID{xeon}, woken: []string{"general-2000"}},
		{name: "a limit", pool: "  limits: {cpu: 4}", pods: 1, standby: []string{"xeon"}, busy: []topology.HostID{xeon}, woken: []string{"general-2000"}},
		{name: "a removal, full clones", pods: 1, standby: []string{"xeon"}, removing: []topology.HostID{xeon}, woken: []string{"general-2000"}},
		{name: "a removal, linked clones", class: linked, pods: 1, standby: []string{"xeon"}, removing: []topology.HostID{xeon}, nodes: 1},
		{name: "removals on all hosts, linked clones", class: linked, pods: 1, standby: []string{"xeon"}, removing: []topology.HostID{epyc, ryzen, xeon}, woken: []string{"general-2000"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			class := classes
			var vms []fleet.VM
			for i, host := range test.standby {
				vms = append(vms, idle(2000+i, host))
				if test.class != "" {
					class, vms[i].Clone = test.class, fleet.CloneLinked
				}
			}
			c := load(t, class, nodePool("general", "shared", test.pool), deployment("web", test.pods, "3", "1Gi", test.more))
			request := scheduling.Request{ClusterID: "test", Snapshot: withGuests(lab(), vms...), Existing: vms, Busy: test.busy, Removing: test.removing}
			d, err := c.Decide(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			var woken []string
			for _, w := range d.Woken {
				woken = append(woken, w.VM.Name)
			}
			if diff := cmp.Diff(test.woken, woken); diff != "" || len(d.New) != test.nodes || len(d.Refused) > 0 {
				t.Errorf("makes %d nodes, want %d; refused %v; woken (-want +got):\n%s", len(d.New), test.nodes, d.Refused, diff)
			}
			for _, n := range d.New {
				if len(test.busy)+len(test.removing) < 3 && slices.Contains(slices.Concat(test.busy, test.removing), n.Placement.Host) {
					t.Errorf("a node is made on %s, which is busy", n.Placement.Host)
				}
			}
		})
	}
}

// TestBusyHostsCountForPods checks that the pods of standby buffers keep the standby VMs on
// busy hosts, and that the next decision creates and wakes none.
func TestBusyHostsCountForPods(t *testing.T) {
	t.Parallel()
	pool := nodePool("general", "shared", "")
	buffer := virtual(1, "3")
	vms := []fleet.VM{idle(2000, "xeon")}
	busy := []topology.HostID{vms[0].Host}
	decide := func(c *scheduling.Cluster, buffer []*corev1.Pod) *scheduling.Decision {
		t.Helper()
		d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: withGuests(lab(), vms...), Existing: vms, Standby: buffer, Busy: busy})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := decide(load(t, classes, pool), buffer); len(d.New)+len(d.Woken)+len(spare(d)) != 0 {
		t.Errorf("makes %d, wakes %d, %d are spare", len(d.New), len(d.Woken), len(spare(d)))
	}
	c := load(t, classes, pool, deployment("web", 1, "3", "1Gi", ""))
	d := decide(c, buffer)
	if len(d.New) != 1 || d.New[0].Standby || len(d.Woken)+len(spare(d)) != 0 {
		t.Fatalf("makes %+v, wakes %d, %d are spare: want one node", d.New, len(d.Woken), len(spare(d)))
	}
	vms = made(vms, d)
	if d := decide(c, buffer); len(d.New)+len(d.Woken)+len(spare(d)) != 0 {
		t.Errorf("the next decision makes %d, wakes %d, %d are spare", len(d.New), len(d.Woken), len(spare(d)))
	}
}
