package scheduling_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// TestFaults checks that each host's faults are reported with their fixes, even if other
// hosts can take nodes of the class.
func TestFaults(t *testing.T) {
	t.Parallel()
	snapshot := imaged()
	epyc, ryzen := &snapshot.Hosts[0], &snapshot.Hosts[1]
	epyc.Templates = epyc.Templates[1:2]
	epyc.Templates[0].Name = "other"
	epyc.Guests = append(epyc.Guests, topology.Guest{VMID: 700, Name: "talos", Kind: topology.GuestVM})
	ryzen.Templates[2].Name, ryzen.Templates[2].Problem = "talos", "it has hookscript"
	ryzen.Storages = nil
	fault := func(host *topology.Host, condition, reason, message, fix string) scheduling.Fault {
		return scheduling.Fault{Host: host.ID(), Finding: scheduling.Finding{Condition: condition, Reason: reason, Message: message}, Fix: fix}
	}
	snapshot.Hosts[2].Templates[2].Name = "talos"
	class := nodeClass(t, `{template: {name: talos}, bootDevice: {storage: fast}}`)
	want := []scheduling.Fault{
		fault(epyc, v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateNotFound,
			`has no template "talos", but VM 700 is not a template yet: run qm template 700`, "create the template there, or correct spec.template"),
		fault(ryzen, v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplateUnusable,
			`has template "talos", but it has hookscript`, "correct the template, or set another in spec.template"),
		fault(ryzen, v1alpha1.ConditionPlacementReady, v1alpha1.ReasonStorageNotFound,
			`has no storage "fast"`, "correct spec.bootDevice.storage, or Datacenter > Storage in Proxmox"),
	}
	want[0].Commands = []string{"qm template 700"}
	if diff := cmp.Diff(want, scheduling.EvaluateClass(class, snapshot, "test", nil).Faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if faults := scheduling.EvaluateClass(nodeClass(t, `{template: {}}`), snapshot, "test", nil).Faults; faults != nil {
		t.Errorf("a class that cannot be read has faults %v", faults)
	}
}

// TestNeedsOf checks the needs of a class's VMs on each host, and that a host that cannot
// take any has none.
func TestNeedsOf(t *testing.T) {
	t.Parallel()
	snapshot := imaged()
	snapshot.Hosts[2].Templates[0].Storage = "local"
	class := nodeClass(t, `{template: {name: debian, tags: [old]}, metadata: {type: cdrom}}`)
	got, ok := scheduling.NeedsOf(class, snapshot, snapshot.Hosts[2].ID())
	if diff := cmp.Diff(scheduling.Needs{Disks: []string{"local"}, Seed: fleet.AnySeedStorage, Template: snapshot.Hosts[2].Templates[0]}, got); !ok || diff != "" {
		t.Errorf("needs, %t (-want +got):\n%s", ok, diff)
	}
	class.Spec.DataDisks = []v1alpha1.DataDisk{{Size: "1G"}, {Size: "1G", Storage: "fast"}}
	if got, ok = scheduling.NeedsOf(class, snapshot, snapshot.Hosts[2].ID()); !ok || !slices.Equal(got.Disks, []string{"fast", "local"}) {
		t.Errorf("with data disks, disks are on %q, %t", got.Disks, ok)
	}
	if _, ok := scheduling.NeedsOf(class, snapshot, topology.HostID{Region: "lab", Host: "gone"}); ok {
		t.Error("a host that is not there takes nodes")
	}
}
