package generator_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/topology"
)

// templateFleet is a fleet with one region, and two templates of one of its hosts.
func templateFleet(t *testing.T) (fleet.Fleet, topology.HostID, []fleet.Template) {
	t.Helper()
	f := fleet.Fleet{
		ClusterID: "prod", Backend: fleet.Backend{Type: "kubernetes", Config: map[string]string{"namespace": "numaform"}},
		Regions: []fleet.Region{{Name: "lab", Endpoint: "https://pve-1:8006/"}},
	}
	host := topology.HostID{Region: "lab", Host: "pve-1"}
	small := fleet.Template{
		Of: "debian-13", Serial: 1, Name: "debian-13-01234567", VMID: 9100, Host: host,
		Image: fleet.TemplateImage{
			URL: "https://images.example/a.qcow2", Checksum: strings.Repeat("a", 64), Algorithm: "sha256", Format: "qcow2", Storage: "local",
		},
		Hardware: fleet.TemplateHardware{Storage: "local-lvm", DiskGiB: 10, Networks: []fleet.Network{{Bridge: "vmbr0"}}},
	}
	large := small
	large.Serial, large.Name, large.VMID = 2, "debian-13-89abcdef", 9101
	large.Tags, large.Pool = []string{"k8s", "prod"}, "templates"
	large.Image.Insecure, large.Image.Algorithm, large.Image.Format = true, "sha512", "raw"
	large.Hardware = fleet.TemplateHardware{
		Storage: "ceph", DiskGiB: 20, Cache: "writeback", NoDiscard: true, SSD: true, Machine: "q35", BIOS: "ovmf", SecureBoot: true, TPM: "v2.0",
		CPUType: "x86-64-v3", CPUFlags: []string{"+aes"}, AgentType: "isa", Trim: true, VGA: "std", VGAMiB: 32,
		Networks: []fleet.Network{{Bridge: "vmbr1", Model: "e1000", VLAN: 7, MTU: 9000, Firewall: true}, {Bridge: "vmbr2"}},
	}
	return f, host, []fleet.Template{small, large}
}

// TestTemplates checks that a root of templates is read back as it was written, and that the
// other functions for a fleet's files ignore or keep it.
func TestTemplates(t *testing.T) {
	t.Parallel()
	f, host, templates := templateFleet(t)
	files, err := generator.Current().RenderTemplates(f, host, templates)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if strings.HasPrefix(name, "templates/") != generator.IsTemplate(name) {
			t.Errorf("IsTemplate(%q) = %v", name, generator.IsTemplate(name))
		}
	}
	parsed, err := generator.Current().ParseTemplates("prod", files)
	if err != nil {
		t.Fatal(err)
	}
	for i := range parsed[host] {
		parsed[host][i].Module = ""
	}
	if diff := cmp.Diff(map[topology.HostID][]fleet.Template{host: templates}, parsed); diff != "" {
		t.Errorf("parsed (-rendered +parsed):\n%s", diff)
	}

	main := string(files["templates/lab/pve-1/main.tf"])
	state := generator.TemplateStateName("prod", host)
	if !strings.Contains(main, `secret_suffix = "`+state+`"`) || state == generator.StateName("prod", host) {
		t.Errorf("the root does not have a state of its own:\n%s", main)
	}

	// A fleet with templates has the same nodes, and keeps the templates' files.
	whole, err := generator.Render(f)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		whole[name] = content
	}
	if diff := cmp.Diff(whole, generator.Select(whole)); diff != "" {
		t.Errorf("Select omits files (-want +got):\n%s", diff)
	}
	if got, err := generator.Parse(whole); err != nil || len(got.VMs) > 0 || len(got.Hosts) > 0 {
		t.Errorf("Parse of a fleet with templates: %v, %v", got, err)
	}
	if unmanaged := generator.Unmanaged(whole, whole); len(unmanaged) > 0 {
		t.Errorf("unmanaged: %v", unmanaged)
	}

	empty, err := generator.Current().RenderTemplates(f, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := generator.Current().ParseTemplates("prod", empty); err != nil || len(parsed) != 1 || len(parsed[host]) != 0 {
		t.Errorf("a root without templates: %v, %v", parsed, err)
	}
}

// TestTemplateFiles checks that files that numaform did not write, and values that it must
// not write, are refused.
func TestTemplateFiles(t *testing.T) {
	t.Parallel()
	f, host, templates := templateFleet(t)
	files, err := generator.Current().RenderTemplates(f, host, templates[:1])
	if err != nil {
		t.Fatal(err)
	}
	name := generator.TemplateFile(&templates[0])
	for _, tt := range []struct{ old, edit, want string }{
		{"9100", "9100 + 1", "Expression not allowed"},
		{"# Generated", "# Written", "was edited"},
		{"serial=1", "serial=0", "description does not contain the marker"},
		{"cluster=prod", "cluster=other", `belongs to cluster "other"`},
		{`"debian-13-01234567"`, `"debian-13-other"`, "which belongs in templates/lab/pve-1/template-debian-13-other.tf"},
		{"modules/proxmox-template/", "modules/proxmox-template/0", "which this numaform does not contain"},
		{"node_name", "host_name", "unknown attribute"},
	} {
		edited := generator.Files{name: []byte(strings.Replace(string(files[name]), tt.old, tt.edit, 1))}
		if tt.old == `"debian-13-01234567"` {
			edited[name] = []byte(strings.ReplaceAll(string(files[name]), tt.old, tt.edit))
		}
		if _, err := generator.Current().ParseTemplates("prod", edited); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s instead of %s: %v, want an error with %q", tt.edit, tt.old, err, tt.want)
		}
	}

	for _, tt := range []struct {
		name string
		edit func(*fleet.Template)
	}{
		{"url", func(t *fleet.Template) { t.Image.URL = "https://a:b@images.example/a.qcow2" }},
		{"name", func(t *fleet.Template) { t.Name = "A" }},
		{"serial", func(t *fleet.Template) { t.Serial = 0 }},
		{"vmid", func(t *fleet.Template) { t.VMID = 7 }},
		{"tag", func(t *fleet.Template) { t.Tags = []string{"a\nb"} }},
	} {
		bad := templates[0]
		tt.edit(&bad)
		if _, err := generator.Current().RenderTemplates(f, host, []fleet.Template{bad}); err == nil {
			t.Errorf("%s is accepted: %+v", tt.name, bad)
		}
	}
	if _, err := generator.Current().RenderTemplates(f, topology.HostID{Region: "x", Host: "pve-1"}, nil); err == nil {
		t.Error("a region that is not configured is accepted")
	}
}
