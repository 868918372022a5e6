package scheduling_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

func nodeClass(t *testing.T, spec string) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{}
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: c}\nspec: "+spec), nc); err != nil {
		t.Fatal(err)
	}
	return nc
}

// imaged returns the lab with three templates on each host, all with different VMIDs.
func imaged() *topology.Snapshot {
	s := lab()
	for i := range s.Hosts {
		h := &s.Hosts[i]
		h.Templates = []topology.Template{
			{VMID: 9000 + 10*i, Name: "debian", Tags: []string{"k8s", "old"}, DiskInterface: "scsi0", DiskGiB: 10},
			{VMID: 9001 + 10*i, Name: "debian", Tags: []string{"k8s", "new"}, DiskInterface: "scsi0", DiskGiB: 10},
			{VMID: 9002 + 10*i, Name: "talos-" + string(h.Name), Tags: []string{"talos"}, DiskInterface: "scsi0", DiskGiB: 5},
		}
		h.Storages = []topology.Storage{
			{Name: "fast", Type: "lvmthin", Active: true, Content: []string{"images"}},
			{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "vztmpl"}},
		}
	}
	return s
}

func all(hosts ...string) []topology.HostID {
	var ids []topology.HostID
	for _, host := range hosts {
		ids = append(ids, topology.HostID{Region: "lab", Host: topology.HostName(host)})
	}
	return ids
}

func TestJudge(t *testing.T) {
	finding := func(condition, reason, message string) []scheduling.Finding {
		return []scheduling.Finding{{Condition: condition, Reason: reason, Message: message}}
	}
	tests := []struct {
		name, spec string
		change     func(*topology.Snapshot)
		hosts      []topology.HostID
		templates  map[string]int // by host
		excluded   string         // reason of the first excluded host
		want       []scheduling.Finding
	}{
		{
			name: "by tags", spec: `{template: {tags: [k8s, new]}}`, hosts: all("epyc", "ryzen", "xeon"),
			templates: map[string]int{"epyc": 9001, "ryzen": 9011, "xeon": 9021},
		},
		{
			name: "by name and tag", spec: `{template: {name: debian, tags: [old]}, hosts: [xeon]}`, hosts: all("xeon"),
			templates: map[string]int{"xeon": 9020},
		},
		{
			name: "by number", spec: `{template: {vmid: 9011}}`, hosts: all("ryzen"), templates: map[string]int{"ryzen": 9011},
			excluded: "has no template with VMID 9011",
		},
		{
			name: "names that differ", spec: `{template: {tags: [talos]}}`, hosts: all("epyc", "ryzen", "xeon"),
			templates: map[string]int{"epyc": 9002, "ryzen": 9012, "xeon": 9022},
		},
		{
			name: "ambiguous", spec: `{template: {name: debian}, hosts: [lab/epyc]}`, excluded: `has 2 templates "debian", including VMIDs 9000 and 9001`,
			want: finding("TemplateReady", "TemplateAmbiguous",
				`lab/epyc has 2 templates "debian", including VMIDs 9000 and 9001: select one with spec.template.name, tags or vmid`),
		},
		{
			name: "no template", spec: `{template: {name: centos, tags: [k8s], vmid: 100}, hosts: [epyc]}`, excluded: `has no template "centos" with tags k8s with VMID 100`,
			want: finding("TemplateReady", "TemplateNotFound",
				`lab/epyc has no template "centos" with tags k8s with VMID 100: create the template there, or correct spec.template`),
		},
		{
			name: "unusable template", spec: `{template: {vmid: 9002}, hosts: [epyc]}`, excluded: "has template with VMID 9002, but it has a hookscript",
			change: func(s *topology.Snapshot) { s.Hosts[0].Templates[2].Problem = "it has a hookscript" },
			want: finding("TemplateReady", "TemplateUnusable",
				"lab/epyc has template with VMID 9002, but it has a hookscript: correct the template, or set another in spec.template"),
		},
		{
			name: "unknown host", spec: `{template: {tags: [new]}, hosts: [pve-9]}`,
			want: finding("PlacementReady", "HostUnknown", "no Proxmox host matches its spec.region and spec.hosts: spec.hosts (pve-9) must contain at least one of lab/epyc, lab/ryzen, lab/xeon"),
		},
		{
			name: "region that was never read", spec: `{template: {tags: [new]}, region: far}`,
			change: func(s *topology.Snapshot) { s.Regions = append(s.Regions, topology.Region{Name: "far"}) },
			want: finding("PlacementReady", "ProxmoxUnread", "the Proxmox hosts that match its spec.region and spec.hosts are unknown, because numaform cannot read region far: "+
				"run numaform doctor to see why"),
		},
		{
			name: "hosts that are down", spec: `{template: {tags: [new]}, hosts: [epyc, xeon], metadata: {type: cdrom}}`, excluded: "is offline",
			change: func(s *topology.Snapshot) { s.Hosts[0].Online, s.Hosts[2].Problem = false, "cannot be read" },
			want: []scheduling.Finding{
				{Condition: "TemplateReady", Reason: "HostUnavailable", Message: "lab/epyc is offline, lab/xeon cannot be read: make a host available again, or allow other hosts in spec.hosts"},
				{Condition: "PlacementReady", Reason: "HostUnavailable", Message: "lab/epyc is offline, lab/xeon cannot be read: make a host available again, or allow other hosts in spec.hosts"},
				{Condition: "MetadataReady", Reason: "HostUnavailable", Message: "lab/epyc is offline, lab/xeon cannot be read: make a host available again, or allow other hosts in spec.hosts"},
			},
		},
		{
			name: "one down, one without the template", spec: `{template: {name: centos}, hosts: [epyc, xeon]}`, excluded: "is offline",
			change: func(s *topology.Snapshot) { s.Hosts[0].Online = false },
			want: finding("TemplateReady", "TemplateNotFound",
				`lab/epyc is offline, lab/xeon has no template "centos": create the template there, or correct spec.template`),
		},
		{
			name: "storage and pool", spec: `{template: {tags: [new]}, hosts: [epyc], bootDevice: {storage: slow}, pool: k8s}`,
			change:   func(s *topology.Snapshot) { s.Regions[0].Pools = []string{"other"} },
			excluded: `is in region lab, which has no resource pool "k8s" and has no storage "slow"`,
			want: finding("PlacementReady", "PoolNotFound", `lab/epyc is in region lab, which has no resource pool "k8s", lab/epyc has no storage "slow": `+
				"create the resource pool in Proxmox, or correct spec.pool"),
		},
		{
			name: "data disks", spec: `{template: {tags: [new]}, dataDisks: [{size: 1G, storage: fast}, {size: 1G}]}`, hosts: all("epyc", "xeon"),
			change:    func(s *topology.Snapshot) { s.Hosts[1].Storages = s.Hosts[1].Storages[1:] },
			templates: map[string]int{"epyc": 9001, "xeon": 9021}, excluded: `has no storage "fast" (correct spec.dataDisks, or Datacenter > Storage in Proxmox)`,
		},
		{
			name: "data disks on no storage for them", spec: `{template: {tags: [new]}, hosts: [epyc], dataDisks: [{size: 1G, storage: local}, {size: 2G, storage: local}]}`,
			excluded: `has storage "local", but it does not accept disk images (correct spec.dataDisks, or Datacenter > Storage in Proxmox)`,
			want: finding("PlacementReady", "StorageNotFound", `lab/epyc has storage "local", but it does not accept disk images: `+
				"correct spec.dataDisks, or Datacenter > Storage in Proxmox"),
		},
		{
			name: "data disks beside a full storage", spec: `{template: {tags: [new]}, hosts: [epyc], dataDisks: [{size: 1T, storage: fast}]}`,
			change: func(s *topology.Snapshot) {
				s.Hosts[0].Storages[0].TotalMiB, s.Hosts[0].Storages[0].FreeMiB = 1<<30, 1<<20-1
			},
			excluded: `has 1048575 MiB free on storage "fast", but a node's disks need 1048576 MiB, 1 MiB more (free space there, or change spec.bootDevice or spec.dataDisks)`,
			want: finding("PlacementReady", "StorageFull", `lab/epyc has 1048575 MiB free on storage "fast", but a node's disks need 1048576 MiB, 1 MiB more: `+
				"free space there, or change spec.bootDevice or spec.dataDisks"),
		},
		{
			name: "data disks and no slots", spec: `{template: {tags: [new]}, hosts: [epyc], dataDisks: [{size: 1G}, {size: 1G}]}`,
			change: func(s *topology.Snapshot) {
				for i := range 30 {
					s.Hosts[0].Templates[1].Drives = append(s.Hosts[0].Templates[1].Drives, fmt.Sprintf("scsi%d", i))
				}
			},
			excluded: "has template with tags new, which has free SCSI slots for 1 of 2 data disks (remove drives from the template, or disks from spec.dataDisks)",
			want: finding("TemplateReady", "TemplateUnusable", `lab/epyc has template with tags new, which has free SCSI slots for 1 of 2 data disks: `+
				"remove drives from the template, or disks from spec.dataDisks"),
		},
		{
			name: "isolation of unknown cores", spec: `{template: {tags: [new]}, hosts: [ryzen], placement: {policy: Isolated, pinWith: HostAgent}}`,
			change: func(s *topology.Snapshot) {
				for i := range s.Hosts[1].CPUs {
					s.Hosts[1].CPUs[i].Core = topology.Unknown
				}
			},
			excluded: "does not report which CPUs share a core",
			want: finding("PlacementReady", "PlacementImpossible", "lab/ryzen does not report which CPUs share a core: "+
				"run numaform-agent there, provide its topology (numaform topology collect), or choose another spec.placement.policy"),
		},
		{
			name: "huge pages", spec: `{template: {tags: [new]}, placement: {policy: NUMA, hugePages: 1Gi}}`, hosts: all("epyc"),
			change: func(s *topology.Snapshot) {
				s.Hosts[0].NUMANodes[1].HugePages = map[int]int64{1 << 20: 16}
				s.Hosts[1].NUMANodes[0].HugePages = map[int]int64{2048: 16}
			},
			templates: map[string]int{"epyc": 9001}, excluded: "has no huge pages of 1Gi reserved",
		},
		{
			name: "huge pages that nobody told", spec: `{template: {tags: [new]}, hosts: [epyc], placement: {policy: NUMA, hugePages: 1Gi}}`,
			change:   func(s *topology.Snapshot) { s.Hosts[0].Sources = nil },
			excluded: "does not report its huge pages",
			want: finding("PlacementReady", "HugePagesMissing", "lab/epyc does not report its huge pages: reserve them at host boot "+
				"and report them with numaform-agent or numaform topology collect, or remove spec.placement.hugePages"),
		},
		{
			name: "devices", spec: `{template: {tags: [new]}, hosts: [epyc, xeon], pciDevices: [{mapping: gpu}, {mapping: gpu}, {mapping: nic}]}`, hosts: all("epyc"),
			change: func(s *topology.Snapshot) {
				s.Hosts[0].PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0"}, {Mapping: "nic", Path: "0000:02:00.0"}}
				s.Hosts[2].PCIDevices = s.Hosts[0].PCIDevices[:1]
			},
			templates: map[string]int{"epyc": 9001},
			excluded:  "has no device in PCI mapping nic (add one of its devices to the mapping (Datacenter > Resource Mappings in Proxmox), or allow other hosts in spec.hosts)",
		},
		{
			name: "devices that nobody sees", spec: `{template: {tags: [new]}, hosts: [epyc], pciDevices: [{mapping: gpu}]}`,
			excluded: "is in region lab, where no PCI mapping gpu is visible (create the mapping (Datacenter > Resource Mappings in Proxmox) and grant " +
				"numaform's user Mapping.Use on /mapping/pci/gpu, as numaform doctor shows, or correct spec.pciDevices)",
			want: finding("PlacementReady", "PCIDeviceMissing", "lab/epyc is in region lab, where no PCI mapping gpu is visible: create the mapping "+
				"(Datacenter > Resource Mappings in Proxmox) and grant numaform's user Mapping.Use on /mapping/pci/gpu, as numaform doctor shows, or correct spec.pciDevices"),
		},
		{
			name: "no q35", spec: `{template: {tags: [new]}, hosts: [epyc], pciDevices: [{mapping: gpu, pcie: true}]}`,
			change: func(s *topology.Snapshot) {
				s.Hosts[0].PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0"}}
			},
			excluded: "has template with tags new, whose machine type is not q35, which pcie requires (qm set 9001 --machine q35, or remove pcie from spec.pciDevices)",
			want: finding("TemplateReady", "TemplateUnusable", "lab/epyc has template with tags new, whose machine type is not q35, which pcie requires: "+
				"qm set 9001 --machine q35, or remove pcie from spec.pciDevices"),
		},
		{
			name: "q35 by the class", spec: `{template: {tags: [new]}, hosts: [epyc], hardware: {machine: q35}, pciDevices: [{mapping: gpu, pcie: true}]}`,
			change: func(s *topology.Snapshot) {
				s.Hosts[0].PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0"}}
			},
			hosts: all("epyc"), templates: map[string]int{"epyc": 9001},
		},
		{
			name: "no q35 by the class", spec: `{template: {tags: [new]}, hosts: [epyc], hardware: {machine: pc}, pciDevices: [{mapping: gpu, pcie: true}]}`,
			change: func(s *topology.Snapshot) {
				s.Hosts[0].PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0"}}
			},
			excluded: "cannot pass devices through with pcie, because spec.hardware.machine is not q35 (set spec.hardware.machine to q35, or remove pcie from spec.pciDevices)",
			want: finding("PlacementReady", "PlacementImpossible", "lab/epyc cannot pass devices through with pcie, because spec.hardware.machine is not q35: "+
				"set spec.hardware.machine to q35, or remove pcie from spec.pciDevices"),
		},
		{
			name: "display without a port", spec: `{template: {tags: [new]}, hosts: [epyc], hardware: {vga: {type: serial2}}}`,
			change: func(s *topology.Snapshot) { s.Hosts[0].Templates[1].Options = map[string]string{"serial0": "socket"} },
			excluded: "has template with tags new, which lacks the serial port of spec.hardware.vga.type serial2 " +
				"(qm set 9001 --serial1 socket --serial2 socket, or set another type)",
			want: finding("TemplateReady", "TemplateUnusable", "lab/epyc has template with tags new, which lacks the serial port of spec.hardware.vga.type serial2: "+
				"qm set 9001 --serial1 socket --serial2 socket, or set another type"),
		},
		{
			name: "seeds on any storage", spec: `{template: {tags: [new]}, metadata: {type: cdrom}}`, hosts: all("epyc", "xeon"),
			change:    func(s *topology.Snapshot) { s.Hosts[1].Storages[1].Active = false },
			templates: map[string]int{"epyc": 9001, "xeon": 9021}, excluded: "has no active storage that accepts ISO images",
		},
		{
			name: "seeds on one storage", spec: `{template: {tags: [new]}, hosts: [epyc], metadata: {type: cdrom, storage: fast}}`,
			excluded: `has storage "fast", but it does not accept ISO images`,
			want: finding("MetadataReady", "SeedStorageNotFound", `lab/epyc has storage "fast", but it does not accept ISO images: `+
				"allow content type ISO image on a storage of the hosts, or correct spec.metadata.storage"),
		},
		{
			name: "each lacks something else", spec: `{template: {tags: [new]}, hosts: [epyc, xeon], bootDevice: {storage: fast}}`,
			change: func(s *topology.Snapshot) {
				s.Hosts[0].Templates, s.Hosts[2].Storages = nil, s.Hosts[2].Storages[1:]
			},
			excluded: "has no template with tags new",
			want: finding("PlacementReady", "NoHost", `no host meets all conditions: lab/epyc has no template with tags new, lab/xeon has no storage "fast": `+
				"create the template there, or correct spec.template"),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			snapshot := imaged()
			if test.change != nil {
				test.change(snapshot)
			}
			report := scheduling.EvaluateClass(nodeClass(t, test.spec), snapshot, "test", nil)
			if diff := cmp.Diff(test.want, report.Findings); diff != "" {
				t.Errorf("findings differ:\n%s", diff)
			}
			if diff := cmp.Diff(test.hosts, report.Hosts); diff != "" {
				t.Errorf("hosts differ:\n%s", diff)
			}
			templates := map[string]int{}
			for host, template := range report.Templates {
				templates[string(host.Host)] = template.VMID
			}
			if len(templates)+len(test.templates) > 0 && !cmp.Equal(test.templates, templates) {
				t.Errorf("templates are %v, want %v", templates, test.templates)
			}
			if got := append(report.Excluded, scheduling.Exclusion{})[0].Reason; got != test.excluded {
				t.Errorf("the first host left out %q, want %q", got, test.excluded)
			}
		})
	}
}

func TestJudgeInvalid(t *testing.T) {
	report := scheduling.EvaluateClass(nodeClass(t, `{template: {name: debian}, placement: {policy: Dedicated}}`), lab(), "test", nil)
	if len(report.Hosts) != 0 || len(report.Findings) != 1 || report.Findings[0].Condition != v1alpha1.ConditionValid ||
		report.Findings[0].Reason != v1alpha1.ReasonInvalid || !strings.Contains(report.Findings[0].Message, "spec.placement.pinWith") {
		t.Errorf("report is %+v", report)
	}
}

func classManifest(spec string) string {
	return "apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\nspec: " + spec + "\n---\n"
}

// TestEachVMHasTheTemplateOfItsHost checks that however the class selects its template, a
// VM is cloned from the template on its own host.
func TestEachVMHasTheTemplateOfItsHost(t *testing.T) {
	for spec, want := range map[string]map[string]string{
		`{template: {tags: [talos]}}`: {"epyc": "talos-epyc 0", "ryzen": "talos-ryzen 0", "xeon": "talos-xeon 0"},
		`{template: {tags: [new]}}`:   {"epyc": "debian 9001", "ryzen": "debian 9011", "xeon": "debian 9021"},
		`{template: {vmid: 9022}}`:    {"xeon": "talos-xeon 0"},
	} {
		pods := deployment("a", len(want), "1", "1Gi", antiAffinity("a", "topology.kubernetes.io/zone"))
		d := decide(t, load(t, classManifest(spec), nodePool("general", "c", ""), pods), imaged())
		got := map[string]string{}
		for _, n := range d.New {
			got[string(n.Placement.Host.Host)] = fmt.Sprintf("%s %d", n.Spec.Template, n.Spec.TemplateVMID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: templates differ:\n%s\n%v", spec, diff, d.Refused)
		}
	}
}

// TestTemplateIsSettledWithTheHost checks that a VM may go to hosts with different
// templates, and is cloned from the template of the host that the planner chooses.
func TestTemplateIsSettledWithTheHost(t *testing.T) {
	for _, host := range []string{"epyc", "ryzen", "xeon"} {
		snapshot := imaged()
		for i := range snapshot.Hosts { // the others are nearly full
			if h := &snapshot.Hosts[i]; string(h.Name) != host {
				h.Guests = []topology.Guest{{VMID: 100 + i, Kind: topology.GuestVM, Running: true, VCPUs: len(h.CPUs) - 8, MemoryMiB: 1024}}
			}
		}
		d := decide(t, load(t, classManifest(`{template: {tags: [talos]}}`), nodePool("general", "c", ""), deployment("a", 3, "12", "2Gi", "")), snapshot)
		for _, n := range d.New {
			if want := "talos-" + string(n.Placement.Host.Host); n.Spec.Template != want {
				t.Errorf("a VM on %s is cloned from %q (hosts %v)", n.Placement.Host, n.Spec.Template, n.Spec.Hosts)
			}
		}
		d = decide(t, load(t, classManifest(`{template: {tags: [talos]}}`), nodePool("general", "c", ""), deployment("a", 1, "1", "1Gi", "")), snapshot)
		if len(d.New) != 1 || len(d.New[0].Spec.Hosts) != 3 || d.New[0].Spec.Template != "talos-"+string(d.New[0].Placement.Host.Host) {
			t.Errorf("new are %+v, refused %v", d.New, d.Refused)
		}
	}
}

func TestAllows(t *testing.T) {
	host := topology.HostID{Region: "lab", Host: "epyc"}
	for spec, want := range map[string]bool{
		`{template: {name: t}}`:                                   true,
		`{template: {name: t}, region: lab}`:                      true,
		`{template: {name: t}, region: other}`:                    false,
		`{template: {name: t}, hosts: [xeon, epyc]}`:              true,
		`{template: {name: t}, hosts: [lab/epyc]}`:                true,
		`{template: {name: t}, hosts: [other/epyc, xeon]}`:        false,
		`{template: {name: t}, region: other, hosts: [epyc]}`:     false,
		`{template: {name: t}, region: lab, hosts: [lab/epyc-2]}`: false,
	} {
		if got := scheduling.Allows(nodeClass(t, spec), host); got != want {
			t.Errorf("%s allows %s: %v, want %v", spec, host, got, want)
		}
	}
}

// TestTemplateRef checks that a class that refers to a ProxmoxTemplate clones the newest of
// its templates on each host, and ignores other templates and other clusters.
func TestTemplateRef(t *testing.T) {
	t.Parallel()
	s := imaged()
	made := func(i, j, serial int, cluster, of string) {
		s.Hosts[i].Templates[j].MadeFor = topology.MadeFor{ClusterID: cluster, Template: of, Serial: serial}
	}
	made(0, 0, 2, "c1", "debian")
	made(0, 1, 1, "c1", "debian")
	made(0, 2, 3, "c2", "debian")
	made(1, 0, 1, "c1", "debian")
	made(1, 1, 3, "c1", "other")
	report := scheduling.EvaluateClass(nodeClass(t, "{template: {ref: debian}}"), s, "c1", nil)
	got := map[topology.HostName]int{}
	for host, template := range report.Templates {
		got[host.Host] = template.VMID
	}
	if diff := cmp.Diff(map[topology.HostName]int{s.Hosts[0].Name: 9000, s.Hosts[1].Name: 9010}, got); diff != "" {
		t.Errorf("templates (-want +got):\n%s", diff)
	}
	report = scheduling.EvaluateClass(nodeClass(t, "{template: {ref: talos}}"), s, "c1", nil)
	if len(report.Findings) == 0 || !strings.Contains(report.Findings[0].Message, `has no template of ProxmoxTemplate "talos"`) {
		t.Errorf("an unknown ProxmoxTemplate: %+v", report.Findings)
	}
}
