package crd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/testenv"
)

// plane is the control plane of the package's tests.
var plane testenv.Shared

func TestMain(m *testing.M) { os.Exit(plane.Main(m)) }

func newClient(t *testing.T) client.Client {
	t.Helper()
	config := rest.CopyConfig(plane.Cluster(t).Config)
	config.WarningHandler = rest.NoWarnings{}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// written returns a class exactly as a user writes it: no client adds fields.
func written(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("metadata: {generateName: c-}\nspec: "+spec), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(v1alpha1.KindProxmoxNodeClass))
	return object
}

// manifest returns a class as a user writes it in a file.
func manifest(spec string) []byte {
	return []byte("apiVersion: numaform.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: c}\nspec: " + spec)
}

// TestFilesAndAPIServerAgree checks that a class in a file and a class created in a cluster
// are accepted or rejected alike, with the same message.
func TestFilesAndAPIServerAgree(t *testing.T) {
	c := newClient(t)
	for _, spec := range accepted() {
		nc := &v1alpha1.ProxmoxNodeClass{}
		if err := crd.Admit(manifest(spec), nc); err != nil {
			t.Errorf("file: %s: %v", spec, err)
		}
		if err := crd.Validate(nc); err != nil {
			t.Errorf("decoded: %s: %v", spec, err)
		}
		if err := c.Create(t.Context(), written(t, spec), client.DryRunAll); err != nil {
			t.Errorf("API server: %s: %v", spec, err)
		}
	}
	for _, test := range refused() {
		err := crd.Admit(manifest(test.spec), &v1alpha1.ProxmoxNodeClass{})
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `ProxmoxNodeClass "c"`) {
			t.Errorf("%s: file: error is %v, want one with %q", test.name, err, test.want)
		}
		err = c.Create(t.Context(), written(t, test.spec), client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: API server: error is %v, want one with %q", test.name, err, test.want)
		}
	}
}

// TestDefaults checks that a class in a file has the defaults that an API server sets.
func TestDefaults(t *testing.T) {
	c := newClient(t)
	object := written(t, `{template: {name: t}}`)
	if err := c.Create(t.Context(), object, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	created := &v1alpha1.ProxmoxNodeClass{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, created); err != nil {
		t.Fatal(err)
	}
	s := created.Spec
	if s.Clone != v1alpha1.CloneFull || s.CPUType != "host" || s.Placement.Policy != v1alpha1.PlacementShared ||
		s.Metadata.Type != v1alpha1.MetadataNone || s.TokenTTL == nil || s.TokenTTL.Duration != v1alpha1.DefaultTokenTTL {
		t.Errorf("defaults are %+v", s)
	}
	read := &v1alpha1.ProxmoxNodeClass{}
	if err := crd.Admit(manifest(`{template: {name: t}}`), read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(created.Spec, read.Spec); diff != "" {
		t.Errorf("the class in a file differs from the created one:\n%s", diff)
	}
}

// accepted returns valid specs of classes. The tests pass them to package crd and to a real
// API server.
func accepted() []string {
	return []string{
		`{template: {name: t}}`, full(),
		`{template: {tags: [golden]}}`,
		`{template: {vmid: 9000}}`,
		`{template: {name: t}, cpuType: EPYC-Genoa}`,
		`{template: {name: t}, cpuType: custom-a_b.c-1}`,
		`{template: {name: t}, placement: {policy: NUMA}}`,
		`{template: {name: t}, placement: {overcommit: "1.5"}}`,
		`{template: {name: t}, kubelet: {shutdownGracePeriod: 0.5s}}`,
		`{template: {name: t}, placement: {overcommit: "16"}}`,
		`{template: {name: t}, placement: {memoryOvercommit: "1.25"}}`,
		`{template: {name: t}, placement: {policy: Shared, memoryOvercommit: "2.0"}}`,
		`{template: {name: t}, clone: linked, placement: {policy: Isolated, pinWith: Affinity}}`,
		`{template: {name: t}, placement: {policy: NUMA, hugePages: 1Gi, spread: Hosts}}`,
		`{template: {name: t}, metadata: {type: cdrom}, networks: [{bridge: vmbr0, addressPools: [nodes, nodes-6]}]}`,
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
		`{template: {name: t}, metadata: {type: cdrom, sshAuthorizedKeys: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me@laptop (2026)", "sk-ssh-ed25519@openssh.com AAAAGnNr", "ssh-rsa AAAAB3Nz+/=="]}}`,
		`{template: {name: t}, metadata: {type: agent, token: Bootstrap, templatesRef: {name: a}}}`,
		`{template: {name: t}, metadata: {type: agent, templatesRef: {name: a}, valuesRef: {name: b}}}`,
		`{template: {name: t}, tokenTTL: 24h, memoryOverheadMiB: 0}`,
		`{template: {name: t}, tokenTTL: 5m, joinTimeout: 5m}`,
		`{template: {name: t}, joinTimeout: 15m}`,
		`{template: {name: t}, hardware: {}}`,
		`{template: {name: t}, hardware: {machine: pc-q35-9.2+pve1, vga: {type: serial0}, watchdog: {}, tablet: false, cpuFlags: [+aes, -pcid]}}`,
		`{template: {name: t}, hardware: {machine: pc, vga: {memoryMiB: 512}, watchdog: {model: ib700, action: none}}}`,
		`{template: {name: t}, networks: [{bridge: a, rateMBps: "12.5", queues: 64, trunks: [1, 4094], disconnected: true}, {bridge: b, model: e1000, rateMBps: "0.001"}]}`,
		`{template: {name: t}, sizing: {}}`,
		`{template: {name: t}, sizing: {policy: Types, families: [c1]}}`,
		`{template: {name: t}, sizing: {policy: Flexible}}`,
		`{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 2, maxVCPUs: 2, minMemoryMiB: 1024, maxMemoryMiB: 1024}}`,
		`{template: {name: t}, placement: {policy: Isolated, pinWith: HostAgent, emulator: shared}}`,
		`{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent}, sizing: {policy: Flexible, minVCPUs: 3, maxVCPUs: 5}}`,
		`{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, wholeCores: Require}}`,
		`{template: {name: t}, placement: {hostSelection: Balanced, maxHostLoad: 100}}`,
		`{template: {name: t}, kubelet: {}}`,
		`{template: {name: t}, kubelet: {imageGCLowThresholdPercent: 50}}`,
		`{template: {name: t}, kubelet: {kubeReserved: {memory: "0"}, evictionHard: {memory.available: 0%, nodefs.inodesFree: 99.5%}}}`,
	}
}

// full returns a spec that sets most fields of a class.
func full() string {
	content, err := os.ReadFile("../../api/v1alpha1/testdata/full.yaml")
	if err != nil {
		panic(err)
	}
	return string(content)
}

// refusal is an invalid class, with a part of the error about it.
type refusal struct{ name, spec, want string }

func refused() []refusal {
	return []refusal{
		{"no template", `{template: {}}`, "spec.template: Invalid value: is empty: set the name, the tags or the vmid of the VM"},
		{"template tag", `{template: {tags: [Big]}}`, `spec.template.tags[0]: Invalid value: "Big": is not a tag`},
		{"template number", `{template: {vmid: 99}}`, "spec.template.vmid: Invalid value: 99: spec.template.vmid in body should be greater than"},
		{"no VMIDs", `{template: {name: t}, vmidRange: {lower: 200, upper: 199}}`, "spec.vmidRange.upper: Invalid value: is lower than lower: swap the two"},
		{"VMIDs of Proxmox", `{template: {name: t}, vmidRange: {lower: 99, upper: 199}}`, "spec.vmidRange.lower: Invalid value: 99: spec.vmidRange.lower in body should be greater than"},
		{"group of a device", `{template: {name: t}, networks: [{bridge: vmbr0, firewall: true, securityGroups: ["a b"]}]}`, `spec.networks[0].securityGroups[0]: Invalid value: "a b": is not a security group`},
		{"group without firewall", `{template: {name: t}, networks: [{bridge: vmbr0, securityGroups: [ab]}]}`, "spec.networks[0].securityGroups: Invalid value: have no effect without the firewall: set firewall to true, or remove them"},
		{"region", `{template: {name: t}, region: a/b}`, `spec.region: Invalid value: "a/b": is not a region name`},
		{"host", `{template: {name: t}, hosts: [a, "b c"]}`, `spec.hosts[1]: Invalid value: "b c": is not a host: write its name, or region/name`},
		{"host without region", `{template: {name: t}, hosts: [/b]}`, `spec.hosts[0]: Invalid value: "/b": is not a host: write its name, or region/name`},
		{"host elsewhere", `{template: {name: t}, region: a, hosts: [b/h]}`, "spec.hosts: Invalid value: contains a host outside spec.region"},
		{"host twice", `{template: {name: t}, hosts: [a, a]}`, `spec.hosts[1]: Duplicate value: "a"`},
		{"clone", `{template: {name: t}, clone: half}`, `spec.clone: Unsupported value: "half": supported values: "linked", "full"`},
		{"size in bytes", `{template: {name: t}, bootDevice: {size: 40GB}}`, `spec.bootDevice.size: Invalid value: "40GB": is not a disk size`},
		{"no size", `{template: {name: t}, bootDevice: {size: 0G}}`, `spec.bootDevice.size: Invalid value: "0G": is not a disk size: write one such as 40G or 1T`},
		{"huge size", `{template: {name: t}, bootDevice: {size: 123456789G}}`, `spec.bootDevice.size: Invalid value: "123456789G": is not a disk size`},
		{"storage", `{template: {name: t}, bootDevice: {storage: "a b"}}`, `spec.bootDevice.storage: Invalid value: "a b": is not a storage name`},
		{"storage of a linked clone", `{template: {name: t}, clone: linked, bootDevice: {storage: s}}`, "spec.bootDevice.storage: Invalid value: has no effect on a linked clone, which stays on"},
		{"policy", `{template: {name: t}, placement: {policy: Fast}}`, `spec.placement.policy: Unsupported value: "Fast": supported values`},
		{"pins without a way", `{template: {name: t}, placement: {policy: Dedicated}}`, "spec.placement.pinWith: Invalid value: is required by policies Dedicated and Isolated"},
		{"isolation without a way", `{template: {name: t}, placement: {policy: Isolated}}`, "spec.placement.pinWith: Invalid value: is required by policies Dedicated and Isolated"},
		{"pins of nothing", `{template: {name: t}, placement: {pinWith: Affinity}}`, "spec.placement.pinWith: Invalid value: has no effect with policies Shared and NUMA"},
		{"pins of NUMA", `{template: {name: t}, placement: {policy: NUMA, pinWith: HostAgent}}`, "spec.placement.pinWith: Invalid value: has no effect with policies Shared and NUMA"},
		{"unknown way to pin", `{template: {name: t}, placement: {policy: Isolated, pinWith: Me}}`, `spec.placement.pinWith: Unsupported value: "Me": supported values: "Affinity", "HostAgent"`},
		{"huge pages", `{template: {name: t}, placement: {policy: NUMA, hugePages: 4Mi}}`, `spec.placement.hugePages: Unsupported value: "4Mi": supported values: "2Mi", "1Gi"`},
		{"address pool", `{template: {name: t}, metadata: {type: cdrom}, networks: [{bridge: vmbr0, addressPools: [Nodes]}]}`, `spec.networks[0].addressPools[0]: Invalid value: "Nodes": is not an address pool: use the name of one of address_pools in numaform.yaml`},
		{"address pool without a seed", `{template: {name: t}, networks: [{bridge: vmbr0}, {bridge: vmbr0, addressPools: [nodes]}]}`, "contains addressPools, but nodes read their addresses from the seed of metadata.type cdrom"},
		{"three address pools", `{template: {name: t}, metadata: {type: cdrom}, networks: [{bridge: vmbr0, addressPools: [a, b, c]}]}`, "spec.networks[0].addressPools: Too many: 3: must have at most 2 items"},
		{"MAC prefix", `{template: {name: t}, networks: [{bridge: vmbr0, macPrefix: "BC:24:11:00"}]}`, "spec.networks[0].macPrefix: Too long: may not be more than 8 bytes"},
		{"MAC prefix of groups", `{template: {name: t}, networks: [{bridge: vmbr0, macPrefix: "01:24:11"}]}`, `spec.networks[0].macPrefix: Invalid value: "01:24:11"`},
		{"data disk", `{template: {name: t}, dataDisks: [{size: 1G}, {size: 100}]}`, `spec.dataDisks[1].size: Invalid value: "integer"`},
		{"data disk without a size", `{template: {name: t}, dataDisks: [{storage: fast}]}`, "spec.dataDisks[0].size: Required value"},
		{"storage of a data disk", `{template: {name: t}, dataDisks: [{size: 1G, storage: "a:b"}]}`, `spec.dataDisks[0].storage: Invalid value: "a:b": is not a storage name`},
		{"many data disks", `{template: {name: t}, dataDisks: [{size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}, {size: 1G}]}`, "spec.dataDisks: "},
		{"mapping", `{template: {name: t}, pciDevices: [{mapping: "0000:01:00.0"}]}`, `spec.pciDevices[0].mapping: Invalid value: "0000:01:00.0": is not a resource mapping`},
		{"mediated device", `{template: {name: t}, pciDevices: [{mapping: gpu, mdev: "a,b"}]}`, `spec.pciDevices[0].mdev: Invalid value: "a,b": is not a type of mediated device`},
		{"many devices", `{template: {name: t}, pciDevices: [{mapping: ga}, {mapping: gb}, {mapping: gc}, {mapping: gd}, {mapping: ge}, {mapping: gf}, {mapping: gg}]}`, "spec.pciDevices: "},
		{"two primary devices", `{template: {name: t}, pciDevices: [{mapping: ga, xvga: true}, {mapping: gb, xvga: true}]}`, "spec.pciDevices: Invalid value: contains several primary graphics cards"},
		{"huge pages of Shared", `{template: {name: t}, placement: {hugePages: 2Mi}}`, "spec.placement.hugePages: Invalid value: has no effect with policy Shared, which binds memory"},
		{"spread", `{template: {name: t}, placement: {spread: Racks}}`, `spec.placement.spread: Unsupported value: "Racks": supported values: "None", "Hosts"`},
		{"host selection", `{template: {name: t}, placement: {hostSelection: Best}}`, `spec.placement.hostSelection: Unsupported value: "Best": supported values`},
		{"no host load", `{template: {name: t}, placement: {maxHostLoad: 0}}`, "spec.placement.maxHostLoad: Invalid value: 0: spec.placement.maxHostLoad in body should be greater"},
		{"host load", `{template: {name: t}, placement: {maxHostLoad: 101}}`, "spec.placement.maxHostLoad: Invalid value: 101: spec.placement.maxHostLoad in body should be less"},
		{"whole cores", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, wholeCores: Always}}`, `spec.placement.wholeCores: Unsupported value: "Always": supported values`},
		{"whole cores of NUMA", `{template: {name: t}, placement: {policy: NUMA, wholeCores: Require}}`, "spec.placement.wholeCores: Invalid value: has no effect with policies Shared, NUMA and"},
		{"no whole page", `{template: {name: t}, placement: {policy: NUMA, hugePages: 1Gi}, sizing: {policy: Flexible, minMemoryMiB: 1536, maxMemoryMiB: 1536}}`, "spec.sizing.maxMemoryMiB: Invalid value: allows no size"},
		{"overcommit", `{template: {name: t}, placement: {overcommit: "0.5"}}`, `spec.placement.overcommit: Invalid value: "0.5": is not a ratio from 1 to 16, such as 1.5`},
		{"overcommit of more", `{template: {name: t}, placement: {overcommit: "16.1"}}`, `spec.placement.overcommit: Invalid value: "16.1": is not a ratio from 1 to 16, such as 1.5`},
		{"overcommit, padded", `{template: {name: t}, placement: {overcommit: "01"}}`, `spec.placement.overcommit: Invalid value: "01": is not a ratio from 1 to 16, such as 1.5`},
		{"overcommit NaN", `{template: {name: t}, placement: {overcommit: "NaN"}}`, `spec.placement.overcommit: Invalid value: "NaN": is not a ratio from 1 to 16, such as 1.5`},
		{"memory overcommit", `{template: {name: t}, placement: {memoryOvercommit: "2.1"}}`, `spec.placement.memoryOvercommit: Invalid value: "2.1": is not a ratio from 1 to 2, such as 1.2`},
		{"memory overcommit of pins", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, memoryOvercommit: "1.2"}}`, "spec.placement.memoryOvercommit: Invalid value: has no effect with policies NUMA, Dedicated and Isolated, whose memory is never overcommitted"},
		{"overcommit of pins", `{template: {name: t}, placement: {policy: NUMA, overcommit: "2"}}`, "spec.placement.overcommit: Invalid value: has no effect with policies NUMA, Dedicated and"},
		{"family", `{template: {name: t}, sizing: {families: [c1.large]}}`, `spec.sizing.families[0]: Invalid value: "c1.large": is not a family of instance types`},
		{"sizing", `{template: {name: t}, sizing: {policy: Any}}`, `spec.sizing.policy: Unsupported value: "Any": supported values: "Types", "Flexible"`},
		{"families of no types", `{template: {name: t}, sizing: {policy: Flexible, families: [c1]}}`, "spec.sizing.families: Invalid value: has no effect with policy Flexible, which uses no"},
		{"bound of types", `{template: {name: t}, sizing: {maxVCPUs: 4}}`, "spec.sizing.maxVCPUs: Invalid value: has no effect with policy Types"},
		{"memory of types", `{template: {name: t}, sizing: {policy: Types, minMemoryMiB: 4096}}`, "spec.sizing.minMemoryMiB: Invalid value: has no effect with policy Types"},
		{"minimum above the maximum", `{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 8, maxVCPUs: 4}}`, "spec.sizing.maxVCPUs: Invalid value: is less than minVCPUs"},
		{"minimum above the default", `{template: {name: t}, sizing: {policy: Flexible, minVCPUs: 17}}`, "spec.sizing.maxVCPUs: Invalid value: is less than minVCPUs"},
		{"memory minimum above the maximum", `{template: {name: t}, sizing: {policy: Flexible, maxMemoryMiB: 1024}}`, "spec.sizing.maxMemoryMiB: Invalid value: is less than minMemoryMiB"},
		{"memory between the steps", `{template: {name: t}, sizing: {policy: Flexible, minMemoryMiB: 2000}}`, "spec.sizing.minMemoryMiB: Invalid value: 2000"},
		{"emulator without an agent", `{template: {name: t}, placement: {policy: Dedicated, pinWith: Affinity, emulator: shared}}`, "spec.placement.emulator: Invalid value: has no effect without numaform-agent"},
		{"emulator without pins", `{template: {name: t}, placement: {emulator: guest}}`, "spec.placement.emulator: Invalid value: has no effect without numaform-agent"},
		{"emulator elsewhere", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent, emulator: host}}`, `spec.placement.emulator: Unsupported value: "host": supported values: "guest", "shared"`},
		{"no whole core", `{template: {name: t}, placement: {policy: Dedicated, pinWith: HostAgent}, sizing: {policy: Flexible, minVCPUs: 3, maxVCPUs: 3}}`, "spec.sizing.maxVCPUs: Invalid value: allows no size"},
		{"overhead", `{template: {name: t}, memoryOverheadMiB: -1}`, "spec.memoryOverheadMiB: Invalid value: -1"},
		{"bridge", `{template: {name: t}, networks: [{bridge: ""}]}`, `spec.networks[0].bridge: Invalid value: "": is not a bridge: write its name, such as vmbr0`},
		{"model", `{template: {name: t}, networks: [{bridge: vmbr0, model: fast}]}`, `spec.networks[0].model: Unsupported value: "fast": supported values`},
		{"vlan", `{template: {name: t}, networks: [{bridge: vmbr0, vlan: 4095}]}`, "spec.networks[0].vlan: Invalid value: 4095"},
		{"mtu", `{template: {name: t}, networks: [{bridge: vmbr0, mtu: -1}]}`, "spec.networks[0].mtu: Invalid value: -1: spec.networks[0].mtu in body should be greater"},
		{"tag", `{template: {name: t}, tags: [Big]}`, `spec.tags[0]: Invalid value: "Big": is not a tag`},
		{"tag twice", `{template: {name: t}, tags: [a, a]}`, `spec.tags[1]: Duplicate value: "a"`},
		{"security group", `{template: {name: t}, securityGroups: ["0"]}`, `spec.securityGroups[0]: Invalid value: "0": is not a security group`},
		{"pool", `{template: {name: t}, pool: "a b"}`, `spec.pool: Invalid value: "a b": is not a resource pool`},
		{"cpu type", `{template: {name: t}, cpuType: "a,b"}`, `spec.cpuType: Invalid value: "a,b": is not a CPU model`},
		{"newer cpu type", `{template: {name: t}, cpuType: EPYC-Genoa-v2}`, `spec.cpuType: Invalid value: "EPYC-Genoa-v2": is not a CPU model that the Terraform provider accepts`},
		{"custom cpu type without a name", `{template: {name: t}, cpuType: custom-}`, `spec.cpuType: Invalid value: "custom-": is not a CPU model`},
		{"metadata", `{template: {name: t}, metadata: {type: floppy}}`, `spec.metadata.type: Unsupported value: "floppy": supported values`},
		{"templates of no seed", `{template: {name: t}, metadata: {templatesRef: {name: a}}}`, "spec.metadata.templatesRef: Invalid value: has no effect with this type"},
		{"keys of no seed", `{template: {name: t}, metadata: {sshAuthorizedKeys: ["ssh-ed25519 AAAAC3Nz"]}}`, "spec.metadata.sshAuthorizedKeys: Invalid value: has no effect with this type: set type to cdrom, or put the keys into the template with qm set VMID --sshkeys FILE"},
		{"private key", `{template: {name: t}, metadata: {type: cdrom, sshAuthorizedKeys: ["-----BEGIN OPENSSH PRIVATE KEY-----"]}}`, "is not a public key: write the one line of a file such as id_ed25519.pub, without options"},
		{"two keys", `{template: {name: t}, metadata: {type: cdrom, sshAuthorizedKeys: ["ssh-ed25519 AAAAC3Nz a\nssh-ed25519 AAAAC3Nz b"]}}`, "spec.metadata.sshAuthorizedKeys[0]: Invalid value:"},
		{"key with a command", `{template: {name: t}, metadata: {type: cdrom, sshAuthorizedKeys: ["command=\"id\" ssh-ed25519 AAAAC3Nz"]}}`, "is not a public key"},
		{"values of no seed", `{template: {name: t}, metadata: {type: none, valuesRef: {name: a}}}`, "spec.metadata.valuesRef: Invalid value: has no effect with this type"},
		{"storage of no seed", `{template: {name: t}, metadata: {storage: local}}`, "spec.metadata.storage: Invalid value: has no effect without a seed"},
		{"token of no seed", `{template: {name: t}, metadata: {token: Bootstrap}}`, "spec.metadata.token: Invalid value: has no effect with this type"},
		{"token", `{template: {name: t}, metadata: {type: cdrom, token: Password}}`, `spec.metadata.token: Unsupported value: "Password": supported values`},
		{"agent without a command", `{template: {name: t}, metadata: {type: agent}}`, "spec.metadata.templatesRef: Invalid value: is required by type agent"},
		{"storage of an agent", `{template: {name: t}, metadata: {type: agent, storage: s, templatesRef: {name: a}}}`, "spec.metadata.storage: Invalid value: has no effect without a seed"},
		{"storage of seeds", `{template: {name: t}, metadata: {type: cdrom, storage: "*"}}`, `spec.metadata.storage: Invalid value: "*": is not a storage name`},
		{"secret", `{template: {name: t}, metadata: {type: cdrom, templatesRef: {name: ""}}}`, `spec.metadata.templatesRef.name: Invalid value: "": is not the name of a Secret`},
		{"namespace", `{template: {name: t}, metadata: {type: cdrom, valuesRef: {name: a, namespace: A}}}`, `spec.metadata.valuesRef.namespace: Invalid value: "A": is not a namespace`},
		{"short token", `{template: {name: t}, tokenTTL: 4m59s}`, `spec.tokenTTL: Invalid value: "4m59s": is not a duration from 5m to 24h`},
		{"no token", `{template: {name: t}, tokenTTL: 0s}`, `spec.tokenTTL: Invalid value: "0s": is not a duration from 5m to 24h`},
		{"machine", `{template: {name: t}, hardware: {machine: "q35,viommu=intel"}}`, `spec.hardware.machine: Invalid value: "q35,viommu=intel": is not a machine type`},
		{"display", `{template: {name: t}, hardware: {vga: {type: serial4}}}`, `spec.hardware.vga.type: Unsupported value: "serial4": supported values`},
		{"display memory", `{template: {name: t}, hardware: {vga: {memoryMiB: 3}}}`, "spec.hardware.vga.memoryMiB: Invalid value: 3"},
		{"watchdog", `{template: {name: t}, hardware: {watchdog: {model: fast}}}`, `spec.hardware.watchdog.model: Unsupported value: "fast": supported values`},
		{"watchdog action", `{template: {name: t}, hardware: {watchdog: {action: halt}}}`, `spec.hardware.watchdog.action: Unsupported value: "halt": supported values`},
		{"tablet", `{template: {name: t}, hardware: {tablet: true}}`, "spec.hardware.tablet: Invalid value: true: is the default of Proxmox: remove it"},
		{"CPU flag", `{template: {name: t}, hardware: {cpuFlags: [aes]}}`, `spec.hardware.cpuFlags[0]: Invalid value: "aes": is not a CPU flag`},
		{"CPU flag of custom models", `{template: {name: t}, hardware: {cpuFlags: [+avx512f]}}`, `spec.hardware.cpuFlags[0]: Invalid value: "+avx512f": is not a CPU flag that Proxmox accepts for a VM: write + or - and one of aes, `},
		{"CPU flag twice", `{template: {name: t}, hardware: {cpuFlags: [+aes, +aes]}}`, `spec.hardware.cpuFlags[1]: Duplicate value: "+aes"`},
		{"rate", `{template: {name: t}, networks: [{bridge: a, rateMBps: "0"}]}`, `spec.networks[0].rateMBps: Invalid value: "0": is not a rate in megabytes per second`},
		{"queues", `{template: {name: t}, networks: [{bridge: a, queues: 65}]}`, "spec.networks[0].queues: Invalid value: 65"},
		{"queues of e1000", `{template: {name: t}, networks: [{bridge: a, model: e1000, queues: 2}]}`, "spec.networks[0].queues: Invalid value: has no effect on other models than virtio"},
		{"trunk", `{template: {name: t}, networks: [{bridge: a, trunks: [4095]}]}`, "spec.networks[0].trunks[0]: Invalid value: 4095"},
		{"short join", `{template: {name: t}, joinTimeout: 59s}`, `spec.joinTimeout: Invalid value: "59s": is not a duration from 1m to 15m`},
		{"long join", `{template: {name: t}, joinTimeout: 16m}`, `spec.joinTimeout: Invalid value: "16m": is not a duration from 1m to 15m, after which Karpenter deletes`},
		{"token for a part of the join", `{template: {name: t}, joinTimeout: 10m, tokenTTL: 5m}`, "spec.tokenTTL: Invalid value: is shorter than joinTimeout"},
		{"long token", `{template: {name: t}, tokenTTL: 25h}`, `spec.tokenTTL: Invalid value: "25h": is not a duration from 5m to 24h`},
		{"cpu manager", `{template: {name: t}, kubelet: {cpuManagerPolicy: Static}}`, `spec.kubelet.cpuManagerPolicy: Unsupported value: "Static": supported values`},
		{"topology manager", `{template: {name: t}, kubelet: {topologyManagerPolicy: numa}}`, `spec.kubelet.topologyManagerPolicy: Unsupported value: "numa": supported values`},
		{"scope", `{template: {name: t}, kubelet: {topologyManagerScope: node}}`, `spec.kubelet.topologyManagerScope: Unsupported value: "node": supported values`},
		{"quota period", `{template: {name: t}, kubelet: {cpuCFSQuotaPeriod: 2s}}`, `spec.kubelet.cpuCFSQuotaPeriod: Invalid value: "2s": is not a duration from 1ms to 1s`},
		{"period of no quota", `{template: {name: t}, kubelet: {cpuCFSQuota: false, cpuCFSQuotaPeriod: 50ms}}`, "spec.kubelet.cpuCFSQuotaPeriod: Invalid value: has no effect without cpuCFSQuota"},
		{"image thresholds", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 60, imageGCLowThresholdPercent: 60}}`, "spec.kubelet.imageGCLowThresholdPercent: Invalid value"},
		{"low image threshold", `{template: {name: t}, kubelet: {imageGCLowThresholdPercent: 85}}`, "spec.kubelet.imageGCLowThresholdPercent: Invalid value"},
		{"high image threshold", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 80}}`, "spec.kubelet.imageGCHighThresholdPercent: Invalid value"},
		{"image percentage", `{template: {name: t}, kubelet: {imageGCHighThresholdPercent: 101}}`, "spec.kubelet.imageGCHighThresholdPercent: Invalid value: 101"},
		{"critical pods alone", `{template: {name: t}, kubelet: {shutdownGracePeriodCriticalPods: 10s}}`, "spec.kubelet.shutdownGracePeriodCriticalPods: Invalid value"},
		{"critical pods longer", `{template: {name: t}, kubelet: {shutdownGracePeriod: 5s, shutdownGracePeriodCriticalPods: 10s}}`, "spec.kubelet.shutdownGracePeriodCriticalPods: Invalid value"},
		{"negative grace", `{template: {name: t}, kubelet: {shutdownGracePeriod: -5s}}`, `spec.kubelet.shutdownGracePeriod: Invalid value: "-5s"`},
		{"negative grace of critical pods", `{template: {name: t}, kubelet: {shutdownGracePeriod: 5s, shutdownGracePeriodCriticalPods: -1s}}`, `spec.kubelet.shutdownGracePeriodCriticalPods: Invalid value: "-1s"`},
		{"sysctl", `{template: {name: t}, kubelet: {allowedUnsafeSysctls: ["*"]}}`, `spec.kubelet.allowedUnsafeSysctls[0]: Invalid value: "*"`},
		{"dns", `{template: {name: t}, kubelet: {clusterDNS: [kube-dns]}}`, "spec.kubelet.clusterDNS: Invalid value: contains an entry that is not an IP address"},
		{"pods", `{template: {name: t}, kubelet: {maxPods: 0}}`, "spec.kubelet.maxPods: Invalid value: 0: spec.kubelet.maxPods in body should be greater"},
		{"reserved what", `{template: {name: t}, kubelet: {kubeReserved: {gpu: "1"}}}`, "spec.kubelet.kubeReserved: Invalid value: contains an unknown key"},
		{"reserved how much", `{template: {name: t}, kubelet: {systemReserved: {memory: 5%}}}`, "spec.kubelet.systemReserved: Invalid value"},
		{"reserved a negative amount", `{template: {name: t}, kubelet: {systemReserved: {cpu: "-1"}}}`, "spec.kubelet.systemReserved: Invalid value"},
		{"signal", `{template: {name: t}, kubelet: {evictionHard: {memory: 1Gi}}}`, "spec.kubelet.evictionHard: Invalid value: contains an unknown signal"},
		{"threshold", `{template: {name: t}, kubelet: {evictionHard: {memory.available: 100%}}}`, "spec.kubelet.evictionHard: Invalid value: contains a value that is neither a quantity"},
		{"threshold of what", `{template: {name: t}, kubelet: {evictionHard: {memory.available: much}}}`, "spec.kubelet.evictionHard: Invalid value: contains a value that is neither a quantity"},
		{"number for a size", `{template: {name: t}, bootDevice: {size: 40}}`, `spec.bootDevice.size: Invalid value: "integer"`},
		{"two faults", `{clone: half, template: {vmid: 1}}`, "spec.template.vmid"},
	}
}

// TestAdmitIsStrict checks that unknown fields and duplicate keys are also rejected, which
// an API server does only if the client requests it.
func TestAdmitIsStrict(t *testing.T) {
	for _, test := range []refusal{
		{"unknown field", `{template: {name: t}, netwroks: []}`, `unknown field "spec.netwroks"`},
		{"duplicate key", `{template: {name: t}, pool: a, pool: b}`, `"pool" already set in map`},
	} {
		err := crd.Admit(manifest(test.spec), &v1alpha1.ProxmoxNodeClass{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want one with %q", test.name, err, test.want)
		}
	}
}

// TestValidateRefusesStoredObjects checks that Validate rejects an object stored under an
// older definition.
func TestValidateRefusesStoredObjects(t *testing.T) {
	nc := &v1alpha1.ProxmoxNodeClass{}
	if err := crd.Admit(manifest(`{template: {name: t}}`), nc); err != nil {
		t.Fatal(err)
	}
	nc.Spec.Placement.Policy = v1alpha1.PlacementDedicated
	const want = `ProxmoxNodeClass "c": spec.placement.pinWith: Invalid value: is required by policies Dedicated and Isolated`
	if err := crd.Validate(nc); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want one with %q", err, want)
	}
}

// TestAdmitMarshaled checks that a marshaled class is admitted again, with its empty status
// and creation time, as numaform doctor --smoke does.
func TestAdmitMarshaled(t *testing.T) {
	for _, spec := range accepted() {
		written := &v1alpha1.ProxmoxNodeClass{}
		if err := crd.Admit(manifest(spec), written); err != nil {
			t.Fatal(err)
		}
		content, err := yaml.Marshal(written)
		if err != nil {
			t.Fatal(err)
		}
		read := &v1alpha1.ProxmoxNodeClass{}
		if err := crd.Admit(content, read); err != nil {
			t.Errorf("%s: %v", content, err)
		}
		if diff := cmp.Diff(written, read); diff != "" {
			t.Errorf("%s is read differently:\n%s", content, diff)
		}
	}
}
