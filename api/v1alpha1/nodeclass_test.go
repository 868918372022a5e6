package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
)

var _ status.Object = (*v1alpha1.ProxmoxNodeClass)(nil)

func parse(t *testing.T, spec string) *v1alpha1.ProxmoxNodeClass {
	t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	if err := yaml.UnmarshalStrict([]byte("spec: "+spec), nc); err != nil {
		t.Fatal(err)
	}
	return nc
}

const full = `
  region: lab
  hosts: [pve-1, lab/pve-2]
  template: {name: debian-13, tags: [k8s], vmid: 9000}
  clone: full
  bootDevice: {size: 1T, storage: local-zfs}
  cpuType: x86-64-v2-AES
  placement: {policy: Dedicated, pinWith: HostAgent}
  sizing: {families: [c1, m1]}
  memoryOverheadMiB: 300
  networks: [{bridge: vmbr0, model: virtio, vlan: 7, mtu: 1, firewall: true}, {bridge: vmbr1}]
  tags: [k8s, workers]
  pool: k8s/workers
  securityGroups: [kubernetes]
  metadata:
    type: cdrom
    storage: local
    templatesRef: {name: seed, namespace: numaform}
    valuesRef: {name: values}
  tokenTTL: 1h30m
  kubelet:
    cpuManagerPolicy: static
    cpuCFSQuota: true
    cpuCFSQuotaPeriod: 50ms
    topologyManagerPolicy: single-numa-node
    topologyManagerScope: pod
    imageGCHighThresholdPercent: 70
    imageGCLowThresholdPercent: 60
    shutdownGracePeriod: 1m
    shutdownGracePeriodCriticalPods: 20s
    allowedUnsafeSysctls: [net.core.somaxconn, "net.ipv4.*", kernel.shm*]
    clusterDNS: [10.96.0.10, "fd00::a"]
    maxPods: 200
    failSwapOn: false
    systemReserved: {cpu: 100m, memory: 128Mi, pid: "1000"}
    kubeReserved: {cpu: "0.2", ephemeral-storage: 1Gi}
    evictionHard: {memory.available: 5%, nodefs.available: 2Gi}
`

// accepted and refused are judged by Validate and by a real API server.
func accepted() []string {
	return []string{
		`{template: {name: t}}`, full,
		`{template: {tags: [golden]}}`,
		`{template: {vmid: 9000}}`,
		`{template: {name: t}, placement: {policy: NUMA}}`,
		`{template: {name: t}, placement: {overcommit: "1.5"}}`,
		`{template: {name: t}, placement: {overcommit: "16"}}`,
		`{template: {name: t}, clone: linked, placement: {policy: Isolated, pinWith: Affinity}}`,
		`{template: {name: t}, placement: {policy: NUMA, hugePages: 1Gi, spread: Hosts}}`,
		`{template: {name: t}, networks: [{bridge: vmbr0, macPrefix: "BC:24:11"}, {bridge: vmbr0, macPrefix: "02:ab:Cd"}]}`,
		`{template: {name: t}, dataDisks: [{size: 100Gi, storage: local-zfs}, {size: 1T}]}`,
		`{template: {name: t}, clone: linked, dataDisks: [{size: 1G, storage: fast}]}`,
		`{template: {name: t}, pciDevices: [{mapping: gpu, pcie: true, xvga: true}, {mapping: gpu}, {mapping: vgpu_2, mdev: nvidia-63}]}`,
		`{template: {name: t}, placement: {policy: NUMA, hugePages: 1Gi}, sizing: {policy: Flexible, minMemoryMiB: 1536, maxMemoryMiB: 2560}}`,
		`{template: {name: t}, clone: linked, bootDevice: {size: 40G}}`,
		`{template: {name: t}, region: a, hosts: [h, a/i]}`,
		`{template: {name: t}, hosts: [b/h, a/h]}`,
		`{template: {name: t}, metadata: {type: none}}`,
		`{template: {name: t}, metadata: {type: cdrom}}`,
		`{template: {name: t}, metadata: {type: cdrom, token: ServiceAccount}}`,
		`{template: {name: t}, metadata: {type: agent, token: Bootstrap, templatesRef: {name: a}}}`,
		`{template: {name: t}, metadata: {type: agent, templatesRef: {name: a}, valuesRef: {name: b}}}`,
		`{template: {name: t}, tokenTTL: 24h, memoryOverheadMiB: 0}`,
		`{template: {name: t}, sizing: {}}`,
		`{template: {name: t}, sizing: {policy: Types, families: [c1]}}`,
		`{template: {name: t}, sizing: {policy: Flexible}}`,
		`{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 2, maxVCPUs: 2, minMemoryMiB: 1024, maxMemoryMiB: 1024}}`,
		`{template: {name: t}, placement: {policy: Isolated, pinWith: HostAgent, emulator: shared}}`,
		`{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent}, sizing: {policy: Flexible, minVCPUs: 3, maxVCPUs: 5}}`,
		`{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, wholeCores: Require}}`,
		`{template: {name: t}, kubelet: {}}`,
		`{template: {name: t}, kubelet: {imageGCLowThresholdPercent: 50}}`,
		`{template: {name: t}, kubelet: {kubeReserved: {memory: "0"}, evictionHard: {memory.available: 0%, nodefs.inodesFree: 99.5%}}}`,
	}
}

type refusal struct{ name, spec, want string }

func refused() []refusal {
	return []refusal{
		{"no template", `{template: {}}`, "spec.template: is empty"},
		{"template tag", `{template: {tags: [Big]}}`, `spec.template.tags[0]: "Big"`},
		{"template number", `{template: {vmid: 99}}`, `spec.template.vmid: 99`},
		{"region", `{template: {name: t}, region: a/b}`, `spec.region: "a/b" is not a region's name`},
		{"host", `{template: {name: t}, hosts: [a, "b c"]}`, `spec.hosts[1]: "b c" is not a host`},
		{"host without region", `{template: {name: t}, hosts: [/b]}`, `spec.hosts[0]: "/b" is not a host`},
		{"host elsewhere", `{template: {name: t}, region: a, hosts: [b/h]}`, `"b/h" is not in region "a"`},
		{"host twice", `{template: {name: t}, hosts: [a, a]}`, `spec.hosts[1]: "a" is listed twice`},
		{"clone", `{template: {name: t}, clone: half}`, `spec.clone: "half" is not a way to clone`},
		{"size in bytes", `{template: {name: t}, bootDevice: {size: 40GB}}`, `"40GB" is not a disk size`},
		{"no size", `{template: {name: t}, bootDevice: {size: 0G}}`, `"0G" is not a disk size`},
		{"huge size", `{template: {name: t}, bootDevice: {size: 123456789G}}`, `"123456789G" is not a disk size`},
		{"storage", `{template: {name: t}, bootDevice: {storage: "a b"}}`, `spec.bootDevice.storage: "a b" is not a storage's name`},
		{"storage of a linked clone", `{template: {name: t}, clone: linked, bootDevice: {storage: s}}`, "spec.bootDevice.storage: a linked clone stays"},
		{"policy", `{template: {name: t}, placement: {policy: Fast}}`, `spec.placement.policy: "Fast" is not a policy`},
		{"pins by nobody", `{template: {name: t}, placement: {policy: Dedicated}}`, "spec.placement.pinWith: is needed by policy Dedicated"},
		{"isolation by nobody", `{template: {name: t}, placement: {policy: Isolated}}`, "spec.placement.pinWith: is needed by policy Isolated"},
		{"pins of nothing", `{template: {name: t}, placement: {pinWith: Affinity}}`, "means nothing to policy Shared"},
		{"pins of NUMA", `{template: {name: t}, placement: {policy: NUMA, pinWith: HostAgent}}`, "means nothing to policy NUMA"},
		{"pins by somebody", `{template: {name: t}, placement: {policy: Isolated, pinWith: Me}}`, `"Me" is not a way to pin`},
		{"huge pages", `{template: {name: t}, placement: {policy: NUMA, hugePages: 4Mi}}`, `spec.placement.hugePages: "4Mi" is no size of huge pages`},
		{"MAC prefix", `{template: {name: t}, networks: [{bridge: vmbr0, macPrefix: "BC:24:11:00"}]}`, `spec.networks[0].macPrefix: "BC:24:11:00" is not the first half`},
		{"MAC prefix of groups", `{template: {name: t}, networks: [{bridge: vmbr0, macPrefix: "01:24:11"}]}`, `spec.networks[0].macPrefix: "01:24:11" is not the first half`},
		{"data disk", `{template: {name: t}, dataDisks: [{size: 1G}, {size: 100}]}`, `spec.dataDisks[1].size: "100" is not a disk size`},
		{"data disk without a size", `{template: {name: t}, dataDisks: [{storage: fast}]}`, `spec.dataDisks[0].size: "" is not a disk size`},
		{"storage of a data disk", `{template: {name: t}, dataDisks: [{size: 1G, storage: "a:b"}]}`, `spec.dataDisks[0].storage: "a:b" is not a storage's name`},
		{"many data disks", `{template: {name: t}, dataDisks: [{size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}]}`, "spec.dataDisks: "},
		{"mapping", `{template: {name: t}, pciDevices: [{mapping: "0000:01:00.0"}]}`, `spec.pciDevices[0].mapping: "0000:01:00.0" is not a resource mapping's name`},
		{"mediated device", `{template: {name: t}, pciDevices: [{mapping: gpu, mdev: "a,b"}]}`, `spec.pciDevices[0].mdev: "a,b" is not a type of mediated device`},
		{"many devices", `{template: {name: t}, pciDevices: [{mapping: ga}, {mapping: gb}, {mapping: gc}, {mapping: gd}, {mapping: ge}, {mapping: gf}, {mapping: gg}]}`, "spec.pciDevices: "},
		{"two primary devices", `{template: {name: t}, pciDevices: [{mapping: ga, xvga: true}, {mapping: gb, xvga: true}]}`, "spec.pciDevices: a VM has one primary graphics card"},
		{"huge pages of Shared", `{template: {name: t}, placement: {hugePages: 2Mi}}`, "spec.placement.hugePages: means nothing to policy Shared"},
		{"spread", `{template: {name: t}, placement: {spread: Racks}}`, `spec.placement.spread: "Racks" is not a way to spread`},
		{"whole cores", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, wholeCores: Always}}`, `spec.placement.wholeCores: "Always" is not known`},
		{"whole cores of NUMA", `{template: {name: t}, placement: {policy: NUMA, wholeCores: Require}}`, "spec.placement.wholeCores: means nothing to polic"},
		{"no whole page", `{template: {name: t}, placement: {policy: NUMA, hugePages: 1Gi}, sizing: {policy: Flexible, minMemoryMiB: 1536, maxMemoryMiB: 1536}}`, "spec.sizing.maxMemoryMiB: leaves no size: with huge pages of 1Gi"},
		{"overcommit", `{template: {name: t}, placement: {overcommit: "0.5"}}`, `spec.placement.overcommit: "0.5" is not a ratio`},
		{"overcommit of more", `{template: {name: t}, placement: {overcommit: "16.1"}}`, `"16.1" is not a ratio`},
		{"overcommit, padded", `{template: {name: t}, placement: {overcommit: "01"}}`, `"01" is not a ratio`},
		{"overcommit NaN", `{template: {name: t}, placement: {overcommit: "NaN"}}`, `"NaN" is not a ratio`},
		{"overcommit of pins", `{template: {name: t}, placement: {policy: NUMA, overcommit: "2"}}`, "means nothing to policy NUMA"},
		{"family", `{template: {name: t}, sizing: {families: [c1.large]}}`, `spec.sizing.families[0]: "c1.large"`},
		{"sizing", `{template: {name: t}, sizing: {policy: Any}}`, `spec.sizing.policy: "Any" is not a policy`},
		{"families of no types", `{template: {name: t}, sizing: {policy: Flexible, families: [c1]}}`, "spec.sizing.families: means nothing to policy Flexible"},
		{"bound of types", `{template: {name: t}, sizing: {maxVCPUs: 4}}`, "spec.sizing.maxVCPUs: means nothing to policy Types"},
		{"memory of types", `{template: {name: t}, sizing: {policy: Types, minMemoryMiB: 4096}}`, "spec.sizing.minMemoryMiB: means nothing to policy Types"},
		{"more than the most", `{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 8, maxVCPUs: 4}}`, "spec.sizing.maxVCPUs: 4 is less than minVCPUs, 8"},
		{"more than the default", `{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 17}}`, "spec.sizing.maxVCPUs: 16 is less than minVCPUs, 17"},
		{"more memory than the most", `{template: {name: t}, sizing: {policy: Flexible, maxMemoryMiB: 1024}}`, "spec.sizing.maxMemoryMiB: 1024 is less than minMemoryMiB, 2048"},
		{"memory between the steps", `{template: {name: t}, sizing: {policy: Flexible, minMemoryMiB: 2000}}`, "spec.sizing.minMemoryMiB: 2000 is not from 512"},
		{"emulator of nobody", `{template: {name: t}, placement: {policy: Dedicated, pinWith: Affinity, emulator: shared}}`, "spec.placement.emulator: is numaform-agent's to obey"},
		{"emulator without pins", `{template: {name: t}, placement: {emulator: guest}}`, "spec.placement.emulator: is numaform-agent's to obey"},
		{"emulator elsewhere", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, emulator: host}}`, `"host" is no place of the emulator`},
		{"no whole core", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent}, sizing: {policy: Flexible, minVCPUs: 3, maxVCPUs: 3}}`, "spec.sizing.maxVCPUs: leaves no size"},
		{"overhead", `{template: {name: t}, memoryOverheadMiB: -1}`, `spec.memoryOverheadMiB: -1`},
		{"bridge", `{template: {name: t}, networks: [{bridge: ""}]}`, `spec.networks[0].bridge: "" is not a bridge's name`},
		{"model", `{template: {name: t}, networks: [{bridge: vmbr0, model: fast}]}`, `spec.networks[0].model: "fast"`},
		{"vlan", `{template: {name: t}, networks: [{bridge: vmbr0, vlan: 4095}]}`, `spec.networks[0].vlan: 4095`},
		{"mtu", `{template: {name: t}, networks: [{bridge: vmbr0, mtu: -1}]}`, `spec.networks[0].mtu: -1`},
		{"tag", `{template: {name: t}, tags: [Big]}`, `spec.tags[0]: "Big"`},
		{"tag twice", `{template: {name: t}, tags: [a, a]}`, `spec.tags[1]: "a" is listed twice`},
		{"security group", `{template: {name: t}, securityGroups: ["0"]}`, `spec.securityGroups[0]: "0"`},
		{"pool", `{template: {name: t}, pool: "a b"}`, `spec.pool: "a b"`},
		{"cpu type", `{template: {name: t}, cpuType: "a,b"}`, `spec.cpuType: "a,b"`},
		{"metadata", `{template: {name: t}, metadata: {type: floppy}}`, `spec.metadata.type: "floppy"`},
		{"templates of no seed", `{template: {name: t}, metadata: {templatesRef: {name: a}}}`, "spec.metadata.templatesRef: means nothing without a seed"},
		{"values of no seed", `{template: {name: t}, metadata: {type: none, valuesRef: {name: a}}}`, "spec.metadata.valuesRef: means nothing without a seed"},
		{"storage of no seed", `{template: {name: t}, metadata: {storage: local}}`, "spec.metadata.storage: means nothing without a seed"},
		{"token of no seed", `{template: {name: t}, metadata: {token: Bootstrap}}`, "spec.metadata.token: means nothing without a seed"},
		{"token", `{template: {name: t}, metadata: {type: cdrom, token: Password}}`, `spec.metadata.token: "Password"`},
		{"agent without a command", `{template: {name: t}, metadata: {type: agent}}`, "spec.metadata.templatesRef: type agent needs it"},
		{"storage of an agent", `{template: {name: t}, metadata: {type: agent, storage: s, templatesRef: {name: a}}}`, "spec.metadata.storage: means nothing without a seed"},
		{"storage of seeds", `{template: {name: t}, metadata: {type: cdrom, storage: "*"}}`, `spec.metadata.storage: "*" is not a storage's name`},
		{"secret", `{template: {name: t}, metadata: {type: cdrom, templatesRef: {name: ""}}}`, `spec.metadata.templatesRef.name: "" is not a Secret's name`},
		{"namespace", `{template: {name: t}, metadata: {type: cdrom, valuesRef: {name: a, namespace: A}}}`, `spec.metadata.valuesRef.namespace: "A"`},
		{"short token", `{template: {name: t}, tokenTTL: 4m59s}`, "spec.tokenTTL: 4m59s is not from 5m to 24h"},
		{"no token", `{template: {name: t}, tokenTTL: 0s}`, "spec.tokenTTL: 0s is not from 5m to 24h"},
		{"long token", `{template: {name: t}, tokenTTL: 25h}`, "spec.tokenTTL: 25h0m0s is not from 5m to 24h"},
		{"cpu manager", `{template: {name: t}, kubelet: {cpuManagerPolicy: Static}}`, `spec.kubelet.cpuManagerPolicy: "Static"`},
		{"topology manager", `{template: {name: t}, kubelet: {topologyManagerPolicy: numa}}`, `spec.kubelet.topologyManagerPolicy: "numa"`},
		{"scope", `{template: {name: t}, kubelet: {topologyManagerScope: node}}`, `spec.kubelet.topologyManagerScope: "node"`},
		{"quota period", `{template: {name: t}, kubelet: {cpuCFSQuotaPeriod: 2s}}`, "spec.kubelet.cpuCFSQuotaPeriod: 2s is not from 1ms to 1s"},
		{"period of no quota", `{template: {name: t}, kubelet: {cpuCFSQuota: false, cpuCFSQuotaPeriod: 50ms}}`, "cpuCFSQuotaPeriod: means nothing"},
		{"image thresholds", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 60, imageGCLowThresholdPercent: 60}}`, "60 must be below imageGCHighThresholdPercent, 60"},
		{"low image threshold", `{template: {name: t}, kubelet: {imageGCLowThresholdPercent: 85}}`, "85 must be below imageGCHighThresholdPercent, 85"},
		{"high image threshold", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 80}}`, "80 must be above imageGCLowThresholdPercent, 80"},
		{"image percentage", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 101}}`, "101 is not from 0 to 100"},
		{"critical pods alone", `{template: {name: t}, kubelet: {shutdownGracePeriodCriticalPods: 10s}}`, "is part of shutdownGracePeriod: set that to 10s at least"},
		{"critical pods longer", `{template: {name: t}, kubelet: {shutdownGracePeriod: 5s, shutdownGracePeriodCriticalPods: 10s}}`, "set that to 10s at least"},
		{"negative grace", `{template: {name: t}, kubelet: {shutdownGracePeriod: -5s}}`, "spec.kubelet.shutdownGracePeriod: is negative"},
		{"negative grace of critical pods", `{template: {name: t}, kubelet: {shutdownGracePeriod: 5s, shutdownGracePeriodCriticalPods: -1s}}`, "CriticalPods: is negative"},
		{"sysctl", `{template: {name: t}, kubelet: {allowedUnsafeSysctls: ["*"]}}`, `spec.kubelet.allowedUnsafeSysctls[0]: "*"`},
		{"dns", `{template: {name: t}, kubelet: {clusterDNS: [kube-dns]}}`, `spec.kubelet.clusterDNS[0]: "kube-dns" is not an IP address`},
		{"pods", `{template: {name: t}, kubelet: {maxPods: 0}}`, "spec.kubelet.maxPods: 0"},
		{"reserved what", `{template: {name: t}, kubelet: {kubeReserved: {gpu: "1"}}}`, "spec.kubelet.kubeReserved[gpu]: is not known"},
		{"reserved how much", `{template: {name: t}, kubelet: {systemReserved: {memory: 5%}}}`, `spec.kubelet.systemReserved[memory]: "5%" is not a quantity`},
		{"reserved less than nothing", `{template: {name: t}, kubelet: {systemReserved: {cpu: "-1"}}}`, `"-1" is not a quantity of 0 or more`},
		{"signal", `{template: {name: t}, kubelet: {evictionHard: {memory: 1Gi}}}`, "spec.kubelet.evictionHard[memory]: is not known"},
		{"threshold", `{template: {name: t}, kubelet: {evictionHard: {memory.available: 100%}}}`, `"100%" is not a percentage below 100`},
		{"threshold of what", `{template: {name: t}, kubelet: {evictionHard: {memory.available: much}}}`, `"much" is not a quantity`},
	}
}

func TestValidateAccepts(t *testing.T) {
	for _, spec := range accepted() {
		if err := parse(t, spec).Validate(); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	all := append(
		refused(),
		refusal{"number for a size", `{template: {name: t}, bootDevice: {size: 40}}`, `spec.bootDevice.size: "40" is not a disk size`},
		refusal{"two faults", `{clone: half, template: {}}`, "spec.clone"},
	)
	for _, test := range all {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := parse(t, test.spec).Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `ProxmoxNodeClass "c"`) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestSizeGiB(t *testing.T) {
	for size, want := range map[string]int64{"": 0, "40G": 40, "40Gi": 40, "2T": 2048, "1Ti": 1024} {
		got, err := (&v1alpha1.BootDevice{Size: size}).SizeGiB()
		if err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", size, got, err, want)
		}
	}
	if got, err := (*v1alpha1.BootDevice)(nil).SizeGiB(); got != 0 || err != nil {
		t.Errorf("no disk is %d (%v)", got, err)
	}
}

func TestReadyFollowsItsConditions(t *testing.T) {
	conditions := []string{
		v1alpha1.ConditionValid, v1alpha1.ConditionTemplateReady, v1alpha1.ConditionPlacementReady, v1alpha1.ConditionMetadataReady,
	}
	for _, missing := range conditions {
		nc := parse(t, full)
		for _, condition := range conditions {
			if condition != missing {
				nc.StatusConditions().SetTrue(condition)
			}
		}
		if nc.StatusConditions().Root().IsTrue() {
			t.Errorf("ready without %s", missing)
		}
		if nc.StatusConditions().SetTrue(missing); !nc.StatusConditions().Root().IsTrue() {
			t.Error("not ready with all conditions true")
		}
	}
}

func TestHostsAreCounted(t *testing.T) {
	nc := parse(t, full)
	if nc.SetHosts([]string{"lab/a", "lab/b"}); nc.Status.HostCount != 2 || len(nc.Status.Hosts) != 2 {
		t.Errorf("status is %+v, want two hosts", nc.Status)
	}
}

func TestTTL(t *testing.T) {
	for spec, want := range map[string]time.Duration{`{}`: 15 * time.Minute, `{tokenTTL: 1h}`: time.Hour} {
		if got := parse(t, spec).TTL(); got != want {
			t.Errorf("%s: token lives %s, want %s", spec, got, want)
		}
	}
}

func TestDeepCopyAndScheme(t *testing.T) {
	nc := parse(t, full)
	other := nc.DeepCopy()
	if diff := cmp.Diff(nc, other); diff != "" {
		t.Errorf("copy differs:\n%s", diff)
	}
	other.Spec.Networks[0].VLAN, other.Spec.BootDevice.Size = 9, "1G"
	other.Spec.Template.Tags[0], other.Spec.Sizing.Families[0], *other.Spec.MemoryOverheadMiB = "x", "x", 1
	other.Spec.Metadata.TemplatesRef.Name, other.Spec.TokenTTL.Duration = "x", 0
	other.Spec.Kubelet.KubeReserved["cpu"], *other.Spec.Kubelet.CPUCFSQuota = "9", false
	if diff := cmp.Diff(parse(t, full), nc); diff != "" {
		t.Errorf("the copy shares memory:\n%s", diff)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kinds, _, err := scheme.ObjectKinds(nc)
	if err != nil || len(kinds) != 1 || kinds[0].String() != "numaform.dev/v1alpha1, Kind=ProxmoxNodeClass" {
		t.Errorf("kinds are %v (%v)", kinds, err)
	}
}
