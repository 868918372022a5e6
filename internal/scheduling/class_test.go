package scheduling_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

func TestSpecHoldsAllOfTheClass(t *testing.T) {
	class := `
apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: full}
spec:
  region: lab
  hosts: [epyc, lab/xeon]
  template: {name: debian}
  bootDevice: {size: 20G, storage: local}
  cpuType: x86-64-v2-AES
  placement: {policy: Shared, overcommit: "1.5", memoryOvercommit: "1.2", hostSelection: Balanced, maxHostLoad: 80}
  networks: [{bridge: vmbr1, vlan: 7, mtu: 1, firewall: true, securityGroups: [ssh, web]}]
  tags: [workers, k8s]
  pool: k8s
  securityGroups: [kube]
  vmidRange: {lower: 2100, upper: 2199}
---
`
	pool := strings.Replace(nodePool("general", "full", ""), "requirements: []",
		"requirements: [{key: example.com/team, operator: In, values: [red, blue]}]", 1)
	snapshot := lab()
	snapshot.Hosts[0].Templates[0].DiskGiB = 50 // a clone cannot be smaller than its template
	c := load(t, class, pool, deployment("a", 2, "1500m", "2Gi", "\n      nodeSelector: {example.com/team: red}\n"))
	d := decide(t, c, snapshot)
	if len(d.New) != 1 {
		t.Fatalf("new are %+v, refused %v", d.New, d.Refused)
	}
	want := fleet.Spec{
		Pool: "general", NodeClass: "full", InstanceType: "c1.4VCPU-8GB", CapacityType: "on-demand", VCPUs: 4, MemoryMiB: 8192,
		Policy: fleet.PolicyShared, Overcommit: 1.5, MemoryOvercommit: 1.2, HostSelection: fleet.Balanced, MaxHostLoad: 80, Hosts: []topology.HostID{{Region: "lab", Host: "epyc"}, {Region: "lab", Host: "xeon"}},
		Template: "debian", Clone: fleet.CloneFull, CPUType: "x86-64-v2-AES", DiskGiB: 50, Storage: "local",
		Networks: []fleet.Network{{Bridge: "vmbr1", VLAN: 7, MTU: 1, Firewall: true}},
		Tags:     []string{"k8s", "workers"}, ResourcePool: "k8s", SecurityGroups: []string{"ssh@net0", "web@net0", "kube"},
		VMIDs:  fleet.VMIDRange{Lower: 2100, Upper: 2199},
		Labels: map[string]string{"example.com/team": "red"},
		Demand: fleet.Demand{Pods: 2, CPUMilli: 3000, MemoryMiB: 4096},
	}
	if diff := cmp.Diff(want, d.New[0].Spec); diff != "" {
		t.Errorf("spec differs:\n%s", diff)
	}
	second := decide(t, c, snapshot, keep(nil, d)...)
	if len(second.New) != 0 || len(second.InFlight) != 1 {
		t.Errorf("the label that the pods chose is lost: %+v", second)
	}
}

func TestWhyNoHostIsUsed(t *testing.T) {
	tests := []struct {
		name   string
		change func(*topology.Snapshot)
		class  string // replaces the class's template line
		want   string
	}{
		{name: "offline", change: func(s *topology.Snapshot) { s.Hosts[0].Online = false }, want: "lab/solo is offline"},
		{name: "problem", change: func(s *topology.Snapshot) { s.Hosts[0].Problem = "is on fire" }, want: "lab/solo is on fire"},
		{name: "quorum", change: func(s *topology.Snapshot) { s.Regions[0].Quorate = false }, want: "lab/solo is in region lab, which has lost its quorum"},
		{name: "template", change: func(s *topology.Snapshot) { s.Hosts[0].Templates = nil }, want: `lab/solo has no template "debian"`},
		{name: "bad template", change: func(s *topology.Snapshot) { s.Hosts[0].Templates[0].Problem = "it has a hookscript" }, want: "but it has a hookscript"},
		{name: "storage", class: "template: {name: debian}\n  bootDevice: {storage: fast}", want: `lab/solo has no storage "fast"`},
		{
			name: "inactive storage", class: "template: {name: debian}\n  bootDevice: {storage: local}",
			change: func(s *topology.Snapshot) { s.Hosts[0].Storages[0].Active = false }, want: "not active",
		},
		{
			name: "storage of files", class: "template: {name: debian}\n  bootDevice: {storage: local}",
			change: func(s *topology.Snapshot) { s.Hosts[0].Storages[0].Content = []string{"iso"} }, want: "does not accept disk images",
		},
		{
			name: "resource pool", class: "template: {name: debian}\n  pool: k8s",
			change: func(s *topology.Snapshot) { s.Regions[0].Pools = []string{"other"} }, want: `has no resource pool "k8s"`,
		},
		{
			name: "VMID range", class: "template: {name: debian}\n  vmidRange: {lower: 2990, upper: 3000}",
			change: func(s *topology.Snapshot) { s.Regions[0].VMIDs = topology.VMIDRange{Lower: 2000, Upper: 2999} },
			want:   "lab/solo is in region lab, whose vmid_range 2000 to 2999 does not contain spec.vmidRange 2990 to 3000",
		},
		{name: "allow list", class: "template: {name: debian}\n  hosts: [pve-9]", want: "no Proxmox host matches its spec.region and spec.hosts: spec.hosts (pve-9) must contain at least one of lab/solo"},
		{name: "region", class: "template: {name: debian}\n  region: other", want: `spec.region "other" must be one of lab`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			class := classes
			if test.class != "" {
				class = strings.ReplaceAll(classes, "template: {name: debian}", test.class)
			}
			snapshot := oneHost(8, 32)
			if test.change != nil {
				test.change(snapshot)
			}
			d := decide(t, load(t, class, nodePool("general", "shared", ""), deployment("a", 1, "1", "1Gi", "")), snapshot)
			if len(d.New) != 0 || len(d.Refused) != 1 || !strings.Contains(d.Refused[0].Reason, test.want) {
				t.Errorf("new are %d, refused %v; want none, and %q", len(d.New), d.Refused, test.want)
			}
		})
	}
}

func TestWhichPoolIsUsed(t *testing.T) {
	foreign := strings.Replace(nodePool("foreign", "x", "  weight: 90"), "group: numaform.dev, kind: ProxmoxNodeClass", "group: other.dev, kind: OtherClass", 1)
	tests := []struct {
		name  string
		pools []string
		want  string // name of the pool, or part of the reason
	}{
		{"the heavier", []string{nodePool("light", "shared", ""), nodePool("heavy", "shared", "  weight: 5")}, "heavy"},
		{"the second, if the first is full", []string{nodePool("full", "shared", "  weight: 5\n  limits: {cpu: 0}"), nodePool("other", "shared", "")}, "other"},
		{"not another provider's", []string{foreign}, `NodePool foreign refers to kind "OtherClass" of group "other.dev": set its spec.template.spec.nodeClassRef to a ProxmoxNodeClass of group numaform.dev`},
		{"class that is not there", []string{nodePool("a", "missing", "")}, `ProxmoxNodeClass "missing" does not exist: create it`},
		{"static pool", []string{nodePool("a", "shared", "  replicas: 2")}, "it has spec.replicas"},
		{"mistyped label", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: numaform.dev/instance-famly, operator: In, values: [t1]}]", 1)}, "label numaform.dev/instance-famly, which numaform does not set: did you mean numaform.dev/instance-family?"},
		{"KPP's label", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: karpenter.proxmox.sinextra.dev/instance-family, operator: In, values: [t1]}]", 1)}, "label karpenter.proxmox.sinextra.dev/instance-family, which numaform does not set: karpenter-provider-proxmox sets it: use numaform.dev/instance-family"},
		{"KPP's label of another name", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: karpenter.proxmox.sinextra.dev/instance-cpu-type, operator: In, values: [host]}]", 1)}, "karpenter-provider-proxmox sets it: use numaform.dev/cpu-type"},
		{"a label below numaform's group", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: scheduling.numaform.dev/host-choice, operator: In, values: [one]}]", 1)}, "label scheduling.numaform.dev/host-choice, which numaform does not set"},
		{"KubeNodeSmith's label", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: topology.kubenodesmith.io/pool, operator: In, values: [small]}]", 1)}, "a"},
		{"another of KPP's labels", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: karpenter.proxmox.sinextra.dev/instance-cpu, operator: In, values: [\"4\"]}]", 1)}, "which numaform does not set: it must be one of numaform.dev/instance-family, "},
		{"label of one's own", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: [{key: example.com/instance-famly, operator: In, values: [t1]}]", 1)}, "a"},
		{"startup taints are no obstacle", []string{strings.Replace(nodePool("a", "shared", ""), "requirements: []", "requirements: []\n      startupTaints: [{key: t, effect: NoSchedule}]", 1)}, "a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, append(append([]string{classes}, test.pools...), deployment("a", 1, "1", "1Gi", ""))...)
			d := decide(t, c, lab())
			switch {
			case len(d.New) == 1 && d.New[0].NodePool == test.want:
				if second := decide(t, c, lab(), keep(nil, d)...); len(second.New) != 0 {
					t.Errorf("the second decision makes %+v", second.New)
				}
			case len(d.New) == 0 && strings.Contains(d.Refused[0].Reason, test.want):
			default:
				t.Errorf("new are %+v, refused %v; want %q", d.New, d.Refused, test.want)
			}
		})
	}
}

// TestReasonsAreOfThePoolsThatThePodSelects checks that a pod that selects one pool gets no
// messages about the others.
func TestReasonsAreOfThePoolsThatThePodSelects(t *testing.T) {
	t.Parallel()
	pod := deployment("a", 1, "1", "1Gi", "\n      nodeSelector: {karpenter.sh/nodepool: wanted}\n")
	pools := []string{nodePool("wanted", "missing", ""), nodePool("other", "shared", "  replicas: 2")}
	for _, test := range []struct {
		pools []string
		want  string
	}{
		{pools, "NodePool wanted: its ProxmoxNodeClass \"missing\" does not exist: create it"},
		{pools[1:], "NodePool other: it has spec.replicas, so no nodes are created for pods"},
	} {
		d := decide(t, load(t, append(append([]string{classes}, test.pools...), pod)...), lab())
		if len(d.Refused) != 1 || !strings.HasPrefix(d.Refused[0].Reason, test.want) {
			t.Errorf("refused %v, want %q", d.Refused, test.want)
		}
	}
}

// TestVMsThatDoNotServeAreNotMadeForEver checks that a decision ends, with the pods
// refused, if new VMs lack a label that the scheduler expects of their pool.
func TestVMsThatDoNotServeAreNotMadeForEver(t *testing.T) {
	pool := strings.Replace(nodePool("general", "shared", ""), "requirements: []",
		`requirements: [{key: numaform.dev/numa-nodes, operator: In, values: ["2"]}]`, 1)
	c := load(t, classes, pool, deployment("a", 3, "1", "1Gi", "\n      nodeSelector: {numaform.dev/numa-nodes: \"2\"}\n"), deployment("b", 2, "1", "1Gi", ""))
	d := decide(t, c, lab())
	if d.Placed != 2 || len(d.Refused) != 3 || len(d.New) > 2 {
		t.Errorf("placed are %d on %d VMs, refused %v; want 2 on at most 2, and 3", d.Placed, len(d.New), d.Refused)
	}
	for _, r := range d.Refused {
		if !strings.Contains(r.Reason, "VMs created for such pods did not accept them") {
			t.Errorf("reason %q does not tell that the VMs do not serve", r.Reason)
		}
	}
}

func TestAnyValueOfALabel(t *testing.T) {
	pool := strings.Replace(nodePool("general", "shared", ""), "requirements: []",
		`requirements: [{key: example.com/rack, operator: Exists}, {key: example.com/slot, operator: Gt, values: ["4"]}]`, 1)
	c := load(t, classes, pool, deployment("a", 1, "1", "1Gi", `
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: example.com/rack, operator: Exists}]}]}}}
`))
	d := decide(t, c, lab())
	if len(d.New) != 1 {
		t.Fatalf("refused are %v", d.Refused)
	}
	if diff := cmp.Diff(map[string]string{"example.com/rack": "0", "example.com/slot": "5"}, d.New[0].Spec.Labels); diff != "" {
		t.Errorf("labels differ:\n%s", diff)
	}
	if second := decide(t, c, lab(), keep(nil, d)...); len(second.New) != 0 {
		t.Errorf("the second decision makes %+v", second.New)
	}
}

// TestFullHostIsStillSpreadOver checks that pods still spread over a full host if some of
// our VMs are on it.
func TestFullHostIsStillSpreadOver(t *testing.T) {
	c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 3, "1", "1Gi", spread("a", "topology.kubernetes.io/zone")))
	first := decide(t, c, oneHost(2, 16))
	second := decide(t, c, oneHost(2, 16), keep(nil, first)...)
	if first.Placed != 3 || second.Placed != 3 {
		t.Errorf("the first places %d, the second %d: %v", first.Placed, second.Placed, second.Refused)
	}
}

func TestDecideEnds(t *testing.T) {
	c := load(t, mixed()...)
	if _, err := c.Decide(t.Context(), scheduling.Request{}); err == nil {
		t.Error("no snapshot is no error")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Decide(ctx, scheduling.Request{Snapshot: lab()}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want that the context was canceled", err)
	}
}

func TestPreferencesCanBeIgnored(t *testing.T) {
	c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 6, "100m", "128Mi",
		strings.Replace(spread("a", "kubernetes.io/hostname"), "DoNotSchedule", "ScheduleAnyway", 1)))
	for ignore, want := range map[bool]int{false: 6, true: 1} {
		d, err := c.Decide(t.Context(), scheduling.Request{Snapshot: lab(), IgnorePreferences: ignore})
		if err != nil || len(d.New) != want {
			t.Errorf("ignoring %v makes %d VMs (%v), want %d", ignore, len(d.New), err, want)
		}
	}
}

// TestStrictClass checks that only VMs of a class with wholeCores: Require require whole
// cores.
func TestStrictClass(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		field string
		want  bool
	}{{"", false}, {", wholeCores: Prefer", false}, {", wholeCores: Require", true}} {
		class := strings.Replace(classes, "pinWith: HostAgent}", "pinWith: HostAgent"+test.field+"}", 1)
		d := decide(t, load(t, class, nodePool("general", "dedicated", ""), deployment("a", 1, "1", "1Gi", "")), lab())
		if len(d.New) != 1 || d.New[0].Spec.WholeCores != test.want {
			t.Errorf("with %q new are %+v, refused %v", test.field, d.New, d.Refused)
		}
	}
}
