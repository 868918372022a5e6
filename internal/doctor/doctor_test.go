package doctor_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

const ourID = "test"

// patient is the input of the doctor, with a simulated Proxmox.
type patient struct {
	sim    pvesim.Config
	client proxmox.Config
	doctor.Config
	// ready is called when the Proxmox is running.
	ready func(*pvesim.Server)
}

// class returns a class that is usable on every host of the simulated Proxmox.
func class(change ...func(*v1alpha1.ProxmoxNodeClassSpec)) v1alpha1.ProxmoxNodeClass {
	c := v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	c.Spec.Template.Name = testenv.Template
	for _, change := range change {
		change(&c.Spec)
	}
	return c
}

// examine runs the doctor on a correct setup with one change.
func examine(t *testing.T, change func(*patient)) doctor.Report {
	t.Helper()
	p := &patient{sim: pvesim.Config{Hosts: testenv.Hosts(t)}, ready: func(*pvesim.Server) {}}
	p.client = proxmox.Config{Region: testenv.Region, TokenID: pvesim.DefaultToken, TokenSecret: pvesim.DefaultTokenSecret}
	p.Config = doctor.Config{
		File: "numaform.yaml", ClusterID: ourID, PluginDir: testenv.PluginDir(t), Engine: state.EngineConfig{Binary: testenv.Engine(t)},
		StateDir: filepath.Join(t.TempDir(), "state"),
		Classes:  []v1alpha1.ProxmoxNodeClass{class()}, Named: true,
		Templates: func(context.Context, v1alpha1.SecretReference) (map[string][]byte, error) {
			return map[string][]byte{"join-command": []byte("join {{ .Kubernetes.Token }}")}, nil
		},
		Fleet: func(context.Context) (fleet.Fleet, error) { return fleet.Fleet{}, nil },
		Locks: func(context.Context) ([]doctor.Lock, error) {
			return []doctor.Lock{{Where: "fleet", What: "is free"}}, nil
		},
	}
	p.Regions = []doctor.Region{{Name: testenv.Region, VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2999}}}
	change(p)
	server := testenv.Proxmox(t, func(c *pvesim.Config) { *c = p.sim })
	p.ready(server)
	if p.client.URL == "" {
		p.client.URL = server.URL()
	}
	if p.client.CA == nil && !p.client.Insecure {
		p.client.CA = server.CertPEM()
	}
	client, err := proxmox.New(p.client)
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.Regions {
		if p.Regions[i].Broken == nil {
			p.Regions[i].Client, p.Regions[i].Snapshot = client, client.Snapshot
		}
	}
	return doctor.Run(t.Context(), p.Config)
}

// TestWell checks that every finding about a correct setup is ok.
func TestWell(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.0"} {
		for _, finding := range examine(t, func(p *patient) {
			p.sim.Version = version
			p.sim.CPUModels, p.Classes[0].Spec.CPUType = []string{"tuned"}, "custom-tuned" // requires no privilege of its own before 9.2
		}) {
			if finding.Status != doctor.OK {
				t.Errorf("Proxmox VE %s: %s %s %s", version, finding.Status, finding.Check, finding.Line())
			}
		}
	}
}

// grants gives the token's user exactly the privileges in list: each path is followed by
// its privileges, separated by spaces.
func grants(p *patient, list ...string) {
	p.sim.Tokens = []pvesim.Token{{ID: pvesim.DefaultToken, Secret: pvesim.DefaultTokenSecret, FullPrivileges: true}}
	for i := 0; i < len(list); i += 2 {
		name := "R" + strings.ReplaceAll(list[i], "/", "_")
		p.sim.Roles = append(p.sim.Roles, pvesim.Role{Name: name, Privileges: strings.Fields(list[i+1])})
		p.sim.ACL = append(p.sim.ACL, pvesim.ACL{Path: list[i], Subject: "numaform@pve", Role: name})
	}
}

// byAgent makes nodes of the class join by a command of the guest agent.
func byAgent(p *patient) {
	p.Classes[0].Spec.Metadata = v1alpha1.Metadata{Type: v1alpha1.MetadataAgent, TemplatesRef: &v1alpha1.SecretReference{Name: "join", Namespace: "numaform"}}
}

// mistakes returns the mistakes in a NodePool after a change.
func mistakes(t *testing.T, change func(*karpv1.NodePool)) []scheduling.PoolMistake {
	t.Helper()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: "workers"}
	change(pool)
	found, err := scheduling.FromObjects([]client.Object{pool}).PoolMistakes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

const allOfVM = "VM.Allocate VM.Audit VM.Clone VM.Config.CDROM VM.Config.CPU VM.Config.Disk VM.Config.HWType " +
	"VM.Config.Memory VM.Config.Network VM.Config.Options VM.PowerMgmt"

func TestFinds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*patient)
		status doctor.Status
		check  string
		want   []string // parts of the line
	}{
		{"no configuration", func(p *patient) { p.Broken = errors.New("one\ntwo") }, doctor.Fail, "config", []string{"numaform.yaml: two"}},
		{"what depends on it", func(p *patient) { p.Broken = errors.New("one") }, doctor.Skip, "vmid", []string{"skipped because config failed"}},
		{"nodes that join", func(p *patient) { p.Classes[0].Spec.Metadata.Type = v1alpha1.MetadataCDROM }, doctor.OK, "join", []string{"join with ServiceAccount tokens"}},
		{"templates of a bootstrap token", func(p *patient) {
			byAgent(p)
			p.Templates = func(context.Context, v1alpha1.SecretReference) (map[string][]byte, error) {
				return map[string][]byte{"join-command": []byte("kubeadm join --token {{ .Kubernetes.BootstrapToken }}")}, nil
			}
		}, doctor.Fail, "join", []string{"its templates use .Kubernetes.BootstrapToken (in join-command)", "spec.metadata.token: Bootstrap in the class, and rbac.bootstrapTokens: true"}},
		{"templates that cannot be read", func(p *patient) {
			byAgent(p)
			p.Templates = func(context.Context, v1alpha1.SecretReference) (map[string][]byte, error) {
				return nil, errors.New("forbidden")
			}
		}, doctor.Warn, "join", []string{"cannot check whether its templates require bootstrap tokens: forbidden"}},
		{"a class with bootstrap tokens", func(p *patient) {
			byAgent(p)
			p.Classes[0].Spec.Metadata.Token = v1alpha1.TokenBootstrap
		}, doctor.OK, "join", []string{"require rbac.bootstrapTokens: true"}},
		{"a class whose bootstrap tokens are off", func(p *patient) {
			byAgent(p)
			p.Classes[0].Spec.Metadata.Token = v1alpha1.TokenBootstrap
			p.Classes[0].StatusConditions().SetFalse(v1alpha1.ConditionMetadataReady, v1alpha1.ReasonBootstrapTokensOff, "off")
		}, doctor.Fail, "join", []string{"the controller cannot create them", "set rbac.bootstrapTokens: true"}},
		{"a NodePool with a mistyped label", func(p *patient) {
			p.PoolMistakes = mistakes(t, func(pool *karpv1.NodePool) {
				pool.Spec.Template.Labels = map[string]string{"numaform.dev/placment": "Dedicated"}
			})
		}, doctor.Fail, "nodepool", []string{"NodePool general: ", "label numaform.dev/placment", "did you mean numaform.dev/placement?"}},
		{"a NodePool with a mistyped annotation", func(p *patient) {
			p.PoolMistakes = mistakes(t, func(pool *karpv1.NodePool) { pool.Annotations = map[string]string{"numaform.dev/min-node": "2"} })
		}, doctor.Warn, "nodepool", []string{"annotation numaform.dev/min-node,", "did you mean numaform.dev/min-nodes?"}},
		{"a class with a mistyped annotation", func(p *patient) {
			p.Classes[0].Annotations = map[string]string{"numaform.dev/scale-up": "manual"}
		}, doctor.Warn, "class", []string{"annotation numaform.dev/scale-up"}},
		{"engine too old", func(p *patient) { p.Engine.Version = ">= 99" }, doctor.Fail, "engine", []string{"version >= 99", "rejected", "install OpenTofu"}},
		{"no provider", func(p *patient) { p.PluginDir = t.TempDir() }, doctor.Fail, "provider", []string{"lacks registry.opentofu.org/bpg/proxmox 0.", "available versions: none", "make provider"}},
		{"no client", func(p *patient) { p.Regions[0].Broken = errors.New("token_secret: is empty") }, doctor.Fail, "credential", []string{"homelab: token_secret: is empty"}},
		{"without it", func(p *patient) { p.Regions[0].Broken = errors.New("token_secret: is empty") }, doctor.Skip, "reach", []string{"homelab: skipped because credential failed"}},
		{
			"wrong password", func(p *patient) {
				p.client.TokenID, p.client.TokenSecret, p.client.Username, p.client.Password = "", "", "root@pam", "wrong"
			},
			doctor.Fail, "reach",
			[]string{"401", "check username and password of root@pam"},
		},
		{"insecure", func(p *patient) { p.client.Insecure, p.Regions[0].Insecure = true, true }, doctor.Warn, "certificate", []string{"insecure is set", "SHA-256 ", "set ca_file"}},
		{"certificate runs out", func(p *patient) { p.Clock = clocktesting.NewFakePassiveClock(time.Now().AddDate(1, 11, 29)) }, doctor.Warn, "certificate", []string{"expires on", "pvecm updatecerts"}},
		{"privsep", func(p *patient) {
			grants(p, "/", allOfVM)
			p.sim.Tokens[0].FullPrivileges = false
		}, doctor.Fail, "privilege", []string{"has no privileges: ", "pveum user token modify numaform@pve scaler --privsep 0"}},
		{"guest agents on 8", func(p *patient) {
			p.sim.Version = "8.4"
			grants(p, "/", allOfVM+" VM.Monitor")
		}, doctor.Warn, "privilege", []string{"VM.Monitor is granted", "15 minutes"}},
		{"guest agents on 9", func(p *patient) { grants(p, "/", allOfVM+" VM.GuestAgent.Audit") }, doctor.Warn, "privilege", []string{"VM.GuestAgent.Audit is granted"}},
		{"joining by agents on 9", func(p *patient) { byAgent(p) }, doctor.Fail, "privilege", []string{
			"homelab /vms: missing for joining with a command of the guest agent: VM.GuestAgent.Audit, VM.GuestAgent.Unrestricted: " +
				`pveum role add NumaformAgent --privs "VM.GuestAgent.Audit VM.GuestAgent.Unrestricted" && pveum acl modify /vms --users numaform@pve --roles NumaformAgent`,
		}},
		{"joining by agents on 8", func(p *patient) {
			byAgent(p)
			p.sim.Version = "8.4"
			grants(p, "/", allOfVM+" VM.Monitor")
		}, doctor.OK, "privilege", []string{"homelab /vms: VM.Monitor"}},
		{"no bridge", func(p *patient) { grants(p, "/vms", allOfVM) }, doctor.Fail, "privilege", []string{"homelab /sdn/zones: missing for using bridges: SDN.Use: pveum role add NumaformNet"}},
		{"some bridges", func(p *patient) { grants(p, "/vms", allOfVM, "/sdn/zones/dmz", "SDN.Use") }, doctor.Warn, "privilege", []string{"SDN.Use is granted only on some zones"}},
		{"the hosts' bridges", func(p *patient) { grants(p, "/sdn/zones/localnetwork", "SDN.Use") }, doctor.OK, "privilege", []string{"localnetwork: SDN.Use"}},
		{"a privilege on the path alone", func(p *patient) {
			grants(p, "/vms", allOfVM)
			p.sim.ACL[0].NoPropagate = true
		}, doctor.Fail, "privilege", []string{"homelab /vms: missing for creating and removing VMs: VM.Allocate, VM.Audit"}},
		{"another region's mistake", func(p *patient) {
			p.Regions = append(p.Regions, doctor.Region{Name: "other", Broken: errors.New("token_secret: is empty")})
		}, doctor.OK, "template", []string{"class workers on homelab/pve-2"}},
		{"no pool", func(p *patient) { p.Classes[0].Spec.Pool = "k9s" }, doctor.Fail, "pool", []string{`resource pool "k9s" does not exist`, "pveum pool add k9s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wants(t, examine(t, test.change), test.status, test.check, test.want...)
		})
	}
}

// wants checks that a line has the status, the check, and all of the texts.
func wants(t *testing.T, report doctor.Report, status doctor.Status, check string, texts ...string) {
	t.Helper()
	var lines []string
	for _, finding := range report {
		line := string(finding.Status) + " " + finding.Check + " " + finding.Line()
		lines = append(lines, line)
		if finding.Status == status && finding.Check == check && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return
		}
	}
	t.Errorf("no line %s %s with %q:\n%s", status, check, texts, strings.Join(lines, "\n"))
}

func TestFindsOnHosts(t *testing.T) {
	t.Parallel()
	guest := func(vmid int, clusterID string) topology.Guest {
		return topology.Guest{VMID: vmid, Name: "g", Kind: topology.GuestVM, VCPUs: 1, MemoryMiB: 512, ClusterID: clusterID, Key: strings.Repeat("a", 32)}
	}
	for _, test := range []struct {
		name   string
		change func(*patient)
		status doctor.Status
		check  string
		want   []string
	}{
		{"host down", func(p *patient) { p.ready = func(s *pvesim.Server) { s.SetHostOnline("pve-2", false) } }, doctor.Warn, "host", []string{"homelab/pve-2: is offline: start it"}},
		{"quorum lost", func(p *patient) { p.ready = func(s *pvesim.Server) { s.SetQuorate(false) } }, doctor.Fail, "host", []string{"has lost quorum", "pvecm status"}},
		{"garbage", func(p *patient) {
			p.ready = func(s *pvesim.Server) {
				s.AddFault(pvesim.Fault{Path: "^/cluster/resources", Status: 500, Reason: "got garbage"})
			}
		}, doctor.Fail, "host", []string{"500 got garbage"}},
		{"pins need more than a report", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithHostAgent}
		}, doctor.Warn, "topology", []string{"pve-2: partial", "unknown: siblings", "numaform topology collect"}},
		{"no class", func(p *patient) { p.Classes = nil }, doctor.OK, "topology", []string{"pve-2: partial", "unknown: siblings"}},
		{"template without a disk's room", func(p *patient) { p.sim.Hosts[0].Storages = storages(13 << 10) }, doctor.Warn, "storage", []string{"pve-1: has 5120 MiB free on storage \"local-lvm\""}},
		{"no room for a node", func(p *patient) { p.sim.Hosts[0].Storages = storages(36 << 10) }, doctor.Warn, "storage", []string{"pve-1: has 28672 MiB free", "need 30720 MiB, 2048 MiB more: free space there"}},
		{"no room for a type", func(p *patient) {
			p.sim.Hosts[0].Storages, p.Types = storages(36<<10), []scheduling.InstanceType{{Name: "a.1", DiskGiB: 29}, {Name: "a.2", DiskGiB: 99}}
		}, doctor.Warn, "storage", []string{"need 29696 MiB, 1024 MiB more"}},
		{"no room anywhere", func(p *patient) {
			p.sim.Hosts[0].Storages, p.sim.Hosts[1].Storages = storages(13<<10), storages(14<<10)
		}, doctor.Fail, "storage", []string{"has 6144 MiB free"}},
		{"room for a linked clone", func(p *patient) {
			p.sim.Hosts[0].Storages, p.Classes[0].Spec.Clone = storages(13<<10), v1alpha1.CloneLinked
		}, doctor.OK, "template", []string{"class workers on homelab/pve-1: debian-13-k8s (VMID 9001, 8 GiB on local-lvm)"}},
		{"missing on one host", func(p *patient) { p.sim.Hosts[0].Templates = nil }, doctor.Warn, "template", []string{"pve-1: has no template", "create the template there"}},
		{"template of another host", func(p *patient) {
			for i := range p.sim.Hosts {
				p.sim.Hosts[i].Storages = storages(64 << 10)
				p.sim.Hosts[i].Storages[0].Type, p.sim.Hosts[i].Storages[0].Shared = "rbd", true
				if i != 1 {
					p.sim.Hosts[i].Templates = nil
				}
			}
		}, doctor.OK, "template", []string{"class workers on homelab/pve-1: debian-13-k8s (VMID 9002, 8 GiB on local-lvm), cloned from pve-2"}},
		{"class that cannot be", func(p *patient) { p.Classes[0].Spec.Template.Name = "" }, doctor.Fail, "class", []string{"class workers", "spec.template"}},
		{"no host of it", func(p *patient) { p.Classes[0].Spec.Region = "elsewhere" }, doctor.Fail, "class", []string{"no Proxmox host matches its spec.region"}},
		{"seeds nowhere", func(p *patient) {
			p.Classes[0].Spec.Metadata = v1alpha1.Metadata{Type: v1alpha1.MetadataCDROM, Storage: "local-lvm"}
		}, doctor.Fail, "storage", []string{"does not accept ISO images"}},
		{"seeds may be kept", func(p *patient) { p.Classes[0].Spec.Metadata.Type = v1alpha1.MetadataCDROM }, doctor.OK, "privilege", []string{"/storage/local: ", "Datastore.Allocate"}},
		{"devices without a privilege", func(p *patient) { p.Classes[0].Spec.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu"}} }, doctor.Fail, "privilege", []string{
			"homelab /mapping/pci/gpu: missing for passing PCI devices through: Mapping.Use: " +
				`pveum role add NumaformDevice --privs "Mapping.Use" && pveum acl modify /mapping/pci/gpu --users numaform@pve --roles NumaformDevice`,
		}},
		{"devices that no host has", func(p *patient) { p.Classes[0].Spec.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu"}} }, doctor.Fail, "class", []string{
			"where no PCI mapping gpu is visible", "grant numaform's user Mapping.Use on /mapping/pci/gpu",
		}},
		{"devices", func(p *patient) {
			p.Classes[0].Spec.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu"}}
			for i := range p.sim.Hosts {
				p.sim.Hosts[i].PCIDevices = []topology.PCIDevice{{Mapping: "gpu", Path: "0000:01:00.0"}}
			}
			p.client.TokenID, p.client.TokenSecret, p.client.Username, p.client.Password = "", "", "root@pam", pvesim.DefaultRootPassword
		}, doctor.OK, "privilege", []string{"/mapping/pci/gpu: Mapping.Use"}},
		{"a CPU model that is none", func(p *patient) { p.Classes[0].Spec.CPUType = "x86-64-v9" }, doctor.Fail, "cpu", []string{
			"class workers in homelab: CPU model x86-64-v9 does not exist: correct spec.cpuType",
		}},
		{"a CPU model that the provider rejects", func(p *patient) { p.Classes[0].Spec.CPUType = "EPYC-Genoa-v2" }, doctor.Fail, "class", []string{
			`class workers: ProxmoxNodeClass "workers": spec.cpuType: Invalid value: "EPYC-Genoa-v2": is not a CPU model that the Terraform provider accepts`,
		}},
		{"a custom CPU model that is none", func(p *patient) { p.Classes[0].Spec.CPUType = "custom-tuned" }, doctor.Fail, "cpu", []string{
			"CPU model custom-tuned does not exist: add it to /etc/pve/virtual-guest/cpu-models.conf",
		}},
		{"a CPU model", func(p *patient) {
			p.sim.CPUModels, p.Classes[0].Spec.CPUType = []string{"tuned"}, "custom-tuned"
		}, doctor.OK, "cpu", []string{"custom-tuned exists"}},
		{"a CPU model without a privilege", func(p *patient) {
			p.sim.CPUModels, p.Classes[0].Spec.CPUType = []string{"tuned"}, "custom-tuned"
		}, doctor.Fail, "privilege", []string{
			"homelab /mapping/cpu/tuned: missing for setting the CPU model custom-tuned: Mapping.Use: " +
				`pveum role add NumaformCPU --privs "Mapping.Use" && pveum acl modify /mapping/cpu/tuned --users numaform@pve --roles NumaformCPU`,
		}},
		{"a template's CPU model without a privilege", func(p *patient) {
			p.sim.CPUModels, p.sim.Hosts[0].Templates[0].Options["cpu"] = []string{"tuned"}, "cputype=custom-tuned,flags=+aes"
		}, doctor.Fail, "privilege", []string{"/mapping/cpu/tuned: missing for setting the CPU model custom-tuned"}},
		{"tags", func(p *patient) {
			p.Classes[0].Spec.Tags, p.sim.Hosts[0].Templates[0].Tags = []string{"gold"}, []string{"gold"}
			p.sim.Tags = pvesim.TagAccess{Allow: "list", List: []string{"numaform", "numaform-test", "gold"}}
		}, doctor.OK, "tags", []string{"numaform's user can set the tags of VMs"}},
		{"tags that are not listed", func(p *patient) {
			p.Classes[0].Spec.Tags, p.sim.Hosts[0].Templates[0].Tags = []string{"gold"}, []string{"base"}
			p.sim.Tags = pvesim.TagAccess{Allow: "list", List: []string{"numaform", "prod"}}
		}, doctor.Fail, "tags", []string{
			"homelab: numaform's user cannot add or remove the tags base, gold, numaform-test,",
			"pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=numaform;prod;base;gold;numaform-test'",
		}},
		{"no tags at all", func(p *patient) { p.sim.Tags.Allow = "none" }, doctor.Fail, "tags", []string{
			"numaform, numaform-test", "--user-tag-access 'user-allow=list,user-allow-list=numaform;numaform-test'",
		}},
		{"tags that do not exist yet", func(p *patient) { p.sim.Tags.Allow = "existing" }, doctor.Fail, "tags", []string{
			"numaform, numaform-test", "--user-tag-access 'user-allow=existing,user-allow-list=numaform;numaform-test'",
		}},
		{"a registered tag", func(p *patient) { p.sim.Tags.Registered = []string{"numaform"} }, doctor.Fail, "tags", []string{
			"add or remove the tags numaform, so", "pvesh set /cluster/options --delete registered-tags",
		}},
		{"registered tags, and a list", func(p *patient) {
			p.sim.Tags = pvesim.TagAccess{Allow: "list", List: []string{"numaform", "numaform-test"}, Registered: []string{"prod", "numaform"}}
		}, doctor.Fail, "tags", []string{
			"pvesh set /cluster/options --registered-tags prod && pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=numaform-test;numaform'",
		}},
		{"no tags, but for root", func(p *patient) {
			p.sim.Tags.Allow = "none"
			p.client.TokenID, p.client.TokenSecret, p.client.Username, p.client.Password = "", "", "root@pam", pvesim.DefaultRootPassword
		}, doctor.OK, "tags", []string{"can set the tags"}},
		{"a cloud-init drive that a seed replaces", func(p *patient) {
			p.Classes[0].Spec.Metadata.Type = v1alpha1.MetadataCDROM
			p.sim.Hosts[0].Templates[0].Drives, p.sim.Hosts[0].Templates[0].CloudInit = []string{"ide2"}, true
		}, doctor.Fail, "privilege", []string{
			"/vms: missing for creating and removing VMs: VM.Config.Cloudinit", `pveum role modify NumaformVM --privs "VM.Config.Cloudinit" --append 1`,
		}},
		{"a cloud-init drive that stays", func(p *patient) {
			p.sim.Hosts[0].Templates[0].Drives, p.sim.Hosts[0].Templates[0].CloudInit = []string{"ide2"}, true
		}, doctor.OK, "privilege", []string{"homelab /vms: VM.Allocate"}},
		{"affinity by token", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithAffinity}
		}, doctor.Fail, "pin", []string{"not API token", "pinWith: HostAgent"}},
		{"affinity by root", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithAffinity}
			p.client.TokenID, p.client.TokenSecret, p.client.Username, p.client.Password = "", "", "root@pam", pvesim.DefaultRootPassword
		}, doctor.OK, "pin", []string{"pins by affinity, as root@pam"}},
		{"huge pages by token", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementNUMA, HugePages: v1alpha1.HugePages2Mi}
		}, doctor.Fail, "hugepages", []string{"hugePages is 2Mi, but", "not API token", "remove placement.hugePages"}},
		{"huge pages by root", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementNUMA, HugePages: v1alpha1.HugePages2Mi}
			p.client.TokenID, p.client.TokenSecret, p.client.Username, p.client.Password = "", "", "root@pam", pvesim.DefaultRootPassword
		}, doctor.OK, "hugepages", []string{"uses huge pages of 2Mi, as root@pam"}},
		{"unknown huge pages", func(p *patient) {
			p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementNUMA, HugePages: v1alpha1.HugePages2Mi}
		}, doctor.Fail, "class", []string{"does not report its huge pages", "remove spec.placement.hugePages"}},
		{"exhausted", func(p *patient) {
			p.sim.Hosts[0].Guests = []topology.Guest{guest(2000, ourID)}
			p.Regions[0].VMIDs.Upper = 2000
		}, doctor.Fail, "vmid", []string{"all VMIDs from 2000 to 2000 are in use: widen vmid_range"}},
		{"nearly exhausted", func(p *patient) {
			for id := range 9 {
				p.sim.Hosts[0].Guests = append(p.sim.Hosts[0].Guests, guest(2000+id, ourID))
			}
			p.Regions[0].VMIDs.Upper = 2009
		}, doctor.Warn, "vmid", []string{"9 of 10 in use", "widen vmid_range before"}},
		{"foreign guests in the range", func(p *patient) {
			for id := range 7 {
				p.sim.Hosts[0].Guests = append(p.sim.Hosts[0].Guests, guest(2100+id, ""))
			}
		}, doctor.Warn, "vmid", []string{"contains 7 guests", "2104 (g) and 2 more"}},
		{"another numaform", func(p *patient) { p.sim.Hosts[0].Guests = []topology.Guest{guest(5000, "staging")} }, doctor.OK, "marker", []string{"(clusterID staging) has 1 guest here"}},
		{"karpenter-provider-proxmox", func(p *patient) {
			other := guest(5000, "")
			other.Tags = []string{"karpenter"}
			p.sim.Hosts[0].Guests = []topology.Guest{other}
		}, doctor.OK, "marker", []string{"1 guest with the tag karpenter", "5000 (g)"}},
		{"no other autoscaler", func(*patient) {}, doctor.OK, "marker", []string{"no other autoscaler uses this Proxmox cluster"}},
		{"its marker, not its fleet", func(p *patient) { p.sim.Hosts[0].Guests = []topology.Guest{guest(5000, ourID)} }, doctor.Warn, "marker", []string{"not in this fleet: 5000 (g)", "a different clusterID"}},
		{"a clone with its marker", func(p *patient) {
			p.sim.Hosts[0].Guests = []topology.Guest{guest(5000, ourID)}
			p.Fleet = func(context.Context) (fleet.Fleet, error) {
				return fleet.Fleet{VMs: []fleet.VM{{VMID: 2000, Key: fleet.Key(strings.Repeat("a", 32))}}}, nil
			}
		}, doctor.Warn, "marker", []string{"1 clone of VMs in this fleet, with their markers: 5000 (g)", "remove the line that begins with numaform/"}},
		{"fleet of its own", func(p *patient) {
			p.Fleet = func(context.Context) (fleet.Fleet, error) {
				return fleet.Fleet{}, errors.New("fleet belongs to another")
			}
		}, doctor.Fail, "fleet", []string{"belongs to another"}},
		{"locked", func(p *patient) {
			p.Locks = func(context.Context) ([]doctor.Lock, error) {
				return []doctor.Lock{{Where: "state of homelab/pve-1", Err: &state.LockedError{LockInfo: state.LockInfo{ID: "7f", Who: "anna@laptop"}, Holder: state.HolderUnknown, Command: "numaform unlock homelab/pve-1"}}}, nil
			}
		}, doctor.Fail, "lock", []string{"state of homelab/pve-1", "locked by anna@laptop", "if the holder is certainly dead, run `numaform unlock homelab/pve-1 7f`"}},
		{"no class", func(p *patient) { p.Classes = nil }, doctor.Warn, "classes", []string{"no ProxmoxNodeClass exists"}},
		{"classes unread", func(p *patient) { p.Classes, p.ClassesBroken = nil, errors.New("reading kubeconfig") }, doctor.Fail, "classes", []string{"reading kubeconfig"}},
		{"in general", func(p *patient) { p.Classes, p.Named = nil, false }, doctor.OK, "storage", []string{"disks on local-lvm; seeds on local"}},
		{"a class' storages", func(p *patient) { p.Classes[0].Spec.Metadata.Type = v1alpha1.MetadataCDROM }, doctor.OK, "storage", []string{
			"homelab/pve-1: disks on local-lvm; seeds on local (the host that receives an upload copies it there by ssh)",
		}},
		{"a storage that does not exist", func(p *patient) { p.Classes[0].Spec.BootDevice = &v1alpha1.BootDevice{Storage: "nowhere"} }, doctor.Warn, "storage", []string{
			"pve-1: storage \"nowhere\" does not exist, or numaform's user has no access to it", "grant Datastore.Audit on /storage/nowhere",
		}},
		{"a storage of another host", func(p *patient) {
			p.Classes[0].Spec.DataDisks = []v1alpha1.DataDisk{{Size: "1G", Storage: "fast"}}
			p.sim.Hosts[1].Storages = append(storages(1<<19), topology.Storage{Name: "fast", Type: "dir", Active: true, Content: []string{"images"}})
		}, doctor.Warn, "storage", []string{"homelab/pve-1: storage \"fast\" is disabled, or not available on this host", "add pve-1 to its nodes"}},
		{"a storage that does not answer", func(p *patient) {
			p.Classes[0].Spec.Metadata = v1alpha1.Metadata{Type: v1alpha1.MetadataCDROM, Storage: "nas"}
			p.sim.Hosts[1].Storages = append(storages(1<<19), topology.Storage{Name: "nas", Type: "nfs", Shared: true, Content: []string{"iso"}})
		}, doctor.Warn, "storage", []string{"homelab/pve-2: storage \"nas\" is enabled but not active: run `pvesm status --storage nas` on the host"}},
		{"a report that takes long", func(p *patient) {
			now := clocktesting.NewFakePassiveClock(time.Now())
			p.client.Now = now.Now
			p.ready = func(s *pvesim.Server) {
				s.AddFault(pvesim.Fault{Path: "/report$", Hit: func(context.Context, pvesim.Call) { now.SetTime(now.Now().Add(25 * time.Second)) }})
			}
		}, doctor.Warn, "topology", []string{"its report takes more than 20s, and pveproxy gives up after 30s: run `pvereport` on the host to see how long it takes"}},
		{"in general, a hookscript", func(p *patient) {
			p.Classes, p.Named = nil, false
			p.sim.Hosts[0].Templates[0].Options["hookscript"] = "local:snippets/x"
		}, doctor.Warn, "template", []string{"debian-13-k8s (VMID 9001) is not usable", "qm set 9001 --delete hookscript"}},
		{"in general, no template", func(p *patient) {
			p.Classes, p.Named = nil, false
			p.sim.Hosts[0].Templates, p.sim.Hosts[1].Templates = nil, nil
		}, doctor.Fail, "template", []string{"homelab: no host has a usable template"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wants(t, examine(t, test.change), test.status, test.check, test.want...)
		})
	}
}

// storages returns a single storage; the template's disk takes 8 GiB of it.
func storages(freeMiB int64) []topology.Storage {
	return []topology.Storage{{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images"}, TotalMiB: 1 << 20, FreeMiB: freeMiB}}
}

// TestTooOld checks that Proxmox VE 7 fails the check reach with a fix, and that checks
// that depend on it are skipped while the others run.
func TestTooOld(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"version": "7.4-17", "release": "7.4", "repoid": "513c62be"}})
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	report := examine(t, func(p *patient) {
		p.client.URL = server.URL
		p.client.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	})
	wants(t, report, doctor.Fail, "reach", "region homelab runs Proxmox VE 7.4-17: numaform requires 8 or newer: upgrade its hosts")
	wants(t, report, doctor.Skip, "privilege", "because reach failed")
	wants(t, report, doctor.OK, "lock", "is free")
}

// TestPackedMirror checks that the provider is found in a mirror of zip files, and that the
// available versions are listed if the required one is missing.
func TestPackedMirror(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mirror := filepath.Join(dir, "registry.opentofu.org", "bpg", "proxmox")
	if err := os.MkdirAll(filepath.Join(mirror, "0.9.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	wants(t, examine(t, func(p *patient) { p.PluginDir = dir }), doctor.Fail, "provider", "available versions: 0.9.0")
	entries, err := filepath.Glob(filepath.Join(testenv.PluginDir(t), "registry.opentofu.org", "bpg", "proxmox", "*", "*_*"))
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	platform, version := filepath.Base(entries[0]), filepath.Base(filepath.Dir(entries[0]))
	name := filepath.Join(mirror, "terraform-provider-proxmox_"+version+"_"+platform+".zip")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, examine(t, func(p *patient) { p.PluginDir = dir }), doctor.OK, "provider", "bpg/proxmox "+version)
}

// TestRegistry checks the finding about the provider if there is no mirror, and no access
// to the registry.
func TestRegistry(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "127.0.0.1")
	}
	report := examine(t, func(p *patient) { p.PluginDir = "" })
	wants(t, report, doctor.Fail, "provider", "the registry: ", "127.0.0.1:1", "cannot be reached from here: set engine.plugin_dir")
	for _, finding := range report {
		if line := finding.Line(); finding.Check == "provider" && (len(line) > 500 || strings.Contains(line, "/tmp/")) {
			t.Errorf("a long message, or one with a temporary directory: %s", line)
		}
	}
	wants(t, report, doctor.OK, "template", "debian-13-k8s")
	report = examine(t, func(p *patient) { p.PluginDir, p.Engine.Version = "", ">= 99" })
	wants(t, report, doctor.Skip, "provider", "because engine failed")
}
