package scaler_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// sharing returns a snapshot in which pve-1 has no template, and pve-2 has one on the storage
// nas, which both hosts share.
func sharing(guests ...topology.Guest) *topology.Snapshot {
	s := snapshot(guests...)
	for i := range s.Hosts {
		s.Hosts[i].Storages = []topology.Storage{
			{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: []string{"images"}},
			{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}},
		}
	}
	s.Hosts[0].Templates = nil
	s.Hosts[1].Templates[0].Storage = "nas"
	return s
}

// TestProposeFromAnotherHost checks that a VM is cloned from the template of another host only
// if its request names that template, and the template is on shared storage.
func TestProposeFromAnotherHost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(request *scaler.Request, s *topology.Snapshot)
		host   topology.HostName
		failed string
	}{
		"shared":  {change: func(*scaler.Request, *topology.Snapshot) {}, host: "pve-2"},
		"unnamed": {change: func(r *scaler.Request, _ *topology.Snapshot) { r.Spec.TemplateVMID = 0 }, failed: `it has no template "debian": create the template there`},
		"local": {
			change: func(_ *scaler.Request, s *topology.Snapshot) { s.Hosts[1].Templates[0].Storage = "local-lvm" },
			failed: "the host cannot use template 9002 on pve-2, because a drive of the template is on \"local-lvm\", which is not shared storage",
		},
		"full on local storage": {
			change: func(r *scaler.Request, _ *topology.Snapshot) {
				r.Spec.Clone, r.Spec.Storage = fleet.CloneFull, "local-lvm"
			},
			failed: `because "local-lvm" is not shared storage`,
		},
		"its own": {change: func(r *scaler.Request, s *topology.Snapshot) {
			s.Hosts[0].Templates = snapshot().Hosts[0].Templates
			r.Spec.TemplateVMID = 9001
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, from := request(pve1), sharing()
			asked.Spec.TemplateVMID = 9002
			tt.change(&asked, from)
			change, err := newScaler(t, nil).Propose(t.Context(), from, []scaler.Request{asked}, nil)
			if tt.failed != "" {
				if err == nil || !strings.Contains(err.Error(), tt.failed) {
					t.Errorf("got %v, want %q", err, tt.failed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			after, err := generator.Parse(change.AfterFiles)
			if err != nil {
				t.Fatal(err)
			}
			if got := after.VMs[0].Source.Host; got != tt.host {
				t.Errorf("cloned from %q, want %q", got, tt.host)
			}
		})
	}
}

// TestStillCloneable checks that a VM in the files is not created if its template is not on
// the host in its file, or not on shared storage: files can be restored and edited.
func TestStillCloneable(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(vm *fleet.VM, s *topology.Snapshot)
		want   string
	}{
		"shared":    {func(*fleet.VM, *topology.Snapshot) {}, ""},
		"own host":  {func(vm *fleet.VM, _ *topology.Snapshot) { vm.Source.Host = "" }, ""},
		"local":     {func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[1].Templates[0].Storage = "local-lvm" }, "which is not shared storage"},
		"a VM":      {func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[1].Templates = nil }, "the host has no such template"},
		"no host":   {func(vm *fleet.VM, _ *topology.Snapshot) { vm.Source.Host = "pve-9" }, "Proxmox does not list it"},
		"host down": {func(_ *fleet.VM, s *topology.Snapshot) { s.Hosts[1].Online = false }, "it is offline"},
		"full copy": {func(vm *fleet.VM, _ *topology.Snapshot) { vm.Clone, vm.Storage = fleet.CloneFull, "local-lvm" }, `because "local-lvm" is not shared storage`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, from := vm(pve1, 2000), sharing()
			a.Source.VMID, a.Source.Host, a.Source.Storage = 9002, "pve-2", "nas"
			tt.change(&a, from)
			change := &scaler.Change{After: fleet.Fleet{ClusterID: clusterID, VMs: []fleet.VM{a}}, Snapshot: from}
			w, err := newScaler(t, nil).Look(t.Context(), change, pve1)
			if err != nil {
				t.Fatal(err)
			}
			err = w.StillCloneable([]guard.Target{{Address: generator.Address(&a), VMID: 2000, Key: a.Key, Host: "pve-1"}})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
