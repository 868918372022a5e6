package e2e_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent"
	"github.com/numaform/numaform/internal/bootstrap"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// converted is what a converted configuration is expected to plan for one pod.
type converted struct {
	peer, pod string
	want      fleet.Spec
	// hosts are the hosts that the configuration allows, and lower and upper its VMIDs.
	hosts        []string
	lower, upper fleet.VMID
	macPrefix    string
	// addresses are the beginnings of the addresses of the last network device.
	addresses []string
	// agent is the configuration of the host agent, or nil.
	agent *agent.Settings
	// texts are in the documents of the VM's seed, or in its join command.
	texts map[string][]string
}

// TestConvertedPlans converts configurations with each option of other autoscalers, and
// checks that what each option means there is in the planned VMs and in what their guests
// read.
func TestConvertedPlans(t *testing.T) {
	t.Parallel()
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec:
`
	for name, c := range map[string]converted{
		"kpp": {
			peer: "kpp",
			pod: pod + `  nodeSelector: {example.com/kind: worker}
  tolerations: [{key: example.com/kind, operator: Exists}]
  containers: [{name: a, image: a, resources: {requests: {cpu: "3", memory: 10Gi}}}]
`,
			want: fleet.Spec{
				Pool: "workers", NodeClass: "workers", InstanceType: "big.4VCPU-16GB", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 16384,
				Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent,
				Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "x86-64-v3", Hardware: &fleet.Hardware{CPUFlags: []string{"+aes"}}, DiskGiB: 60, Storage: "local-lvm", SeedStorage: fleet.AnySeedStorage,
				Networks: []fleet.Network{{Bridge: "vmbr0", Model: "virtio", MTU: 1500, Firewall: true}, {Bridge: "vmbr1", MTU: 1400, VLAN: 20, Firewall: true, Addresses: []fleet.Address{
					{Pool: "net-192-0-2-0-24", Gateway: "192.0.2.1", DNSServers: []string{"192.0.2.53"}},
					{Pool: "net-2001-db8---64", Gateway: "2001:db8::1", DNSServers: []string{"192.0.2.53"}},
				}}},
				Tags:         []string{"karpenter", "team-a"},
				ResourcePool: "k8s/workers", SecurityGroups: []string{fleet.DeviceGroup("kubernetes", 0), fleet.DeviceGroup("nodes", 0), fleet.DeviceGroup("storage", 1)},
			},
			hosts: []string{"pve-2", "pve-3"}, lower: 30000, upper: 30999, macPrefix: "BC:24:11", addresses: []string{"192.0.2.", "2001:db8::"},
			agent: &agent.Settings{Clusters: []string{"quickstart"}, Governor: agent.Governor{Pinned: "performance", Unpinned: "powersave"}, IRQs: agent.InterruptsGuest},
			texts: map[string][]string{
				bootstrap.UserData: {
					"hostname: workers-30", "- ssh-ed25519 AAAA\n", "- ssh-ed25519 BBBB\n", "          cpuManagerPolicy: static\n", "          maxPods: 100\n",
					"proxmox://Homelab/30", " b 17179869184 abcdef.0123456789abcdef\"",
				},
				bootstrap.MetaData:      {"instance-id: 30", "provider-id: proxmox://Homelab/30"},
				bootstrap.NetworkConfig: {"net1:\n    match: {macaddress: \"bc:24:11:", "dhcp4: false"},
				bootstrap.VendorData:    {"timezone: Europe/Berlin"},
			},
		},
		"kpp with a template of numaform": {
			peer: "kpp",
			pod: pod + `  nodeSelector: {karpenter.sh/nodepool: images}
  containers: [{name: a, image: a, resources: {requests: {cpu: "1", memory: 2Gi}}}]
`,
			want: fleet.Spec{
				Pool: "images", NodeClass: "images", InstanceType: "small.2VCPU-4GB", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 4096,
				Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent, Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "x86-64-v2-AES", DiskGiB: 40,
				Networks: []fleet.Network{{Bridge: "vmbr0", MTU: 1500}},
			},
			hosts: []string{"pve-2"}, lower: 30000, upper: 30999,
		},
		"kproximate": {
			peer: "kproximate",
			pod: pod + `  containers: [{name: a, image: a, resources: {requests: {cpu: "1", memory: 2Gi}}}]
`,
			want: fleet.Spec{
				Pool: "kp-node", NodeClass: "kproximate", InstanceType: "kp.2VCPU-4096MB", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 4096,
				Policy: fleet.PolicyShared, Overcommit: 1, Spread: fleet.SpreadHosts, Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "host", DiskGiB: 30,
			},
			hosts: []string{"pve-1", "pve-2", "pve-3"}, lower: 20000, upper: 20999,
			texts: map[string][]string{bootstrap.JoinCommand: {`exec bash -c 'echo '\''{{ x }}'\'' && k3s agent --token abc'`}},
		},
		"kubenodesmith": {
			peer: "kubenodesmith",
			pod: pod + `  nodeSelector: {topology.kubenodesmith.io/pool: small}
  containers: [{name: a, image: a, resources: {requests: {cpu: "2", memory: 4Gi}}}]
`,
			want: fleet.Spec{
				Pool: "small", NodeClass: "lab", InstanceType: "flex.3VCPU-5.5GB", CapacityType: "on-demand", VCPUs: 3, MemoryMiB: 5632,
				Policy: fleet.PolicyShared, Overcommit: 1, Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "x86-64-v2-AES", DiskGiB: 48, Storage: "local-lvm",
				Hardware: &fleet.Hardware{
					Machine: "q35", Display: "std", DisplayMiB: 32, Watchdog: &fleet.Watchdog{Model: "i6300esb", Action: "reset"}, NoTablet: true, CPUFlags: []string{"+aes"},
				},
				DataDisks: []fleet.DataDisk{{SizeGiB: 10, Storage: "local-lvm"}},
				Networks: []fleet.Network{
					{Bridge: "vmbr0", Model: "virtio", VLAN: 20},
					{Bridge: "vmbr1", Model: "virtio", VLAN: 30, MTU: 1400, Firewall: true, RateMBps: 12.5, Queues: 2, Trunks: []int{5, 6}, Disconnected: true},
				},
				Tags: []string{"nodesmith-managed"}, ResourcePool: "k8s/workers",
			},
			hosts: []string{"pve-2", "pve-3"}, lower: 1250, upper: 1300, macPrefix: "02:00:00",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stage := quickstart(t)
			if c.want.NodeClass == "images" {
				// The template that numaform would have created.
				for _, guest := range stage.Sim.Guests() {
					if guest.Host == "pve-2" && guest.Config["name"] == c.want.Template {
						config := maps.Clone(guest.Config)
						config["description"] = fleet.TemplateMarker(topology.MadeFor{ClusterID: "quickstart", Template: "images", Serial: 1})
						if err := stage.Sim.PutGuest(pvesim.Guest{VMID: guest.VMID, Host: guest.Host, Kind: guest.Kind, Config: config}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			dir, planned := filepath.Join(stage.Dir, "converted"), filepath.Join(stage.Dir, "planned")
			run(t, stage, cli.ExitOK, "convert", c.peer, "-f", filepath.Join("..", "..", "internal", "convert", "testdata", c.peer),
				"--out", dir, "--cluster-id", "quickstart", "--region", "homelab", "--template", "debian-13-k8s")
			if c.agent != nil {
				want := agent.DefaultSettings()
				want.Clusters, want.Governor, want.IRQs = c.agent.Clusters, c.agent.Governor, c.agent.IRQs
				got, err := agent.ReadSettings(filepath.Join(dir, "numaform-agent.yaml"))
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("settings of the agent, error %v (-want +got):\n%s", err, diff)
				}
			}
			pods := filepath.Join(dir, "pod.yaml")
			if err := os.WriteFile(pods, []byte(c.pod), 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, stage, cli.ExitOK, "plan", "--config", filepath.Join(dir, "numaform.yaml"), "-f", filepath.Join(dir, "manifests"), "-f", pods, "--out", planned)
			f, _ := readFleet(t, planned)
			if len(f.VMs) != 1 {
				t.Fatalf("%d VMs, want 1", len(f.VMs))
			}
			vm := f.VMs[0]
			checkGuest(t, filepath.Join(dir, "manifests", "secrets.yaml"), &vm, c.texts)
			got := vm.Spec
			got.Hosts, got.Labels, got.Demand = nil, nil, fleet.Demand{}
			got.Networks = slices.Clone(got.Networks)
			for i := range got.Networks {
				if mac := got.Networks[i].MAC; i == 0 && c.macPrefix != "" && (len(mac) != len("00:00:00:00:00:00") || mac[:len(c.macPrefix)] != c.macPrefix) {
					t.Errorf("MAC address %q does not begin with %s", mac, c.macPrefix)
				}
				got.Networks[i].MAC = ""
				got.Networks[i].Addresses = slices.Clone(got.Networks[i].Addresses)
				for j := range got.Networks[i].Addresses {
					address := &got.Networks[i].Addresses[j]
					if !strings.HasPrefix(address.CIDR, c.addresses[j]) {
						t.Errorf("address %s, want %s", address.CIDR, c.addresses[j])
					}
					address.CIDR = ""
				}
			}
			for i := range got.DataDisks {
				got.DataDisks[i].Interface = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("VM (-want +got):\n%s", diff)
			}
			if !slices.Contains(c.hosts, string(vm.Host.Host)) || vm.VMID < c.lower || vm.VMID > c.upper {
				t.Errorf("VM %d on %s, want %d to %d on %v", vm.VMID, vm.Host.Host, c.lower, c.upper, c.hosts)
			}
			if c.want.Policy.Pinned() != (len(vm.VCPUPins) == vm.VCPUs) {
				t.Errorf("pins %v of %d vCPUs", vm.VCPUPins, vm.VCPUs)
			}
		})
	}
}

// checkGuest checks that what the guest of a VM reads contains these texts.
func checkGuest(t *testing.T, file string, vm *fleet.VM, texts map[string][]string) {
	t.Helper()
	if texts == nil {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	values := bootstrap.ValuesOf(vm)
	values.Kubernetes.RootCA, values.Kubernetes.APIServer, values.Kubernetes.Version = "CA", "https://192.0.2.9:6443", "v1.36.0"
	values.Kubernetes.Token, values.Kubernetes.BootstrapToken = "abcdef.0123456789abcdef", "abcdef.0123456789abcdef"
	values.Values = map[string]any{}
	templates := bootstrap.Defaults()
	for document := range strings.SplitSeq(string(data), "---\n") {
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(document), &secret); err != nil {
			t.Fatal(err)
		}
		for key, text := range secret.StringData {
			if strings.HasSuffix(secret.Name, "-values") {
				values.Values[key] = text
				continue
			}
			templates[key] = text
		}
	}
	if err := values.Configure(bootstrap.Kubelet{Config: map[string]any{"cpuManagerPolicy": "static", "maxPods": 100}}); err != nil {
		t.Fatal(err)
	}
	documents := bootstrap.Documents{}
	if _, command := texts[bootstrap.JoinCommand]; command {
		text, err := bootstrap.RenderCommand(templates, values)
		if err != nil {
			t.Fatal(err)
		}
		documents[bootstrap.JoinCommand] = []byte(text)
	} else if documents, err = bootstrap.Render(templates, values); err != nil {
		t.Fatal(err)
	}
	for name, list := range texts {
		for _, text := range list {
			if !strings.Contains(string(documents[name]), text) {
				t.Errorf("%q is not in %s:\n%s", text, name, string(documents[name]))
			}
		}
	}
}
