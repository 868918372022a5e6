package scheduling_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

// overlay returns a NodeOverlay for the nodes that meet the requirements.
func overlay(name, requirements, more string) string {
	return fmt.Sprintf(`
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: %s}
spec:
  requirements: [%s]
%s
---
`, name, requirements, more)
}

// refusedOverlay is the status of an overlay that Karpenter's controller found invalid.
const refusedOverlay = `
status:
  conditions: [{type: Ready, status: "False", reason: Conflict, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}]`

const (
	ofType   = `{key: node.kubernetes.io/instance-type, operator: In, values: [%s]}`
	onZone   = `{key: topology.kubernetes.io/zone, operator: In, values: [%s]}`
	twoFPGAs = `  capacity: {example.com/fpga: "2"}`
	threeCPU = "3"
)

// fpga returns a deployment of pods that each request an FPGA.
func fpga(replicas int) string {
	return strings.Replace(deployment("a", replicas, "1", "1Gi", ""), "memory: 1Gi}}", `memory: 1Gi, example.com/fpga: "1"}, limits: {example.com/fpga: "1"}}`, 1)
}

func decideOverlaid(t *testing.T, c *scheduling.Cluster, kept ...fleet.VM) *scheduling.Decision {
	t.Helper()
	d, err := c.Decide(context.Background(), scheduling.Request{ClusterID: "test", Snapshot: lab(), Existing: kept, Overlays: true})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestOverlaidDecisions(t *testing.T) {
	const cheapest = "c1.4VCPU-8GB"
	pods := deployment("a", 1, threeCPU, "5Gi", "")
	dear := overlay("dear", fmt.Sprintf(ofType, cheapest), `  priceAdjustment: "+300%"`)
	tests := []struct {
		name     string
		overlays []string
		pods     string
		wantType string // of the only VM
		wantHost string // or any
		refused  string
	}{
		{name: "none", pods: pods, wantType: cheapest},
		{name: "the cheapest type is made dear", overlays: []string{dear}, pods: pods, wantType: "t1.4VCPU-12GB"},
		{name: "a larger one costs nothing", overlays: []string{overlay("free", fmt.Sprintf(ofType, "m1.16VCPU-128GB"), `  price: "0"`)}, pods: pods, wantType: "m1.16VCPU-128GB"},
		{name: "a refused one", overlays: []string{strings.Replace(dear, "\n---", refusedOverlay+"\n---", 1)}, pods: pods, wantType: cheapest},
		{name: "of another pool", overlays: []string{overlay("dear", `{key: karpenter.sh/nodepool, operator: In, values: [other]}`, `  price: "9"`)}, pods: pods, wantType: cheapest},
		{
			name:     "the heaviest decides",
			overlays: []string{dear, overlay("light", fmt.Sprintf(ofType, cheapest), "  weight: 10\n  priceAdjustment: \"-1%\"")},
			pods:     pods, wantType: cheapest,
		},
		{name: "a host is cheap", overlays: []string{overlay("cheap", fmt.Sprintf(onZone, "xeon"), `  priceAdjustment: "-5%"`)}, pods: pods, wantType: cheapest, wantHost: "xeon"},
		{name: "another host is cheap", overlays: []string{overlay("cheap", fmt.Sprintf(onZone, "ryzen"), `  priceAdjustment: "-5%"`)}, pods: pods, wantType: cheapest, wantHost: "ryzen"},
		{name: "nobody has the resource", pods: fpga(1), refused: "example.com/fpga"},
		{name: "one type has the resource", overlays: []string{overlay("fpga", fmt.Sprintf(ofType, "s1.8VCPU-32GB"), twoFPGAs)}, pods: fpga(2), wantType: "s1.8VCPU-32GB"},
		{name: "one host has the resource", overlays: []string{overlay("fpga", fmt.Sprintf(onZone, "ryzen"), twoFPGAs)}, pods: fpga(2), wantType: cheapest, wantHost: "ryzen"},
		{name: "and another one", overlays: []string{overlay("fpga", fmt.Sprintf(onZone, "epyc"), twoFPGAs)}, pods: fpga(2), wantType: cheapest, wantHost: "epyc"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, append(test.overlays, classes, nodePool("general", "shared", ""), test.pods)...)
			d := decideOverlaid(t, c)
			if test.refused != "" {
				if len(d.Refused) != 1 || !strings.Contains(d.Refused[0].Reason, test.refused) {
					t.Fatalf("refused are %v", d.Refused)
				}
				return
			}
			if len(d.New) != 1 || len(d.Refused) != 0 {
				t.Fatalf("%d VMs, refused %v", len(d.New), d.Refused)
			}
			if got := d.New[0]; got.Spec.InstanceType != test.wantType || test.wantHost != "" && string(got.Placement.Host.Host) != test.wantHost {
				t.Errorf("the VM is %s on %s", got.Spec.InstanceType, got.Placement.Host)
			}
			if again := decideOverlaid(t, c, keep(nil, d)...); len(again.New) != 0 || again.Placed != again.Asked {
				t.Errorf("the second decision makes %d VMs and places %d of %d", len(again.New), again.Placed, again.Asked)
			}
			plain := decide(t, load(t, classes, nodePool("general", "shared", ""), test.pods), lab())
			if closed := decide(t, c, lab()); !cmp.Equal(plain, closed) {
				t.Errorf("with the gate closed, overlays count:\n%s", cmp.Diff(plain, closed))
			}
		})
	}
}

// TestOverlaidFlexibleNode checks that a node is shrunk to its pods although they need a
// resource that no size has.
func TestOverlaidFlexibleNode(t *testing.T) {
	t.Parallel()
	flexible := strings.Replace(classes, "template: {name: debian}", "template: {name: debian}\n  sizing: {policy: Flexible}", 1)
	c := load(t, flexible, nodePool("general", "shared", ""), fpga(2), overlay("fpga", "", twoFPGAs))
	d := decideOverlaid(t, c)
	if len(d.New) != 1 || d.New[0].Spec.VCPUs > 3 || d.Placed != 2 {
		t.Fatalf("%d of 2 placed on %+v", d.Placed, d.New)
	}
	if again := decideOverlaid(t, c, keep(nil, d)...); len(again.New) != 0 || again.Placed != 2 {
		t.Errorf("the second decision makes %d VMs and places %d", len(again.New), again.Placed)
	}
}

func TestBadOverlaysInFiles(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		`{requirements: [], price: cheap}`:                                   `NodeOverlay "o": spec.price "cheap" is not a number`,
		`{requirements: [], priceAdjustment: "+x%"}`:                         `spec.priceAdjustment "+x%" is not a number`,
		`{requirements: [], capacity: {cpu: "1"}}`:                           "cpu",
		`{requirements: [{key: kubernetes.io/hostname, operator: Nothing}]}`: "Nothing",
	} {
		file := filepath.Join(t.TempDir(), "overlay.yaml")
		text := "apiVersion: karpenter.sh/v1alpha1\nkind: NodeOverlay\nmetadata: {name: o}\nspec: " + spec + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := scheduling.Load([]string{file}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// TestOverlaidClaims checks the instance types that Karpenter gets for a NodePool, and the
// VMs for Karpenter's own NodeClaims.
func TestOverlaidClaims(t *testing.T) {
	t.Parallel()
	const sized = "s1.8VCPU-32GB"
	c := load(t, classes, nodePool("general", "shared", ""),
		overlay("fpga", fmt.Sprintf(ofType, sized)+", "+fmt.Sprintf(onZone, "ryzen, xeon"), twoFPGAs),
		overlay("cheap", fmt.Sprintf(onZone, "xeon"), `  price: "0.001"`))
	request := scheduling.Request{ClusterID: "test", Snapshot: lab(), Overlays: true}
	claim := ofKarpenter("3")
	claim.Spec.Resources.Requests["example.com/fpga"] = resource.MustParse("1")
	specs, err := c.Resolve(t.Context(), request, claim)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, spec := range specs {
		got = append(got, fmt.Sprint(spec.InstanceType, spec.Hosts))
	}
	if diff := cmp.Diff([]string{sized + "[lab/xeon]", sized + "[lab/ryzen]"}, got); diff != "" {
		t.Errorf("resolved (-want +got):\n%s", diff)
	}
	types, err := c.InstanceTypes(t.Context(), request, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range types {
		for _, o := range it.Offerings {
			zone := o.Zone()
			if (o.Price == 0.001) != (zone == "xeon") {
				t.Errorf("%s on %s costs %g", it.Name, zone, o.Price)
			}
			if has := len(o.CapacityOverride) > 0; has != (it.Name == sized && zone != "epyc") {
				t.Errorf("%s on %s has %v", it.Name, zone, o.CapacityOverride)
			}
		}
	}
}

// TestKindsWithoutNamespace checks against the CRDs which kinds have no namespace: an
// object of such a kind has none, whatever its manifest says.
func TestKindsWithoutNamespace(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../charts/numaform/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	compared := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Scope string
				Names struct{ Kind string }
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		kind := crd.Spec.Names.Kind
		if !slices.Contains(scheduling.ReadKinds(), kind) {
			continue
		}
		compared++
		if got := slices.Contains(scheduling.ClusterKinds(), kind); got != (crd.Spec.Scope == "Cluster") {
			t.Errorf("%s is of scope %s; without a namespace here: %t", kind, crd.Spec.Scope, got)
		}
	}
	if compared < 5 {
		t.Errorf("compared %d kinds", compared)
	}

	dear := overlay("dear", "", `  price: "9"`)
	file := filepath.Join(t.TempDir(), "overlays.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(dear, "{name: dear}", "{name: dear, namespace: team}", 1)+dear), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := scheduling.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	request := scheduling.Request{ClusterID: "test", Snapshot: lab(), Overlays: true}
	if _, err := scheduling.FromObjects(objects).Decide(t.Context(), request); err == nil || !strings.Contains(err.Error(), "duplicate NodeOverlay dear: ") {
		t.Errorf("got %v, want a duplicate NodeOverlay dear", err)
	}
}
