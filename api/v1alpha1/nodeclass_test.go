package v1alpha1_test

import (
	"os"
	"strings"
	"testing"

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
  template: {name: debian-13}
  clone: full
  bootDevice: {size: 1T, storage: local-zfs}
  cpuType: x86-64-v2-AES
  placement: {policy: Dedicated, pinWith: HostAgent}
  networks: [{bridge: vmbr0, model: virtio, vlan: 7, mtu: 1, firewall: true}, {bridge: vmbr1}]
  tags: [k8s, workers]
  pool: k8s/workers
  securityGroups: [kubernetes]
`

func TestValidateAccepts(t *testing.T) {
	for _, spec := range []string{
		`{template: {name: t}}`, full,
		`{template: {name: t}, placement: {policy: NUMA}}`,
		`{template: {name: t}, placement: {overcommit: "1.5"}}`,
		`{template: {name: t}, clone: linked, placement: {policy: Isolated, pinWith: Affinity}}`,
	} {
		if err := parse(t, spec).Validate(); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	tests := []struct{ name, spec, want string }{
		{"no template", `{}`, "spec.template.name: is empty"},
		{"region", `{template: {name: t}, region: a/b}`, `spec.region: "a/b" is not a region's name`},
		{"host", `{template: {name: t}, hosts: [a, "b c"]}`, `spec.hosts[1]: "b c" is not a host`},
		{"host without region", `{template: {name: t}, hosts: [/b]}`, `spec.hosts[0]: "/b" is not a host`},
		{"host elsewhere", `{template: {name: t}, region: a, hosts: [b/h]}`, `"b/h" is not in region "a"`},
		{"host twice", `{template: {name: t}, hosts: [a, a]}`, `spec.hosts[1]: "a" is listed twice`},
		{"clone", `{template: {name: t}, clone: half}`, `spec.clone: "half" is not a way to clone`},
		{"size", `{template: {name: t}, bootDevice: {size: 40}}`, `spec.bootDevice.size: "40" is not a disk size`},
		{"size in bytes", `{template: {name: t}, bootDevice: {size: 40GB}}`, `"40GB" is not a disk size`},
		{"no size", `{template: {name: t}, bootDevice: {size: 0G}}`, `"0G" is not a disk size`},
		{"storage of a linked clone", `{template: {name: t}, clone: linked, bootDevice: {storage: s}}`, "spec.bootDevice.storage: a linked clone stays"},
		{"policy", `{template: {name: t}, placement: {policy: Fast}}`, `spec.placement.policy: "Fast" is not a policy`},
		{"pins by nobody", `{template: {name: t}, placement: {policy: Dedicated}}`, "spec.placement.pinWith: is needed by policy Dedicated"},
		{"pins of nothing", `{template: {name: t}, placement: {pinWith: Affinity}}`, "means nothing to policy Shared"},
		{"pins by somebody", `{template: {name: t}, placement: {policy: Isolated, pinWith: Me}}`, `"Me" is not a way to pin`},
		{"overcommit", `{template: {name: t}, placement: {overcommit: "0.5"}}`, `spec.placement.overcommit: "0.5" is not a ratio`},
		{"overcommit NaN", `{template: {name: t}, placement: {overcommit: "NaN"}}`, `"NaN" is not a ratio`},
		{"overcommit of pins", `{template: {name: t}, placement: {policy: NUMA, overcommit: "2"}}`, "means nothing to policy NUMA"},
		{"bridge", `{template: {name: t}, networks: [{bridge: ""}]}`, `spec.networks[0].bridge: "" is not a bridge's name`},
		{"model", `{template: {name: t}, networks: [{bridge: vmbr0, model: fast}]}`, `spec.networks[0].model: "fast"`},
		{"vlan", `{template: {name: t}, networks: [{bridge: vmbr0, vlan: 4095}]}`, `spec.networks[0].vlan: 4095`},
		{"mtu", `{template: {name: t}, networks: [{bridge: vmbr0, mtu: -1}]}`, `spec.networks[0].mtu: -1`},
		{"tag", `{template: {name: t}, tags: [Big]}`, `spec.tags[0]: "Big"`},
		{"tag twice", `{template: {name: t}, tags: [a, a]}`, `spec.tags[1]: "a" is listed twice`},
		{"pool", `{template: {name: t}, pool: "a b"}`, `spec.pool: "a b"`},
		{"cpu type", `{template: {name: t}, cpuType: "a,b"}`, `spec.cpuType: "a,b"`},
		{"two faults", `{clone: half}`, "spec.clone"},
	}
	for _, test := range tests {
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
	nc := parse(t, full)
	nc.StatusConditions().SetTrue(v1alpha1.ConditionValid)
	if nc.StatusConditions().Root().IsTrue() {
		t.Error("ready without a template")
	}
	nc.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	if !nc.StatusConditions().Root().IsTrue() {
		t.Error("not ready with all conditions true")
	}
}

func TestDeepCopyAndScheme(t *testing.T) {
	nc := parse(t, full)
	other := nc.DeepCopy()
	if diff := cmp.Diff(nc, other); diff != "" {
		t.Errorf("copy differs:\n%s", diff)
	}
	other.Spec.Networks[0].VLAN, other.Spec.BootDevice.Size = 9, "1G"
	if nc.Spec.Networks[0].VLAN != 7 || nc.Spec.BootDevice.Size != "1T" {
		t.Error("the copy shares memory")
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

// The CRD is generated; this only tells that it was generated from these types.
func TestCRDHasEveryField(t *testing.T) {
	data, err := os.ReadFile("../../charts/numaform/crds/numaform.dev_proxmoxnodeclasses.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]schema `json:"properties"`
		Items      *schema           `json:"items"`
	}
	var crd struct {
		Spec struct {
			Group    string `json:"group"`
			Scope    string `json:"scope"`
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPI schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	if crd.Spec.Group != v1alpha1.Group || crd.Spec.Scope != "Cluster" || crd.Spec.Versions[0].Name != "v1alpha1" {
		t.Errorf("the CRD is %s %s", crd.Spec.Group, crd.Spec.Scope)
	}
	var written struct {
		Spec map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte("spec: "+full), &written); err != nil {
		t.Fatal(err)
	}
	var check func(path string, value any, s *schema)
	check = func(path string, value any, s *schema) {
		switch v := value.(type) {
		case map[string]any:
			for key, inner := range v {
				next, ok := s.Properties[key]
				if !ok {
					t.Errorf("the CRD lacks %s.%s", path, key)
				}
				check(path+"."+key, inner, &next)
			}
		case []any:
			for _, inner := range v {
				if s.Items != nil {
					check(path+"[]", inner, s.Items)
				}
			}
		}
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPI.Properties["spec"]
	check("spec", written.Spec, &spec)
}
