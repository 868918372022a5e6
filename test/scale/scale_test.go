package scale_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
)

var (
	sizeFlag = flag.String("scale.size", defaultSize, "numbers of regions, hosts, VMs and pods")
	burst    = flag.Int("scale.burst", 20, "number of VMs in the burst")
	flags    = flag.String("scale.flags", "", "additional flags of the controller, separated by spaces")
	profiles = flag.String("scale.profiles", "", "directory for profiles of the controller")
)

// defaultSize is the size to which the limits apply. With 4/100/5000/20000, the controller
// and the API server need more than 20 GiB together.
const defaultSize = "2/20/1000/4000"

// TestScale measures the resources that the controller of a large fleet uses: after the start,
// when idle, for one more VM and its removal, and for a burst and its removal. With the
// default size, it checks that they are within limits.
func TestScale(t *testing.T) {
	enginetest.Nightly(t)
	var s size
	if _, err := fmt.Sscanf(*sizeFlag, "%d/%d/%d/%d", &s.regions, &s.hosts, &s.vms, &s.pods); err != nil {
		t.Fatalf("-scale.size %s: %v", *sizeFlag, err)
	}
	w := newWorld(t, s)
	w.slow(10 * time.Millisecond)

	w.reset()
	c := w.start("first")
	c.ready()
	w.report("start", c, usage{}, c.began, map[string]float64{"ready-s": time.Since(c.began).Seconds()})
	wait := c.cpuProfile("start.cpu", 30*time.Second)
	c.settled()
	wait()
	w.firstRead()
	w.report("start, until idle", c, usage{}, c.began, map[string]float64{"idle-s": time.Since(c.began).Seconds()})
	c.profile("idle.heap", "/debug/pprof/heap")

	w.measure("idle, 1 min", c, func() map[string]float64 {
		wait := c.cpuProfile("idle.cpu", time.Minute)
		<-time.After(time.Minute)
		wait()
		return nil
	})
	w.scaleUp("1 VM", c, 1)
	w.scaleDown("1 VM removed", c)
	w.scaleUp("burst", c, *burst)
	w.scaleDown("burst removed", c)
}

// firstRead logs the duration of the first reading of all guests. It fails the test if
// guests were reread unnecessarily, or if a Proxmox cluster received more than 3 requests
// at once.
func (w *world) firstRead() {
	w.t.Helper()
	slowest, again := time.Duration(0), 0
	for _, sim := range w.sims {
		first := map[string]time.Time{}
		var begun, ended time.Time
		for _, call := range sim.Calls() {
			if call.Agent != ownAgent || !strings.HasSuffix(call.Path, "/config") || !strings.Contains(call.Path, "/qemu/") {
				continue
			}
			if _, known := first[call.Path]; known {
				again++
				continue
			}
			first[call.Path] = call.Time
			if begun.IsZero() {
				begun = call.Time
			}
			ended = call.Time
		}
		slowest = max(slowest, ended.Sub(begun))
		if most := sim.MaxInFlight(); most > 3 {
			w.t.Errorf("%d concurrent requests to one Proxmox cluster, want at most 3", most)
		}
	}
	w.t.Logf("first reading of the guests: %.2f s in the slowest region, %d guests reread", slowest.Seconds(), again)
	// A decision rereads stopped guests, which are only the templates.
	if decisions := 3; again > decisions*len(w.hosts) {
		w.t.Errorf("%d guests were reread although nothing changed", again)
	}
}

// slow delays each response of Proxmox.
func (w *world) slow(by time.Duration) {
	for _, sim := range w.sims {
		sim.AddFault(pvesim.Fault{Delay: by})
	}
}

func (w *world) reset() {
	for _, sim := range w.sims {
		sim.ResetCalls()
	}
}

// calls returns all requests to Proxmox since reset.
func (w *world) calls() []pvesim.Call {
	var calls []pvesim.Call
	for _, sim := range w.sims {
		calls = append(calls, sim.Calls()...)
	}
	return calls
}

// measure resets the calls, calls do, and reports the resources used.
func (w *world) measure(name string, c *controller, do func() map[string]float64) {
	w.t.Helper()
	w.reset()
	before, kube, began := c.usage(), c.toKubernetes(), time.Now()
	f := do()
	if f == nil {
		f = map[string]float64{}
	}
	f["kubernetes"] = float64(c.toKubernetes() - kube)
	w.report(name, c, before, began, f)
}

// report logs the resources used since before, and the requests to Proxmox since reset.
func (w *world) report(name string, c *controller, before usage, began time.Time, f map[string]float64) {
	w.t.Helper()
	now := c.usage()
	f["s"] = time.Since(began).Seconds()
	f["cpu-s"] = (now.own - before.own).Seconds()
	f["engine-cpu-s"] = (now.children - before.children).Seconds()
	f["MiB"] = float64(now.resident) / (1 << 20)
	f["peak-MiB"] = float64(now.peak) / (1 << 20)
	own, provider := map[string]int{}, 0
	for _, call := range w.calls() {
		if call.Agent == ownAgent {
			own[call.Method+" "+kindOf(call.Path)]++
			f["requests"]++
		} else {
			provider++
		}
	}
	f["provider"] = float64(provider)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&text, "  %s %.2f", key, f[key])
	}
	kinds := slices.SortedFunc(maps.Keys(own), func(a, b string) int { return cmp.Or(own[b]-own[a], strings.Compare(a, b)) })
	for _, kind := range kinds {
		fmt.Fprintf(&text, "\n%6d %s", own[kind], kind)
	}
	w.t.Logf("%s:%s", name, text.String())
	for _, limit := range limits {
		if *sizeFlag == defaultSize && limit.row == name && f[limit.figure] > limit.most {
			w.t.Errorf("%s: %s is %.2f, want at most %v", name, limit.figure, f[limit.figure], limit.most)
		}
	}
}

// limits are the maximum figures for a fleet of the default size. CPU times and memory
// include slack for other programs on the machine. docs/scale.md lists the limits.
var limits = []struct {
	row, figure string
	most        float64
}{
	// The two regions are polled twice a minute, with two requests each time. These are 8
	// requests, or 12 if a third round falls into the minute.
	{"idle, 1 min", "requests", 12},
	{"idle, 1 min", "provider", 0},
	{"idle, 1 min", "cpu-s", 25},
	{"start, until idle", "MiB", 1024},
	{"start", "ready-s", 30},
	{"1 VM", "requests", 130},
	{"1 VM", "engine-cpu-s", 2},
}

// TestPageListsTheLimits checks that docs/scale.md lists every limit.
func TestPageListsTheLimits(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(enginetest.ModuleRoot(t), "docs", "scale.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range limits {
		if line := fmt.Sprintf("| %s | %s | %v |", limit.row, limit.figure, limit.most); !strings.Contains(string(page), line) {
			t.Errorf("docs/scale.md has no line beginning with %q", line)
		}
	}
}

// ownAgent is the User-Agent of numaform's own client of Proxmox.
const ownAgent = "numaform"

// kindOf returns a path in Proxmox without the names of hosts, guests, tasks and volumes.
func kindOf(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		_, err := strconv.Atoi(part)
		if err == nil || (i > 0 && slices.Contains([]string{"nodes", "tasks", "content"}, parts[i-1])) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

// pending creates pods that the scheduler reported as unschedulable.
func (w *world) pending(n int) {
	w.t.Helper()
	ctx := context.Background()
	labels := map[string]string{"app": "new"}
	w.each(n, func(i int) error {
		pod := newPod(fmt.Sprintf("new-%d", i), "1200m", "4Gi")
		pod.Labels = labels
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}}
		if err := w.api.Create(ctx, pod); err != nil {
			return err
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		return w.api.Status().Update(ctx, pod)
	})
}

// matching returns the successful calls with a method and with a path that ends with suffix.
func (w *world) matching(method, suffix string) []pvesim.Call {
	return slices.DeleteFunc(w.calls(), func(call pvesim.Call) bool {
		return call.Method != method || !strings.HasSuffix(call.Path, suffix) || call.Status != http.StatusOK
	})
}

// scaleUp creates pods that need the given number of VMs and measures until the last VM is
// started.
func (w *world) scaleUp(name string, c *controller, vms int) {
	w.t.Helper()
	w.measure(name, c, func() map[string]float64 {
		wait := c.cpuProfile("up-"+strconv.Itoa(vms)+".cpu", 10*time.Second)
		defer wait()
		began := time.Now()
		w.pending(vms)
		c.until(fmt.Sprintf("%d VMs are started", vms), 20*time.Minute, func() bool { return len(w.matching("POST", "/status/start")) >= vms })
		f := map[string]float64{"last-start-s": time.Since(began).Seconds()}
		if clones := w.matching("POST", "/clone"); len(clones) > 0 {
			f["first-clone-s"] = slices.MinFunc(clones, func(a, b pvesim.Call) int { return a.Time.Compare(b.Time) }).Time.Sub(began).Seconds()
			f["clones"] = float64(len(clones))
		}
		return f
	})
}

// scaleDown deletes the pending pods and the NodeClaims without Nodes, and measures until
// the last VM is deleted.
func (w *world) scaleDown(name string, c *controller) {
	w.t.Helper()
	c.settled()
	ctx := context.Background()
	if err := w.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("default"), client.MatchingLabels{"app": "new"}, client.GracePeriodSeconds(0)); err != nil {
		w.t.Fatal(err)
	}
	var list karpv1.NodeClaimList
	if err := w.api.List(ctx, &list); err != nil {
		w.t.Fatal(err)
	}
	claims := slices.DeleteFunc(list.Items, func(claim karpv1.NodeClaim) bool { return claim.Status.NodeName != "" })
	w.measure(name, c, func() map[string]float64 {
		w.each(len(claims), func(i int) error { return client.IgnoreNotFound(w.api.Delete(ctx, &claims[i])) })
		c.until("the VMs are deleted", 20*time.Minute, func() bool {
			var list karpv1.NodeClaimList
			return w.api.List(ctx, &list) == nil && len(list.Items) == len(w.vms)
		})
		return nil
	})
	c.settled()
}
