package real_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// kills is the number of kills of the controller, and killSeed the seed of their times.
var (
	kills    = flag.Int("real.kills", 25, "number of times to kill the controller in TestKillControllerDuringBoots")
	killSeed = flag.Uint64("real.seed", 0, "seed of the times of the kills; 0 means a seed from the clock")
)

// most is the time limit from one kill to the next: a controller gets from nothing to this
// much time.
const most = 20 * time.Second

// TestKillControllerDuringBoots kills the controller at random times while guests boot. In
// the end each pod runs in a guest of its own, each VM was started exactly once and none was
// stopped, and nothing is left after the pods are deleted.
func TestKillControllerDuringBoots(t *testing.T) {
	enginetest.Nightly(t)
	number := *killSeed
	if number == 0 {
		number = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", number)
	rng := rand.New(rand.NewPCG(number, 0))
	power := &powerLog{}
	hosts := []topology.Host{numaHost(t, "one", 9001, 1, 16), numaHost(t, "two", 9002, 1, 16)}
	w := newWorld(t, hosts, smallType, func(c *pvesim.Config) {
		before := c.OnPower
		c.OnPower = func(event pvesim.PowerEvent) {
			before(event)
			power.add(event)
		}
	})
	w.stop()
	w.args = []string{"--leader-elect=false"} // otherwise each controller would first wait for the Lease of the killed one
	w.run()
	w.manifest(strings.Replace(smallPool, "      startupTaints: [{key: example.org/starting, effect: NoSchedule}]\n", "", 1))

	// While the controller is killed, two guests boot, or are about to.
	w.began = time.Now()
	var pods []string
	for i := range *kills {
		for running := w.running(pods); len(pods) < running+2 && len(pods) < 5; {
			name := fmt.Sprintf("pod-%d", len(pods)+1)
			w.pod(name, "100m", "64Mi", apart)
			pods = append(pods, name)
		}
		w.pass(time.Duration(rng.Int64N(int64(most))))
		withDisk := rng.IntN(2) == 0
		w.kill(withDisk)
		w.stage("kill %d (disk lost: %t) landed at: %s", i+1, withDisk, w.portrait())
		w.run()
	}
	for _, pod := range pods {
		w.eventually(joinLimit, func(context.Context) string {
			if w.running([]string{pod}) == 0 {
				return "pod " + pod + " does not run"
			}
			return ""
		})
		w.stage("pod %s runs", pod)
	}
	w.oneVMEach(pods, power)
	for _, pod := range pods {
		w.deletePod(pod)
	}
	w.eventually(joinLimit, func(ctx context.Context) string {
		left, err := w.left(ctx)
		if err != nil {
			return err.Error()
		}
		if len(left) > 0 {
			return "left: " + strings.Join(left, ", ")
		}
		return ""
	})
	w.stage("nothing is left")
	if started := power.of(pvesim.PoweredOn); len(started) != len(pods) {
		t.Errorf("the VMs %v were started, want one for each of %d pods", started, len(pods))
	}
}

// oneVMEach checks that VMs, NodeClaims and Nodes are the same, one for each pod, and that
// each VM was started exactly once, and none stopped.
func (w *world) oneVMEach(pods []string, power *powerLog) {
	w.t.Helper()
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&claims, &nodes} {
		if err := w.api.List(w.t.Context(), list); err != nil {
			w.t.Fatal(err)
		}
	}
	var claimed, joined, made, used []string
	for i := range claims.Items {
		claimed = append(claimed, claims.Items[i].Name)
	}
	for i := range nodes.Items {
		joined = append(joined, nodes.Items[i].Name)
	}
	var vmids []int
	for _, guest := range w.proxmox.Guests() {
		if marker, ok := fleet.ParseMarker(guest.Config["description"]); ok && marker.ClusterID == clusterID {
			made = append(made, guest.Config["name"])
			vmids = append(vmids, guest.VMID)
		}
	}
	for _, name := range pods {
		var pod corev1.Pod
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &pod); err != nil {
			w.t.Fatal(err)
		}
		used = append(used, pod.Spec.NodeName)
	}
	for _, names := range [][]string{claimed, joined, made, used} {
		slices.Sort(names)
	}
	if !slices.Equal(claimed, made) || !slices.Equal(joined, made) || !slices.Equal(used, made) {
		w.t.Errorf("NodeClaims %v, Nodes %v, VMs %v and the nodes of the pods %v differ", claimed, joined, made, used)
	}
	slices.Sort(vmids)
	started := power.of(pvesim.PoweredOn)
	slices.Sort(started)
	if !slices.Equal(started, vmids) {
		w.t.Errorf("VMs were started %v, want each of %v once", started, vmids)
	}
	if stopped := slices.Concat(power.of(pvesim.PoweredOff), power.of(pvesim.Destroyed)); len(stopped) > 0 {
		w.t.Errorf("VMs were stopped or destroyed: %v", stopped)
	}
}

// powerLog records the power events of guests.
type powerLog struct {
	// mu guards events.
	mu     sync.Mutex
	events []pvesim.PowerEvent
}

func (p *powerLog) add(event pvesim.PowerEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
}

// of returns the VMIDs of the events of a kind, in order.
func (p *powerLog) of(kind pvesim.PowerKind) (vmids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, event := range p.events {
		if event.Kind == kind {
			vmids = append(vmids, event.Guest.VMID)
		}
	}
	return vmids
}

// apart makes each pod require a separate node.
func apart(pod *corev1.Pod) {
	pod.Labels = map[string]string{"group": "apart"}
	pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		}},
	}}
}

// running returns how many of the pods run.
func (w *world) running(names []string) (n int) {
	w.t.Helper()
	for _, name := range names {
		var pod corev1.Pod
		if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &pod); err != nil {
			w.t.Fatal(err)
		}
		if slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Ready }) {
			n++
		}
	}
	return n
}

// pass waits, and checks that the controller does not exit in the meantime.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.controller.done:
		w.t.Fatalf("the controller exited unexpectedly: %v", w.controller.err)
	}
}

// kill kills the controller with SIGKILL. If withDisk is set, its child processes are killed
// as well, and its disk is lost.
func (w *world) kill(withDisk bool) {
	w.t.Helper()
	p := w.controller
	if err := p.command.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	<-p.done
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("the log of a killed controller:\n%s", &p.log)
		}
	})
	if !withDisk {
		return
	}
	if err := testenv.LoseDisk(w.t.Context(), filepath.Join(w.dir, "fleet")); err != nil {
		w.t.Fatal(err)
	}
}

// portrait describes the VMs, the nodes and how far the guests have booted.
func (w *world) portrait() string {
	w.t.Helper()
	var claims karpv1.NodeClaimList
	if err := w.api.List(w.t.Context(), &claims); err != nil {
		w.t.Fatal(err)
	}
	var vms, said []string
	for _, guest := range w.proxmox.Guests() {
		marker, ok := fleet.ParseMarker(guest.Config["description"])
		if !ok || marker.ClusterID != clusterID {
			continue
		}
		state := "stopped"
		if guest.Running {
			state = "started"
			console, _ := w.console(guest.VMID) // it may stop at any time
			for _, milestone := range bootMilestones() {
				if strings.Contains(console, milestone.text) {
					state = milestone.says
				}
			}
		}
		vms = append(vms, fmt.Sprintf("%d: %s", guest.VMID, state))
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		state := "new"
		for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
			if claim.StatusConditions().IsTrue(condition) {
				state = condition
			}
		}
		said = append(said, claim.Name+": "+state)
	}
	return fmt.Sprintf("VMs [%s], NodeClaims [%s]", strings.Join(vms, ", "), strings.Join(said, ", "))
}
