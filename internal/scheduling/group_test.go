package scheduling_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/internal/scheduling"
)

// drawAlike draws NodePools and many pods of few kinds, most of which do not count
// others.
func drawAlike(t *rapid.T) string {
	pick := func(name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
	pinned := strings.Replace(nodePool("pinned", "dedicated", pick("pinned limits", "", "  weight: 10", "  weight: 10\n  limits: {nodes: 2}")), "requirements: []",
		pick("taint", "requirements: []", "requirements: []\n      taints: [{key: pinned, effect: NoSchedule}]", "requirements: []\n      taints: [{key: soft, effect: PreferNoSchedule}]"), 1)
	all := classes + pinned + strings.Replace(nodePool("general", "shared", pick("limits", "", "", "  limits: {cpu: 40}", "  limits: {memory: 90Gi}", "  limits: {nodes: 3}")),
		"requirements: []", `requirements:
      - {key: example.com/team, operator: In, values: [red, blue]}
      `+pick("values", "", "- {key: node.kubernetes.io/instance-type, operator: Exists, minValues: 3}"), 1)
	if rapid.Bool().Draw(t, "daemonset") {
		all += `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: main, image: example, ports: [{containerPort: 80, hostPort: 80}], resources: {requests: {cpu: 100m, memory: 128Mi}}}]
---
`
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "deployments") {
		name := fmt.Sprintf("d%d", i)
		all += deployment(name, rapid.IntRange(1, 24).Draw(t, "replicas"),
			pick("cpu", "100m", "250m", "250m", "1", "1900m", "7", "20"), pick("memory", "128Mi", "512Mi", "512Mi", "3Gi", "30Gi"),
			pick(
				"constraint", "", "", "", "",
				"\n      nodeSelector: {example.com/team: red}\n",
				"\n      nodeSelector: {topology.kubernetes.io/zone: xeon}\n",
				"\n      nodeSelector: {numaform.dev/instance-family: m1}\n",
				"\n      tolerations: [{key: pinned, operator: Exists}]\n",
				spread(name, "topology.kubernetes.io/zone"),
				preferTeam("blue"), eitherTeam("blue", "red"), eitherTeam("green", "blue"),
			))
	}
	return all
}

func preferTeam(team string) string {
	return fmt.Sprintf(`
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: example.com/team, operator: In, values: [%s]}]}}]}}
`, team)
}

func eitherTeam(a, b string) string {
	term := "{matchExpressions: [{key: example.com/team, operator: In, values: [%s]}]}"
	return fmt.Sprintf(`
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [`+term+", "+term+`]}}}
`, a, b)
}

// Equal pods handled together are placed as each would be by itself, and refused for the
// same reasons.
func TestGroupingChangesNothing(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		manifests, snapshot := drawAlike(t), drawSnapshot(t)
		file := filepath.Join(dir, "manifests.yaml")
		if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
			t.Fatal(err)
		}
		objects, err := scheduling.Load([]string{file})
		if err != nil {
			t.Fatal(err)
		}
		c := scheduling.FromObjects(objects)
		request := scheduling.Request{ClusterID: "test", Snapshot: snapshot, RelaxMinValues: rapid.Bool().Draw(t, "relax")}
		// One decision in four is followed by another, because this takes most of the
		// time.
		for range rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "decisions") {
			single, err := c.Decide(context.Background(), scheduling.Ungrouped(request))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(single, mustDecide(t, c, request)); diff != "" {
				t.Fatalf("grouped pods end differently:\n%s", diff)
			}
			// Some of the VMs exist the next time, and the others are requested again.
			request.Kept = keep(nil, single)
			request.Kept = request.Kept[:len(request.Kept)/2]
		}
	})
}

// Karpenter finds a new place for a pod that requires a label, next to one that excludes
// values of it: such pods must be neither lost nor placed twice.
func TestGroupingWhereLabelsOpenPlaces(t *testing.T) {
	t.Parallel()
	color := func(operator, values string) string {
		return fmt.Sprintf(`
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: example.com/color, operator: %s%s}]}]}}}
`, operator, values)
	}
	general := nodePool("general", "shared", "")
	for _, test := range []struct {
		name      string
		manifests []string
	}{
		{"a label that others must not have, one pod", []string{
			deployment("a", 1, "1900m", "1Gi", color("In", ", values: [blue]")), deployment("b", 4, "250m", "1Gi", color("NotIn", ", values: [red]")),
		}},
		{"a label that others must not have, several", []string{
			deployment("a", 3, "1900m", "1Gi", color("Exists", "")), deployment("b", 4, "250m", "1Gi", color("DoesNotExist", "")),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := load(t, append([]string{classes, general}, test.manifests...)...)
			request := scheduling.Request{ClusterID: "test", Snapshot: lab()}
			single, err := c.Decide(context.Background(), scheduling.Ungrouped(request))
			if err != nil {
				t.Fatal(err)
			}
			grouped, err := c.Decide(context.Background(), request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(single, grouped); diff != "" {
				t.Errorf("grouped pods end differently:\n%s", diff)
			}
		})
	}
}
