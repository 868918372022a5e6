package scheduling_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// virtual returns virtual pods as Karpenter creates them, the last one first.
func virtual(n int, cpu string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		name := fmt.Sprintf("capacity-buffer-b-%d", n-i)
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now()},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}}}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
		})
	}
	return pods
}

func decideFor(t *testing.T, c *scheduling.Cluster, snapshot *topology.Snapshot, pods []*corev1.Pod, kept ...fleet.VM) *scheduling.Decision {
	t.Helper()
	d, err := c.Decide(t.Context(), scheduling.Request{ClusterID: "test", Snapshot: snapshot, Existing: kept, Virtual: pods})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestVirtualPodsGetRoom checks that virtual pods get VMs, once.
func TestVirtualPodsGetRoom(t *testing.T) {
	t.Parallel()
	c := load(t, classes, nodePool("general", "shared", ""), deployment("a", 2, "1", "1Gi", ""))
	d := decideFor(t, c, lab(), virtual(3, "1500m"))
	if d.Asked != 5 || d.Placed != 5 || len(d.New) == 0 {
		t.Fatalf("asked %d, placed %d on %d VMs, refused %v", d.Asked, d.Placed, len(d.New), d.Refused)
	}
	vcpus := 0
	for _, n := range d.New {
		vcpus += n.Spec.VCPUs
	}
	if vcpus < 7 {
		t.Errorf("%d vCPUs are made for 6.5", vcpus)
	}
	if again := decideFor(t, c, lab(), virtual(3, "1500m"), keep(nil, d)...); len(again.New) != 0 || again.Placed != 5 {
		t.Errorf("the second decision makes %d VMs and places %d", len(again.New), again.Placed)
	}
	if fewer := decideFor(t, c, lab(), nil); fewer.Asked != 2 {
		t.Errorf("without them, %d pods ask", fewer.Asked)
	}
}

// TestVirtualPodsComeLast checks that real pods get a host's room, although the virtual pods
// are larger and have constraints over hosts.
func TestVirtualPodsComeLast(t *testing.T) {
	t.Parallel()
	for _, bound := range []bool{false, true} {
		pods := virtual(2, "6")
		for _, pod := range pods {
			if bound {
				pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "solo"}
			}
			pod.CreationTimestamp = metav1.Time{Time: time.Unix(0, 0)}
		}
		c := load(t, classes, nodePool("general", "shared", ""), deployment("real", 3, "3", "1Gi", ""))
		d := decideFor(t, c, oneHost(8, 32), pods)
		refused := 0
		for _, r := range d.Refused {
			if !strings.HasPrefix(r.Pod.Name, "capacity-buffer-") || r.Reason == "" {
				t.Errorf("%s is refused: %s", r.Pod, r.Reason)
			}
			refused++
		}
		if refused == 0 {
			t.Error("all have room: the test's numbers do not fit together")
		}
	}
}
