package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
)

// converted is what a converted configuration is expected to plan for one pod.
type converted struct {
	pod  string
	want fleet.Spec
	// hosts are the hosts that the configuration allows, and lower and upper its VMIDs.
	hosts        []string
	lower, upper fleet.VMID
	macPrefix    string
}

// TestConvertedPlans converts configurations with each option of other autoscalers, and
// checks that what each option means there is in the planned VMs.
func TestConvertedPlans(t *testing.T) {
	t.Parallel()
	const pod = `apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default}
spec:
`
	for peer, c := range map[string]converted{
		"kpp": {
			pod: pod + `  nodeSelector: {example.com/kind: worker}
  tolerations: [{key: example.com/kind, operator: Exists}]
  containers: [{name: a, image: a, resources: {requests: {cpu: "3", memory: 10Gi}}}]
`,
			want: fleet.Spec{
				Pool: "workers", NodeClass: "workers", InstanceType: "big.4VCPU-16GB", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 16384,
				Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent,
				Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "x86-64-v3", Hardware: &fleet.Hardware{CPUFlags: []string{"+aes"}}, DiskGiB: 60, Storage: "local-lvm", SeedStorage: fleet.AnySeedStorage,
				Networks:     []fleet.Network{{Bridge: "vmbr0", Model: "virtio", Firewall: true}, {Bridge: "vmbr1", MTU: 1400, VLAN: 20}},
				Tags:         []string{"karpenter", "team-a"},
				ResourcePool: "k8s/workers", SecurityGroups: []string{"kubernetes", "nodes"},
			},
			hosts: []string{"pve-2", "pve-3"}, lower: 30000, upper: 30999,
		},
		"kproximate": {
			pod: pod + `  containers: [{name: a, image: a, resources: {requests: {cpu: "1", memory: 2Gi}}}]
`,
			want: fleet.Spec{
				Pool: "kp-node", NodeClass: "kproximate", InstanceType: "kp.2VCPU-4096MB", CapacityType: "on-demand", VCPUs: 2, MemoryMiB: 4096,
				Policy: fleet.PolicyShared, Overcommit: 1, Spread: fleet.SpreadHosts, Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "host", DiskGiB: 30,
			},
			hosts: []string{"pve-1", "pve-2", "pve-3"}, lower: 20000, upper: 20999,
		},
		"kubenodesmith": {
			pod: pod + `  nodeSelector: {topology.kubenodesmith.io/pool: small}
  containers: [{name: a, image: a, resources: {requests: {cpu: "2", memory: 4Gi}}}]
`,
			want: fleet.Spec{
				Pool: "small", NodeClass: "lab", InstanceType: "flex.3VCPU-5.5GB", CapacityType: "on-demand", VCPUs: 3, MemoryMiB: 5632,
				Policy: fleet.PolicyShared, Overcommit: 1, Template: "debian-13-k8s", Clone: fleet.CloneFull, CPUType: "x86-64-v2-AES", DiskGiB: 48, Storage: "local-lvm",
				Hardware: &fleet.Hardware{
					Machine: "q35", Display: "std", DisplayMiB: 32, Watchdog: &fleet.Watchdog{Model: "i6300esb", Action: "reset"}, NoTablet: true, CPUFlags: []string{"+aes"},
				},
			hosts: []string{"pve-2", "pve-3"}, lower: 1250, upper: 1300, macPrefix: "02:00:00",
		},
	} {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			stage := quickstart(t)
			dir, planned := filepath.Join(stage.Dir, "converted"), filepath.Join(stage.Dir, "planned")
			run(t, stage, cli.ExitOK, "convert", peer, "-f", filepath.Join("..", "..", "internal", "convert", "testdata", peer),
				"--out", dir, "--cluster-id", "quickstart", "--region", "homelab", "--template", "debian-13-k8s")
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
			got := vm.Spec
			got.Hosts, got.Labels, got.Demand = nil, nil, fleet.Demand{}
			for i := range got.Networks {
				if mac := got.Networks[i].MAC; i == 0 && c.macPrefix != "" && (len(mac) != len("00:00:00:00:00:00") || mac[:len(c.macPrefix)] != c.macPrefix) {
					t.Errorf("MAC address %q does not begin with %s", mac, c.macPrefix)
				}
				got.Networks[i].MAC = ""
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
