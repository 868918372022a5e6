package scale_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	profiles = flag.String("scale.profiles", "", "directory for profiles and logs of the controller")
)

// defaultSize is the size to which the limits apply. With 4/100/5000/20000, the controller
// and the API server need more than 20 GiB together.
const defaultSize = "2/20/1000/4000"

// TestScale measures the resources that the controller of a large fleet uses: after the start,
// when idle, after a restart, for one more VM and its removal, and for a burst and its
// removal. With the default size, it checks that they are within limits.
func TestScale(t *testing.T) {
	enginetest.Nightly(t)
	var s size
	if _, err := fmt.Sscanf(*sizeFlag, "%d/%d/%d/%d", &s.regions, &s.hosts, &s.vms, &s.pods); err != nil {
		t.Fatalf("-scale.size %s: %v", *sizeFlag, err)
	}
	w := newWorld(t, s)
	w.slow(10 * time.Millisecond)

	c := w.begin("start")
	w.firstRead()
	c.profile("idle.heap", "/debug/pprof/heap")
	w.measure("idle, 1 min", c, func() map[string]float64 {
		wait := c.cpuProfile("idle.cpu", time.Minute)
		<-time.After(time.Minute)
		wait()
		return nil
	})
	c.kill(syscall.SIGTERM)
	w.topology()
	c = w.begin("restart")
	w.scaleUp("1 VM", c, 1)
	w.scaleDown("1 VM removed", c)
	if *burst > 0 {
		w.scaleUp("burst", c, *burst)
		w.scaleDown("burst removed", c)
	}
	w.summarize()
}

// begin starts the controller and reports two phases: until it is ready, and until it is
// idle.
func (w *world) begin(name string) *controller {
	w.t.Helper()
	w.reset()
	writes := w.writes()
	c := w.start(name)
	c.ready()
	w.report(name, c, usage{}, c.began, map[string]float64{"ready-s": time.Since(c.began).Seconds()}, nil)
	wait := c.cpuProfile(name+".cpu", 30*time.Second)
	c.settled()
	wait()
	w.report(name+", until idle", c, usage{}, c.began, map[string]float64{
		"idle-s": time.Since(c.began).Seconds() - quietChecks, "kubernetes": float64(c.toKubernetes()),
	}, minus(w.writes(), writes))
	return c
}

// firstRead logs the duration of the first reading of all guests. It fails the test if
// guests were reread unnecessarily, or if a Proxmox cluster received more than 3 requests
// at once.
func (w *world) firstRead() {
	w.t.Helper()
	slowest, templates, others := time.Duration(0), 0, 0
	for _, sim := range w.sims {
		isTemplate := map[string]bool{}
		for _, guest := range sim.Guests() {
			isTemplate[strconv.Itoa(guest.VMID)] = guest.Config["template"] == "1"
		}
		first := map[string]time.Time{}
		calls := sim.Calls()
		calls = slices.DeleteFunc(calls, func(call pvesim.Call) bool { return call.Agent != ownAgent })
		var ended time.Time
		for _, call := range calls {
			guest, found := strings.CutSuffix(call.Path, "/config")
			if !found || !strings.Contains(guest, "/qemu/") {
				continue
			}
			if _, known := first[guest]; !known {
				first[guest], ended = call.Time, call.Time
				continue
			}
			if isTemplate[path.Base(guest)] {
				templates++
			} else {
				others++
			}
		}
		slowest = max(slowest, ended.Sub(calls[0].Time))
		if most := sim.MaxInFlight(); most > 3 {
			w.t.Errorf("%d concurrent requests to one Proxmox cluster, want at most 3", most)
		}
	}
	w.rows["start"]["snapshot-s"] = slowest.Seconds()
	w.t.Logf("first reading of Proxmox: %.2f s in the slowest region, %d templates and %d other guests reread", slowest.Seconds(), templates, others)
	// The controller rereads stopped guests when it queries the hosts: for its first decision
	// and for the first sweep of seeds. Only the templates are stopped.
	if templates > 2*len(w.hosts) || others > 0 {
		w.t.Errorf("%d templates and %d other guests were reread although nothing changed, want at most %d and 0", templates, others, 2*len(w.hosts))
	}
}

// topology reports the duration of reading all of Proxmox while nothing else runs.
func (w *world) topology() {
	w.t.Helper()
	w.reset()
	command := exec.Command(w.binary, "topology", "--config", "numaform.yaml", "-o", "json")
	command.Dir, command.Env = w.dir, w.environ("topology")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	began := time.Now()
	if err := command.Run(); err != nil {
		w.t.Fatalf("%v: %s", err, stderr.Bytes())
	}
	took := time.Since(began)
	slowest := time.Duration(0)
	for _, sim := range w.sims {
		calls := sim.Calls()
		slowest = max(slowest, calls[len(calls)-1].Time.Sub(calls[0].Time))
	}
	w.rows["topology"] = map[string]float64{"snapshot-s": slowest.Seconds(), "s": took.Seconds()}
	w.t.Logf("reading Proxmox with numaform topology: %.2f s in the slowest region, %.2f s in total", slowest.Seconds(), took.Seconds())
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
	before, kube, writes, began := c.usage(), c.toKubernetes(), w.writes(), time.Now()
	f := do()
	if f == nil {
		f = map[string]float64{}
	}
	f["kubernetes"] = float64(c.toKubernetes() - kube)
	w.report(name, c, before, began, f, minus(w.writes(), writes))
}

// report logs and stores the resources used since before, the requests to Proxmox since
// reset, and writes, the write requests to the API server.
func (w *world) report(name string, c *controller, before usage, began time.Time, f map[string]float64, writes map[string]int) {
	w.t.Helper()
	w.rows[name] = f
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
	for _, n := range writes {
		f["writes"] += float64(n)
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&text, "  %s %.2f", key, f[key])
	}
	w.t.Logf("%s:%s%s%s", name, text.String(), listed(own), listed(writes))
	for _, limit := range limits {
		if *sizeFlag == defaultSize && limit.row == name && f[limit.figure] > limit.most {
			w.t.Errorf("%s: %s is %.2f, want at most %v", name, limit.figure, f[limit.figure], limit.most)
		}
	}
}

// summarize logs the most important figures.
func (w *world) summarize() {
	w.t.Helper()
	idle, up := w.rows["idle, 1 min"], w.rows["burst"]
	lines := []struct {
		what  string
		value float64
	}{
		{"first reading of Proxmox while the controller starts, slowest region, s", w.rows["start"]["snapshot-s"]},
		{"reading Proxmox with numaform topology, slowest region, s", w.rows["topology"]["snapshot-s"]},
		{"memory when idle, MiB", idle["MiB"]},
		{"idle minute: CPU, cores", idle["cpu-s"] / idle["s"]},
		{"idle minute: requests to Proxmox", idle["requests"]},
		{"idle minute: requests to Kubernetes", idle["kubernetes"]},
		{"idle minute: of these, writes except Leases", idle["writes"]},
		{"restart to ready, s", w.rows["restart"]["ready-s"]},
		{"restart to idle, s", w.rows["restart, until idle"]["idle-s"]},
		{"1 VM: start of the VM, s", w.rows["1 VM"]["last-start-s"]},
	}
	if up != nil {
		least := up["engine-cpu-s"] / float64(runtime.NumCPU())
		lines = append(lines, []struct {
			what  string
			value float64
		}{
			{fmt.Sprintf("burst of %d VMs: first clone, s", *burst), up["first-clone-s"]},
			{"burst: last start, s", up["last-start-s"]},
			{"burst: CPU of the controller, s", up["cpu-s"]},
			{"burst: CPU of the engines, s", up["engine-cpu-s"]},
			{fmt.Sprintf("burst: least time of the engines on %d CPUs, s", runtime.NumCPU()), least},
			{"burst: last start / least time", up["last-start-s"] / least},
		}...)
	}
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "\n| %s | %.2f |", line.what, line.value)
	}
	w.t.Logf("%d VMs on %d hosts, %d pods:%s", w.size.vms, w.size.hosts, w.size.pods, text.String())
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
		wait := c.cpuProfile("up-"+strconv.Itoa(vms)+".cpu", 10*time.Second+time.Duration(vms)*time.Second/2)
		defer wait()
		began := time.Now()
		w.pending(vms)
		var starts []pvesim.Call
		c.until(fmt.Sprintf("%d VMs are started", vms), 20*time.Minute, func() bool {
			starts = w.matching("POST", "/status/start")
			return len(starts) >= vms
		})
		earlier := func(a, b pvesim.Call) int { return a.Time.Compare(b.Time) }
		f := map[string]float64{"last-start-s": slices.MaxFunc(starts, earlier).Time.Sub(began).Seconds()}
		if clones := w.matching("POST", "/clone"); len(clones) > 0 {
			f["first-clone-s"] = slices.MinFunc(clones, earlier).Time.Sub(began).Seconds()
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
