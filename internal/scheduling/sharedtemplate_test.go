package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// sharing returns the lab with the shared storage nas on each host, and one template on epyc,
// whose disk is on nas.
func sharing() *topology.Snapshot {
	s := imaged()
	for i := range s.Hosts {
		s.Hosts[i].Templates = nil
		s.Hosts[i].Storages = append(s.Hosts[i].Storages, topology.Storage{Name: "nas", Type: "nfs", Shared: true, Active: true, Content: []string{"images"}})
	}
	s.Hosts[0].Templates = []topology.Template{{VMID: 9000, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "nas"}}
	return s
}

// TestSharedTemplate checks which hosts a template on shared storage serves, and why it does
// not serve the others.
func TestSharedTemplate(t *testing.T) {
	t.Parallel()
	made := func(host *topology.Host, vmid, serial int) {
		host.Templates = append(host.Templates, topology.Template{
			VMID: vmid, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "nas",
			MadeFor: topology.MadeFor{ClusterID: "c1", Template: "debian", Serial: serial},
		})
	}
	for _, test := range []struct {
		name, class string
		change      func(hosts []topology.Host)
		want        map[string]string
		excluded    string
	}{
		{"all hosts", `{template: {name: debian}}`, nil, map[string]string{"epyc": "epyc/9000", "ryzen": "epyc/9000", "xeon": "epyc/9000"}, ""},
		{"linked clones", `{template: {vmid: 9000}, clone: linked}`, nil, map[string]string{"epyc": "epyc/9000", "ryzen": "epyc/9000", "xeon": "epyc/9000"}, ""},
		{
			"own template first", `{template: {name: debian}}`, func(hosts []topology.Host) {
				hosts[1].Templates = []topology.Template{{VMID: 9010, Name: "debian", DiskInterface: "scsi0", DiskGiB: 10, Storage: "fast"}}
			}, map[string]string{"epyc": "epyc/9000", "ryzen": "ryzen/9010", "xeon": "epyc/9000"}, "",
		},
		{
			"host without the storage", `{template: {name: debian}}`, func(hosts []topology.Host) { hosts[2].Storages = hosts[2].Storages[:2] },
			map[string]string{"epyc": "epyc/9000", "ryzen": "epyc/9000"},
			`has no template "debian", and cannot use template 9000 on epyc, because storage "nas" does not exist or is not active`,
		},
		{
			"full clones on local storage", `{template: {name: debian}, bootDevice: {storage: fast}}`, nil,
			map[string]string{"epyc": "epyc/9000"},
			`because "fast" is not shared storage, and Proxmox creates full clones on other storages only on the template's host`,
		},
		{
			"a drive on local storage", `{template: {name: debian}}`, func(hosts []topology.Host) { hosts[0].Templates[0].OtherStorages = []string{"fast"} },
			map[string]string{"epyc": "epyc/9000"},
			`because a drive of the template is on "fast", which is not shared storage`,
		},
		{
			"local template", `{template: {name: debian}}`, func(hosts []topology.Host) { hosts[0].Templates[0].Storage = "fast" },
			map[string]string{"epyc": "epyc/9000"},
			`has no template "debian"`,
		},
		{
			"two templates", `{template: {name: debian}}`, func(hosts []topology.Host) { made(&hosts[1], 9010, 1) },
			map[string]string{"epyc": "epyc/9000", "ryzen": "ryzen/9010"},
			`has no template "debian", and could use 2 of other hosts, including VMIDs 9000 on epyc and 9010 on ryzen`,
		},
		{
			"unusable template", `{template: {name: debian}}`, func(hosts []topology.Host) { hosts[0].Templates[0].Problem = "it has args" }, nil,
			`has template "debian", but it has args`,
		},
		{
			"newest of a ProxmoxTemplate", `{template: {ref: debian}}`, func(hosts []topology.Host) {
				made(&hosts[0], 9001, 1)
				made(&hosts[1], 9010, 1)
				made(&hosts[2], 9020, 2)
			}, map[string]string{"epyc": "xeon/9020", "ryzen": "xeon/9020", "xeon": "xeon/9020"}, "",
		},
		{
			"own template of a ProxmoxTemplate", `{template: {ref: debian}}`, func(hosts []topology.Host) {
				made(&hosts[0], 9001, 1)
				made(&hosts[1], 9010, 1)
			}, map[string]string{"epyc": "epyc/9001", "ryzen": "ryzen/9010", "xeon": "epyc/9001"}, "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := sharing()
			if test.change != nil {
				test.change(s.Hosts)
			}
			report := scheduling.EvaluateClass(nodeClass(t, test.class), s, "c1", nil)
			var got map[string]string
			for host, from := range report.Templates {
				if got == nil {
					got = map[string]string{}
				}
				got[string(host.Host)] = fmt.Sprintf("%s/%d", from.On.Host, from.VMID)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("templates (-want +got):\n%s", diff)
			}
			if reason := append(report.Excluded, scheduling.Exclusion{})[0].Reason; (reason == "") != (test.excluded == "") || !strings.Contains(reason, test.excluded) {
				t.Errorf("the first excluded host %q, want %q", reason, test.excluded)
			}
		})
	}
}

// TestSharedTemplateIsNumbered checks that VMs on other hosts than the template's name it by
// its VMID, which the writer needs to find it.
func TestSharedTemplateIsNumbered(t *testing.T) {
	t.Parallel()
	pods := deployment("a", 3, "1", "1Gi", antiAffinity("a", "topology.kubernetes.io/zone"))
	d := decide(t, load(t, classManifest(`{template: {name: debian}}`), nodePool("general", "c", ""), pods), sharing())
	got := map[string]string{}
	for _, n := range d.New {
		got[string(n.Placement.Host.Host)] = fmt.Sprintf("%s %d", n.Spec.Template, n.Spec.TemplateVMID)
	}
	if diff := cmp.Diff(map[string]string{"epyc": "debian 0", "ryzen": "debian 9000", "xeon": "debian 9000"}, got); diff != "" {
		t.Errorf("templates (-want +got):\n%s\n%v", diff, d.Refused)
	}
}
